"""The loop of an agent: due work, then a pause that serves clients. A signal ends it after the running work."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from mergerepl.agents.schedule import Timer

T = TypeVar("T")

LOOK_S = 0.5
"""Seconds between two checks for due work."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALS_S = 0.2
"""Seconds between two moments at which the main thread lets signals in."""


class Stop:
    """Whether a signal asked the loop to end. A second signal ends the process at once."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal. Nothing here may lock: the interrupted code could hold the lock."""
        if self.asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.asked = True


@dataclass
class Repeated:
    """Work that runs again some seconds after it ended; `work` returns whether it succeeded."""

    work: Callable[[], bool]
    timer: Timer

    def look(self) -> None:
        """Run the work if it is due."""
        if self.timer.is_due(time.monotonic()):
            is_done = self.work()
            self.timer = self.timer.after_run(time.monotonic(), is_done=is_done)


def run_until_stopped(
    looks: Sequence[Callable[[], None]],
    *,
    is_asked_to_stop: Callable[[], bool],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Call each function in turn until asked to stop. `pause` waits some seconds between calls, and may do work."""
    while not is_asked_to_stop():
        for look in looks:
            if not is_asked_to_stop():
                look()
        if not is_asked_to_stop():
            pause(LOOK_S)


def in_worker(work: Callable[[], T], *, name: str) -> T:
    """Run work in its own thread and return its result, while the main thread lets signals in.

    In a main thread pyspark takes Ctrl-C for itself and cancels the running jobs.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix=name) as worker:
        running = worker.submit(work)
        while not wait([running], timeout=_SIGNALS_S).done:
            pass
        return running.result()


@contextmanager
def signals() -> Iterator[Stop]:
    """Handle the signals that end an agent; restore the former handlers at the end."""
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
