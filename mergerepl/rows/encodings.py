"""Canonical encodings: the value of a field as bytes, so that rows of any article are compared as arrays of bytes.

Two encodings of one type are equal if and only if `images.same_value` is true for the values. They serve one session's
comparisons: they are neither stored nor decoded. All expressions are pure Columns.
"""

from collections.abc import Collection

from pyspark.sql import types as T

from mergerepl.frames import Column, F, bits_of, is_in_process

FIELDS_TYPE = "array<binary>"

_NULL = "-"
"""The code of NULL inside of a value; the code of any other value begins with a digit."""


def encoded_fields(image: str, data_type: T.StructType, fields: Collection[str]) -> Column:
    """Return the encodings of some fields of an image, in their order; NULL is NULL."""
    chosen = (field for field in data_type if field.name in fields)
    return F.array(*(encoded(F.col(f"{image}.{field.name}"), field.dataType) for field in chosen)).cast(
        FIELDS_TYPE
    )


def encoded(value: Column, data_type: T.DataType) -> Column:
    """Return the canonical bytes of a value; NULL is NULL.

    Raises: TypeError for a type that articles may not have.
    """
    if isinstance(data_type, T.BinaryType):
        return value
    return bits_of(value) if is_in_process() else _text(value, data_type).cast("binary")


def _text(value: Column, data_type: T.DataType) -> Column:
    """Return a string whose bytes are canonical, perhaps not UTF-8."""
    match data_type:
        case T.StringType():
            # Casting to bytes first removes a collation.
            return value.cast("binary").cast("string")
        case T.BinaryType():
            return value.cast("string")
        case T.TimestampType():
            # As text, two instants are equal in the hour in which clocks are set back.
            return F.unix_micros(value).cast("string")
        case T.VariantType():
            return F.to_json(value)
        case T.StructType():
            parts = (_framed(value.getField(f.name), f.dataType) for f in data_type)
            return F.when(value.isNotNull(), F.concat(F.lit(""), *parts))
        case T.ArrayType():
            return F.array_join(F.transform(value, lambda item: _framed(item, data_type.elementType)), "")
        case T.MapType():
            entries = F.transform(
                F.map_entries(value),
                lambda entry: F.concat(
                    _framed(entry["key"], data_type.keyType), _framed(entry["value"], data_type.valueType)
                ),
            )
            return F.array_join(F.array_sort(entries), "")
        case (
            T.BooleanType()
            | T.IntegralType()
            | T.DecimalType()
            | T.FloatType()
            | T.DoubleType()
            | T.DateType()
            | T.TimestampNTZType()
        ):
            return value.cast("string")
    raise TypeError(f"values of type {data_type.simpleString()} have no canonical encoding")


def _framed(value: Column, data_type: T.DataType) -> Column:
    """Return a part of a value prefixed with its length, so that no two sequences of parts give the same text."""
    text = _text(value, data_type)
    framed = F.concat(F.octet_length(text).cast("string"), F.lit(":"), text)
    return F.coalesce(framed, F.lit(_NULL))
