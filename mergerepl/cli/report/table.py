"""Tables as text.

On a terminal rich draws the table. Anywhere else columns are aligned, and nothing is cut. rich is loaded only to draw.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TextIO

from mergerepl.model.words import moment_text


def cell(value: object) -> object:
    """Return a value in its form for listings: yes and no, times in UTC, LSNs as typed, lists with commas."""
    match value:
        case bool():
            return "yes" if value else "no"
        case datetime():
            return moment_text(value)
        case bytes():
            return f"0x{value.hex().upper()}"
        case list() | tuple():
            return ", ".join(map(str, value))
        case Mapping():
            return ", ".join(f"{name} {part}" for name, part in value.items())
    return value


@dataclass
class Table:
    """Rows of text under headings. A heading that begins with `>` has a column set flush right."""

    headings: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    title: str = ""
    styles: Mapping[str, str] = field(default_factory=dict)
    """Styles of rows on a terminal, by their first cell."""

    def add(self, *cells: object) -> None:
        """Add a row; None is an empty cell."""
        self.rows.append(tuple(map(printable, cells)))

    def write(self, out: TextIO) -> None:
        """Write the table as suits `out`."""
        if not out.isatty():
            out.write(self.plain())
        elif (write_table := getattr(out, "write_table", None)) is not None:
            # The terminal belongs to another process.
            write_table(self)
        else:
            self._draw(out)

    def plain(self) -> str:
        """Return aligned columns, two spaces apart, without trailing blanks."""
        headings = tuple(heading.lstrip(">") for heading in self.headings)
        stored = [headings, *self.rows]
        widths = [max(_width(row[column]) for row in stored) for column in range(len(headings))]
        lines = [printable(self.title)] if self.title else []
        for row in stored:
            cells = [
                _pad(cell, width, right=heading.startswith(">"))
                for cell, width, heading in zip(row, widths, self.headings, strict=True)
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines) + "\n"

    def _draw(self, out: TextIO) -> None:
        """Draw with rich; cells fold rather than lose text."""
        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(
            title=Text(printable(self.title)) if self.title else None,
            box=box.SIMPLE_HEAD,
            title_justify="left",
            title_style="bold",
        )
        for heading in self.headings:
            drawn.add_column(
                Text(heading.lstrip(">")),
                justify="right" if heading.startswith(">") else "left",
                overflow="fold",
            )
        for row in self.rows:
            drawn.add_row(*(Text(cell) for cell in row), style=self.styles.get(row[0]))
        Console(file=out).print(drawn)


Part = Table | str
"""A command shows tables and sentences."""
Report = tuple[Any, ...]
"""The value for programs, and the parts that show it."""


def printable(value: object) -> str:
    """Return a value as text on one line; a control character in the data must not reach the terminal."""
    if value is None:
        return ""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or unicodedata.category(letter) == "Zs" else ascii(letter)[1:-1]
        for letter in text
    )


def _pad(cell: str, width: int, *, right: bool) -> str:
    blanks = " " * (width - _width(cell))
    return blanks + cell if right else cell + blanks


def _width(text: str) -> int:
    """Return the display width of a text: wide letters take two columns, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
