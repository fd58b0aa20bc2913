"""Progress of a long command on standard error: a live line on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from mergerepl.cli.report.table import printable
from mergerepl.model.progress import NoProgress, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


def open_progress(err: TextIO, *, quiet: bool) -> Progress:
    """Return the kind of progress that suits `err`."""
    if quiet:
        return NoProgress()
    return LiveProgress(err) if err.isatty() else LineProgress(err)


class LineProgress(NoProgress):
    """One line for each step, with the seconds since the start."""

    def __init__(self, err: TextIO) -> None:
        self.err = err
        self.started = time.monotonic()

    def step(self, name: str, *, article: str | None = None, rows: int | None = None) -> None:
        """Write the step."""
        elapsed = time.monotonic() - self.started
        # The reader went away or the disk is full (OSError), or the stream was closed (ValueError): the work goes on.
        with suppress(OSError, ValueError):
            self.err.write(f"{elapsed:7.1f} s  {_words(name, article, rows)}\n")
            self.err.flush()


class LiveProgress:
    """A spinner with the step and the elapsed time; gone when the work is done."""

    def __init__(self, err: TextIO) -> None:
        self.err = err
        self.live: RichProgress | None = None

    def step(self, name: str, *, article: str | None = None, rows: int | None = None) -> None:
        """Show the step in place of the last one. The first step loads rich."""
        words = _words(name, article, rows)
        if self.live is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False),
                TimeElapsedColumn(),
            )
            self.live = Progress(*columns, console=Console(file=self.err), transient=True)
            self.live.start()
            self.live.add_task(words, total=None)
        else:
            self.live.update(self.live.task_ids[0], description=words)

    def __enter__(self) -> Self:
        """Show nothing before the first step."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear the line."""
        if self.live is not None:
            self.live.stop()
            self.live = None


def _words(name: str, article: str | None, rows: int | None) -> str:
    """Return a step as text: "capture orders (1,200 rows)"."""
    parts = [name, article or "", f"({rows:,} rows)" if rows is not None else ""]
    return printable(" ".join(part for part in parts if part))
