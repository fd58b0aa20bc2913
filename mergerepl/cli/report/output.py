"""What the command line says, in one of two forms: text for people, JSON for programs (docs/cli-json.md)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from mergerepl.cli.report.table import Part


class Output:
    """Writes results to `out`, and to people what failed to standard error.

    Attributes:
        is_for_programs: Whether a program reads it: no progress is drawn, and results contain the errors of their parts.
    """

    def __init__(self, out: TextIO, *, is_for_programs: bool) -> None:
        self.out, self.is_for_programs = out, is_for_programs

    def reported(self, value: object, parts: Sequence[Part]) -> None:
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

    def noted(self, value: object, text: str, *, is_failure: bool = False) -> None:
        """Report on one line something that a running agent did; to people, a failure on standard error."""
        if self.is_for_programs:
            self._write_json(value, indent=None)
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
        from mergerepl.cli.report.json import dumps

        self.out.write(dumps(value, indent=indent) + "\n")
        self.out.flush()
