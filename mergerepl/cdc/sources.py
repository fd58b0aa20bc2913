"""Captured sources: resumed or begun again after a pause, and vacuumed (cdc.md 4 and 8).

VACUUM keeps all files that readers of a source still need.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mergerepl.cdc.capture import tidied
from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.cdc.tables import NAME, CdcTables
from mergerepl.delta.properties import FILE_RETENTION, interval_of
from mergerepl.delta.tables import head_version, is_delta_table, open_table, written_ns
from mergerepl.delta.types import ddl_of, field, json_of
from mergerepl.logreader.consumer import COMPARE
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.plan import Plan, moment_of_ns
from mergerepl.logreader.positions import read_state, save_state
from mergerepl.logreader.scan import Begin, begin, look_ahead
from mergerepl.model.cdc import CapturedColumn, Vacuumed
from mergerepl.replica.control import ControlPlane
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import position_of
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import plain_errors
from mergerepl.spark.session import copy_if_possible
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import before_write
from mergerepl.store.storage import is_there
from mergerepl.systables import tracking
from mergerepl.systables.cdc import CHANGE_TABLES, ChangeTable
from mergerepl.systables.logreader import LogReaderRow
from mergerepl.systables.table import FOLDER as REPLICA_FOLDER
from mergerepl.systables.tracking import TRACKED_OBJECTS


def resume(found: CdcTables, instance: str, *, compare: bool, restart: bool) -> bool:
    """Resume a paused source, as `Database.resume` says."""
    if compare and restart:
        raise CdcUsageError.bad_parameter(22990, "compare and restart", True, "choose one of them")
    chosen = found.instance(instance)
    with plain_errors("a source was resumed"), found.held("cdc resume") as reader:
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
    types: dict[str, dict[str, Any]] = {}
    for instance in instances:
        table = database.change_table(instance)
        known = {each["name"]: each for each in open_table(table).fields} if is_delta_table(table) else {}
        of_instance = types[str(instance.object_id)] = {}
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
        begun = [
            replace(
                *(each,), start_lsn=lsn, end_lsn=None, has_drop_pending=False, start_version=rows[0].position
            )
            for each in instances
        ]
        stated = [
            {**asdict(each), "start_lsn": lsn.hex(), "create_date": each.create_date.isoformat()}
            for each in begun
        ]
        index = [asdict(c) for each in instances for c in database.key(each.object_id)]
        columns = [asdict(column) for column in captured]
        return {"begin": {"instances": stated, "captured": columns, "index": index, "types": types}}

    begin(reader, NAME, [Begin(row.source_path, row.source_schema, row.source_name, from_head=True)], steps)


_DEFAULT_RETENTION = timedelta(days=7)

_LONGEST_COMMIT = timedelta(days=1)
"""A commit's files may be older than the commit by its duration."""


def vacuum(found: CdcTables, source: str) -> Vacuumed:
    """Run VACUUM on a source, as `Database.vacuum` says. The readers are the log reader and merge capture."""
    found.require_enabled()
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
        read = min([row.position, *_merge_positions(found, path)])
        kept = interval_of(open_table(path).properties.get(FILE_RETENTION, "")) or _DEFAULT_RETENTION
        unread = None
        if head_version(path) > read:
            unread = read
            since = moment_of_ns(written_ns(path, read + 1)) - _LONGEST_COMMIT
            kept = max(kept, datetime.now(UTC) - since)
        hours = math.ceil(kept.total_seconds() / 3600)
        # The copy commits, which changes a conf of its session.
        session = copy_if_possible(found.spark, {})
        before_write()
        session.sql(f"VACUUM delta.{quote(str(path))} RETAIN {hours} HOURS")
    return Vacuumed(row.source_path, hours, unread)


def _merge_positions(database: CdcTables, path: Location) -> list[int]:
    if not is_there(database.root / REPLICA_FOLDER):
        return []
    replica = Replica(database.root).require()
    info = replica.info()
    positions = (position_of(each, info) for each in replica.articles if replica.table(each) == path)
    return [each.version for each in positions if each is not None]


def _is_tracked(database: CdcTables, source: str) -> bool:
    control = ControlPlane(database.root / tracking.FOLDER)
    return control.exists(TRACKED_OBJECTS) and any(
        row.table == source for row in control.rows(TRACKED_OBJECTS)
    )
