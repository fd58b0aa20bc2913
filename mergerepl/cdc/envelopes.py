"""Changes in other forms: Debezium's envelopes, one row for each insert, update and delete; rows to be shown."""

import os
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mergerepl.cdc.database import database_at
from mergerepl.delta import appended
from mergerepl.logreader.positions import read_state
from mergerepl.rows.images import with_readable
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import plain_errors
from mergerepl.systables.cdc import (
    DELETE,
    INSERT,
    LSN_TIME_MAPPING,
    OPERATION,
    RESERVED_PREFIX,
    SEQVAL,
    START_LSN,
    UPDATE_AFTER,
    UPDATE_BEFORE,
)

_OPS = {DELETE: "d", INSERT: "c", UPDATE_AFTER: "u"}


def to_debezium(changes: DataFrame, database: str | os.PathLike[str], instance: str) -> DataFrame:
    """Return changes as envelopes: `to_json(struct(*), map('ignoreNullFields', 'false'))` of a row is a message's payload.

    Args:
        changes: The result of `get_all_changes`, with `all update old`. Without operation 3, updates have no `before`.
        database: The folder.
        instance: Name of the capture instance.

    Returns: before and after (structs of the captured columns, or NULL), op (c, u, d), source (schema, table, commit_lsn,
    change_lsn, ts_ms: the commit time), ts_ms (the same). LSNs are written as epoch:cycle:slot, in hexadecimal. Rows of
    one LSN are in the order of `change_lsn`.

    Raises: CdcUsageError 22985 if the instance does not exist.
    """
    found = database_at(database)
    chosen = found.instance(instance)
    table = read_state(found.log).sources[chosen.source_object_id]
    captured = [column.column_name for column in found.captured(chosen.object_id)]
    lsn, seqval, operation = (F.col(quote(name)) for name in (START_LSN, SEQVAL, OPERATION))
    mapping = appended.read(changes.sparkSession, found.control.path(LSN_TIME_MAPPING.name))
    times = mapping.select(F.col("start_lsn").alias("lsn"), F.unix_millis("tran_end_time").alias("ts_ms"))
    of_update = Window.partitionBy(lsn, seqval).orderBy(operation)
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


def first_rows(frame: DataFrame, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return at most `limit` rows of changes, and whether there are more: LSNs and masks in hexadecimal, values as text."""
    names = [name for name in frame.columns if not name.startswith(RESERVED_PREFIX)]
    with plain_errors("changes were read"):
        found = with_readable(frame.limit(limit + 1), names).collect()
    rows = [
        {name: _shown(name, value) for name, value in zip(frame.columns, row, strict=True)}
        for row in found[:limit]
    ]
    return rows, len(found) > limit


def _shown(name: str, value: Any) -> Any:
    is_own = name.startswith(RESERVED_PREFIX) and name != OPERATION
    return f"0x{bytes(value).hex().upper()}" if is_own and value is not None else value
