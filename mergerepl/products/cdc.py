"""The tasks of Change Data Capture."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from mergerepl.cdc import Database, monitoring
from mergerepl.cdc.tables import is_shared, tables_at
from mergerepl.delta.tables import count_rows
from mergerepl.logreader.positions import has_log_reader, read_state
from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.cdc import ScanError, ScanSession
from mergerepl.model.folders import Capture
from mergerepl.model.listing import Listing
from mergerepl.model.products import CDC
from mergerepl.model.progress import Progress
from mergerepl.model.results import ApplyResult
from mergerepl.model.snapshot import MOST_RUNS
from mergerepl.model.tasks import Captured, CleanupResult, Removed, Run, Status, Vacuumed
from mergerepl.model.words import counted
from mergerepl.places import DATABASE
from mergerepl.store.lease import WAIT_S
from mergerepl.store.location import Location
from mergerepl.systables.logreader import ERRORS, SCAN_SESSIONS


def apply(document: Capture, **terms: Any) -> ApplyResult:
    """Make the capture instances and jobs of a folder match a document."""
    from mergerepl.cdc.apply import apply_capture

    return apply_capture(document, **terms)


def status(root: Location, *, alerts: Alerts = DEFAULT) -> Status:
    """Return the positions of the captured tables, and what is wrong with them."""
    found = monitoring.status(tables_at(root), alerts)
    return Status(CDC, str(root), DATABASE, found.warnings, replace(found, warnings=()))


def _database(root: Location) -> Database:
    return Database(root, lock_wait_s=WAIT_S.get())


def history(root: Location, *, failed: bool, limit: int, subscriber: str | None) -> list[Run]:
    """Return the last scan sessions, or the errors and notices of the log reader."""
    if subscriber is not None:
        return []
    if failed:
        return [_error(root, each) for each in Database(root).history(failed=True, limit=limit)]
    return [_scan(root, each) for each in Database(root).history(limit=limit)]


def recent(root: Location, since: datetime) -> list[Run]:
    """Return the last scan sessions since a time; 32 are kept."""
    found = history(root, failed=False, limit=MOST_RUNS, subscriber=None)
    return [each for each in found if each.time is not None and each.time >= since]


def count_history(root: Location, *, failed: bool, subscriber: str | None) -> int:
    """Return the number of scan sessions, or of errors and notices."""
    if subscriber is not None:
        return 0
    return count_rows(tables_at(root).log.path((ERRORS if failed else SCAN_SESSIONS).name))


def _error(root: Location, each: ScanError) -> Run:
    kind = "error" if each.error_severity > 10 else "notice"
    ends = str(root), "", ""
    number = str(each.error_number)
    return Run(CDC, kind, number, *ends, each.entry_time, 0.0, kind, 0, each.error_message, each)


def _scan(root: Location, each: ScanSession) -> Run:
    result = "failed" if each.error_count else "succeeded" if each.end_time else each.scan_phase
    return Run(
        CDC,
        "scan",
        str(each.session_id),
        str(root),
        "",
        "",
        each.start_time,
        float(each.duration),
        result,
        each.command_count,
        f"{counted(each.tran_count, 'transaction')}, latency {each.latency:,} s",
        each,
    )


def capture(root: Location, *, progress: Progress) -> Captured | None:
    """Capture new changes; None where the log reader of transactional publications does it."""
    if is_shared(read_state(tables_at(root).log)):
        return None
    progress.step("capture")
    done = _database(root).capture(maxscans=10**6)
    return Captured(CDC, str(root), done.rows, done.paused, done)


def cleanup(
    root: Location, *, kinds: Collection[str], older_than: timedelta | None, dry_run: bool
) -> CleanupResult:
    """Remove change rows past the retention of the cleanup job, or older than an age."""
    # Rounded up: no row that is younger than asked goes.
    minutes = None if older_than is None else math.ceil(older_than.total_seconds() / 60)
    done = _database(root).cleanup(retention=minutes, dry_run=dry_run)
    return CleanupResult(
        Listing(
            Removed(CDC, str(root), "changes", name, done.rows.get(name, 0), done.failed.get(name))
            for name in dict.fromkeys([*done.rows, *done.failed])
        ),
        dry_run,
    )


def is_known(root: Location, name: str) -> bool:
    """Whether a name is that of an instance, or of the folder of a captured table."""
    return bool(tables_at(root).instances_named(name))


def resume(root: Location, name: str, *, compare: bool, restart: bool) -> bool:
    """Resume the source of an instance, or a table; False if it was not paused."""
    return _database(root).resume(name, compare=compare, restart=restart)


def sources(root: Location) -> list[str]:
    """Return the tables whose log is read, for captures or for publications; none at a subscriber."""
    log = tables_at(root).log
    return [row.source_path for row in read_state(log).sources.values()] if has_log_reader(log) else []


def vacuum(root: Location, tables: Sequence[str]) -> list[Vacuumed]:
    """Remove old files of tables whose log is read, without names of all."""
    from mergerepl.cdc.sources import vacuum as vacuum_source

    found = tables_at(root)
    return [vacuum_source(found, each) for each in tables or sources(root)]
