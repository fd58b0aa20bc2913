"""The tasks of change tracking."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.folders import FolderTracking
from mergerepl.model.listing import Listing
from mergerepl.model.products import TRACKING
from mergerepl.model.results import ApplyResult
from mergerepl.model.tasks import CRITICAL, CleanupResult, Removed, Run, Status, StatusWarning
from mergerepl.model.tracking import CommittedTransaction
from mergerepl.places import DATABASE
from mergerepl.store.location import Location
from mergerepl.systables.tracking import FOLDER


def apply(document: FolderTracking, **terms: Any) -> ApplyResult:
    """Make the tracked tables of a folder match a document."""
    from mergerepl.tracking.tracked_tables import apply_tracking

    return apply_tracking(document, **terms)


def status(root: Location, *, alerts: Alerts = DEFAULT) -> Status:
    """Return tables, numbers, open transactions and consumers of a tracked folder, and tables that cannot be read on."""
    from mergerepl.tracking.change_tracking import ChangeTracking

    found = ChangeTracking(root).status()
    warnings = (StatusWarning(name, CRITICAL, text) for name, text in found.problems.items())
    return Status(TRACKING, str(root), DATABASE, tuple(warnings), found)


def history(root: Location, *, failed: bool, limit: int, subscriber: str | None) -> list[Run]:
    """Return the last published transactions; none of them failed."""
    from mergerepl.tracking.change_tracking import ChangeTracking

    if failed or subscriber is not None:
        return []
    return [_run(root, each) for each in ChangeTracking(root).transactions(limit)]


def recent(root: Location, since: datetime) -> list[Run]:
    """Return nothing: transactions are users' own, and their number is not bounded."""
    return []


def count_history(root: Location, *, failed: bool, subscriber: str | None) -> int:
    """Return the number of published transactions."""
    from mergerepl.tracking.change_tracking import ChangeTracking

    return 0 if failed or subscriber is not None else ChangeTracking(root).count_transactions()


TOMBSTONE_RETENTION = timedelta(days=90)


def cleanup(
    root: Location, *, kinds: Collection[str], older_than: timedelta | None, dry_run: bool
) -> CleanupResult:
    """Remove tombstones and transactions past their retention that all registered consumers have passed."""
    from mergerepl.tracking.change_tracking import ChangeTracking

    tracking = ChangeTracking(root)
    if not tracking.consumers():
        note = "no consumer is registered, and applications may hold anchors: `mergerepl tracking purge` names what goes"
        return CleanupResult(
            Listing([Removed(TRACKING, str(root), "tombstones", FOLDER, 0, note=note)]), dry_run
        )
    age = TOMBSTONE_RETENTION if older_than is None else older_than
    done = [
        tracking.purge(name, older_than=age, dry_run=dry_run) for name in (*tracking.tracked_tables(), None)
    ]
    removed = (Removed(TRACKING, str(root), "tombstones", each.target, each.removed) for each in done)
    return CleanupResult(Listing(removed), dry_run)


def _run(root: Location, each: CommittedTransaction) -> Run:
    rows = ", ".join(f"{name} {count:,}" for name, count in sorted(each.changes.items()))
    text = rows + (f", context {each.tracking_context}" if each.tracking_context else "")
    changes = sum(each.changes.values())
    ends = str(root), "", ""
    return Run(
        TRACKING, "transaction", str(each.csn), *ends, each.commit_time, 0.0, "committed", changes, text, each
    )
