"""Nested values in another shape: fields go by their names, as Delta reads them. A cast goes by their places."""

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T


def is_nested(data_type: T.DataType) -> bool:
    """Return whether a type has parts."""
    return isinstance(data_type, T.StructType | T.ArrayType | T.MapType)


def in_shape(value: Column, have: T.DataType, want: T.DataType) -> Column:
    """Return a value with the fields that another type has: what it has more is left out, what it lacks is NULL.

    The keys of maps stay as they are; other values are cast, and NULL where that cannot be.
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
