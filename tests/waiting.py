"""Waiting for something that other processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def waited(
    found: Callable[[], T],
    *,
    seconds: float = 120.0,
    every_s: float = 0.1,
    what: Callable[[], object] = lambda: "it did not come",
) -> T:
    """Ask until something is found, and return it; `what` says what is missing when the time is over."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, what()
        time.sleep(every_s)
    return value
