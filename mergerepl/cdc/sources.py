"""Captured sources: scan cycles, a pause ended by resuming or beginning again, VACUUM (cdc.md 4 and 8).

VACUUM keeps all files that readers of a source still need.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mergerepl.cdc.consumer import begin_step
from mergerepl.cdc.refusals import CdcError, CdcUsageError, refuse_in_store
from mergerepl.cdc.tables import NAME, CdcTables, held
from mergerepl.delta.tables import compact, is_delta_table, open_table
from mergerepl.delta.types import ddl_of, field, json_of
from mergerepl.delta.vacuum import vacuum_read
from mergerepl.logreader.consumer import COMPARE
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.plan import Plan
from mergerepl.logreader.positions import LogState, read_state, save_state
from mergerepl.logreader.scan import Begin, begin, checked_state, leave, look_ahead
from mergerepl.logreader.scan import scan as one_cycle
from mergerepl.model.cdc import CapturedColumn, ScanResult
from mergerepl.model.tasks import Vacuumed
from mergerepl.replica.control import ControlPlane
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import position_of
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.storage import folders_in, is_there, remove_table
from mergerepl.systables import tracking, transactional
from mergerepl.systables.cdc import (
    CAPTURED_COLUMNS,
    CHANGE_TABLE_SUFFIX,
    CHANGE_TABLES,
    DDL_HISTORY,
    FOLDER,
    INDEX_COLUMNS,
    LSN_TIME_MAPPING,
    ChangeTable,
)
from mergerepl.systables.logreader import LogReaderRow
from mergerepl.systables.table import FOLDER as REPLICA_FOLDER
from mergerepl.systables.tracking import TRACKED_OBJECTS


def resume(found: CdcTables, instance: str, *, compare: bool, restart: bool) -> bool:
    """Resume a paused source, as `Database.resume` says."""
    if compare and restart:
        raise CdcUsageError.bad_parameter(22990, "compare and restart", True, "choose one of them")
    chosen, *_ = found.instances_named(instance) or [found.instance(instance)]
    with plain_errors("a source was resumed"), found.held("cdc resume") as reader:
        if restart:
            refuse_in_store(
                found.root, "`resume --restart` of a captured table", "disable the table, enable it again"
            )
        state = tidied(reader, found)
        row = state.sources[chosen.source_object_id]
        same = [each for each in found.instances() if each.source_object_id == chosen.source_object_id]
        if restart:
            if set(row.consumers) != {NAME}:
                raise CdcError(
                    22911,
                    f"Table '{row.source_path}' is published, too: beginning again at its head, its subscribers "
                    "would miss what is unread. Nothing was changed. Take the article out of the publication's file "
                    "and run `mergerepl apply`, resume with --restart, then publish it again.",
                    source=row.source_path,
                )
            _restart(reader, found, row, same)
            return True
        if row.status == "active":
            if compare:
                _compare_gaps(found, same)
            return False
        active = replace(row, status="active", error_number=None, reason=None)
        look = look_ahead(reader, state, active, on_gap=COMPARE if compare else None)
        if look.paused is not None:
            raise CdcError(
                look.paused.number,
                f"'{row.source_path}' is not resumed, for it would be paused again: {look.paused.reason}",
                source=row.source_path,
            )
        if compare:
            _compare_gaps(found, same)
        if not look.units and not look.has_waiting:
            # All commits are read: no later cycle would clear the instances' end.
            open_again = {"end_lsn": None, "has_drop_pending": False}
            found.control.change_where(CHANGE_TABLES, open_again, object_id={each.object_id for each in same})
        save_state(reader.control, state.with_source(active))
    return True


def _compare_gaps(database: CdcTables, instances: Sequence[ChangeTable]) -> None:
    numbers = {each.object_id for each in instances}
    database.control.change_where(CHANGE_TABLES, {"on_gap": COMPARE}, object_id=numbers)


def _restart(
    reader: LogReader, database: CdcTables, row: LogReaderRow, instances: Sequence[ChangeTable]
) -> None:
    """Begin the instances of a source again at its head: with their columns, in the types of the head, without rows."""
    if not is_delta_table(database.root / row.source_path):
        raise CdcUsageError.no_such_source(row.source_path, "there is no Delta table at its path")
    head = {each["name"]: each for each in open_table(database.root / row.source_path).fields}
    captured: list[CapturedColumn] = []
    types: dict[int, dict[str, Any]] = {}
    for instance in instances:
        table = database.change_table(instance)
        known = {each["name"]: each for each in open_table(table).fields} if is_delta_table(table) else {}
        of_instance = types[instance.object_id] = {}
        for column in database.captured(instance.object_id):
            name = column.source_name or column.column_name
            found = (
                head.get(name) or known.get(column.column_name) or field(name, json_of(column.column_type))
            )
            of_instance[column.column_name] = found["type"]
            source = name if name in head else None
            captured.append(replace(column, source_name=source, column_type=ddl_of(found["type"])))

    def steps(plan: Plan, rows: Sequence[LogReaderRow], numbers: range) -> dict[str, Any]:
        lsn = plan.lsn(plan.entries[0])
        start: dict[str, Any] = {"start_lsn": lsn, "end_lsn": None, "has_drop_pending": False}
        begun = [replace(each, **start, start_version=rows[0].position) for each in instances]
        index = [column for each in instances for column in database.key(each.object_id)]
        return begin_step(begun, captured, index, types)

    begin(reader, NAME, [Begin(row.source_path, row.source_schema, row.source_name, from_head=True)], steps)


def vacuum(found: CdcTables, source: str) -> Vacuumed:
    """Run VACUUM on a source, as `Database.vacuum` says, also of a publication alone.

    The readers are the log reader, merge capture, and the reader of the queue of a subscriber that writes.
    """
    row = read_state(found.log).source_at(source.strip("/"))
    if row is None:
        raise CdcUsageError.no_such_source(source, "no capture instance reads it")
    if row.status == "gone":
        raise CdcError.gone(source, f"it is not vacuumed while its capture is paused: {row.reason}")
    if _is_tracked(found, row.source_path):
        raise CdcUsageError.no_such_source(
            source,
            "Compact change tracking reads it, too; run `mergerepl tracking adopt` first, then Spark's own VACUUM",
        )
    path = found.root / row.source_path
    with (
        plain_errors(f"'{path}' was vacuumed"),
        lease(found.root, purpose="cdc vacuum", wait_s=found.lock_wait_s),
    ):
        read = min([row.position, *_merge_positions(found, path), *queue_positions(found.root, path)])
        hours, unread = vacuum_read(found.spark, path, read)
    return Vacuumed(row.source_path, hours, unread)


def _merge_positions(database: CdcTables, path: Location) -> list[int]:
    if not is_there(database.root / REPLICA_FOLDER):
        return []
    replica = Replica(database.root).require()
    info = replica.info()
    positions = (position_of(each, info) for each in replica.articles if replica.table(each) == path)
    return [each.version for each in positions if each is not None]


def queue_positions(root: Location, table: Location) -> list[int]:
    """Return the versions of a table at a root through which readers of its queue have read it."""
    queues = ControlPlane(root / transactional.FOLDER).rows_if_any(transactional.QUEUE)
    return [row.position for row in queues if row.table_id == open_table(table).metadata.table_id]


def _is_tracked(database: CdcTables, source: str) -> bool:
    control = ControlPlane(database.root / tracking.FOLDER)
    return control.exists(TRACKED_OBJECTS) and any(
        row.table == source for row in control.rows(TRACKED_OBJECTS)
    )


log = logging.getLogger(__name__)

JOIN_EVERY = 32
"""The small files are counted after this number of cycles."""

SMALL_FILES = 64
JOINED_BYTES = 4 << 20


def run_cycles(
    reader: LogReader, *, maxtrans: int, maxscans: int, is_asked_to_stop: Callable[[], bool] = lambda: False
) -> ScanResult:
    """Run up to `maxscans` cycles, until everything is read or a stop is requested. A cycle is never cut short.

    New publications are served, too.

    Raises: ScanInProgressError (22903); LogReaderError.
    """
    cycles = transactions = rows = 0
    last = None
    paused: dict[str, str] = {}
    for _ in range(maxscans):
        with plain_errors("changes were captured"), held(reader, "cdc capture"):
            done = one_cycle(reader, maxtrans=maxtrans)
            database = CdcTables(reader.root)
            if done.scan_cycle is not None and done.scan_cycle % JOIN_EVERY == 0 and database.is_enabled:
                join_small_files(database)
        if done.scan_cycle is not None or done.paused:
            cycles += 1
        transactions, rows = transactions + done.transactions, rows + done.rows
        last = done.last_lsn or last
        paused |= done.paused
        if not done.has_more or is_asked_to_stop():
            break
    return ScanResult(cycles, transactions, rows, last, paused)


def join_small_files(database: CdcTables, *, most: int = SMALL_FILES) -> None:
    """Join the small files of change tables and of the gate: a cycle appends one to each. The caller holds the log."""
    tables = [database.change_table(each) for each in database.instances()]
    for table in (*tables, *(database.control.path(each.name) for each in (LSN_TIME_MAPPING, DDL_HISTORY))):
        try:
            compact(table, most_files=most, target_bytes=JOINED_BYTES)
        except Exception as error:
            # The cycle is done; many small files only make reading slower.
            log.warning("%s: its small files were not joined: %s", table, error)


def tidied(reader: LogReader, database: CdcTables) -> LogState:
    """Finish a cycle or command that died: its plan, and instances that were being disabled."""
    state = checked_state(reader)
    instances = database.instances()
    numbers = {each.object_id for each in instances}
    for stored in (CAPTURED_COLUMNS, INDEX_COLUMNS):
        database.control.edit(stored, lambda rows: [row for row in rows if row.object_id in numbers])
    known = {database.change_table(each).name for each in instances}
    for name in folders_in(database.root / FOLDER):
        if name.endswith(CHANGE_TABLE_SUFFIX) and name not in known:
            remove_table(database.root / FOLDER / name)
    sources = {each.source_object_id for each in instances}
    return leave(reader, NAME, frozenset(state.sources.keys() - sources))
