"""Types and values of rows in this process, as Spark's ANSI mode has them.

Values are physical: a date is its number of days, a timestamp its microseconds, a text with bytes that are no UTF-8 has
Python's stand-ins for them (surrogateescape), structs and arrays are tuples, maps are dictionaries.
"""

import marshal
import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import reduce
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from mergerepl.delta.types import json_of
from mergerepl.frames import NeedsSparkError, NotInProcessError
from mergerepl.rows.rowguid import key_text

if TYPE_CHECKING:
    import pyarrow as pa

Turn = Callable[[Any], Any]

INTEGERS: dict[type[T.DataType], tuple[int, int]] = {
    T.ByteType: (8, 3),
    T.ShortType: (16, 5),
    T.IntegerType: (32, 10),
    T.LongType: (64, 20),
}
"""The bits of each integer type, and the digits of its decimal type."""

EXACT = Context(prec=100, rounding=ROUND_HALF_UP)
_FLOATS = T.FloatType | T.DoubleType
_TIMES = T.TimestampType | T.TimestampNTZType
_EPOCH = datetime(1970, 1, 1)
_DAY_US = 86_400_000_000
_MOST_DIGITS = 38
_PLAIN = T.NullType | T.BooleanType | T.NumericType | T.BinaryType | T.DateType | _TIMES


def type_of(data_type: str | T.DataType) -> T.DataType:
    """Return a type, also one in Spark's DDL, whose parts may all be NULL. Raises: NeedsSparkError."""
    match data_type:
        case str():
            return T._parse_datatype_json_value(json_of(data_type))
        case T.StructType():
            return T.StructType([T.StructField(each.name, type_of(each.dataType)) for each in data_type])
        case T.ArrayType():
            return T.ArrayType(type_of(data_type.elementType))
        # A dictionary does not find NaN.
        case T.MapType() if not _has_float(data_type.keyType):
            return T.MapType(type_of(data_type.keyType), type_of(data_type.valueType))
    if not isinstance(data_type, _PLAIN) and data_type != T.StringType():
        raise NeedsSparkError(f"values of type {data_type.simpleString()}")
    return data_type


def decimal_of(data_type: T.DataType, literal: object = None) -> T.DecimalType:
    """Return the decimal type that an integer type, or an integer literal, has in a comparison with decimals."""
    if isinstance(data_type, T.DecimalType):
        return data_type
    return T.DecimalType(
        len(str(abs(literal))) if isinstance(literal, int) else INTEGERS[type(data_type)][1], 0
    )


def bounded(precision: int, scale: int) -> T.DecimalType:
    """Return the decimal type of a result; above 38 digits it loses digits of the fraction, at least 6 stay."""
    if precision > _MOST_DIGITS:
        scale = max(_MOST_DIGITS - (precision - scale), min(scale, 6))
    return T.DecimalType(min(precision, _MOST_DIGITS), scale)


def wider(one: T.DataType, other: T.DataType) -> T.DataType:
    """Return the type that holds the values of both. Raises: NeedsSparkError if Spark's holds not all of them."""
    if one is other or one == other or isinstance(other, T.NullType):
        return one
    match one, other:
        case T.NullType(), _:
            return other
        case (T.StructType(), T.StructType()) if len(one) == len(other):
            pairs = zip(one, other, strict=True)
            return T.StructType([T.StructField(a.name, wider(a.dataType, b.dataType)) for a, b in pairs])
        case T.ArrayType(), T.ArrayType():
            return T.ArrayType(wider(one.elementType, other.elementType))
        case T.MapType(), T.MapType():
            return T.MapType(wider(one.keyType, other.keyType), wider(one.valueType, other.valueType))
    if not isinstance(one, T.NumericType) or not isinstance(other, T.NumericType):
        raise NotInProcessError(f"{one.simpleString()} and {other.simpleString()} as one type")
    if type(one) in INTEGERS and type(other) in INTEGERS:
        return max(one, other, key=lambda each: INTEGERS[type(each)])
    if isinstance(one, _FLOATS) or isinstance(other, _FLOATS):
        return T.DoubleType()
    a, b = decimal_of(one), decimal_of(other)
    scale, digits = max(a.scale, b.scale), max(a.precision - a.scale, b.precision - b.scale)
    if digits + scale > _MOST_DIGITS:
        raise NeedsSparkError(f"{one.simpleString()} beside {other.simpleString()}")
    return T.DecimalType(digits + scale, scale)


def widest(types: Iterable[T.DataType]) -> T.DataType:
    """Return the type that holds the values of all."""
    nothing: T.DataType = T.NullType()
    return reduce(wider, types, nothing)


def at_scale(value: Decimal, data_type: T.DecimalType) -> Decimal:
    """Return a decimal as its type writes it, rounded half up. Raises: OverflowError."""
    exactly = value.quantize(Decimal(1).scaleb(-data_type.scale), context=EXACT)
    if exactly and exactly.adjusted() >= data_type.precision - data_type.scale:
        raise OverflowError(f"{value} is outside of {data_type.simpleString()}")
    return exactly if exactly else abs(exactly)


def checked(data_type: T.DataType) -> Turn:
    """Return the function that refuses whole numbers outside of a type by OverflowError."""
    limit = 1 << INTEGERS[type(data_type)][0] - 1

    def check(value: int) -> int:
        if not -limit <= value < limit:
            raise OverflowError(f"{value} is outside of {data_type.simpleString()}")
        return value

    return check


def single(value: float) -> float:
    """Return a number rounded to a float of 32 bits."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def content(value: str | bytes) -> bytes:
    """Return the bytes of a text, or bytes."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def text_of(value: bytes) -> str:
    """Return bytes as a text, with stand-ins for those that are no UTF-8."""
    return value.decode("utf-8", "surrogateescape")


def whole(text: str) -> str:
    """Return a text made of parts: bytes that were no UTF-8 alone may be one character together."""
    return text if text.isascii() else text_of(content(text))


def map_of(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a map in the order of its entries. Raises: ValueError for a NULL key or a key that is there twice."""
    made: dict[Any, Any] = {}
    for key, value in pairs:
        if key is None or key in made:
            raise ValueError("a map has a NULL key" if key is None else f"a map has the key {key!r} twice")
        made[key] = value
    return made


def or_null(turn: Turn | None) -> Turn:
    """Return the function that gives NULL for NULL, and without a function the value itself."""
    if turn is None:
        return lambda value: value
    return lambda value: None if value is None else turn(value)


def _parts(turns: Sequence[Turn]) -> Turn:
    return lambda value: tuple([turn(each) for turn, each in zip(turns, value, strict=True)])


def _items(turn: Turn) -> Turn:
    return lambda value: tuple([turn(each) for each in value])


def caster(have: T.DataType, want: T.DataType, *, is_try: bool = False) -> Turn | None:
    """Return the function that casts a value that is not NULL; None if it stays as it is.

    Raises (the function): ArithmeticError, ValueError; with `is_try` it returns NULL instead.
    """
    turn = None if have is want or have == want else _caster(have, want)
    if turn is None or not is_try:
        return turn

    def attempt(value: Any) -> Any:
        try:
            return turn(value)
        except (ArithmeticError, ValueError):
            return None

    return attempt


def _caster(have: T.DataType, want: T.DataType) -> Turn:
    def part(one: T.DataType, other: T.DataType) -> Turn:
        return or_null(caster(one, other))

    is_number = isinstance(have, T.NumericType | T.BooleanType)
    match have, want:
        case T.NullType(), _:
            return lambda _: None
        case (T.StructType(), T.StructType()) if len(have) == len(want):
            return _parts([part(a.dataType, b.dataType) for a, b in zip(have, want, strict=True)])
        case T.ArrayType(), T.ArrayType():
            return _items(part(have.elementType, want.elementType))
        case T.MapType(), T.MapType():
            pair = _parts([part(have.keyType, want.keyType), part(have.valueType, want.valueType)])
            return lambda value: map_of(pair(each) for each in value.items())
        case _, T.StringType():
            return _text(have)
        case T.StringType(), T.BinaryType():
            return content
        case (T.StringType(), T.DecimalType()):
            return lambda text: at_scale(Decimal(text.strip()), want)
        case T.DateType(), T.TimestampNTZType():
            return lambda days: days * _DAY_US
        case (_, T.BooleanType()) if is_number:
            return bool
        case (_, T.IntegralType()) if is_number:
            check = checked(want)
            return lambda value: check(int(value))
        case (_, T.DecimalType()) if is_number:
            return lambda value: at_scale(
                Decimal(repr(value)) if isinstance(value, float) else Decimal(value), want
            )
        case (_, T.DoubleType()) if is_number:
            return float
        case (_, T.FloatType()) if is_number:
            return lambda value: single(float(value))
    raise NotInProcessError(f"a cast of {have.simpleString()} to {want.simpleString()}")


def _text(have: T.DataType) -> Turn:
    ddl = have.simpleString()
    match have:
        case T.BinaryType():
            return text_of
        case T.BooleanType():
            return lambda value: "true" if value else "false"
        case T.IntegralType():
            return str
        case T.DecimalType():
            return lambda value: key_text(value, ddl)
        case T.DateType():
            return _date_text
        case T.TimestampNTZType():
            return _moment_text
    raise NotInProcessError(f"a cast of {ddl} to text")


def _date_text(days: int) -> str:
    ordinal = _EPOCH.toordinal() + days
    if not 1 <= ordinal <= date.max.toordinal():
        raise NeedsSparkError("a date outside of the years 1 to 9999")
    return str(date.fromordinal(ordinal))


def _moment_text(microseconds: int) -> str:
    try:
        return key_text(_EPOCH + timedelta(microseconds=microseconds), "timestamp_ntz")
    except OverflowError as error:
        raise NeedsSparkError("a timestamp outside of the years 1 to 9999") from error


def equal_key(data_type: T.DataType) -> Turn | None:
    """Return the function to a value that is equal and hashes alike for equal values; None if they are so themselves."""
    return order_key(data_type) if _has_float(data_type) else None


def key_of(data_type: T.DataType) -> Turn:
    """Return `equal_key`, or the function to the value itself."""
    return equal_key(data_type) or (lambda value: value)


def _has_float(data_type: T.DataType) -> bool:
    match data_type:
        case T.StructType():
            # A list: maps are refused at any place.
            return True in [_has_float(each.dataType) for each in data_type]
        case T.ArrayType():
            return _has_float(data_type.elementType)
        case T.MapType():
            raise NotInProcessError("comparisons of maps")
    return isinstance(data_type, _FLOATS)


def order_key(data_type: T.DataType) -> Turn:
    """Return the function to a value that Python orders as Spark: NULL is lowest, NaN highest, texts go by their bytes."""
    turn = _ordered(data_type)
    return lambda value: (0,) if value is None else (1, turn(value))


def _ordered(data_type: T.DataType) -> Turn:
    match data_type:
        case T.StructType():
            return _parts([order_key(each.dataType) for each in data_type])
        case T.ArrayType():
            return _items(order_key(data_type.elementType))
        case T.MapType():
            raise NotInProcessError("comparisons of maps")
        case T.FloatType() | T.DoubleType():
            return lambda value: (0, value) if value == value else (1, 0.0)
        case T.StringType():
            return content
    return lambda value: value


def exact(data_type: T.DataType) -> Turn:
    """Return the function to bytes that are equal exactly if two values have the same bits (all NaN count as one)."""
    if isinstance(data_type, T.StringType | T.BinaryType):
        return content
    if isinstance(data_type, T.IntegralType):
        return lambda value: b"%d" % value
    canonical = _canonical(data_type)
    return lambda value: marshal.dumps(canonical(value), 2)


def _canonical(data_type: T.DataType) -> Turn:
    match data_type:
        case T.StructType():
            return or_null(_parts([_canonical(each.dataType) for each in data_type]))
        case T.ArrayType():
            return or_null(_items(_canonical(data_type.elementType)))
        case T.MapType():
            pair = _parts([_canonical(data_type.keyType), _canonical(data_type.valueType)])
            return or_null(
                lambda value: tuple(sorted(marshal.dumps(pair(each), 2) for each in value.items()))
            )
        case T.FloatType() | T.DoubleType():
            return or_null(repr)
        case T.DecimalType():
            return or_null(str)
        case T.StringType():
            return or_null(content)
    return lambda value: value


def from_arrow(column: Any, data_type: T.DataType) -> list[Any]:
    """Return the values of a column of Arrow. Raises: NeedsSparkError for a map that has a key twice."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in from_arrow(chunk, data_type)]
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    match data_type:
        case T.StructType():
            parts = zip(column.flatten(), data_type, strict=True)
            values: list[Any] = list(
                zip(*(from_arrow(part, each.dataType) for part, each in parts), strict=True)
            )
        case T.ArrayType():
            items = from_arrow(column.values, data_type.elementType)
            values = [tuple(items[a:b]) for a, b in pairwise(column.offsets.to_pylist())]
        case T.MapType():
            pairs = list(
                zip(
                    from_arrow(column.keys, data_type.keyType),
                    from_arrow(column.items, data_type.valueType),
                    strict=True,
                )
            )
            try:
                values = [map_of(pairs[a:b]) for a, b in pairwise(column.offsets.to_pylist())]
            except ValueError as error:
                raise NeedsSparkError(str(error)) from error
        case T.StringType():
            return [None if each is None else text_of(each) for each in column.cast(pa.binary()).to_pylist()]
        case T.DateType():
            column = column.cast(pa.date32()).cast(pa.int32())
            values = column.to_pylist()
        case T.TimestampType() | T.TimestampNTZType():
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
            values = column.to_pylist()
        case _:
            values = column.to_pylist()
    if not column.null_count:
        return values
    return [
        each if there else None for each, there in zip(values, column.is_valid().to_pylist(), strict=True)
    ]


_CODES: dict[type[T.DataType], str] = {
    T.ByteType: "b",
    T.ShortType: "h",
    T.IntegerType: "i",
    T.DateType: "i",
    T.LongType: "q",
    T.TimestampType: "q",
    T.TimestampNTZType: "q",
    T.FloatType: "f",
    T.DoubleType: "d",
}


def to_arrow(values: Sequence[Any], data_type: T.DataType) -> "pa.Array[Any]":
    """Return values as a column of Arrow, with the type that Spark's column gets.

    From buffers: Arrow imports pandas to make an array from a list.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    def offsets(sizes: Iterable[int]) -> "pa.Buffer":
        return pa.py_buffer(array("i", accumulate(sizes, initial=0)))

    there = [value for value in values if value is not None]
    buffers = [None if len(there) == len(values) else _bitmap([value is not None for value in values])]
    children = []
    match data_type:
        case T.StructType():
            for i, each in enumerate(data_type):
                children.append(to_arrow([None if v is None else v[i] for v in values], each.dataType))
        case T.ArrayType():
            buffers.append(offsets(len(value or ()) for value in values))
            children.append(to_arrow([item for value in there for item in value], data_type.elementType))
        case T.MapType():
            entry = T.StructType().add("key", data_type.keyType, False).add("value", data_type.valueType)
            buffers.append(offsets(len(value or ()) for value in values))
            children.append(to_arrow([pair for value in there for pair in value.items()], entry))
        case T.StringType() | T.BinaryType():
            parts = [content(value or b"") for value in values]
            buffers += [offsets(map(len, parts)), pa.py_buffer(b"".join(parts))]
        case T.BooleanType():
            buffers.append(_bitmap([bool(value) for value in values]))
        case T.DecimalType():
            numbers = [int((value or Decimal(0)).scaleb(data_type.scale, EXACT)) for value in values]
            buffers.append(
                pa.py_buffer(b"".join([each.to_bytes(16, "little", signed=True) for each in numbers]))
            )
        case T.NullType():
            return pa.nulls(len(values))
        case _:
            buffers.append(
                pa.py_buffer(
                    array(_CODES[type(data_type)], [0 if value is None else value for value in values])
                )
            )
    kind = to_arrow_type(data_type, timezone="UTC")
    return pa.Array.from_buffers(kind, len(values), buffers, children=children)


def _bitmap(flags: Sequence[bool]) -> "pa.Buffer":
    import pyarrow as pa

    bits = int("".join(["1" if flag else "0" for flag in reversed(flags)]) or "0", 2)
    return pa.py_buffer(bits.to_bytes((len(flags) + 7) // 8, "little"))
