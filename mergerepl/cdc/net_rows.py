"""From the rows of a change table to net changes: one row for each key (cdc.md 6). Pure.

| first event | last event | all | all with mask | all with merge |
|---|---|---|---|---|
| insert | insert or update | 2 | 2 | 5 |
| insert | delete | no row | no row | no row |
| update or delete | update or insert | 4 | 4, the masks of all events together | 5 |
| update or delete | delete | 1 | 1 | 1 |
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mergerepl.cdc.change_rows import full_mask, mask_length
from mergerepl.changes import ROW
from mergerepl.delta.feed.net_changes import AFTER, DOUBTFUL, EXISTED, EXISTS, spans_of_events
from mergerepl.rows.images import all_true, image_type
from mergerepl.rows.sql import quote
from mergerepl.systables.cdc import (
    DELETE,
    INSERT,
    OPERATION,
    RESERVED_PREFIX,
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
"""Bytes of a mask that fit one number without its sign."""

IS_DOUBTFUL, _LAST, _THERE, _KEY = (
    f"{RESERVED_PREFIX}{name}" for name in ("doubtful", "last", "there", "key")
)
"""Columns next to captured ones, whose names never begin with this prefix."""


def net_rows(
    rows: DataFrame, key: Sequence[str], captured: Sequence[str], option: str, *, compared: Sequence[str]
) -> DataFrame:
    """Return the net changes of rows of a change table, and doubtful keys.

    A key is doubtful if its events do not fit one row: it had two rows at once, or may have had. Its net change is the
    source's row at the window's end, not its last event.

    `compared` are the columns for that check: those that the source has at the window's end.

    Returns: __$start_lsn (of the last change), __$operation, __$update_mask (NULL but with `all with mask` for 4), the
    captured columns with their last values, __$seqval of the last change, to sort by, and DOUBTFUL.
    """
    operation = F.col(quote(OPERATION))
    parts = _parts(len(captured)) if option == ALL_WITH_MASK else {}
    events = rows.select(
        *(F.col(quote(name)).alias(f"k{i}") for i, name in enumerate(key)),
        F.struct(*(F.col(quote(name)).alias(f"c{i}") for i, name in enumerate(captured))).alias(ROW),
        F.struct(F.col(quote(START_LSN)).alias("lsn"), F.col(quote(SEQVAL)).alias("seqval")).alias("version"),
        operation.isin(DELETE, UPDATE_BEFORE).alias("is_before"),
        F.lit(None).cast("string").alias("type"),
        quote(UPDATE_MASK),
    )
    image = image_type(events, ROW)
    image = StructType([field for field, name in zip(image, captured, strict=True) if name in compared])
    keys = [F.col(f"k{i}") for i in range(len(key))]
    net = spans_of_events(events, keys, image, also={_LAST: F.max("version"), **parts})
    was, is_there = F.col(EXISTED), F.col(EXISTS)
    there = F.lit(MERGE) if option == ALL_WITH_MERGE else F.when(was, UPDATE_AFTER).otherwise(INSERT)
    mask = F.lit(None).cast("binary")
    if parts:
        mask = F.when(was & is_there, F.unhex(F.concat(*map(F.col, parts))))
    return net.where(was | is_there | F.col(DOUBTFUL)).select(
        F.col(f"{_LAST}.lsn").alias(START_LSN),
        F.when(~is_there, DELETE).otherwise(there).cast("int").alias(OPERATION),
        mask.alias(UPDATE_MASK),
        *(F.col(f"{AFTER}.c{i}").alias(name) for i, name in enumerate(captured)),
        F.col(f"{_LAST}.seqval").alias(SEQVAL),
        F.col(DOUBTFUL).alias(IS_DOUBTFUL),
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


def net_of_table(
    doubtful: DataFrame, at_end: DataFrame, key: Sequence[str], captured: Sequence[str], option: str
) -> DataFrame:
    """Return the net changes of doubtful keys from the source's rows at the window's end, as `net_rows` does.

    Args:
        doubtful: The keys, and the __$start_lsn and __$seqval of the last event.
        at_end: The captured columns of the source's rows of these keys: at most one of each.
        key: The columns that identify a row.
        captured: The captured columns.
        option: One of `NET_OPTIONS`.
    """
    there = F.struct(*(F.col(quote(name)).alias(f"c{i}") for i, name in enumerate(captured)))
    found = at_end.select(
        *(F.col(quote(name)).alias(f"{_KEY}{i}") for i, name in enumerate(key)), there.alias(_THERE)
    )
    same_key = all_true([F.col(quote(name)).eqNullSafe(F.col(f"{_KEY}{i}")) for i, name in enumerate(key)])
    is_there = F.col(_THERE).isNotNull()
    mask = F.when(is_there, F.lit(full_mask(len(captured)))) if option == ALL_WITH_MASK else F.lit(None)
    return doubtful.join(found, same_key, "left").select(
        quote(START_LSN),
        F.when(is_there, MERGE if option == ALL_WITH_MERGE else UPDATE_AFTER)
        .otherwise(DELETE)
        .cast("int")
        .alias(OPERATION),
        mask.cast("binary").alias(UPDATE_MASK),
        *(
            (
                F.coalesce(F.col(f"{_THERE}.c{i}"), F.col(quote(name)))
                if name in key
                else F.col(f"{_THERE}.c{i}")
            ).alias(name)
            for i, name in enumerate(captured)
        ),
        quote(SEQVAL),
    )


def is_bit_set_column(position: int, mask: Column) -> Column:
    """True if a mask in a column has the bit of an ordinal; False if the mask lacks that bit or is NULL."""
    place, bit = divmod(position - 1, 8)
    if position < 1:
        return F.lit(False)
    # The last byte has ordinals 1 to 8.
    byte = F.conv(F.hex(F.substring(mask, -(place + 1), 1)), 16, 10).cast("int")
    is_there = F.octet_length(mask) > place
    return F.coalesce(is_there & (byte.bitwiseAND(1 << bit) != 0), F.lit(False))
