"""The `--json` form: one object for each command, described in docs/cli-json.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum

from mergerepl.model.words import text_of


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Return a result as strict JSON in ASCII."""
    return json.dumps(jsonable(value), indent=indent, allow_nan=False)


def jsonable(value: object) -> object:
    """Return a value in JSON's types: times as ISO 8601, bytes as hexadecimal, NaN and anything unknown as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    match value:
        case Enum():
            return jsonable(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {text_of(name) or "": jsonable(part) for name, part in value.items()}
        case list() | tuple() | set() | frozenset():
            return [jsonable(part) for part in value]
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() if type(value) is not bytes:
            # An LSN, which is written in one way everywhere.
            return str(value)
    return text_of(value)
