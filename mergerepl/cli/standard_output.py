"""Standard output as the commands write to it: one that is closed, full or lacks characters is no bug of theirs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

import click


class StandardOutput:
    """A stream that remembers why it could not be written: an `OSError` by itself does not say of what it is."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        """Be the stream in all else."""
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        with self._remembering():
            return self.stream.write(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._remembering():
            self.stream.flush()

    def give_up(self) -> None:
        """Drop what is still buffered, so that it does not fail again when the interpreter closes the stream."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())

    @contextlib.contextmanager
    def _remembering(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            raise


@contextlib.contextmanager
def standard_output() -> Iterator[StandardOutput]:
    """Let `sys.stdout` remember what went wrong with it. What the terminal's encoding lacks is shown as an escape."""
    # A closed stream (`>&-`) shows nothing.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    out = StandardOutput(sys.stdout)
    with contextlib.redirect_stdout(cast(TextIO, out)):
        yield out


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def say_error(message: str) -> None:
    """Write one message, its control characters shown as escapes."""
    from mergerepl.cli.report.table import printable

    lines = message.splitlines() or [""]
    click.echo("\n".join(["Error: " + printable(lines[0]), *map(printable, lines[1:])]), err=True)
