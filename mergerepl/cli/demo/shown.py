"""A small table of the demo: drawn by rich for people, plain text wherever it is taken as a string."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDEST = 72
"""A cell wider than this is folded, so that a page has no long lines."""


@dataclass
class Shown:
    """Rows under headings. A heading that begins with `>` has its column set flush right."""

    headings: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: Any) -> None:
        """Add a row; None is what SQL calls it."""
        self.rows.append(tuple("NULL" if cell is None else str(cell) for cell in cells))

    def __rich__(self) -> Table:
        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in self.headings:
            drawn.add_column(
                Text(heading.lstrip(">")),
                justify="right" if heading.startswith(">") else "left",
                overflow="fold",
                max_width=_WIDEST,
            )
        for row in self.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        return drawn

    def __str__(self) -> str:
        console = Console(width=200, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines()).strip("\n")
