"""The queries of an instance: changes between two LSNs, masks, rows at an LSN, Debezium's envelopes (cdc.md 6).

`all_changes` is `fn_cdc_get_all_changes_<instance>`, `net_changes` is `fn_cdc_get_net_changes_<instance>`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

from pyspark.sql import Window as SqlWindow
from pyspark.sql.types import DataType

from mergerepl.cdc.change_rows import (
    IS_DOUBTFUL,
    NET_OPTIONS,
    has_bit,
    is_bit_set_column,
    net_of_table,
    net_rows,
)
from mergerepl.cdc.refusals import CdcError, CdcUsageError, LsnRangeError
from mergerepl.cdc.tables import CdcTables, check_range, checked_lsn, lsn_of_text, version_through
from mergerepl.delta import appended
from mergerepl.delta.commit_files import few_rows, frame_here
from mergerepl.delta.engine_choice import NeedsSparkError, require_few
from mergerepl.delta.feed.column_changes import column_id, is_mapped
from mergerepl.delta.small_writer import rows_problem
from mergerepl.delta.tables import (
    head_version,
    is_another_commit,
    is_delta_table,
    open_table,
    read_columns,
    read_version,
)
from mergerepl.errors import StoreError
from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.rows.images import all_true
from mergerepl.rows.nested import in_shape
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import gone_reason
from mergerepl.spark.in_memory import keep_in_memory
from mergerepl.spark.plain import plain_errors
from mergerepl.store.location import Location
from mergerepl.systables.cdc import (
    DELETE,
    INSERT,
    LSN_TIME_MAPPING,
    OPERATION,
    SCAN_CYCLE,
    SEQVAL,
    START_LSN,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    UPDATE_MASK,
    ChangeTable,
)

ALL, ALL_UPDATE_OLD = "all", "all update old"
ALL_OPTIONS = (ALL, ALL_UPDATE_OLD)

_SHOWN_KEYS = 5


@dataclass(frozen=True)
class Window:
    """The rows of a change table between two LSNs, both included: its columns are those at the time of opening."""

    instance: ChangeTable
    from_lsn: Lsn
    to_lsn: Lsn
    rows: DataFrame
    captured: tuple[str, ...]
    key: tuple[str, ...]
    present: tuple[str, ...]
    """The captured columns that the source still has."""


def open_window(
    database: CdcTables, instance: str, from_lsn: bytes | str | None, to_lsn: bytes | str | None
) -> Window:
    """Return the rows of an instance between two LSNs.

    Raises: CdcUsageError 22985 if the instance does not exist; LsnRangeError 313 if the range is not in its interval.
    """
    first, last = (None if lsn is None else lsn_of_text(lsn) for lsn in (from_lsn, to_lsn))
    # The gate is read before the change table is opened, so the table has all rows up to the gate.
    gate = database.max_lsn()
    chosen = database.instance(instance)
    first, last = check_range(chosen, first, last, gate=gate)
    rows = _opened(database, database.change_table(chosen), first, last)
    # The low end is read afterwards: a cleanup that removed rows before has moved it by now.
    chosen = database.instance(instance)
    check_range(chosen, first, last, gate=gate)
    captured = database.captured(chosen.object_id)
    return Window(
        *(chosen, first, last, rows),
        tuple(column.column_name for column in captured),
        tuple(column.column_name for column in database.key(chosen.object_id)),
        tuple(column.column_name for column in captured if column.source_name is not None),
    )


def _opened(database: CdcTables, table: Location, first: Lsn, last: Lsn) -> DataFrame:
    """Return rows of a change table at its present version; files of other scan cycles are not opened.

    Raises: NeedsSparkError in process if Arrow does not read them as Spark does, or there are too many.
    """
    bounds = {SCAN_CYCLE: (first.scan_cycle - 1, last.scan_cycle)}
    if not is_in_process():
        rows = read_columns(database.spark, table, head_version(table), bounds=bounds)
    else:
        state = open_table(table)
        if (problem := rows_problem(state)) is not None:
            raise NeedsSparkError(problem, table)
        names = [each["name"] for each in state.fields]
        rows = frame_here(few_rows(state, names, is_key=False, bounds=bounds), state)
    cycle, lsn = F.col(quote(SCAN_CYCLE)), F.col(quote(START_LSN))
    rows = rows.where((cycle >= first.scan_cycle) & (cycle <= last.scan_cycle))
    rows = rows.where((lsn >= F.lit(bytes(first))) & (lsn <= F.lit(bytes(last))))
    if is_in_process():
        require_few(count := rows.count(), count * len(rows.columns))
    return rows


def all_changes(
    tables: CdcTables,
    instance: str,
    from_lsn: bytes | str | None,
    to_lsn: bytes | str | None,
    row_filter: str,
    *,
    ordered: bool = True,
) -> DataFrame:
    """Return all changes between two LSNs, both included, as `Instance.changes` says."""
    option = _option(row_filter, ALL_OPTIONS)
    with plain_errors("changes were read"):
        window = open_window(tables, instance, from_lsn, to_lsn)
        rows = window.rows
        if option == ALL:
            rows = rows.where(F.col(quote(OPERATION)) != UPDATE_BEFORE)
        if ordered:
            rows = rows.orderBy(*map(quote, (START_LSN, SEQVAL, OPERATION)))
        leading = (START_LSN, SEQVAL, OPERATION, UPDATE_MASK)
        return rows.select(*map(quote, (*leading, *window.captured)))


def net_changes(
    tables: CdcTables,
    instance: str,
    from_lsn: bytes | str | None,
    to_lsn: bytes | str | None,
    row_filter: str,
    *,
    ordered: bool = True,
) -> DataFrame:
    """Return the net change of each key between two LSNs, as `Instance.net_changes` says."""
    option = _option(row_filter, NET_OPTIONS)
    chosen = tables.instance(instance)
    if not chosen.supports_net_changes:
        raise LsnRangeError(
            f"Capture instance '{chosen.capture_instance}' does not support net changes. Ask for all changes; or "
            f"{_way_to_net_changes(tables, chosen)}.",
            reason="no_net_changes",
            capture_instance=chosen.capture_instance,
        )
    with plain_errors("net changes were read"):
        window = open_window(tables, instance, from_lsn, to_lsn)
        rows = net_of(tables, window, window.key, option)
        if ordered:
            rows = rows.orderBy(*map(quote, (START_LSN, SEQVAL)))
        return rows.drop(SEQVAL)


def _way_to_net_changes(tables: CdcTables, chosen: ChangeTable) -> str:
    """Return how the table of an instance gets one with net changes: both instances of a table have one key."""
    if tables.key(chosen.object_id):
        return "enable an instance with net changes: a table may have two"
    return "disable the instances of its table, then enable one with a key (`key`)"


def net_of(database: CdcTables, window: Window, key: tuple[str, ...], option: str) -> DataFrame:
    """Return the net changes of a window by a key, and last __$seqval. Raises: as `with_rows_at_end`."""
    found = net_rows(window.rows, key, window.captured, option, compared=window.present)
    rows, doubtful = without_doubtful(found, key)
    return rows if doubtful.isEmpty() else with_rows_at_end(database, window, rows, doubtful, key, option)


def without_doubtful(net: DataFrame, key: Sequence[str]) -> tuple[DataFrame, DataFrame]:
    """Return the net changes of other keys than doubtful ones; and those keys, __$start_lsn and __$seqval."""
    doubtful = net.where(quote(IS_DOUBTFUL)).select(*map(quote, (*key, START_LSN, SEQVAL)))
    return net.where(~F.col(quote(IS_DOUBTFUL))).drop(IS_DOUBTFUL), doubtful


def with_rows_at_end(
    database: CdcTables,
    window: Window,
    net: DataFrame,
    doubtful: DataFrame,
    key: tuple[str, ...],
    option: str,
) -> DataFrame:
    """Return net changes with the source's row at the window's end for keys whose events do not determine it.

    `doubtful` has the key, and the __$start_lsn and __$seqval of the last event.

    Raises: CdcError 22838 if the source has two rows of such a key there, 22859 if that version cannot be read any more;
        NeedsSparkError in process.
    """
    if is_in_process():
        raise NeedsSparkError("the changes of a key do not determine its row")
    doubtful = keep_in_memory(doubtful)
    same_key = all_true([F.col(f"n.{quote(each)}").eqNullSafe(F.col(f"d.{quote(each)}")) for each in key])
    of_session = database.in_session(net.sparkSession)
    source = snapshot(of_session, window.instance, window.to_lsn).rows
    at_end = keep_in_memory(source.alias("n").join(doubtful.alias("d"), same_key, "left_semi"))
    refuse_twice(window.instance, at_end, key)
    others = net.alias("n").join(doubtful.alias("d"), same_key, "left_anti")
    return others.unionByName(net_of_table(doubtful, at_end, key, window.captured, option))


def refuse_twice(instance: ChangeTable, rows: DataFrame, key: Sequence[str]) -> None:
    """Check that rows of a source have each key once. Raises: CdcError 22838 naming keys."""
    if twice := keys_twice(rows, key):
        raise CdcError(
            22838,
            f"Capture instance '{instance.capture_instance}': the source had more than one row of a key "
            f"({', '.join(key)}) at once: {'; '.join(twice)}. It still has at the end of the window, so that the net "
            "change is not known. Nothing was changed. Delete or change all but one of these rows in the source, "
            "capture that (`mergerepl capture`), then run again up to the new end; or ask for all changes.",
            capture_instance=instance.capture_instance,
        )


def keys_twice(rows: DataFrame, key: Sequence[str]) -> list[str]:
    """Return some keys that several rows have, as texts."""
    columns = [F.col(quote(name)) for name in key]
    twice = rows.groupBy(*columns).count().where("count > 1").limit(_SHOWN_KEYS)
    return [", ".join(f"{name}={row[name]}" for name in key) for row in twice.collect()]


def _option(stated: str, allowed: tuple[str, ...]) -> str:
    option = stated.replace("-", " ")
    if option not in allowed:
        raise CdcUsageError.bad_parameter(22990, "row_filter", stated, f"it is one of: {', '.join(allowed)}")
    return option


# -- masks -------------------------------------------------------------------------------------------------------------


@overload
def is_bit_set(position: int, mask: bytes | None) -> bool: ...
@overload
def is_bit_set(position: int, mask: Column) -> Column: ...
def is_bit_set(position: int, mask: bytes | Column | None) -> bool | Column:
    """True if a mask has the bit of an ordinal (from 1): bytes give bool, a Column gives a Column. NULL has no bits."""
    return is_bit_set_column(position, mask) if isinstance(mask, Column) else has_bit(position, mask)


class Snapshot(NamedTuple):
    """Rows of a source (the captured columns), and the LSN that they are of: go on from the next one."""

    rows: DataFrame
    lsn: Lsn


def snapshot(tables: CdcTables, chosen: ChangeTable, lsn: bytes | str | None = None) -> Snapshot:
    """Return the rows of an instance's source at exactly an LSN, and that LSN, as `Instance.snapshot` says."""
    at = checked_lsn(tables, chosen, None if lsn is None else lsn_of_text(lsn))
    version = version_through(tables, chosen, at)
    source = read_state(tables.log).sources[chosen.source_object_id]
    path = tables.root / source.source_path
    if not is_delta_table(path) or is_another_commit(path, source.position, source.position_commit):
        why = "the table at its path is gone, or another one"
        raise CdcError.version_gone(source.source_path, version, why)
    with plain_errors("a snapshot was read"):
        try:
            fields = open_table(path, version).fields
            rows = read_version(tables.spark, path, version)
        except StoreError as error:
            raise CdcError.version_gone(source.source_path, version, error.message.rstrip(".")) from error
        except Exception as error:
            if (why_gone := gone_reason(error)) is None:
                raise
            raise CdcError.version_gone(source.source_path, version, why_gone) from error
    stored = {column.name: column for column in rows.schema}
    name_of = (
        {column_id(fields, each["name"]): str(each["name"]) for each in fields} if is_mapped(fields) else None
    )
    columns = []
    for column in tables.captured(chosen.object_id):
        name = column.column_name if name_of is None else name_of.get(column.column_id, "")
        if name not in stored:
            value = F.lit(None).cast(column.column_type)
        elif stored[name].dataType.simpleString() != column.column_type:
            wanted = DataType.fromDDL(column.column_type)
            value = in_shape(F.col(quote(name)), stored[name].dataType, wanted)
        else:
            value = F.col(quote(name))
        columns.append(value.alias(column.column_name))
    return Snapshot(rows.select(*columns), at)


_OPS = {DELETE: "d", INSERT: "c", UPDATE_AFTER: "u"}


def to_debezium(tables: CdcTables, instance: str, changes: DataFrame) -> DataFrame:
    """Return changes as envelopes, as `Instance.to_debezium` says."""
    chosen = tables.instance(instance)
    table = read_state(tables.log).sources[chosen.source_object_id]
    captured = [column.column_name for column in tables.captured(chosen.object_id)]
    lsn, seqval, operation = (F.col(quote(name)) for name in (START_LSN, SEQVAL, OPERATION))
    mapping = appended.read(changes.sparkSession, tables.control.path(LSN_TIME_MAPPING.name))
    times = mapping.select(F.col("start_lsn").alias("lsn"), F.unix_millis("tran_end_time").alias("ts_ms"))
    of_update = SqlWindow.partitionBy(lsn, seqval).orderBy(operation)
    rows = changes.select(
        *(lsn.alias("lsn"), seqval.alias("seqval"), operation.alias("operation")),
        F.struct(*(F.col(quote(name)) for name in captured)).alias("row"),
        F.lag(F.struct(*(F.col(quote(name)) for name in captured))).over(of_update).alias("row_before"),
        F.lag(operation).over(of_update).alias("operation_before"),
    )
    is_known = (F.col("operation") == UPDATE_AFTER) & (F.col("operation_before") == UPDATE_BEFORE)
    before = F.when(F.col("operation") == DELETE, F.col("row")).when(is_known, F.col("row_before"))
    op = F.create_map(*(F.lit(each) for pair in _OPS.items() for each in pair))[F.col("operation")]
    source = F.struct(
        F.lit(table.source_schema).alias("schema"),
        F.lit(table.source_name).alias("table"),
        _colons("lsn", 4, 4, 2).alias("commit_lsn"),
        _colons("seqval", 4, 4, 2).alias("change_lsn"),
        F.col("ts_ms"),
    )
    envelopes = rows.where(F.col("operation") != UPDATE_BEFORE).join(F.broadcast(times), on="lsn", how="left")
    return envelopes.select(
        before.alias("before"),
        F.when(F.col("operation") != DELETE, F.col("row")).alias("after"),
        op.alias("op"),
        source.alias("source"),
        F.col("ts_ms"),
    )


def _colons(name: str, *lengths: int) -> Column:
    """Return bytes in hexadecimal, with colons between parts of the given lengths."""
    parts, at = [], 1
    for length in lengths:
        parts.append(F.lower(F.hex(F.substring(name, at, length))))
        at += length
    return F.concat_ws(":", *parts)
