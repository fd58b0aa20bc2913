"""Progress reports of the library. The library calls `step`; the caller shows it."""

from types import TracebackType
from typing import Protocol, Self


class Progress(Protocol):
    """Receives each step of an apply, a sync or another long command; used as a context for the duration of the work."""

    def step(self, name: str, *, article: str | None = None, rows: int | None = None) -> None:
        """Report that a step begins: its name, such as "capture", the article, and its rows if known."""

    def __enter__(self) -> Self:
        """Start showing progress."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing, also after an error."""


class PhaseClock:
    """Passes steps on, and knows the step that runs."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.phase: str | None = None

    def step(self, name: str, *, article: str | None = None, rows: int | None = None) -> None:
        """Note the step and pass it on."""
        self.phase = name
        self._progress.step(name, article=article, rows=rows)

    def __enter__(self) -> Self:
        """Start showing progress."""
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""
        self._progress.__exit__(kind, error, trace)


class NoProgress:
    """Shows nothing."""

    def step(self, name: str, *, article: str | None = None, rows: int | None = None) -> None:
        """Ignore the step."""

    def __enter__(self) -> Self:
        """Do nothing."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing."""
