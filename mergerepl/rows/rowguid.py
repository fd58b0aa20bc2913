"""The rowguid of key values in plain Python, equal to `rows.images.derived_rowguid` in Spark.

A property test ties the two. The canonical text of a value depends on no setting: see `key_text`.
"""

import hashlib
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext

KeyValue = int | str | bool | bytes | date | datetime | Decimal

_TAGS = {
    "tinyint": "i",
    "smallint": "i",
    "int": "i",
    "bigint": "i",
    "string": "s",
    "date": "d",
    "timestamp": "t",
    "timestamp_ntz": "n",
    "decimal": "m",
    "boolean": "b",
    "binary": "x",
}
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_DECIMAL_DIGITS = 38
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rowguid_of(values: Sequence[KeyValue], types: Sequence[str]) -> str:
    """Return the rowguid of key values: 128 bits of the SHA-256 over `tag length:text;` of each, as a UUID.

    `values` is the key in the order of the article's identity columns, `types` their Spark DDL.
    """
    parts = []
    for value, type_ in zip(values, types, strict=True):
        text = key_text(value, type_).encode()
        parts.append(b"%s%d:%s;" % (_TAGS[base_type(type_)].encode(), len(text), text))
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    return str(uuid.UUID(digest[:32]))


def base_type(type_: str) -> str:
    """Return the name of a type without precision or collation."""
    return type_.partition("(")[0].partition(" ")[0].strip().lower()


def key_text(value: KeyValue, type_: str) -> str:
    """Return the canonical text of a key value."""
    match base_type(type_), value:
        case "date", date():
            return str((value - date(1970, 1, 1)).days)
        case "timestamp", datetime():
            return str((value - _EPOCH) // timedelta(microseconds=1))
        case "timestamp_ntz", datetime():
            fraction = f".{value.microsecond:06d}".rstrip("0").rstrip(".")
            return f"{value.year:04d}{value:-%m-%d %H:%M:%S}{fraction}"
        case "decimal", Decimal():
            return f"{_at_scale(value, type_):f}"
        case "boolean", bool():
            return str(value).lower()
        case "binary", bytes():
            return value.hex().upper()
    return str(value)


def key_value(text: str, type_: str) -> KeyValue:
    """Parse a key value as users write it: dates and times in ISO 8601, binary in hexadecimal.

    A timestamp without an offset is in UTC, as in the conflicts and in the embedded engine.

    Raises: ValueError if the text is not a value of the type.
    """
    match base_type(type_):
        case "tinyint" | "smallint" | "int" | "bigint":
            return _integer(text, type_)
        case "date":
            return date.fromisoformat(text)
        case "timestamp":
            return _in_utc(datetime.fromisoformat(text))
        case "timestamp_ntz":
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                raise ValueError(f"{text!r} has a time zone, which this column has not")
            return moment
        case "decimal":
            return _decimal(text, type_)
        case "boolean":
            if text.lower() not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
            return text.lower() == "true"
        case "binary":
            return bytes.fromhex(text.removeprefix("0x"))
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        # Python's stand-ins for bytes of an argument that are not UTF-8.
        raise ValueError(f"{text[:40]!r} is no UTF-8")
    return text


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"'{moment}' is before the year 1 or after 9999 in UTC") from error


def _integer(text: str, type_: str) -> int:
    limit = 1 << _INTEGER_BITS[base_type(type_)] - 1
    try:
        value = int(text)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is no {type_}") from error
    if "_" in text or not -limit <= value < limit:
        raise ValueError(f"{text[:40]!r} is no {type_}")
    return value


def _decimal(text: str, type_: str) -> Decimal:
    try:
        value = Decimal(text)
        exact = _at_scale(value, type_)
        _check_precision(exact, type_)
    except ArithmeticError as error:
        raise ValueError(f"{text!r} is no {type_}") from error
    if exact != value:
        raise ValueError(f"{text!r} has more digits than {type_}")
    return exact


def _at_scale(value: Decimal, type_: str) -> Decimal:
    """Return a decimal with all the digits of its type's scale, and zero without a sign.

    Raises: ArithmeticError if it has more digits than any decimal type.
    """
    with localcontext(prec=_DECIMAL_DIGITS):
        exact = value.quantize(Decimal(1).scaleb(-_scale(type_)))
    return exact if exact else abs(exact)


def _check_precision(value: Decimal, type_: str) -> None:
    precision = int(type_.partition("(")[2].partition(",")[0].rstrip(") "))
    if value.is_finite() and value and value.adjusted() >= precision - _scale(type_):
        raise OverflowError(f"{value} has more than {precision} digits")


def _scale(type_: str) -> int:
    _, _, scale = type_.partition(",")
    return int(scale.rstrip(") ") or 0)
