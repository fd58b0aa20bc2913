"""From the changes of commits to the rows of a change table, and their update masks (cdc.md 2). Pure.

A mask has a bit for each captured column: n columns make ceil(n / 8) bytes. The LAST byte holds ordinals 1 to 8; ordinal k
is bit (k - 1) mod 8 of byte floor((k - 1) / 8), counted from the right.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from mergerepl.changes import ROW
from mergerepl.delta.feed.commit_changes import ROW_HASH, VERSION
from mergerepl.delta.feed.net_changes import AFTER, BEFORE, DOUBTFUL, EXISTED, EXISTS, spans_of_events
from mergerepl.frames import Column, DataFrame, F, cached, is_in_process
from mergerepl.logreader.consumer import ReadRows
from mergerepl.logreader.lsn import Lsn
from mergerepl.rows.images import all_true, image_type, same_value
from mergerepl.rows.nested import in_shape, is_nested
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import frame_of
from mergerepl.systables.cdc import (
    DELETE,
    END_LSN,
    INSERT,
    OPERATION,
    RESERVED_PREFIX,
    SCAN_CYCLE,
    SEQVAL,
    START_LSN,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    UPDATE_MASK,
)

_PHASES = {DELETE: 0, UPDATE_AFTER: 1, INSERT: 2}
"""The first byte of seqval: deletes come before updates, updates before inserts."""

_PHASES_OF_PLACE = 4
"""Values of that byte for each place of a commit in its unit."""

_LITERALS = 200
"""Up to this number of LSNs are written into the query; more are joined."""

_LSN = "lsn"


def change_rows(
    spark: SparkSession,
    read: ReadRows,
    lsns: Mapping[int, Lsn],
    captured: Sequence[tuple[str, str | None, str]],
    places: Mapping[int, int],
) -> DataFrame:
    """Return the rows of a change table, its columns in order, for the changes that were read of its source.

    `lsns`: version -> LSN. `captured`, by ordinal: the column's name in the change table, its name in the source at the
    end of the reading (None if missing), its type in the change table (Spark DDL). `places`: version -> its place in a
    unit, without those at the first place.
    """
    field_of = {name: f"c{i}" for i, name in enumerate(read.columns)}
    fields = tuple(None if source is None else field_of[source] for _, source, _ in captured)
    changes = _in_captured_shape(read.rows, fields, captured)
    image = image_type(changes, AFTER)
    masked = changes.select(*(VERSION, ROW_HASH, BEFORE, AFTER), _mask(fields, image).alias(UPDATE_MASK))
    # An update of columns that are not captured.
    masked = masked.where(~(_is_update() & (F.col(UPDATE_MASK) == F.lit(bytes(mask_length(len(captured)))))))
    located = _with_lsn(spark, masked, lsns)
    exploded = located.select(
        _LSN, _seqval(places).alias(SEQVAL), F.explode(_events(len(captured))).alias("event")
    )
    values = [
        _value(field, image, name, type_) for field, (name, _, type_) in zip(fields, captured, strict=True)
    ]
    cycle = next(iter(lsns.values())).scan_cycle
    return exploded.select(
        F.col(_LSN).alias(START_LSN),
        F.lit(None).cast("binary").alias(END_LSN),
        SEQVAL,
        F.col("event.operation").alias(OPERATION),
        F.col("event.mask").alias(UPDATE_MASK),
        *values,
        F.lit(cycle).cast("bigint").alias(SCAN_CYCLE),
    )


def _in_captured_shape(
    changes: DataFrame, fields: Sequence[str | None], captured: Sequence[tuple[str, str | None, str]]
) -> DataFrame:
    """Return changes whose nested values have the fields that the change table has: a later field is not captured."""
    image = image_type(changes, AFTER)
    for field, (_, _, type_) in zip(fields, captured, strict=True):
        if field is None or not is_nested(have := image[field].dataType):
            continue
        want = DataType.fromDDL(type_)
        if have.simpleString() != want.simpleString():
            for side in (BEFORE, AFTER):
                value = in_shape(F.col(f"{side}.{field}"), have, want)
                changes = changes.withColumn(side, F.col(side).withField(field, value))
    return changes


def _is_update() -> Column:
    return F.col(BEFORE).isNotNull() & F.col(AFTER).isNotNull()


@cached
def _mask(fields: tuple[str | None, ...], image: StructType) -> Column:
    """Return the update mask of two images: the bytes of the highest ordinals first."""
    texts = []
    for at in range(8 * (mask_length(len(fields)) - 1), -1, -8):
        bits = [
            F.when(
                ~same_value(F.col(f"{BEFORE}.{field}"), F.col(f"{AFTER}.{field}"), image[field].dataType),
                1 << bit,
            ).otherwise(0)
            for bit, field in enumerate(fields[at : at + 8])
            if field is not None
        ]
        byte = reduce(operator.add, bits) if bits else F.lit(0)
        texts.append(F.lpad(F.hex(byte), 2, "0"))
    return F.unhex(F.concat(*texts))


def _with_lsn(spark: SparkSession, rows: DataFrame, lsns: Mapping[int, Lsn]) -> DataFrame:
    if len(lsns) <= _LITERALS and not is_in_process():
        pairs = ", ".join(f"{version}L, X'{lsn.hex()}'" for version, lsn in lsns.items())
        return rows.withColumn(_LSN, F.expr(f"map({pairs})[{VERSION}]"))
    import pyarrow as pa

    known = frame_of(
        spark,
        pa.table(
            {VERSION: pa.array(lsns, pa.int64()), _LSN: pa.array(map(bytes, lsns.values()), pa.binary())}
        ),
    )
    return rows.join(F.broadcast(known), on=VERSION, how="inner")


def _seqval(places: Mapping[int, int]) -> Column:
    """Return __$seqval: a byte of the commit's place in its unit and of the phase, then the hash of the row's key."""

    def phase(place: int) -> Column:
        update, insert, delete = (
            F.lit(bytes([_PHASES_OF_PLACE * place + _PHASES[each]]))
            for each in (UPDATE_AFTER, INSERT, DELETE)
        )
        return F.when(_is_update(), update).when(F.col(AFTER).isNotNull(), insert).otherwise(delete)

    found = phase(0)
    for place in sorted(set(places.values())):
        versions = [version for version, at in places.items() if at == place]
        found = F.when(F.col(VERSION).isin(versions), phase(place)).otherwise(found)
    return F.concat(found, F.col(ROW_HASH))


def _events(columns: int) -> Column:
    """Return the rows of a change: one, or two for an update."""
    all_bits = F.lit(full_mask(columns))

    def event(operation: int, mask: Column, side: str) -> Column:
        return F.struct(F.lit(operation).alias("operation"), mask.alias("mask"), F.col(side).alias(ROW))

    mask = F.col(UPDATE_MASK)
    both = F.array(event(UPDATE_BEFORE, mask, BEFORE), event(UPDATE_AFTER, mask, AFTER))
    inserted = F.array(event(INSERT, all_bits, AFTER))
    return (
        F.when(_is_update(), both)
        .when(F.col(AFTER).isNotNull(), inserted)
        .otherwise(F.array(event(DELETE, all_bits, BEFORE)))
    )


def _value(field: str | None, image: StructType, name: str, type_: str) -> Column:
    if field is None:
        return F.lit(None).cast(type_).alias(name)
    value = F.col(f"event.{ROW}.{field}")
    if image[field].dataType.simpleString() != type_:
        # Whether values are lost was checked before the cycle was decided.
        value = value.try_cast(type_)
    return value.alias(name)


MAX_COLUMNS = 1024


def mask_bytes(ordinals: Iterable[int], columns: int) -> bytes:
    """Return the mask of an instance with this number of captured columns, with the bits of the ordinals (from 1) set."""
    number = 0
    for ordinal in ordinals:
        number |= 1 << (ordinal - 1)
    return number.to_bytes(mask_length(columns), "big")


def full_mask(columns: int) -> bytes:
    """Return the mask of an insert or delete: the bits of all columns are set."""
    return mask_bytes(range(1, columns + 1), columns)


def mask_length(columns: int) -> int:
    """Return the bytes of a mask."""
    return -(-columns // 8)


def has_bit(position: int, mask: bytes | None) -> bool:
    """True if a mask has the bit of an ordinal (from 1); False without a mask, or for an ordinal that it lacks."""
    if mask is None or not 0 < position <= 8 * len(mask):
        return False
    return bool(mask[-1 - (position - 1) // 8] >> ((position - 1) % 8) & 1)


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

    A key is doubtful if its events do not fit one row, by the columns `compared` (those that the source still has): it had
    two rows at once, or may have had. Its net change is the source's row at the window's end, not its last event.

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
    for at, wide in mask_chunks(columns):
        digits = F.conv(F.hex(F.substring(quote(UPDATE_MASK), at + 1, wide)), 16, 10)
        number = digits.cast("decimal(18,0)").cast("bigint")
        parts[f"mask{at}"] = F.lpad(F.hex(F.bit_or(number)), 2 * wide, "0")
    return parts


def mask_chunks(columns: int) -> list[tuple[int, int]]:
    """Return the places and lengths of parts of a mask that fit a number each."""
    length = mask_length(columns)
    return [(at, min(_CHUNK, length - at)) for at in range(0, length, _CHUNK)]


def net_of_table(
    doubtful: DataFrame, at_end: DataFrame, key: Sequence[str], captured: Sequence[str], option: str
) -> DataFrame:
    """Return the net changes of doubtful keys (with their last __$start_lsn and __$seqval), as `net_rows` does.

    `at_end` are the captured columns of the source's rows of these keys at the window's end: at most one of each.
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
