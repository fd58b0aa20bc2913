"""A rehearsal (`--dry-run`) runs a command until its first write: what the command refuses before is refused alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_is_on = False
REHEARSED: Any = object()
"""What a call would return is unknown: it came to its first write."""


class RehearsalEnd(BaseException):
    """The call would write now. No `except Exception` stops it."""


def rehearsed(dry_run: bool, call: Callable[[], Any]) -> Any:
    """Run a call; in a dry run only until its first write. A process rehearses one call at a time.

    Returns: What the call returns; in a dry run REHEARSED, unless the call ended without a write.
    """
    global _is_on
    if not dry_run:
        return call()
    _is_on = True
    try:
        return call()
    except RehearsalEnd:
        return REHEARSED
    finally:
        _is_on = False


def is_rehearsal() -> bool:
    """Whether nothing may be written now."""
    return _is_on


def before_write() -> None:
    """End a rehearsal: what comes now would change a file."""
    if _is_on:
        raise RehearsalEnd
