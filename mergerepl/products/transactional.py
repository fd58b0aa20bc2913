"""The tasks of transactional publications."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mergerepl.errors import ConfigurationError, EngineError, MergeReplError
from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.conflict_filter import ConflictFilter
from mergerepl.model.delivery import AgentError, Batch, DistributorStatus
from mergerepl.model.listing import Listing
from mergerepl.model.products import TRANSACTIONAL
from mergerepl.model.progress import Progress
from mergerepl.model.results import ApplyResult, ArticleValidation
from mergerepl.model.snapshot import MOST_RUNS
from mergerepl.model.tasks import (
    UNKNOWN,
    Captured,
    CleanupResult,
    Pending,
    Reinit,
    Removed,
    Repair,
    Run,
    Status,
    StatusWarning,
    Vacuumed,
)
from mergerepl.model.transactional import Publication
from mergerepl.places import PUBLISHER, SUBSCRIBER
from mergerepl.sessions.targets import Distribution, distributions
from mergerepl.store.lease import WAIT_S
from mergerepl.store.location import Location
from mergerepl.transactional import Distributor
from mergerepl.transactional.catalog import required, subscriptions_of
from mergerepl.transactional.monitoring import count_runs, warnings_of


def apply(document: Publication, **terms: Any) -> ApplyResult:
    """Publish the tables and initialise the subscribers of a publication."""
    from mergerepl.transactional.publish import apply_publication

    return apply_publication(document, **terms)


def status(root: Location, *, alerts: Alerts = DEFAULT) -> Status:
    """Return publications and subscriptions, and what is wrong with them; at a subscriber its own."""
    publishers = _publishers(root) or [root]
    if root in publishers:
        distributor = Distributor(root)
        warnings = tuple(warnings_of(root, datetime.now(UTC), alerts))
        return Status(TRANSACTIONAL, str(root), PUBLISHER, warnings, distributor.status())
    found, warned = DistributorStatus(", ".join(map(str, publishers)), (), ()), list[StatusWarning]()
    for each in publishers:
        distributor = Distributor(each)
        try:
            of_one, warnings = distributor.status(), tuple(warnings_of(each, datetime.now(UTC), alerts))
        except MergeReplError as error:
            if len(publishers) == 1:
                raise
            warned.append(StatusWarning(str(each), UNKNOWN, error.message))
            continue
        own = tuple(row for row in of_one.subscriptions if row.subscriber == str(root))
        names = {row.publication for row in own}
        articles = tuple(row for row in of_one.articles if row.publication in names)
        found = replace(found, articles=found.articles + articles, subscriptions=found.subscriptions + own)
        warned += [warning for warning in warnings if warning.source == str(root)]
    return Status(TRANSACTIONAL, str(root), SUBSCRIBER, tuple(warned), found)


def pending(root: Location) -> list[Pending]:
    """Return the commands that wait, by subscription; at a subscriber its own."""
    publishers = _publishers(root)
    found = [row for each in publishers for row in Distributor(each).pending()]
    return [row for row in found if root in publishers or row.subscriber == str(root)]


def _publishers(root: Location) -> list[Location]:
    """Return the publisher that a folder is, or those whose publications it receives."""
    return sorted({each.publisher for each in distributions([root])})


def history(root: Location, *, failed: bool, limit: int, subscriber: str | None) -> list[Run]:
    """Return the last batches, or why agents stopped and which commands were skipped."""
    found: list[Run] = []
    for publisher, of in _histories(root, subscriber):
        distributor = Distributor(publisher)
        if failed:
            found += [_error(publisher, each) for each in distributor.errors(limit=limit, subscriber=of)]
        else:
            found += [_batch(publisher, each) for each in distributor.history(limit=limit, subscriber=of)]
    return found


def recent(root: Location, since: datetime) -> list[Run]:
    """Return the batches since a time."""
    found = history(root, failed=False, limit=MOST_RUNS, subscriber=None)
    return [each for each in found if each.time is not None and each.time >= since]


def count_history(root: Location, *, failed: bool, subscriber: str | None) -> int:
    """Return the number of batches, or of stops and skips."""
    ends = _histories(root, subscriber)
    return sum(count_runs(publisher, failed=failed, subscriber=of) for publisher, of in ends)


def _histories(root: Location, subscriber: str | None) -> list[tuple[Location, str | None]]:
    """Return the publishers, with the subscriber whose runs are meant, None for all. A subscriber shows its own runs."""
    publishers = _publishers(root)
    if root in publishers:
        return [(each, subscriber) for each in publishers]
    return [(each, str(root)) for each in publishers] if subscriber in (None, str(root)) else []


def _batch(root: Location, each: Batch) -> Run:
    ends = str(root), "", each.subscriber
    latency = f"latency {each.latency_ms:,} ms" if each.latency_ms else ""
    text = ", ".join(filter(None, (each.comments, latency)))
    times = each.time, float(each.seconds)
    return Run(TRANSACTIONAL, "batch", each.xact_seqno, *ends, *times, each.status, each.commands, text, each)


def _error(root: Location, each: AgentError) -> Run:
    kind, result = ("skip", "skipped") if each.skipped else ("error", "failed")
    ends = str(root), "", each.subscriber
    number = str(each.xact_seqno or each.number)
    is_named = each.number is None or each.text.startswith(str(each.number))
    text = each.text if is_named else f"{each.number}: {each.text}"
    return Run(TRANSACTIONAL, kind, number, *ends, each.time, 0.0, result, 0, text, each)


def capture(root: Location, *, progress: Progress) -> Captured | None:
    """Read the publisher's log, for Change Data Capture of the folder, too; None at a subscriber."""
    if root not in _publishers(root):
        return None
    progress.step("read the log")
    done = Distributor(root, lock_wait_s=WAIT_S.get()).capture()
    return Captured(TRANSACTIONAL, str(root), done.commands, done.paused, done)


def validate(item: Distribution, *, tables: Collection[str], is_only: bool) -> list[ArticleValidation]:
    """Compare subscribers with the publisher at their positions.

    One that cannot be compared is a row with the error, unless it is the only one of all: then the error is raised.
    """
    try:
        known = subscriptions_of(
            required(item.publisher), subscriber=item.subscriber, publication=item.publication
        )
    except MergeReplError as error:
        if is_only:
            raise
        return [not_compared(item.publication or "", item.subscriber or str(item.publisher), error)]
    found: list[ArticleValidation] = []
    for name, row in known:
        try:
            found += Distributor(item.publisher).validate(
                subscriber=row.subscriber, publication=name, table=tuple(tables)
            )
        except MergeReplError as error:
            if (is_only and len(known) == 1) or isinstance(error, EngineError):
                raise
            found.append(not_compared(name, row.subscriber, error))
    return found


def not_compared(publication: str, subscriber: str, error: MergeReplError) -> ArticleValidation:
    """Return the row of a subscription none of whose articles could be compared."""
    return ArticleValidation(
        *("(all)", "checksum", 0, 0, 0), publication=publication, subscriber=subscriber, error=error.details()
    )


def cleanup(
    root: Location, *, kinds: Collection[str], older_than: timedelta | None, dry_run: bool
) -> CleanupResult:
    """Remove commands that all subscriptions have, those above the longest retention, and conflicts of queued edits."""
    from mergerepl.conflicts.lost_edits import purge_lost_edits, tables_of

    if root not in _publishers(root):
        return CleanupResult(Listing(), dry_run)
    done = CleanupResult(Listing(), dry_run)
    if "commands" in kinds:
        if older_than is not None:
            raise ConfigurationError(
                f"'{root}' is transactional: its commands go by the retention of the publications. Leave out "
                "`--older-than`, or choose other kinds with `--only`."
            )
        done = Distributor(root, lock_wait_s=WAIT_S.get()).cleanup(dry_run=dry_run)
    if "conflicts" in kinds and tables_of(root):
        lost = purge_lost_edits(root, ConflictFilter(), older_than=older_than, dry_run=dry_run)
        removed = Removed(TRANSACTIONAL, str(root), "conflicts", "conflict_<article>", lost.conflicts)
        done = replace(done, removed=Listing([*done.removed, removed]))
    return done


def reinit(item: Distribution) -> tuple[str, ...]:
    """Fill subscribers again from a new snapshot."""
    return Distributor(item.publisher, lock_wait_s=WAIT_S.get()).reinit(
        subscriber=item.subscriber, publication=item.publication
    )


def reinit_articles(item: Distribution, tables: Sequence[str], *, dry_run: bool) -> list[Reinit]:
    """Fill some articles of subscribers again; the others stay."""
    done = Distributor(item.publisher, lock_wait_s=WAIT_S.get()).reinit_articles(
        *tables, subscriber=item.subscriber, publication=item.publication, dry_run=dry_run
    )
    return [
        Reinit(
            each.publication,
            each.subscriber,
            each.article,
            each.inserts,
            each.updates,
            each.deletes,
            uploaded=0,
            conflicts=0,
            unsent=0,
            kept=0,
            kept_at=None,
            examples=(),
        )
        for each in done
    ]


def resume(root: Location, name: str) -> bool:
    """Resume the paused table of an article; False if it was not paused."""
    return Distributor(root, lock_wait_s=WAIT_S.get()).resume(name)


def repair(item: Distribution, **terms: Any) -> Listing[Repair]:
    """Make rows of subscribers equal to the publisher's at their positions."""
    return Distributor(item.publisher, lock_wait_s=WAIT_S.get()).repair(
        subscriber=item.subscriber, publication=item.publication, **terms
    )


def vacuum(root: Location, tables: Sequence[str]) -> list[Vacuumed]:
    """Remove old files of published tables that the log reader has read."""
    from mergerepl.products import cdc

    return cdc.vacuum(root, tables)
