"""The hash of a row: equal bits, equal hash, for every writer and every order of the columns."""

from collections.abc import Iterable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mergerepl.rows.images import comparable
from mergerepl.rows.sql import quote

_MICROSECONDS = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_NULLS_AT_ONCE = 62
"""Columns whose NULLs fit into one bit mask."""


def row_hash(columns: Sequence[str], schema: T.StructType) -> Column:
    """Return the 64-bit hash of a row's columns, taken in the given order.

    xxhash64 skips NULLs (NULL, 'a' and 'a', NULL would hash alike) and takes -0.0 for 0.0, so extra terms
    distinguish both.
    """
    terms: list[Column] = []
    for name in columns:
        terms += _terms(F.col(quote(name)), schema[name].dataType)
    return F.xxhash64(*terms, *_nulls(columns))


def key_hash(columns: Sequence[str], schema: T.StructType) -> Column:
    """Return the 64-bit hash of a row's key, to divide rows into buckets by."""
    return F.xxhash64(*(comparable(F.col(quote(name)), schema[name].dataType) for name in columns))


def _terms(value: Column, data_type: T.DataType) -> Iterable[Column]:
    if isinstance(data_type, T.FloatType | T.DoubleType):
        is_negative_zero = F.when(value == 0, value.cast("string") == "-0.0")
        return value, is_negative_zero
    if isinstance(data_type, T.StructType | T.ArrayType | T.MapType):
        # Inside of these NULLs count too; as JSON they have a place.
        return (F.to_json(F.struct(comparable(value, data_type)), _MICROSECONDS),)
    return (comparable(value, data_type),)


def _nulls(columns: Sequence[str]) -> list[Column]:
    """Return bit masks of the columns that are NULL; also of NOT NULL ones, which the other side may not have."""
    masks = []
    for first in range(0, len(columns), _NULLS_AT_ONCE):
        bits = [
            F.when(F.col(quote(name)).isNull(), F.lit(1 << i)).otherwise(F.lit(0)).cast("bigint")
            for i, name in enumerate(columns[first : first + _NULLS_AT_ONCE])
        ]
        mask = bits[0]
        for bit in bits[1:]:
            mask = mask.bitwiseOR(bit)
        masks.append(mask)
    return masks
