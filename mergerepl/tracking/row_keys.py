"""Row keys as tombstones hold them: the values of the key columns in one binary value (compact.md 8).

Format: the number of columns as int32; then for each column, in key order, its length in bytes as int32 and its bytes; all
little-endian. Plain Python and Spark write the same bytes: a property test ties them.
"""

import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from functools import reduce
from operator import add

from mergerepl.frames import Column, F
from mergerepl.rows.rowguid import KeyValue, base_type

LONGEST = 8000
"""Bytes of a packed key at most."""

GUID = "guid"
"""The type of a GUID key's column here: a string elsewhere."""

_WIDTHS = {"boolean": 1, "tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "date": 4, "timestamp": 8}
_WIDTHS |= {"timestamp_ntz": 8, "decimal": 16, GUID: 16}
_FREE = ("string", "binary")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_DIGITS_AT_MOST = 18
"""Maximum digits of a decimal key: no integer type of Spark holds the unscaled value of a longer one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_MICROS = 86_400_000_000


def unsupported(type_: str) -> str | None:
    """Return why columns of a type (Spark DDL) cannot be part of a key; None if they can."""
    name = base_type(type_)
    if name in ("float", "double"):
        return f"equal values of type {type_} have several bit patterns (0 and -0, NaN); keys are compared by bytes"
    if name not in (*_WIDTHS, *_FREE) or "collate" in type_.lower():
        return f"values of type {type_} have no packed form"
    if name == "decimal" and _scale_of(type_)[0] > _DIGITS_AT_MOST:
        return f"a decimal of more than {_DIGITS_AT_MOST} digits ({type_}) has no packed form"
    return None


def pack(values: Sequence[KeyValue], types: Sequence[str]) -> bytes:
    """Return packed key values. Raises: ValueError if a value does not fit its type, or the key is too long."""
    if len(values) != len(types):
        raise ValueError(f"the key has {len(types)} columns, and {len(values)} values were given")
    packed = len(types).to_bytes(4, "little")
    for value, type_ in zip(values, types, strict=True):
        try:
            part = _bytes_of(value, type_)
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{value!r} is no value of type {type_}") from error
        packed += len(part).to_bytes(4, "little") + part
    if len(packed) > LONGEST:
        raise ValueError(f"the key takes {len(packed)} bytes; a row key has at most {LONGEST}")
    return packed


def unpack(packed: bytes, types: Sequence[str]) -> tuple[KeyValue, ...]:
    """Return the values of a packed key. Raises: ValueError if the bytes are not a key of these types."""
    if len(packed) < 4:
        raise ValueError(
            f"{len(packed)} bytes are no packed key: it begins with 4 for the number of its columns"
        )
    count, rest = int.from_bytes(packed[:4], "little"), packed[4:]
    if count != len(types):
        raise ValueError(f"the packed key has {count} columns; the table's key has {len(types)}")
    values: list[KeyValue] = []
    for type_ in types:
        length, rest = int.from_bytes(rest[:4], "little"), rest[4:]
        wanted = _WIDTHS.get(base_type(type_), length)
        if length > len(rest) or length != wanted:
            raise ValueError(f"the packed key has {min(length, len(rest))} bytes for a value of type {type_}")
        try:
            values.append(_value_of(rest[:length], type_))
        except OverflowError as error:
            # Spark has days and times outside of the years 1 to 9999.
            raise ValueError(f"the packed key has a {type_} that Python has no value for") from error
        rest = rest[length:]
    if rest:
        raise ValueError(f"the packed key has {len(rest)} bytes after its last value")
    return tuple(values)


def _bytes_of(value: KeyValue, type_: str) -> bytes:
    match base_type(type_), value:
        case "boolean", bool():
            return bytes([value])
        case "tinyint" | "smallint" | "int" | "bigint" as name, int() if not isinstance(value, bool):
            return value.to_bytes(_WIDTHS[name], "little", signed=True)
        case "string", str():
            return value.encode()
        case "binary", bytes():
            return value
        case "guid", str():
            return uuid.UUID(value).bytes_le
        case "decimal", Decimal() | int():
            return _unscaled(Decimal(value), type_).to_bytes(16, "little", signed=True)
        case "date", date() if not isinstance(value, datetime):
            return (value - _EPOCH.date()).days.to_bytes(4, "little", signed=True)
        case "timestamp", datetime():
            return _micros(value if value.tzinfo else value.replace(tzinfo=UTC))
        case "timestamp_ntz", datetime() if value.tzinfo is None:
            return _micros(value.replace(tzinfo=UTC))
    raise ValueError


def _value_of(part: bytes, type_: str) -> KeyValue:
    number = int.from_bytes(part, "little", signed=True)
    match base_type(type_):
        case "boolean":
            return bool(part[0])
        case "string":
            return part.decode()
        case "binary":
            return part
        case "guid":
            return str(uuid.UUID(bytes_le=part))
        case "decimal":
            with localcontext(prec=38):
                return Decimal(number).scaleb(-_scale_of(type_)[1])
        case "date":
            return _EPOCH.date() + timedelta(days=number)
        case "timestamp":
            return _EPOCH + timedelta(microseconds=number)
        case "timestamp_ntz":
            return (_EPOCH + timedelta(microseconds=number)).replace(tzinfo=None)
    return number


def _micros(moment: datetime) -> bytes:
    return ((moment - _EPOCH) // timedelta(microseconds=1)).to_bytes(8, "little", signed=True)


def _unscaled(value: Decimal, type_: str) -> int:
    digits, scale = _scale_of(type_)
    with localcontext(prec=38):
        shifted = value.scaleb(scale)
        number = int(shifted)
    if number != shifted or abs(number) >= 10**digits:
        raise ValueError
    return number


def packed_key(keys: Sequence[Column], types: Sequence[str]) -> Column:
    """Return the packed key of key columns, of any length; NULL where one of them is."""
    texts = [F.lit(_little(len(types), 4))]
    for key, type_ in zip(keys, types, strict=True):
        text = _hex_of(key, type_)
        width = _WIDTHS.get(base_type(type_))
        length = (
            F.lit(_little(width, 4))
            if width
            else _reversed_pairs(F.lpad(F.hex(F.octet_length(key)), 8, "0"), 4)
        )
        texts += [length, text]
    return F.unhex(F.concat(*texts))


def unpacked_keys(packed: Column, types: Sequence[str]) -> list[Column]:
    """Return the key columns of packed keys; the result is undefined for bytes that `packed_key` did not make."""
    text = F.hex(packed)
    # Offset of a value: a number, plus the lengths of earlier values of variable width. Kept apart, because each use of
    # an expression repeats it.
    start, lengths = 9, list[Column]()
    values = []
    for type_ in types:
        width = _WIDTHS.get(base_type(type_))
        at = reduce(add, lengths, F.lit(start + 8))
        length = F.lit(2 * width) if width else _length(text, at - 8)
        values.append(_column_of(F.substr(text, at, length), type_))
        start += 8 + 2 * (width or 0)
        lengths += [] if width else [length]
    return values


def _length(text: Column, at: Column) -> Column:
    """Return the hex digits of a value, from the lower two bytes of its length: a key has at most 8,000."""
    straight = F.concat(F.substr(text, at + 2, F.lit(2)), F.substr(text, at, F.lit(2)))
    return F.conv(straight, 16, 10).cast("int") * 2


def _hex_of(key: Column, type_: str) -> Column:
    name = base_type(type_)
    match name:
        case "boolean":
            return F.when(key, "01").otherwise(F.when(~key, "00"))
        case "string":
            return F.hex(key.cast("binary"))
        case "binary":
            return F.hex(key)
        case "guid":
            cuts = ((1, 8), (10, 4), (15, 4), (20, 4), (25, 12))
            return _guid_swapped(F.concat(*(F.substring(key, start, length) for start, length in cuts)))
        case "date":
            return _integer_hex(F.unix_date(key), 4)
        case "timestamp":
            return _integer_hex(F.unix_micros(key), 8)
        case "timestamp_ntz":
            return _integer_hex(_local_micros(key), 8)
        case "decimal":
            unscaled = (key * F.lit(Decimal(10) ** _scale_of(type_)[1])).cast("bigint")
            sign = F.when(unscaled < 0, "F" * 16).otherwise("0" * 16)
            return F.concat(_integer_hex(unscaled, 8), sign)
    return _integer_hex(key, _WIDTHS[name])


def _column_of(text: Column, type_: str) -> Column:
    name = base_type(type_)
    match name:
        case "boolean":
            return text == "01"
        case "string":
            return F.unhex(text).cast("string")
        case "binary":
            return F.unhex(text)
        case "guid":
            swapped = F.lower(_guid_swapped(text))
            cuts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
            return F.concat_ws("-", *(F.substring(swapped, start, length) for start, length in cuts))
        case "date":
            return F.date_from_unix_date(_number(text, 4).cast("int"))
        case "timestamp":
            return F.timestamp_micros(_number(text, 8))
        case "timestamp_ntz":
            micros, length = _number(text, 8), F.lit(_DAY_MICROS)
            # Not by `/`: a double has fewer digits than the microseconds of the last years before 10000.
            days = F.call_function("div", micros, length) - (micros % length < 0).cast("int")
            day = F.date_from_unix_date(days.cast("int"))
            seconds = (F.pmod(micros, length).cast("decimal(20,0)") / 1_000_000).cast("decimal(18,6)")
            return day.cast("timestamp_ntz") + F.make_dt_interval(secs=seconds)
        case "decimal":
            digits, scale = _scale_of(type_)
            unscaled = _number(F.substring(text, 1, 16), 8).cast("decimal(18,0)")
            return (unscaled * F.lit(Decimal(1).scaleb(-scale))).cast(f"decimal({digits},{scale})")
    return _number(text, _WIDTHS[name]).cast(name)


def _integer_hex(number: Column, width: int) -> Column:
    text = F.lpad(F.hex(number.cast("bigint")), 16, "0")
    return _reversed_pairs(F.substring(text, 17 - 2 * width, 2 * width), width)


def _number(text: Column, width: int) -> Column:
    """Return the integer of a little-endian hex text in two's complement, as bigint."""
    straight = _reversed_pairs(text, width)
    if width < 8:
        is_negative = F.substring(straight, 1, 1) >= "8"
        fill = F.when(is_negative, "F" * (16 - 2 * width)).otherwise("0" * (16 - 2 * width))
        straight = F.concat(fill, straight)
    return F.conv(straight, 16, -10).cast("bigint")


def _reversed_pairs(text: Column, width: int) -> Column:
    return F.concat(*(F.substring(text, 2 * i + 1, 2) for i in reversed(range(width)))) if width > 1 else text


def _guid_swapped(text: Column) -> Column:
    """Return 32 digits with the first three fields of the GUID reversed, as .NET stores them; its own inverse."""
    order = (3, 2, 1, 0, 5, 4, 7, 6, *range(8, 16))
    return F.concat(*(F.substring(text, 2 * i + 1, 2) for i in order))


def _local_micros(moment: Column) -> Column:
    """Return the microseconds of a time without a zone since 1970-01-01, independent of the session's zone."""
    seconds = F.hour(moment) * 3600 + F.minute(moment) * 60
    fraction = (F.extract(F.lit("SECOND"), moment) * 1_000_000).cast("bigint")
    days = F.unix_date(moment.cast("date")).cast("bigint")
    return days * _DAY_MICROS + seconds.cast("bigint") * 1_000_000 + fraction


def _little(number: int, width: int) -> str:
    return number.to_bytes(width, "little").hex().upper()


def _scale_of(type_: str) -> tuple[int, int]:
    digits, _, scale = type_.partition("(")[2].rstrip(") ").partition(",")
    return int(digits), int(scale or 0)
