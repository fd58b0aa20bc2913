"""Texts that are too long for char(n) or varchar(n): Spark checks the length when it writes, other engines do not."""

from collections.abc import Collection
from functools import reduce
from operator import and_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mergerepl.delta.table import TableState
from mergerepl.rows.sql import quote


def length_rules(table: TableState, columns: Collection[str]) -> dict[str, Column]:
    """Return name -> condition: the longest texts that a table's columns take, on columns by their own names."""
    rules: dict[str, Column] = {}
    for name in columns:
        declared = table.declared_lengths(name)
        fits = _fits(F.col(quote(name)), T.DataType.fromDDL(declared)) if declared else None
        if fits is not None:
            rules[f"type {declared} of column '{name}'"] = F.coalesce(fits, F.lit(True))
    return rules


def _fits(value: Column, declared: T.DataType) -> Column | None:
    """Return whether no text in a value is too long; None if the type sets no limit."""
    match declared:
        case T.CharType() | T.VarcharType():
            return F.char_length(value) <= declared.length
        case T.ArrayType():
            return _all_fit(value, declared.elementType)
        case T.MapType():
            parts = [
                _all_fit(F.map_keys(value), declared.keyType),
                _all_fit(F.map_values(value), declared.valueType),
            ]
        case T.StructType():
            parts = [_fits(value.getField(field.name), field.dataType) for field in declared]
        case _:
            return None
    rules = [part for part in parts if part is not None]
    return reduce(and_, rules) if rules else None


def _all_fit(values: Column, declared: T.DataType) -> Column | None:
    if _fits(F.lit(None), declared) is None:
        return None

    def fits(value: Column) -> Column:
        rule = _fits(value, declared)
        assert rule is not None
        return rule

    return F.forall(values, fits)
