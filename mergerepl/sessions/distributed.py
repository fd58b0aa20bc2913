"""The distributions of one `sync`: the log of a publisher is read, then each agent delivers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mergerepl.errors import LeaseError, MergeReplError
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.progress import Progress
from mergerepl.model.results import PhaseCounts, SessionResult
from mergerepl.sessions.targets import Distribution
from mergerepl.store.lease import WAIT_S
from mergerepl.store.rehearsal import rehearsed

if TYPE_CHECKING:
    from mergerepl.systables.transactional import SubscriptionRow
    from mergerepl.transactional.catalog import DistributionStore

T = TypeVar("T")

SILENT_WAIT_S, LOCK_WAIT_S = 2.0, 60.0
"""Seconds that a transactional `sync` waits for another one: before it reports the wait, and after that."""


def failed_session(publication: str, subscriber: str, started: float, error: MergeReplError) -> SessionResult:
    """Return the result of a session that an error ended; `started` is the monotonic clock's time."""
    took = round(time.monotonic() - started, 3)
    return SessionResult(publication, subscriber, "failed", duration_s=took, error=error.details())


def distributed(
    item: Distribution, options: Mapping[str, Any], progress: Progress, *, is_only: bool, dry_run: bool
) -> Iterator[SessionResult]:
    """Read the log of a publisher, then run its distribution agents; each is reported as a session that downloads.

    A dry run does so until the first write, which refuses what the run would refuse, and counts what waits. If `is_only`,
    an error that concerns all of them is raised; else it is a session that failed, and others go on.
    """
    started = time.monotonic()
    try:
        with ExitStack() as stack:
            if not dry_run:
                _saying_who_works(lambda wait_s: _hold(stack, item, wait_s), progress)
            yield from _deliveries(item, options, progress, is_only=is_only, dry_run=dry_run)
    except MergeReplError as error:
        if is_only:
            raise
        name, end = item.publication or item.publisher.name, item.subscriber or str(item.publisher)
        yield failed_session(name, end, started, error)


def _hold(stack: ExitStack, item: Distribution, wait_s: float) -> None:
    from mergerepl.transactional.agents import publisher_held

    stack.enter_context(publisher_held(item.publisher, wait_s))


def _deliveries(
    item: Distribution, options: Mapping[str, Any], progress: Progress, *, is_only: bool, dry_run: bool
) -> Iterator[SessionResult]:
    from mergerepl.systables.transactional import QUEUED
    from mergerepl.transactional import agents
    from mergerepl.transactional.catalog import distributor_at, required, subscriptions_of
    from mergerepl.transactional.distributor import Distributor

    root = item.publisher
    uploads: dict[str, PhaseCounts] = {}
    stopped: dict[str, MergeReplError] = {}
    if not dry_run:
        store = required(root)
        for name, row in subscriptions_of(store, subscriber=item.subscriber, publication=item.publication):
            # Before the log is read: what the publisher takes is in the same sync.
            if row.update_mode == QUEUED:
                progress.step(f"read the edits of {row.subscriber}")
            try:
                queue = partial(agents.read_queue, store, name, row, agents.spark_of(None))
                sent = _saying_who_works(lambda wait_s, run=queue: run(lock_wait_s=wait_s), progress)  # type: ignore[misc]
            except MergeReplError as error:
                stopped[row.subscription_guid] = error
                continue
            uploads[row.subscription_guid] = PhaseCounts(
                sent.inserts, sent.updates, sent.deletes, sent.conflicts
            )
    progress.step("read the log")
    _saying_who_works(
        lambda wait_s: rehearsed(dry_run, Distributor(root, lock_wait_s=wait_s).capture), progress
    )
    distributor = distributor_at(root)
    found = subscriptions_of(distributor, subscriber=item.subscriber, publication=item.publication)
    for name, row in found:
        started = time.monotonic()
        upload = uploads.get(row.subscription_guid, PhaseCounts())
        try:
            if row.subscription_guid in stopped:
                raise stopped[row.subscription_guid]
            progress.step(f"distribute to {row.subscriber}")
            agent = partial(agents.run_agent, distributor, name, row, agents.spark_of(None), **options)
            done = _saying_who_works(
                lambda wait_s, run=agent: rehearsed(dry_run, partial(run, lock_wait_s=wait_s)),  # type: ignore[misc]
                progress,
            )
        except MergeReplError as error:
            if is_only and len(found) == 1:
                raise
            yield failed_session(name, row.subscriber, started, error)
            continue
        if dry_run:
            yield _planned(distributor, name, row, started)
            continue
        yield SessionResult(
            name,
            row.subscriber,
            "succeeded" if done.transactions or upload != PhaseCounts() else "nothing_to_do",
            upload=upload,
            download=PhaseCounts(done.inserts, done.updates, done.deletes),
            duration_s=round(time.monotonic() - started, 3),
        )
        if done.transactions:
            from mergerepl.transactional import cleaning

            if cleaning.clean_up_once_a_day(root):
                from mergerepl.conflicts.lost_edits import purge_lost_edits

                purge_lost_edits(root, ConflictFilter())
    agents.require_read(distributor, item.publication)


def _planned(
    distributor: DistributionStore, publication: str, row: SubscriptionRow, started: float
) -> SessionResult:
    """Return the commands that a distribution would deliver, and the commits that it would read first."""
    from mergerepl.transactional import monitoring

    mine = (publication, row.subscriber)
    waiting = (
        each for each in monitoring.pending(distributor.root) if (each.publication, each.subscriber) == mine
    )
    unread = sum(each.uncaptured_commits for each in waiting)
    articles = monitoring.waiting_commands(distributor, row)
    counts = sum((each.download for each in articles), PhaseCounts())
    return SessionResult(
        publication,
        row.subscriber,
        "planned" if counts.total or unread else "nothing_to_do",
        download=counts,
        articles=tuple(articles),
        duration_s=round(time.monotonic() - started, 3),
        uncaptured_commits=unread,
    )


def _saying_who_works(work: Callable[[float], T], progress: Progress) -> T:
    """Run work that waits for a lock, by default for a minute. After two seconds, report the holder."""
    if wait_s := WAIT_S.get():
        return work(wait_s)
    try:
        return work(SILENT_WAIT_S)
    except LeaseError as error:
        progress.step(f"wait for a minute: {error.message}")
        return work(LOCK_WAIT_S)
