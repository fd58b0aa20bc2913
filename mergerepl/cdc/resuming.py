"""Paused sources: read on, or begun again at their head (cdc.md 4 and 8)."""

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from pyspark.sql import SparkSession

from mergerepl.cdc.capture import held, log_reader, tidied
from mergerepl.cdc.consumer import NAME
from mergerepl.cdc.database import Database, database_at
from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.delta.tables import is_delta_table, open_table
from mergerepl.delta.types import ddl_of, field, json_of
from mergerepl.logreader.consumer import COMPARE
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.plan import Plan
from mergerepl.logreader.positions import save_state
from mergerepl.logreader.scan import Begin, begin, look_ahead
from mergerepl.model.cdc import CapturedColumn
from mergerepl.spark.errors import plain_errors
from mergerepl.systables.cdc import CHANGE_TABLES, ChangeTable
from mergerepl.systables.logreader import LogReaderRow


def resume(
    database: str | os.PathLike[str],
    instance: str,
    *,
    compare: bool = False,
    restart: bool = False,
    spark: SparkSession | None = None,
    lock_wait_s: float = 0.0,
) -> bool:
    """Resume a paused source: its unread commits get new LSNs. Returns False if it was not paused and `restart` is False.

    Args:
        database: The folder.
        instance: A capture instance of the source.
        compare: Bridge gaps by comparing versions from now on.
        restart: Begin all instances of the source again at its head; consumers get 313 and take a snapshot.
        spark: The Spark session.
        lock_wait_s: Seconds to wait for others that hold the log.

    Raises: CdcUsageError if the instance does not exist; CdcError if the next cycle would pause the source again (nothing
        was changed then); ScanInProgressError.
    """
    if compare and restart:
        raise CdcUsageError.bad_parameter(22990, "compare and restart", True, "choose one of them")
    found = database_at(database)
    chosen = found.instance(instance)
    reader = log_reader(found, spark=spark, wait_s=lock_wait_s)
    with plain_errors("a source was resumed"), held(reader, "cdc resume"):
        state = tidied(reader, found)
        row = state.sources[chosen.source_object_id]
        same = [each for each in found.instances() if each.source_object_id == chosen.source_object_id]
        if restart:
            if set(row.consumers) != {NAME}:
                raise CdcError(
                    22911,
                    f"Table '{row.source_path}' is published, too: beginning again at its head, its subscribers "
                    "would miss what is unread. Nothing was changed. Take the article out of the publication's file "
                    "and run `mergerepl apply FILE`, resume with --restart, then publish it again.",
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


def _compare_gaps(database: Database, instances: Sequence[ChangeTable]) -> None:
    numbers = {each.object_id for each in instances}
    database.control.change_where(CHANGE_TABLES, {"on_gap": COMPARE}, object_id=numbers)


def _restart(
    reader: LogReader, database: Database, row: LogReaderRow, instances: Sequence[ChangeTable]
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
