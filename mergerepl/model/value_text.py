"""A value of a row in words, the same in all reports. Pure."""

from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal

NULL = "NULL"


def text_of(value: object) -> str | None:
    """Return a value as docs/cli-json.md writes it, the same for every library that read it; NULL stays None.

    A struct or map is a mapping; a map whose keys a mapping cannot hold is a list of pairs, as Arrow has it.
    """
    match value:
        case None | str():
            return value
        case bool():
            return str(value).lower()
        case bytes() | bytearray():
            return f"0x{value.hex().upper()}"
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo is not None else value).isoformat()
        case date():
            return value.isoformat()
        case Decimal():
            return f"{value:f}"
        case dict():
            return _pairs(value.items())
        case list() if value and isinstance(value[0], tuple):
            return _pairs(value)
        case list():
            return f"[{', '.join(map(_part, value))}]"
    return str(value)


def _pairs(pairs: Iterable[tuple[object, object]]) -> str:
    return f"{{{', '.join(f'{_part(name)}: {_part(part)}' for name, part in pairs)}}}"


def _part(value: object) -> str:
    text = text_of(value)
    return NULL if text is None else text
