"""From the rows of a change table to net changes: one row for each key (cdc.md 6). Pure.

| first event | last event | all | all with mask | all with merge |
|---|---|---|---|---|
| insert | insert or update | 2 | 2 | 5 |
| insert | delete | no row | no row | no row |
| update or delete | update or insert | 4 | 4, the masks of all events together | 5 |
| update or delete | delete | 1 | 1 | 1 |
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from mergerepl.cdc.mask import mask_length
from mergerepl.rows.sql import quote
from mergerepl.systables.cdc import (
    DELETE,
    INSERT,
    OPERATION,
    SEQVAL,
    START_LSN,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    UPDATE_MASK,
)

ALL, ALL_WITH_MASK, ALL_WITH_MERGE = "all", "all with mask", "all with merge"
NET_OPTIONS = (ALL, ALL_WITH_MASK, ALL_WITH_MERGE)

MERGE = 5
"""`__$operation` of a row to be inserted or updated, whichever it needs."""

_CHUNK = 7
"""So many bytes of a mask are one number, without its sign."""

_ORDER = (START_LSN, SEQVAL, OPERATION)


def net_rows(rows: DataFrame, key: Sequence[str], captured: Sequence[str], option: str) -> DataFrame:
    """Return the net changes of rows of a change table.

    Returns: __$start_lsn (of the last change), __$operation, __$update_mask (NULL but with `all with mask` for 4), the
    captured columns with their last values, and last __$seqval of the last change, to sort by.
    """
    events = rows.where(F.col(quote(OPERATION)) != UPDATE_BEFORE)
    order = F.struct(*(F.col(quote(name)) for name in _ORDER))
    values = F.struct(*(F.col(quote(name)).alias(f"c{i}") for i, name in enumerate(captured)))
    last = F.struct(*(F.col(quote(name)) for name in _ORDER), values.alias("values"))
    parts = _parts(len(captured)) if option == ALL_WITH_MASK else {}
    keys = [F.col(quote(name)).alias(f"k{i}") for i, name in enumerate(key)]
    net = events.groupBy(*keys).agg(
        F.min_by(quote(OPERATION), order).alias("first"),
        F.max_by(last, order).alias("last"),
        *(part.alias(name) for name, part in parts.items()),
    )
    was = F.col("first") != INSERT
    is_there = F.col(f"last.{quote(OPERATION)}") != DELETE
    there = F.lit(MERGE) if option == ALL_WITH_MERGE else F.when(was, UPDATE_AFTER).otherwise(INSERT)
    mask = F.lit(None).cast("binary")
    if parts:
        mask = F.when(was & is_there, F.unhex(F.concat(*map(F.col, parts))))
    return net.where(was | is_there).select(
        F.col(f"last.{quote(START_LSN)}").alias(START_LSN),
        F.when(~is_there, DELETE).otherwise(there).cast("int").alias(OPERATION),
        mask.alias(UPDATE_MASK),
        *(F.col(f"last.values.c{i}").alias(name) for i, name in enumerate(captured)),
        F.col(f"last.{quote(SEQVAL)}").alias(SEQVAL),
    )


def _parts(columns: int) -> dict[str, Column]:
    """Return the masks of a group taken together, as hexadecimal texts from the left."""
    parts = {}
    length = mask_length(columns)
    for at in range(0, length, _CHUNK):
        wide = min(_CHUNK, length - at)
        number = F.conv(F.hex(F.substring(quote(UPDATE_MASK), at + 1, wide)), 16, 10).cast("bigint")
        parts[f"mask{at}"] = F.lpad(F.hex(F.bit_or(number)), 2 * wide, "0")
    return parts


def keys_live_twice(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the keys whose events do not alternate: they had two rows at once. Columns: those of the key."""
    lsn, seqval, operation = (F.col(quote(name)) for name in _ORDER)
    keys = [F.col(quote(name)) for name in key]
    in_order = Window.partitionBy(*keys).orderBy(lsn, seqval, operation)
    before = F.lag(F.struct(lsn.alias("lsn"), seqval.alias("seqval"), operation.alias("operation")))
    events = rows.where(operation != UPDATE_BEFORE).select(
        *keys, lsn, seqval, operation, before.over(in_order).alias("before")
    )
    was = F.col("before.operation")
    after_delete = (was == DELETE) & (operation == INSERT)
    is_same = (F.col("before.lsn") == lsn) & (F.col("before.seqval") == seqval)
    after_row = (was != DELETE) & (operation != INSERT) & ~is_same
    return events.where(F.col("before").isNotNull() & ~(after_delete | after_row)).select(*keys).distinct()


def is_bit_set_column(position: int, mask: Column) -> Column:
    """Return whether a mask in a column has the bit of an ordinal; False where it has no such bit, or is NULL."""
    place, bit = divmod(position - 1, 8)
    if position < 1:
        return F.lit(False)
    # The last byte has ordinals 1 to 8.
    byte = F.conv(F.hex(F.substring(mask, -(place + 1), 1)), 16, 10).cast("int")
    is_there = F.octet_length(mask) > place
    return F.coalesce(is_there & (byte.bitwiseAND(1 << bit) != 0), F.lit(False))
