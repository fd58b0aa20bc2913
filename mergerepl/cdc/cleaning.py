"""Cleanup: raise the low end of each interval, then remove change rows older than the retention (cdc.md 9). No Spark.

Readers open a change table before they read the low end. So the mark moves before the first row is removed: a reader
either has the rows in its opened version, or is refused.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mergerepl.cdc.jobs import CLEANUP, RETENTION_MIN, THRESHOLD, check_parameters
from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.cdc.tables import CdcTables, entry_of, lsn_of_text, version_through
from mergerepl.delta.sql_text import quoted, timestamp_literal
from mergerepl.delta.tables import count_rows, open_table, remove_unused
from mergerepl.errors import MergeReplError
from mergerepl.failpoints import failpoint
from mergerepl.logreader.log_reader import refuse_copy
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.plan import redo_log
from mergerepl.logreader.positions import read_state
from mergerepl.logreader.scan import checked_state
from mergerepl.model.cdc import RemovedChanges, ScanError
from mergerepl.spark.plain import plain_errors
from mergerepl.store.location import Location
from mergerepl.systables.cdc import (
    CDC_JOBS,
    CHANGE_TABLES,
    LSN_TIME_MAPPING,
    SCAN_CYCLE,
    START_LSN,
    ChangeTable,
)
from mergerepl.systables.logreader import ERRORS

log = logging.getLogger(__name__)

CLEANUP_FAILED = 22852
_MOST_AHEAD = timedelta(days=1)


def cleanup(
    found: CdcTables, *, retention: int | None = None, threshold: int | None = None, dry_run: bool = False
) -> RemovedChanges:
    """Remove change rows that are older than the retention from all instances, as `Database.cleanup` says."""
    found.require_enabled()
    job = next((row for row in found.control.rows(CDC_JOBS) if row.job_type == CLEANUP), None)
    minutes = retention if retention is not None else (job and job.retention) or RETENTION_MIN
    most = threshold if threshold is not None else (job and job.threshold) or THRESHOLD
    check_parameters(retention=minutes, threshold=most)
    if dry_run:
        refuse_copy(found.root, read_state(found.log))
        marks = _marks(found, minutes)
        if marks is None:
            return RemovedChanges(None)
        mark, ends = marks
        raised = [replace(i, start_lsn=max(i.start_lsn, bytes(ends[i.object_id]))) for i in found.instances()]
        return RemovedChanges(mark, *_counts(found, raised))
    with plain_errors("change tables were cleaned up"), found.held("cdc cleanup") as reader:
        checked_state(reader)
        marks = _marks(found, minutes)
        done = (
            RemovedChanges(None)
            if marks is None
            else _cleaned(found, _raise_low(found, marks[1]), most, marks[0])
        )
        found.control.change_where(CDC_JOBS, {"last_run": datetime.now(UTC)}, job_type=CLEANUP)
        redo_log(found.root).remove_left()
        # A scan cycle leaves two.
        for folder in (found.control.folder, found.log.folder):
            remove_unused(folder)
    return done


def _marks(found: CdcTables, minutes: int) -> tuple[Lsn, dict[int, Lsn]] | None:
    """Return the LSN of a retention, and the low end of each instance by its object_id; None if nothing is old enough."""
    newest = found.newest_entry()
    if newest is None:
        return None
    if newest.tran_end_time - datetime.now(UTC) > _MOST_AHEAD:
        raise CdcError(
            22852,
            f"'{found.root}' is not cleaned up: its newest LSN is of {newest.tran_end_time.isoformat()}, more than a "
            "day ahead of this machine's clock. Nothing was changed. Set the clock right, then run again.",
        )
    base = newest.tran_end_time - timedelta(minutes=minutes)
    first = found.control.rows(
        LSN_TIME_MAPPING,
        where=f"tran_end_time >= {timestamp_literal(base)}",
        order_limit="order by start_lsn limit 1",
    )
    mark = Lsn(first[0].start_lsn)
    instances = found.instances()
    if all(mark <= each.start_lsn for each in instances):
        rows, entries = _counts(found, instances)
        if not entries and not any(rows.values()):
            return None
    # The end of a paused instance stays in its interval: consumers that have all go on from it.
    ends = {
        each.object_id: mark if each.end_lsn is None else min(mark, Lsn(each.end_lsn)) for each in instances
    }
    return mark, ends


def _counts(found: CdcTables, instances: list[ChangeTable]) -> tuple[dict[str, int], int]:
    """Return the numbers of rows below the low ends: by instance, and of lsn_time_mapping."""
    rows = {
        each.capture_instance: count_rows(found.change_table(each), where=_below(Lsn(each.start_lsn)))
        for each in instances
    }
    return rows, count_rows(found.control.path(LSN_TIME_MAPPING.name), where=_unused(found, instances))


def cleanup_instance(
    found: CdcTables, instance: str, low_water_mark: bytes | str | None, threshold: int
) -> RemovedChanges:
    """Raise the low end of one instance's interval, and remove the rows below it, as `Instance.cleanup` says."""
    check_parameters(threshold=threshold)
    found.instance(instance)
    with plain_errors("a change table was cleaned up"), found.held("cdc cleanup") as reader:
        checked_state(reader)
        chosen = found.instance(instance)
        if low_water_mark is not None:
            mark = _low_water_mark(found, chosen, lsn_of_text(low_water_mark))
            _raise_low(found, {chosen.object_id: mark})
            chosen = found.instance(instance)
        return _cleaned(found, [chosen], threshold, Lsn(chosen.start_lsn))


def _low_water_mark(database: CdcTables, instance: ChangeTable, asked: Lsn) -> Lsn:
    entry = entry_of(database, asked)
    if entry is None:
        allowed = "it is the LSN of an entry of lsn_time_mapping"
        raise CdcUsageError.bad_parameter(22964, "low_water_mark", str(asked), allowed)
    if asked < instance.start_lsn:
        allowed = f"it is not below {Lsn(instance.start_lsn)}, the low end of {instance.capture_instance}"
        raise CdcUsageError.bad_parameter(22957, "low_water_mark", str(asked), allowed)
    if instance.end_lsn is not None and asked > instance.end_lsn:
        allowed = f"it is not above {Lsn(instance.end_lsn)}, the high end while the table is paused"
        raise CdcUsageError.bad_parameter(22957, "low_water_mark", str(asked), allowed)
    same_time = f"tran_end_time = {timestamp_literal(entry.tran_end_time)}"
    first = database.control.rows(LSN_TIME_MAPPING, where=same_time, order_limit="order by start_lsn limit 1")
    return max(Lsn(first[0].start_lsn), Lsn(instance.start_lsn))


def _raise_low(database: CdcTables, marks: dict[int, Lsn]) -> list[ChangeTable]:
    """Raise the low ends, with the versions of the sources just before them, in one commit. Returns the instances."""
    before = database.instances()
    after = []
    for each in before:
        mark = marks.get(each.object_id)
        if mark is not None and mark > each.start_lsn:
            version = version_through(database, each, mark.previous())
            each = replace(each, start_lsn=mark, start_version=version)
        after.append(each)
    if after != before:
        database.control.replace(CHANGE_TABLES, after)
        failpoint("cdc.cleanup_after_low_mark")
    return after


def _below(low: Lsn) -> str:
    # Files have bounds of scan cycles only.
    return f"{quoted(SCAN_CYCLE)} <= {low.scan_cycle} and {quoted(START_LSN)} < X'{low.hex()}'"


def _unused(database: CdcTables, instances: list[ChangeTable]) -> str:
    """Return the condition of entries that all instances have passed; the newest entry stays."""
    newest = database.newest_entry()
    low = min([*([] if newest is None else [newest.start_lsn]), *(each.start_lsn for each in instances)])
    return f"start_lsn < X'{low.hex()}'"


def _cleaned(database: CdcTables, instances: list[ChangeTable], threshold: int, mark: Lsn) -> RemovedChanges:
    """Remove the change rows below the low ends, then the rows of lsn_time_mapping that all instances have passed."""
    rows: dict[str, int] = {}
    failed: dict[str, str] = {}
    for each in instances:
        table = database.change_table(each)
        try:
            rows[each.capture_instance] = _remove_below(table, Lsn(each.start_lsn), threshold)
        except Exception as error:
            # The mark stays: remaining rows are never seen, and the next cleanup removes them.
            failed[each.capture_instance] = error.message if isinstance(error, MergeReplError) else str(error)
            log.warning("change table of %s: %s", each.capture_instance, error)
        failpoint("cdc.cleanup_after_table")
    unused = _unused(database, database.instances())
    entries = count_rows(database.control.path(LSN_TIME_MAPPING.name), where=unused)
    if entries:
        database.control.delete(LSN_TIME_MAPPING, where=unused)
    notes = [
        ScanError(
            session_id=0,
            entry_time=datetime.now(UTC),
            error_number=CLEANUP_FAILED,
            error_message=f"Change table of '{name}' could not be cleaned up: {why}. Others were; its low end has "
            "moved. Fix the cause; the next cleanup removes its rows.",
        )
        for name, why in failed.items()
    ]
    database.log.append(ERRORS, notes)
    return RemovedChanges(mark, rows, entries, failed)


def _remove_below(table: Location, mark: Lsn, threshold: int) -> int:
    removed = 0
    for statement in list(_statements(table, mark, threshold)):
        with open_table(table).writing() as opened:
            removed += int(opened.delete(statement)["num_deleted_rows"])
        failpoint("cdc.cleanup_after_statement")
    return removed


def _statements(table: Location, mark: Lsn, threshold: int) -> Iterator[str]:
    """Yield conditions of rows below an LSN: whole files first, oldest first, at most `threshold` rows at a time.

    A larger file has its own condition. Rows that share a file, or a scan cycle, with rows that stay come last.
    """
    files = open_table(table).files().to_pylist()
    cycle = quoted(SCAN_CYCLE)
    lowest, highest = f"min.{SCAN_CYCLE}", f"max.{SCAN_CYCLE}"
    whole = [file for file in files if (file.get(highest) or mark.scan_cycle) < mark.scan_cycle]
    rows_of: dict[int, int] = {}
    for file in whole:
        rows_of[file[highest]] = rows_of.get(file[highest], 0) + file["num_records"]
    rows, last = 0, None
    for at in sorted(rows_of):
        if last is not None and rows + rows_of[at] > threshold:
            yield f"{cycle} <= {last}"
            rows = 0
        rows, last = rows + rows_of[at], at
    if last is not None:
        yield f"{cycle} <= {last}"
    straddling = [file for file in files if file not in whole and (file.get(lowest) or 0) <= mark.scan_cycle]
    if straddling and count_rows(table, where=_below(mark)):
        yield _below(mark)
