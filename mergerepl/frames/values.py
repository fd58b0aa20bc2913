"""Types and values of rows in this process, as Spark's ANSI mode has them.

Values are physical: a date is its number of days, a timestamp its microseconds, a text with bytes that are no UTF-8 has
Python's stand-ins for them (surrogateescape), structs and arrays are tuples, maps are dictionaries.
"""

import marshal
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from mergerepl.delta.types import json_of, split_parts
from mergerepl.frames import NotInProcessError
from mergerepl.rows.rowguid import key_text

if TYPE_CHECKING:
    import pyarrow as pa

Turn = Callable[[Any], Any]

RANKS: dict[type[T.DataType], int] = {T.ByteType: 0, T.ShortType: 1, T.IntegerType: 2, T.LongType: 3}
_BITS: dict[type[T.DataType], int] = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 20}
_FLOATS = T.FloatType | T.DoubleType
_EPOCH = datetime(1970, 1, 1)
EXACT = Context(prec=80, rounding=ROUND_HALF_UP)
MOST_DIGITS = 38


def type_of(ddl: str | T.DataType) -> T.DataType:
    """Return a type whose parts may all be NULL, from Spark's DDL or from a type."""
    if isinstance(ddl, str):
        return T._parse_datatype_json_value(json_of(ddl))
    return _plain(ddl)


def struct_of(ddl: str | T.StructType) -> T.StructType:
    """Return the columns of a frame, from `name type, ...` or from a type."""
    if isinstance(ddl, str):
        named = (re.split(r"[\s:]+", each.strip(), maxsplit=1) for each in split_parts(ddl))
        return T.StructType([T.StructField(name, type_of(type_)) for name, type_ in named])
    plain = _plain(ddl)
    assert isinstance(plain, T.StructType)
    return plain


def _plain(data_type: T.DataType) -> T.DataType:
    match data_type:
        case T.StructType():
            return T.StructType([T.StructField(each.name, _plain(each.dataType)) for each in data_type])
        case T.ArrayType():
            return T.ArrayType(_plain(data_type.elementType))
        case T.MapType():
            return T.MapType(_plain(data_type.keyType), _plain(data_type.valueType))
        case T.StringType() if data_type != T.StringType():
            raise NotInProcessError(f"values of type {data_type.simpleString()}")
        case T.VariantType():
            raise NotInProcessError("values of type variant")
    return data_type


def is_integral(data_type: T.DataType) -> bool:
    """Whether a type has whole numbers."""
    return type(data_type) in RANKS


def decimal_of(data_type: T.DataType, literal: object = None) -> T.DecimalType:
    """Return the decimal type that whole numbers of a type have beside decimals."""
    if isinstance(data_type, T.DecimalType):
        return data_type
    if isinstance(literal, int):
        return T.DecimalType(len(str(abs(literal))), 0)
    if not is_integral(data_type):
        raise NotInProcessError(f"decimals beside {data_type.simpleString()}")
    return T.DecimalType(_DIGITS[type(data_type)], 0)


def bounded(precision: int, scale: int) -> T.DecimalType:
    """Return the decimal type of a result; above 38 digits it loses digits of the fraction, at least 6 stay."""
    if precision > MOST_DIGITS:
        scale = max(MOST_DIGITS - (precision - scale), min(scale, 6))
    return T.DecimalType(min(precision, MOST_DIGITS), scale)


def wider(one: T.DataType, other: T.DataType) -> T.DataType:
    """Return the type that holds the values of both."""
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
    if is_integral(one) and is_integral(other):
        return max(one, other, key=lambda each: RANKS[type(each)])
    if not all(is_integral(each) or isinstance(each, _FLOATS | T.DecimalType) for each in (one, other)):
        raise NotInProcessError(f"{one.simpleString()} beside {other.simpleString()}")
    if isinstance(one, _FLOATS) or isinstance(other, _FLOATS):
        return T.DoubleType()
    a, b = decimal_of(one), decimal_of(other)
    scale = max(a.scale, b.scale)
    return T.DecimalType(min(MOST_DIGITS, max(a.precision - a.scale, b.precision - b.scale) + scale), scale)


def widest(types: Iterable[T.DataType]) -> T.DataType:
    """Return the type that holds the values of all."""
    nothing: T.DataType = T.NullType()
    return reduce(wider, types, nothing)


def at_scale(value: Decimal, data_type: T.DecimalType) -> Decimal:
    """Return a decimal as its type writes it, rounded half up.

    Raises: OverflowError.
    """
    exact = value.quantize(Decimal(1).scaleb(-data_type.scale), context=EXACT)
    if exact and exact.adjusted() >= data_type.precision - data_type.scale:
        raise OverflowError(f"{value} is outside of {data_type.simpleString()}")
    return exact if exact else abs(exact)


def checked(data_type: T.DataType) -> Turn:
    """Return the function that refuses whole numbers outside of a type; it raises OverflowError."""
    limit = 1 << _BITS[type(data_type)] - 1

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


def text_bytes(text: str) -> bytes:
    """Return the bytes of a text."""
    return text.encode("utf-8", "surrogateescape")


def text_of(content: bytes) -> str:
    """Return bytes as a text, with stand-ins for those that are no UTF-8."""
    return content.decode("utf-8", "surrogateescape")


def whole(text: str) -> str:
    """Return a text made of parts: bytes that were no UTF-8 alone may be one character together."""
    return text if text.isascii() else text_of(text_bytes(text))


def caster(have: T.DataType, want: T.DataType, *, is_try: bool = False) -> Turn | None:
    """Return the function that casts a value that is not NULL; None if it stays as it is.

    Raises (the function): ArithmeticError or ValueError; with `is_try` it returns NULL instead.
    """
    turn = _caster(have, want)
    if turn is None or not is_try:
        return turn

    def attempt(value: Any) -> Any:
        try:
            return turn(value)
        except (ArithmeticError, ValueError):
            return None

    return attempt


def _caster(have: T.DataType, want: T.DataType) -> Turn | None:
    if have is want or have == want:
        return None
    match have, want:
        case T.NullType(), _:
            return lambda _: None
        case (T.StructType(), T.StructType()) if len(have) == len(want):
            return _parts([_part(a.dataType, b.dataType) for a, b in zip(have, want, strict=True)])
        case T.ArrayType(), T.ArrayType():
            return _items(_part(have.elementType, want.elementType))
        case T.MapType(), T.MapType():
            key, item = _part(have.keyType, want.keyType), _part(have.valueType, want.valueType)
            return lambda value: map_of((key(k), item(v)) for k, v in value.items())
        case _, T.StringType():
            return _text(have)
        case T.StringType(), T.BinaryType():
            return text_bytes
        case T.BooleanType(), _ if is_integral(want):
            return int
    number = _number(have)
    if isinstance(want, T.BooleanType) and number is int:
        return bool
    if number is not None and is_integral(want):
        check = checked(want)
        return lambda value: check(int(number(value)))
    if number is not None and isinstance(want, T.DecimalType):
        return lambda value: at_scale(
            Decimal(repr(value)) if have == T.DoubleType() else Decimal(number(value)), want
        )
    if number is not None and isinstance(want, _FLOATS):
        return float if isinstance(want, T.DoubleType) else lambda value: single(float(value))
    raise NotInProcessError(f"a cast of {have.simpleString()} to {want.simpleString()}")


def _number(have: T.DataType) -> Turn | None:
    if isinstance(have, T.StringType):
        return lambda text: Decimal(text.strip())
    return int if is_integral(have) else (lambda v: v) if isinstance(have, _FLOATS | T.DecimalType) else None


def _part(have: T.DataType, want: T.DataType) -> Turn:
    turn = _caster(have, want)
    return (lambda value: value) if turn is None else or_null(turn)


def _text(have: T.DataType) -> Turn:
    match have:
        case T.BinaryType():
            return text_of
        case T.BooleanType():
            return lambda value: "true" if value else "false"
        case T.DecimalType() | T.DateType() | T.TimestampNTZType():
            read, ddl = python_value(have), have.simpleString()
            if isinstance(have, T.DateType):
                return lambda value: str(read(value))
            return lambda value: key_text(read(value), ddl)
    if is_integral(have):
        return str
    raise NotInProcessError(f"a cast of {have.simpleString()} to text")


def map_of(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a map in the order of its entries. Raises: ValueError for a NULL key or a key that is there twice."""
    made: dict[Any, Any] = {}
    for key, value in pairs:
        if key is None or key in made:
            raise ValueError(
                f"a map has the key {key!r} twice" if key is not None else "a map has a NULL key"
            )
        made[key] = value
    return made


def has_float(data_type: T.DataType) -> bool:
    """Whether values of a type have floating numbers in them."""
    match data_type:
        case T.StructType():
            return any(has_float(each.dataType) for each in data_type)
        case T.ArrayType():
            return has_float(data_type.elementType)
        case T.MapType():
            raise NotInProcessError("comparisons of maps")
    return isinstance(data_type, _FLOATS)


def equal_key(data_type: T.DataType) -> Turn | None:
    """Return the function to a value that is equal and hashes alike for equal values; None if they are so themselves."""
    return order_key(data_type) if has_float(data_type) else None


def or_null(turn: Turn) -> Turn:
    """Return the function that gives NULL for NULL."""
    return lambda value: None if value is None else turn(value)


def _parts(turns: Sequence[Turn]) -> Turn:
    return lambda value: tuple([turn(each) for turn, each in zip(turns, value, strict=True)])


def _items(turn: Turn) -> Turn:
    return lambda value: tuple([turn(each) for each in value])


def order_key(data_type: T.DataType) -> Turn:
    """Return the function to a value that Python orders as Spark: NULL is lowest, NaN highest, texts go by their bytes."""
    turn = _ordered(data_type)
    if turn is None:
        return lambda value: (0,) if value is None else (1, value)
    return lambda value: (0,) if value is None else (1, turn(value))


def _ordered(data_type: T.DataType) -> Turn | None:
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
            return text_bytes
    return None


def exact(data_type: T.DataType) -> Turn:
    """Return the function to bytes that are equal exactly if two values have the same bits (all NaN count as one)."""
    match data_type:
        case T.BinaryType():
            return lambda value: value
        case T.StringType():
            return text_bytes
    canonical = _canonical(data_type)
    return lambda value: marshal.dumps(canonical(value), 2)


def _canonical(data_type: T.DataType) -> Turn:
    match data_type:
        case T.VariantType() | T.DayTimeIntervalType() | T.YearMonthIntervalType() | T.CalendarIntervalType():
            raise NotInProcessError(f"values of type {data_type.simpleString()}")
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
    return lambda value: value


def physical_value(data_type: T.DataType) -> Turn:
    """Return the function from one of Python's values of a type, or NULL."""
    match data_type:
        case T.StructType():
            parts, names = _parts([physical_value(each.dataType) for each in data_type]), data_type.names
            return or_null(lambda value: parts(_in_order(value, names)))
        case T.ArrayType():
            return or_null(_items(physical_value(data_type.elementType)))
        case T.MapType():
            pair = _parts([physical_value(data_type.keyType), physical_value(data_type.valueType)])
            return or_null(lambda value: map_of(pair(each) for each in value.items()))
        case T.DateType():
            return or_null(lambda value: (value - _EPOCH.date()).days)
        case T.TimestampType() | T.TimestampNTZType():
            return or_null(_microseconds)
        case T.DecimalType():
            return or_null(lambda value: at_scale(Decimal(value), data_type))
        case T.FloatType() | T.DoubleType():
            return or_null(float if isinstance(data_type, T.DoubleType) else single)
        case T.BinaryType():
            return or_null(bytes)
    return lambda value: value


def _in_order(value: Any, names: Sequence[str]) -> Sequence[Any]:
    return [value.get(name) for name in names] if isinstance(value, dict) else value


def _microseconds(value: datetime) -> int:
    naive = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    return (naive - _EPOCH) // timedelta(microseconds=1)


def python_value(data_type: T.DataType) -> Turn:
    """Return the function to Python's value of a type, as `collect` gives it; times are in UTC."""
    match data_type:
        case T.StructType():
            row, parts = T.Row(*data_type.names), _parts([python_value(each.dataType) for each in data_type])
            return or_null(lambda value: row(*parts(value)))
        case T.ArrayType():
            items = _items(python_value(data_type.elementType))
            return or_null(lambda value: list(items(value)))
        case T.MapType():
            pair = _parts([python_value(data_type.keyType), python_value(data_type.valueType)])
            return or_null(lambda value: dict(pair(each) for each in value.items()))
        case T.DateType():
            return or_null(lambda value: date.fromordinal(value + _EPOCH.toordinal()))
        case T.TimestampType() | T.TimestampNTZType():
            return or_null(lambda value: _EPOCH + timedelta(microseconds=value))
    return lambda value: value


def from_arrow(column: Any, data_type: T.DataType) -> list[Any]:
    """Return the values of a column of Arrow."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in from_arrow(chunk, data_type)]
    if isinstance(column, pa.DictionaryArray):
        return from_arrow(column.dictionary_decode(), data_type)
    if isinstance(data_type, T.DateType):
        column = column.cast(pa.date32()).cast(pa.int32())
    elif isinstance(data_type, T.TimestampType | T.TimestampNTZType):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    valid = column.is_valid().to_pylist() if column.null_count else None
    match data_type:
        case T.StructType():
            parts = [
                from_arrow(part, each.dataType)
                for part, each in zip(column.flatten(), data_type, strict=True)
            ]
            values: list[Any] = list(zip(*parts, strict=True)) if parts else [()] * len(column)
        case T.ArrayType() | T.MapType():
            offsets = column.offsets.to_pylist()
            first, last = offsets[0], offsets[-1]
            kinds = (
                [(column.values, data_type.elementType)]
                if isinstance(data_type, T.ArrayType)
                else [(column.keys, data_type.keyType), (column.items, data_type.valueType)]
            )
            parts = [from_arrow(part.slice(first, last - first), kind) for part, kind in kinds]
            spans = [(a - first, b - first) for a, b in pairwise(offsets)]
            if isinstance(data_type, T.ArrayType):
                values = [tuple(parts[0][a:b]) for a, b in spans]
            else:
                values = [map_of(zip(parts[0][a:b], parts[1][a:b], strict=True)) for a, b in spans]
        case T.StringType():
            values = column.cast(pa.binary()).to_pylist()
            return [None if each is None else text_of(each) for each in values]
        case _:
            values = column.to_pylist()
    if valid is None:
        return values
    return [each if there else None for each, there in zip(values, valid, strict=True)]


def to_arrow(values: Sequence[Any], data_type: T.DataType) -> "pa.Array[Any]":
    """Return values as a column of Arrow, with the type that Spark's column gets."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type

    kind = to_arrow_type(data_type, timezone="UTC")
    if isinstance(data_type, T.StructType):
        parts = [
            to_arrow([None if each is None else each[i] for each in values], part.dataType)
            for i, part in enumerate(data_type)
        ]
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(
            parts, fields=fields, mask=pa.array([each is None for each in values], pa.bool_())
        )
    if isinstance(data_type, T.ArrayType | T.MapType):
        offsets: list[int | None] = []
        place = 0
        for each in values:
            offsets.append(None if each is None else place)
            place += 0 if each is None else len(each)
        ends = pa.array([*offsets, place], pa.int32())
        there = [each for each in values if each is not None]
        if isinstance(data_type, T.ArrayType):
            items = to_arrow([item for each in there for item in each], data_type.elementType)
            return pa.ListArray.from_arrays(ends, items, type=kind)
        keys = to_arrow([key for each in there for key in each], data_type.keyType)
        items = to_arrow([item for each in there for item in each.values()], data_type.valueType)
        return pa.MapArray.from_arrays(ends, keys, items, type=kind)
    if isinstance(data_type, T.StringType):
        encoded = pa.array([None if each is None else text_bytes(each) for each in values], pa.binary())
        return encoded.view(kind)
    if isinstance(data_type, T.DateType):
        return pa.array(values, pa.int32()).view(kind)
    if isinstance(data_type, T.TimestampType | T.TimestampNTZType):
        return pa.array(values, pa.int64()).view(kind)
    return pa.array(values, kind)
