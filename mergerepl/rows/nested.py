"""Nested values: conversion to another shape, NOT NULL inside columns, and computation for each field of a row.

Rows travel as images whose parts may all be NULL. Delta's MERGE takes a value only under the type that its table
states, and Spark has no cast that makes a part NOT NULL.

Spark interprets array functions, and looks up its settings for each value of the array: two thirds of the time of the
merge rules over many rows (measured). So if many rows have the same number of fields, the expression is written out
field by field, which Spark compiles. For few rows, writing and compiling takes longer. (decisions/0024)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from mergerepl.frames import Column, F


def is_nested(data_type: T.DataType) -> bool:
    """Whether a type has parts."""
    return isinstance(data_type, T.StructType | T.ArrayType | T.MapType)


def in_shape(value: Column, have: T.DataType, want: T.DataType) -> Column:
    """Return a value with the fields of another type, matched by name as Delta does; a cast would match by position.

    Fields that the other type lacks are dropped; those that the value lacks are NULL. The keys of maps are unchanged;
    other values are cast, and NULL if that fails.
    """
    if have.simpleString() == want.simpleString():
        return value
    match have, want:
        case T.StructType(), T.StructType():
            known = set(have.names)
            fields = [
                (
                    in_shape(value.getField(f.name), have[f.name].dataType, f.dataType)
                    if f.name in known
                    else F.lit(None).cast(f.dataType)
                ).alias(f.name)
                for f in want
            ]
            return F.when(value.isNotNull(), F.struct(*fields))
        case T.ArrayType(), T.ArrayType():
            return F.transform(value, lambda item: in_shape(item, have.elementType, want.elementType))
        case T.MapType(), T.MapType() if have.keyType.simpleString() == want.keyType.simpleString():
            return F.transform_values(value, lambda _, item: in_shape(item, have.valueType, want.valueType))
    return value.try_cast(want)


def is_declared_inside(data_type: T.DataType) -> bool:
    """Whether a part of a type is NOT NULL. Keys of maps always are, and their parts are not checked."""
    match data_type:
        case T.ArrayType():
            return not data_type.containsNull or is_declared_inside(data_type.elementType)
        case T.MapType():
            return not data_type.valueContainsNull or is_declared_inside(data_type.valueType)
        case T.StructType():
            return any(not each.nullable or is_declared_inside(each.dataType) for each in data_type)
        case _:
            return False


def as_declared(spark: SparkSession, value: Column, data_type: T.DataType) -> Column:
    """Return a value of this exact type, from one whose parts may be NULL; a NULL in a NOT NULL part fails."""

    def part(value: Column, data_type: T.DataType, *, nullable: bool) -> Column:
        typed = as_declared(spark, value, data_type)
        return typed if nullable else _asserted(spark, typed)

    if not is_declared_inside(data_type):
        return value
    match data_type:
        case T.ArrayType():
            return F.transform(
                value, lambda item: part(item, data_type.elementType, nullable=data_type.containsNull)
            )
        case T.MapType():
            return F.transform_values(
                value, lambda _, item: part(item, data_type.valueType, nullable=data_type.valueContainsNull)
            )
        case T.StructType():
            parts = [
                part(value.getField(each.name), each.dataType, nullable=each.nullable).alias(each.name)
                for each in data_type
            ]
            return F.when(value.isNotNull(), F.struct(*parts))
        case _:
            return value


def _asserted(spark: SparkSession, value: Column) -> Column:
    """Return a value that is never NULL. No function of Spark's SQL declares that for any value without changing it."""
    jvm: Any = spark._jvm
    utils = getattr(jvm, "org.apache.spark.sql.classic.ExpressionUtils")
    asserting = getattr(jvm, "org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull")
    no_path = getattr(jvm, "scala.collection.immutable.List").newBuilder().result()
    return type(value)(utils.column(asserting(utils.expression(value._jc), no_path)))


def holds_inside(value: Column, data_type: T.DataType, *, of_row: bool = True) -> Column | None:
    """Return whether every NOT NULL part of a value is present; None if the type has no such part.

    For structs of the row itself (`of_row`) Delta is stricter than for those in arrays and maps: if such a struct is
    NULL, all its parts count as NULL.
    """
    if not is_declared_inside(data_type):
        return None
    match data_type:
        case T.ArrayType():
            return _all_hold(value, data_type.elementType, nullable=data_type.containsNull)
        case T.MapType():
            return _all_hold(F.map_values(value), data_type.valueType, nullable=data_type.valueContainsNull)
        case T.StructType():
            rules = [
                _holds(value.getField(each.name), each.dataType, nullable=each.nullable, of_row=of_row)
                for each in data_type
            ]
            all_hold = reduce(and_, [each for each in rules if each is not None])
            return all_hold if of_row else value.isNull() | all_hold
        case _:
            return None


def _holds(value: Column, data_type: T.DataType, *, nullable: bool, of_row: bool) -> Column | None:
    inside = holds_inside(value, data_type, of_row=of_row)
    if nullable:
        return inside
    return value.isNotNull() if inside is None else value.isNotNull() & inside


def _all_hold(values: Column, data_type: T.DataType, *, nullable: bool) -> Column:
    def holds(value: Column) -> Column:
        rule = _holds(value, data_type, nullable=nullable, of_row=False)
        return F.lit(True) if rule is None else rule

    return F.coalesce(F.forall(values, holds), F.lit(True))


Structs = Column | Mapping[str, Column]
"""An array of structs, or one array for each of their fields. Without structs, the last of these is NULL."""

Struct = Column | Mapping[str, Column]
"""One struct of `Structs`."""

MOST_WRITTEN_OUT = 20
"""With more fields, compiling takes longer than interpreting 20,000 rows (measured)."""


@dataclass(frozen=True)
class Fields:
    """The fields to write out, for typed rows; None: array functions over encoded fields are used."""

    written: StructType | None = None

    @classmethod
    def of_many(cls, written: StructType) -> "Fields":
        """Return the mode for many rows with these fields."""
        return cls(written if len(written) <= MOST_WRITTEN_OUT else None)

    @property
    def is_written_out(self) -> bool:
        """Whether the fields are written out."""
        return self.written is not None

    def each(self, array: Column, value: Callable[[Column, Column | int], Column]) -> Column:
        """Return the array of a value computed from each element and its index; NULL for NULL."""
        if self.written is None:
            return F.transform(array, value)
        values = (value(F.get(array, F.lit(i)), i) for i in range(len(self.written)))
        return F.when(array.isNotNull(), F.array(*values))

    def each_struct(self, structs: Structs, value: Callable[[Struct], Column]) -> Column:
        """Return the array of a value computed from each struct; NULL without structs."""
        if self.written is None:
            assert isinstance(structs, Column)
            return F.transform(structs, value)
        values = [value(_struct(structs, i)) for i in range(len(self.written))]
        last = structs if isinstance(structs, Column) else [*structs.values()][-1]
        return F.when(last.isNotNull(), F.array(*values))

    def any_struct(
        self, structs: Structs, beside: Column, test: Callable[[Struct, Column], Column]
    ) -> Column:
        """Return whether a test holds for any struct and the element of another array at the same index."""
        if self.written is None:
            assert isinstance(structs, Column)
            both = F.arrays_zip(structs.alias("struct"), beside.alias("beside"))
            return F.exists(both, lambda each: test(each["struct"], each["beside"]))
        found = [test(_struct(structs, i), F.get(beside, F.lit(i))) for i in range(len(self.written))]
        return reduce(or_, found)

    def present(self, structs: Structs, value: Callable[[Struct], Column]) -> Column:
        """Return `each_struct` without NULLs. The values must be distinct."""
        found = self.each_struct(structs, value)
        if self.written is None:
            return F.filter(found, lambda each: each.isNotNull())
        nothing = F.when(F.lit(False), F.get(found, F.lit(0)))
        return F.array_except(found, F.array(nothing))


def _struct(structs: Structs, number: int) -> Struct:
    if isinstance(structs, Column):
        return F.get(structs, F.lit(number))
    return {name: F.get(values, F.lit(number)) for name, values in structs.items()}


INTERPRETED = Fields()
