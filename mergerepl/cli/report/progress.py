"""Progress of a long command on standard error: a live line on a terminal, plain lines otherwise."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from mergerepl.cli.report.logs import JSON, TEXT, line
from mergerepl.cli.report.table import printable
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.words import counted

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


EVERY_S = 10.0
"""Without a terminal, seconds from one line to the next."""
PATIENCE_S = 2.0
"""A command that takes longer shows that it works."""


def open_progress(err: TextIO, *, quiet: bool, log_format: str = TEXT) -> Progress:
    """Return the kind of progress that suits `err`."""
    if quiet:
        return NoProgress()
    is_live = err.isatty() and log_format == TEXT
    return LiveProgress(err) if is_live else LineProgress(err, log_format)


class LineProgress(NoProgress):
    """A line for the first step, then one each ten seconds: the seconds since the start, and the step that runs.

    As a context it also writes while one step runs for long. A step that waits for another process is written at once.
    """

    def __init__(self, err: TextIO, log_format: str = TEXT) -> None:
        self.err, self.log_format = err, log_format
        self.started = time.monotonic()
        self.current: tuple[str, str | None, int | None] | None = None
        self._written = 0.0
        self._lock, self._ended = threading.Lock(), threading.Event()

    def step(self, name: str, *, article: str | None = None, rows: int | None = None) -> None:
        """Note the step, and write it if a line is due."""
        is_first, self.current = self.current is None, (name, article, rows)
        if is_first or name.startswith("wait") or time.monotonic() - self._written >= EVERY_S:
            self._write()

    def _write(self) -> None:
        if self.current is None:
            return
        with self._lock:
            name, article, rows = self.current
            self._written = time.monotonic()
            elapsed = self._written - self.started
            if self.log_format == JSON:
                text = line("INFO", "step", phase=name, article=article, rows=rows, seconds=round(elapsed, 1))
            else:
                text = f"{elapsed:7.1f} s  {_words(name, article, rows)}"
            # The reader went away or the disk is full (OSError), or the stream was closed (ValueError): the work goes on.
            with suppress(OSError, ValueError):
                self.err.write(f"{text}\n")
                self.err.flush()

    def __enter__(self) -> Self:
        """Write a line each ten seconds until the end."""
        self._ended.clear()
        threading.Thread(target=self._tick, name="progress", daemon=True).start()
        return self

    def _tick(self) -> None:
        while not self._ended.wait(EVERY_S):
            if time.monotonic() - self._written >= EVERY_S:
                self._write()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write no more lines."""
        self._ended.set()


class Patience:
    """Shows that a command works if it takes longer than two seconds and names no step of its own."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name
        self._lock, self._has_ended = threading.Lock(), False
        self._timer = threading.Timer(PATIENCE_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Clear what is shown: the command is about to write, to ask, or to end."""
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._timer.cancel()
                self._progress.__exit__(None, None, None)

    def _show(self) -> None:
        with self._lock:
            if not self._has_ended and getattr(self._progress, "current", None) is None:
                self._progress.__enter__()
                self._progress.step(self._name)


class LiveProgress:
    """A spinner with the step and the elapsed time; gone when the work is done."""

    def __init__(self, err: TextIO) -> None:
        self.err = err
        self.live: RichProgress | None = None
        self.current: str | None = None

    def step(self, name: str, *, article: str | None = None, rows: int | None = None) -> None:
        """Show the step in place of the last one. The first step loads rich."""
        words = self.current = _words(name, article, rows)
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
    parts = [name, article or "", f"({counted(rows, 'row')})" if rows is not None else ""]
    return printable(" ".join(part for part in parts if part))
