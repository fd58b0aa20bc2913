"""The rounds of `sync --interval`: one warm worker, and signals that wait for the current round."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TypeVar

from mergerepl.cli.main import FAILED
from mergerepl.cli.report.output import Output
from mergerepl.errors import MergeReplError, Transient
from mergerepl.model.results import SessionResult, SyncResult
from mergerepl.roots import is_absent

T = TypeVar("T")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.2


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


def repeat(
    once: Callable[[], SyncResult],
    output: Output,
    *,
    interval_s: float,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Run `once`, report, wait, again; return 0 after a signal, 1 after a round in which all sessions failed for good.

    The rounds run in one worker thread: the main thread stays free for signals, and pyspark, which in a
    main thread takes Ctrl-C for itself and cancels the running jobs, leaves it alone. `pause` waits there, some
    seconds at a time; it may work meanwhile.

    Raises:
        MergeReplError: One that another round would meet again, such as a wrong configuration. A replica that was there in
            an earlier round and is not now may come back.
    """
    has_run = False
    with signals() as stop, ThreadPoolExecutor(max_workers=1, thread_name_prefix="sync") as worker:
        while not stop.asked:
            try:
                result = result_of(worker.submit(once))
                output.synced_round(result, time=_now())
                # Those that can go on do: one subscriber out of reach, say, does not stop the others.
                if all(_is_final(session, has_run=has_run) for session in result.sessions):
                    return FAILED
                has_run = True
            except MergeReplError as error:
                if not (isinstance(error, Transient) or (has_run and _is_out_of_reach(error.facts))):
                    raise
                output.round_failed(error, time=_now())
            result_of(worker.submit(_sleep, interval_s, stop, pause))
    return 0


@contextmanager
def signals() -> Iterator[Stop]:
    """Take the signals that end an agent, and give them back."""
    stop = Stop()
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def result_of(round_: Future[T]) -> T:
    """Return a round's result, letting signals in while it runs."""
    while not wait([round_], timeout=_LOOK_S).done:
        pass
    return round_.result()


def _sleep(seconds: float, stop: Stop, pause: Callable[[float], None]) -> None:
    """Wait for the next round, or until asked to stop."""
    until = time.monotonic() + seconds
    while not stop.asked and (left := until - time.monotonic()) > 0:
        pause(min(left, _LOOK_S))


def _is_final(session: SessionResult, *, has_run: bool) -> bool:
    """Return whether a session failed for a reason that the next round would meet again, and no article of it can go on."""
    is_away = has_run and session.error is not None and _is_out_of_reach(session.error)
    return session.is_failed and not session.refused and not session.is_transient and not is_away


def _is_out_of_reach(facts: Mapping[str, object]) -> bool:
    """Return whether an error's facts name a replica whose folder is gone, perhaps because it is not mounted any more."""
    root = facts.get("replica")
    return root is not None and is_absent(Path(str(root)))


def _now() -> str:
    """Return the time of a line."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
