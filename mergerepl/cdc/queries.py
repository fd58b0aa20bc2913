"""The query functions of an instance: changes between two LSNs, their column masks, rows at an LSN (cdc.md 6).

`get_all_changes` is `fn_cdc_get_all_changes_<instance>`, `get_net_changes` is `fn_cdc_get_net_changes_<instance>`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from mergerepl.cdc.change_rows import has_bit
from mergerepl.cdc.database import Database, database_at
from mergerepl.cdc.lsn_times import check_range, checked_lsn, lsn_of_text, version_through
from mergerepl.cdc.net_rows import IS_DOUBTFUL, NET_OPTIONS, is_bit_set_column, net_of_table, net_rows
from mergerepl.cdc.refusals import CdcError, CdcUsageError, LsnRangeError
from mergerepl.delta.tables import (
    is_another_commit,
    is_delta_table,
    may_hold,
    open_table,
    plain_files,
    read_files,
    read_version,
)
from mergerepl.errors import StoreError
from mergerepl.logreader.column_changes import column_id, is_mapped
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.rows.images import all_true
from mergerepl.rows.nested import in_shape
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import gone_reason, plain_errors
from mergerepl.spark.in_memory import frame_of_tuples, keep_in_memory
from mergerepl.store.location import Location
from mergerepl.systables.cdc import (
    OPERATION,
    SCAN_CYCLE,
    SEQVAL,
    START_LSN,
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


def reading_session(given: SparkSession | None) -> SparkSession:
    """Return the session to read in: the given one, else the running one or an embedded one.

    Raises: EngineError if it cannot be used.
    """
    from mergerepl.spark import session as engine

    return engine.session() if given is None else engine.usable(given)


def open_window(
    database: Database,
    instance: str,
    from_lsn: bytes | str | None,
    to_lsn: bytes | str | None,
    spark: SparkSession | None,
) -> Window:
    """Return the rows of an instance between two LSNs.

    Raises: CdcUsageError 22985 if the instance does not exist; LsnRangeError 313 if the range is not in its interval.
    """
    first, last = (None if lsn is None else lsn_of_text(lsn) for lsn in (from_lsn, to_lsn))
    # The gate is read before the change table is opened, so the table has all rows up to the gate.
    gate = database.max_lsn()
    chosen = database.instance(instance)
    first, last = check_range(chosen, first, last, gate=gate)
    session = reading_session(spark)
    rows = _opened(session, database.change_table(chosen), first, last)
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


def _opened(spark: SparkSession, table: Location, first: Lsn, last: Lsn) -> DataFrame:
    """Return rows of a change table at its present version; files of other scan cycles are not opened."""
    state = open_table(table)
    files = plain_files(state, bounded=(SCAN_CYCLE,))
    bounds = {SCAN_CYCLE: (first.scan_cycle - 1, last.scan_cycle)}
    if files is None:
        rows = read_version(spark, table, state.version)
    elif chosen := [file for file in files if may_hold(file, bounds)]:
        rows = read_files(spark, table, chosen, state.schema)
    else:
        rows = frame_of_tuples(spark, [], state.schema)
    cycle = f"{quote(SCAN_CYCLE)} between {first.scan_cycle} and {last.scan_cycle}"
    return rows.where(f"{cycle} and {quote(START_LSN)} between X'{first.hex()}' and X'{last.hex()}'")


def get_all_changes(
    database: str | os.PathLike[str],
    instance: str,
    from_lsn: bytes | str | None,
    to_lsn: bytes | str | None,
    row_filter_option: str = ALL,
    *,
    ordered: bool = True,
    spark: SparkSession | None = None,
) -> DataFrame:
    """Return all changes between two LSNs, both included.

    Args:
        database: The folder.
        instance: Name of the capture instance.
        from_lsn: Beginning of the window.
        to_lsn: End of the window.
        row_filter_option: `all`; or `all update old`, which also has the rows before updates (operation 3).
        ordered: Sort by __$start_lsn, __$seqval and __$operation.
        spark: The Spark session; by default the running one, or an embedded one.

    Returns: __$start_lsn, __$seqval, __$operation (1 delete, 2 insert, 3 and 4 update), __$update_mask, the captured
    columns.

    Raises: CdcUsageError for an unknown instance or option; LsnRangeError 313 if the window is not in the instance's
        interval.
    """
    _check_option(row_filter_option, ALL_OPTIONS)
    with plain_errors("changes were read"):
        window = open_window(database_at(database), instance, from_lsn, to_lsn, spark)
        rows = window.rows
        if row_filter_option == ALL:
            rows = rows.where(f"{quote(OPERATION)} <> {UPDATE_BEFORE}")
        if ordered:
            rows = rows.orderBy(*map(quote, (START_LSN, SEQVAL, OPERATION)))
        leading = (START_LSN, SEQVAL, OPERATION, UPDATE_MASK)
        return rows.select(*map(quote, (*leading, *window.captured)))


def get_net_changes(
    database: str | os.PathLike[str],
    instance: str,
    from_lsn: bytes | str | None,
    to_lsn: bytes | str | None,
    row_filter_option: str = ALL,
    *,
    ordered: bool = True,
    spark: SparkSession | None = None,
) -> DataFrame:
    """Return the net change of each key between two LSNs, both included: one row, with its last values.

    Args:
        database: The folder.
        instance: Name of the capture instance.
        from_lsn: Beginning of the window.
        to_lsn: End of the window.
        row_filter_option: `all`; `all with mask`, which has the changed columns of updates; or `all with merge`, which has
            operation 5 (insert or update) in place of 2 and 4.
        ordered: Sort by __$start_lsn.
        spark: The Spark session; by default the running one, or an embedded one.

    Returns: __$start_lsn (of the last change), __$operation (1 delete, 2 insert, 4 update, 5 insert or update),
    __$update_mask, the captured columns.

    Raises: CdcUsageError for an unknown instance or option; LsnRangeError 313 if the window is not in the instance's
        interval, or it does not support net changes; CdcError 22838 if a key had two rows at once.
    """
    _check_option(row_filter_option, NET_OPTIONS)
    found = database_at(database)
    chosen = found.instance(instance)
    if not chosen.supports_net_changes:
        raise LsnRangeError(
            f"Capture instance '{chosen.capture_instance}' does not support net changes. Ask for all changes; or "
            "enable an instance with a key (--index): a table may have two instances.",
            reason="no_net_changes",
            capture_instance=chosen.capture_instance,
        )
    with plain_errors("net changes were read"):
        window = open_window(found, instance, from_lsn, to_lsn, spark)
        rows = net_of(found, window, window.key, row_filter_option)
        if ordered:
            rows = rows.orderBy(*map(quote, (START_LSN, SEQVAL)))
        return rows.drop(SEQVAL)


def net_of(database: Database, window: Window, key: tuple[str, ...], option: str) -> DataFrame:
    """Return the net changes of a window by a key, and last __$seqval.

    Raises: as `with_rows_at_end`.
    """
    found = net_rows(window.rows, key, window.captured, option, compared=window.present)
    doubtful = found.where(quote(IS_DOUBTFUL)).select(*map(quote, (*key, START_LSN, SEQVAL)))
    rows = found.where(~F.col(quote(IS_DOUBTFUL))).drop(IS_DOUBTFUL)
    return rows if doubtful.isEmpty() else with_rows_at_end(database, window, rows, doubtful, key, option)


def with_rows_at_end(
    database: Database, window: Window, net: DataFrame, doubtful: DataFrame, key: tuple[str, ...], option: str
) -> DataFrame:
    """Return net changes with the source's row at the window's end for keys whose events do not determine it.

    `doubtful` has the key, and the __$start_lsn and __$seqval of the last event.

    Raises: CdcError 22838 if the source has two rows of such a key there, 22859 if that version cannot be read any more.
    """
    doubtful = keep_in_memory(doubtful)
    same_key = all_true([F.col(f"n.{quote(each)}").eqNullSafe(F.col(f"d.{quote(each)}")) for each in key])
    source = snapshot(
        database.root, window.instance.capture_instance, window.to_lsn, spark=net.sparkSession
    ).rows
    at_end = keep_in_memory(source.alias("n").join(doubtful.alias("d"), same_key, "left_semi"))
    refuse_twice(window.instance, at_end, key)
    others = net.alias("n").join(doubtful.alias("d"), same_key, "left_anti")
    return others.unionByName(net_of_table(doubtful, at_end, key, window.captured, option))


def refuse_twice(instance: ChangeTable, rows: DataFrame, key: Sequence[str]) -> None:
    """Check that rows of a source have each key once.

    Raises: CdcError 22838 naming keys.
    """
    if twice := keys_twice(rows, key):
        raise CdcError(
            22838,
            f"Capture instance '{instance.capture_instance}': the source had more than one row of a key "
            f"({', '.join(key)}) at once: {'; '.join(twice)}. It still has at the end of the window, so that the net "
            "change is not known. Nothing was changed. Delete or change all but one of these rows in the source, "
            "capture that (`mergerepl cdc capture ROOT`), then run again up to the new end; or ask for all changes.",
            capture_instance=instance.capture_instance,
        )


def keys_twice(rows: DataFrame, key: Sequence[str]) -> list[str]:
    """Return some keys that several rows have, as texts."""
    columns = [F.col(quote(name)) for name in key]
    twice = rows.groupBy(*columns).count().where("count > 1").limit(_SHOWN_KEYS)
    return [", ".join(f"{name}={row[name]}" for name in key) for row in twice.collect()]


def _check_option(option: str, allowed: tuple[str, ...]) -> None:
    if option not in allowed:
        raise CdcUsageError.bad_parameter(
            22990, "row_filter_option", option, f"it is one of: {', '.join(allowed)}"
        )


# -- masks -------------------------------------------------------------------------------------------------------------


def get_column_ordinal(database: str | os.PathLike[str], instance: str, column: str) -> int | None:
    """Return the place of a captured column, from 1: its bit in the mask; None if the instance does not capture it.

    Raises: CdcUsageError 22985 if the instance does not exist.
    """
    found = database_at(database)
    captured = found.captured(found.instance(instance).object_id)
    return next((row.column_ordinal for row in captured if row.column_name.lower() == column.lower()), None)


@overload
def is_bit_set(position: int, mask: bytes | None) -> bool: ...
@overload
def is_bit_set(position: int, mask: Column) -> Column: ...
def is_bit_set(position: int, mask: bytes | Column | None) -> bool | Column:
    """True if a mask has the bit of an ordinal (from 1): bytes give bool, a Column gives a Column. NULL has no bits."""
    return is_bit_set_column(position, mask) if isinstance(mask, Column) else has_bit(position, mask)


@overload
def has_column_changed(
    database: str | os.PathLike[str], instance: str, column: str, mask: bytes | None
) -> bool: ...
@overload
def has_column_changed(
    database: str | os.PathLike[str], instance: str, column: str, mask: Column
) -> Column: ...
def has_column_changed(
    database: str | os.PathLike[str], instance: str, column: str, mask: bytes | Column | None
) -> bool | Column:
    """True if a mask marks a captured column as changed: bytes give bool, a Column gives a Column.

    Raises: CdcUsageError 22985 if the instance does not exist, 22930 if it does not capture the column.
    """
    ordinal = get_column_ordinal(database, instance, column)
    if ordinal is None:
        found = database_at(database)
        captured = [row.column_name for row in found.captured(found.instance(instance).object_id)]
        raise CdcUsageError.unknown_column(instance, column, captured)
    return is_bit_set_column(ordinal, mask) if isinstance(mask, Column) else has_bit(ordinal, mask)


class Snapshot(NamedTuple):
    """Rows of a source (the captured columns), and the LSN that they are of: go on from the next one."""

    rows: DataFrame
    lsn: Lsn


def snapshot(
    database: str | os.PathLike[str],
    instance: str,
    lsn: bytes | str | None = None,
    *,
    spark: SparkSession | None = None,
) -> Snapshot:
    """Return the rows of an instance's source at exactly an LSN, and that LSN; by default the highest one.

    The rows are read lazily: reading fails if VACUUM removed their files by then.

    Raises: CdcUsageError 22985 if the instance does not exist; LsnRangeError if the LSN is not in its interval; CdcError
        22859 if the source cannot be read at that version any more.
    """
    found = database_at(database)
    chosen = found.instance(instance)
    at = checked_lsn(found, chosen, None if lsn is None else lsn_of_text(lsn))
    version = version_through(found, chosen, at)
    source = read_state(found.log).sources[chosen.source_object_id]
    path = found.root / source.source_path
    if not is_delta_table(path) or is_another_commit(path, source.position, source.position_commit):
        why = "the table at its path is gone, or another one"
        raise CdcError.version_gone(source.source_path, version, why)
    session = reading_session(spark)
    with plain_errors("a snapshot was read"):
        try:
            fields = open_table(path, version).fields
            rows = read_version(session, path, version)
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
    for column in found.captured(chosen.object_id):
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
