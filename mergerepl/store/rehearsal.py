"""A rehearsal (`--dry-run`) runs a command until its first write: what the command refuses before is refused alike.

It concerns the thread that rehearses and the threads that its work begins by `worker_threads`. Other threads of the
process write on: an agent runs its jobs while it rehearses a command that was handed over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_IS_ON: ContextVar[bool] = ContextVar("rehearsal", default=False)
REHEARSED: Any = object()
"""The result of a call that came to its first write: its real one is unknown."""


class RehearsalEnd(BaseException):
    """The call would write now. No `except Exception` stops it."""


def rehearsed(dry_run: bool, call: Callable[[], Any]) -> Any:
    """Run a call; in a dry run only until its first write.

    Returns: What the call returns; in a dry run REHEARSED, unless the call ended without a write.
    """
    if not dry_run:
        return call()
    before = _IS_ON.set(True)
    try:
        return call()
    except RehearsalEnd:
        return REHEARSED
    finally:
        _IS_ON.reset(before)


def worker_threads(most: int) -> ThreadPoolExecutor:
    """Return a pool of threads that do work for the caller, in its context.

    Where it rehearses, they do not write either; where it computes in process, so do they.
    """
    from concurrent.futures import ThreadPoolExecutor

    class OfCaller(ThreadPoolExecutor):
        def submit(self, work: Callable[..., Any], /, *args: Any, **terms: Any) -> Any:
            return super().submit(copy_context().run, work, *args, **terms)

    return OfCaller(most)


def is_rehearsal() -> bool:
    """Whether this thread may write nothing now."""
    return _IS_ON.get()


def before_write() -> None:
    """End a rehearsal: what comes now would change a file."""
    if _IS_ON.get():
        raise RehearsalEnd
