"""The output of the command line in two forms: text for people, JSON for programs (docs/cli-json.md)."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

from mergerepl.model.listing import shown_fields
from mergerepl.model.words import text_of

if TYPE_CHECKING:
    from mergerepl.cli.report.table import Part


class Output:
    """Writes results to `out`, and in text form failures to standard error.

    Attributes:
        is_for_programs: Whether a program reads the output: no progress is drawn, and results contain the errors of
            their parts.
        is_logged: Whether actions of a running agent are lines of its log (`--log-format json`).
    """

    def __init__(self, out: TextIO, *, is_for_programs: bool, is_logged: bool = False) -> None:
        self.out, self.is_for_programs, self.is_logged = out, is_for_programs, is_logged

    def reported(self, value: object, *parts: Part) -> None:
        """Report a value as JSON, or as the tables and sentences that show it; a table without rows is left out."""
        if self.is_for_programs:
            self._write_json(value, indent=2)
            return
        from mergerepl.cli.report.table import printable

        for part in parts:
            if isinstance(part, str):
                self.out.write(printable(part) + "\n")
            elif part.rows:
                part.write(self.out)
        self.out.flush()

    def noted(self, value: object, text: str, *, is_failure: bool = False, **logged: Any) -> None:
        """Report an action of a running agent on one line; in text form, a failure goes to standard error.

        `logged`: what a JSON log has instead of the text, as `report.logs.line` takes it.
        """
        if self.is_for_programs:
            self._write_json(value, indent=None)
            return
        if self.is_logged:
            from mergerepl.cli.report.logs import line

            told = {"level": "ERROR" if is_failure else "INFO", "event": text, **logged}
            sys.stderr.write(line(**told) + "\n")
            sys.stderr.flush()
            return
        from mergerepl.cli.report.table import printable

        out = sys.stderr if is_failure else self.out
        out.write(printable(text) + "\n")
        out.flush()

    def said(self, item: Any) -> None:
        """Pass on a line or a rich renderable of `demo`."""
        if self.is_for_programs:
            self._write_json({"text": str(item)}, indent=None)
        elif isinstance(item, str):
            self.out.write(item + "\n")
        else:
            from rich.console import Console

            Console(file=self.out, width=None if self.out.isatty() else 200).print(item)
        self.out.flush()

    def _write_json(self, value: object, *, indent: int | None) -> None:
        self.out.write(dumps(value, indent=indent) + "\n")
        self.out.flush()


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Return a result as strict JSON in ASCII."""
    return json.dumps(jsonable(value), indent=indent, allow_nan=False)


def jsonable(value: object) -> object:
    """Return a value in JSON's types: times as ISO 8601, bytes as hexadecimal, NaN and anything unknown as text.

    A result has its fields, and the properties that its `also_in_json` names.
    """
    if is_dataclass(value):
        more = {name: getattr(value, name) for name in getattr(value, "also_in_json", ())}
        return {name: jsonable(part) for name, part in (shown_fields(value) | more).items()}
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
            # An LSN, which has one notation everywhere.
            return str(value)
    return text_of(value)
