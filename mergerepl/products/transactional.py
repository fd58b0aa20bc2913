"""The tasks of transactional publications."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mergerepl.errors import ConfigurationError
from mergerepl.model.progress import Progress
from mergerepl.model.results import ApplyResult, ArticleValidation
from mergerepl.model.tasks import TRANSACTIONAL, Captured, Pending, Removed, Run, Status
from mergerepl.model.transactional import AgentError, Batch, Publication
from mergerepl.places import PUBLISHER, SUBSCRIBER
from mergerepl.roots import TRANSACTIONAL_FOLDER
from mergerepl.sessions import Distribution, distributions
from mergerepl.store.lease import WAIT_S
from mergerepl.store.location import Location
from mergerepl.transactional import Distributor


def _ends(root: Location) -> list[Distribution]:
    """Return the publisher that a folder is, or those whose publications it receives."""
    return distributions([root])


def apply(document: Publication, dry_run: bool, progress: Progress) -> ApplyResult:
    """Publish the tables and initialise the subscribers of a publication."""
    from mergerepl.transactional.publish import apply_publication

    return apply_publication(document, dry_run=dry_run, progress=progress)


def status(root: Location) -> Status:
    """Return publications and subscriptions, and what is wrong with them; at a subscriber its own."""
    (publisher, *_) = {each.publisher for each in _ends(root)} or {root}
    distributor = Distributor(publisher)
    found, warnings = distributor.status(), distributor.warnings(datetime.now(UTC))
    if publisher == root:
        return Status(TRANSACTIONAL, str(root), PUBLISHER, warnings, found)
    subscriptions = tuple(each for each in found.subscriptions if each.subscriber == str(root))
    names = {each.publication for each in subscriptions}
    articles = tuple(each for each in found.articles if each.publication in names)
    own = replace(found, articles=articles, subscriptions=subscriptions)
    mine = tuple(each for each in warnings if each.source == str(root))
    return Status(TRANSACTIONAL, str(root), SUBSCRIBER, mine, own)


def pending(root: Location) -> list[Pending]:
    """Return the commands that wait, by subscription; at a subscriber its own."""
    publishers = _publishers(root)
    found = [row for each in publishers for row in Distributor(each).pending()]
    return [row for row in found if root in publishers or row.subscriber == str(root)]


def _publishers(root: Location) -> list[Location]:
    return sorted({each.publisher for each in _ends(root)})


def history(root: Location, *, failed: bool, limit: int, subscriber: str | None) -> list[Run]:
    """Return the last batches, or why agents stopped and which commands were skipped."""
    publishers = _publishers(root)
    if root not in publishers:
        # A subscriber shows its own runs.
        if subscriber not in (None, str(root)):
            return []
        subscriber = str(root)
    found: list[Run] = []
    for publisher in publishers:
        distributor = Distributor(publisher)
        if failed:
            found += [
                _error(publisher, each) for each in distributor.errors(limit=limit, subscriber=subscriber)
            ]
        else:
            found += [
                _batch(publisher, each) for each in distributor.history(limit=limit, subscriber=subscriber)
            ]
    return found


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


def validate(item: Distribution, *, tables: Collection[str]) -> list[ArticleValidation]:
    """Compare subscribers with the publisher at their positions."""
    found = Distributor(item.publisher).validate(
        subscriber=item.subscriber, publication=item.publication, table=tuple(tables)
    )
    return list(found)


def cleanup(root: Location, *, older_than: timedelta | None, dry_run: bool) -> list[Removed]:
    """Remove commands that all subscriptions have, and those above the longest retention."""
    if root not in _publishers(root):
        return []
    if older_than is not None:
        raise ConfigurationError(
            f"'{root}' is transactional: its cleanup takes the retention of the publications. Leave out `--older-than`, or "
            "choose other kinds with `--only`."
        )
    done = Distributor(root, lock_wait_s=WAIT_S.get()).cleanup(dry_run=dry_run)
    return [Removed(TRANSACTIONAL, str(root), "commands", TRANSACTIONAL_FOLDER, done["commands"])]


def reinit(item: Distribution) -> tuple[str, ...]:
    """Fill subscribers again from a new snapshot."""
    return Distributor(item.publisher, lock_wait_s=WAIT_S.get()).reinit(
        subscriber=item.subscriber, publication=item.publication
    )


def resume(root: Location, name: str) -> bool:
    """Resume the paused table of an article; False if it was not paused."""
    return Distributor(root, lock_wait_s=WAIT_S.get()).resume(name)
