"""The loop of an agent: due work, then a pause that serves clients. A signal ends it after the running work."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

from mergerepl.errors import MergeReplError, Transient
from mergerepl.model.cdc import Job
from mergerepl.model.results import SessionResult, SyncResult
from mergerepl.roots import is_absent

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
    looks: Sequence[Callable[[], object]],
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


RETRY_S = 5.0
"""A job that failed waits at least this long."""

CLEANUP_RETRY = timedelta(hours=1)


@dataclass(frozen=True)
class Timer:
    """The due times of repeated work: at once, then `interval_s` after each end, at least `retry_s` after a failure."""

    interval_s: float
    due_s: float = 0.0
    retry_s: float = RETRY_S

    def is_due(self, now_s: float) -> bool:
        """Whether the work is to run now."""
        return now_s >= self.due_s

    def after_run(self, now_s: float, *, is_done: bool) -> Timer:
        """Return the timer after a run that ended now."""
        wait_s = self.interval_s if is_done else max(self.interval_s, self.retry_s)
        return replace(self, due_s=now_s + wait_s)


@dataclass(frozen=True)
class CaptureState:
    """A capture job as it was started, and its timer. Changed parameters take effect after a stop and start of the job."""

    running: Job | None = None
    timer: Timer = Timer(0.0)

    def requested(self, job: Job | None, now_s: float) -> CaptureState:
        """Return the state after reading the stored job."""
        if job is None or job.requested != "started":
            return CaptureState()
        # The agent polls twice a second. A job that was stopped and started between two polls counts as a new start.
        running = self.running
        if running is not None and (running.job_id, running.starts) == (job.job_id, job.starts):
            return self
        return CaptureState(job, Timer(job.pollinginterval or 0, now_s))

    def is_due(self, now_s: float) -> bool:
        """Whether it is to run now."""
        return self.running is not None and self.timer.is_due(now_s)

    def after_run(self, now_s: float, *, is_done: bool) -> CaptureState:
        """Return the state after a run."""
        return replace(self, timer=self.timer.after_run(now_s, is_done=is_done))


@dataclass(frozen=True)
class CleanupState:
    """The last time the agent tried to run a cleanup job. A failed run is tried again after an hour."""

    tried: datetime | None = None

    def is_due(self, job: Job | None, now: datetime) -> bool:
        """Whether the job is due: its scheduled time has passed since its last run. An agent makes up for a missed run."""
        if job is None or job.requested != "started":
            return False
        at = time_of_day.fromisoformat(job.schedule or "02:00")
        today = now.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
        last_time = today if now >= today else today - timedelta(days=1)
        has_run = job.last_run is not None and job.last_run >= last_time
        return not has_run and (self.tried is None or now - self.tried >= CLEANUP_RETRY)


class RoundOutput(Protocol):
    """Reports one line a round."""

    def synced_round(self, result: SyncResult, *, time: str) -> None:
        """Report a round."""

    def round_failed(self, error: MergeReplError, *, time: str) -> None:
        """Report a round that failed and is tried again."""


def repeat(
    once: Callable[[], SyncResult],
    output: RoundOutput,
    *,
    interval_s: float,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Run `once`, report, wait, again. Return True after a signal, False after all sessions failed for good.

    Raises:
        MergeReplError: One that another round would meet again, such as a wrong configuration. A replica that was
            reachable in an earlier round may return.
    """
    has_run = has_failed = False

    def round_() -> bool:
        nonlocal has_run, has_failed
        try:
            result = once()
        except MergeReplError as error:
            if not (isinstance(error, Transient) or (has_run and _is_out_of_reach(error.facts))):
                raise
            output.round_failed(error, time=_now())
            return False
        output.synced_round(result, time=_now())
        # One session that can go on keeps the loop alive: a subscriber out of reach does not stop the others.
        has_failed = all(_is_final(session, has_run=has_run) for session in result.sessions)
        has_run = True
        return True

    rounds = Repeated(round_, Timer(interval_s, retry_s=0.0))
    with signals() as stop:
        in_worker(
            lambda: run_until_stopped(
                [rounds.look], is_asked_to_stop=lambda: stop.asked or has_failed, pause=pause
            ),
            name="sync",
        )
    return not has_failed


def _is_final(session: SessionResult, *, has_run: bool) -> bool:
    """Whether a session failed for a reason that the next round would meet again, without any article that can go on."""
    is_away = has_run and session.error is not None and _is_out_of_reach(session.error)
    return session.is_failed and not session.refused and not session.is_transient and not is_away


def _is_out_of_reach(facts: Mapping[str, object]) -> bool:
    """Whether an error's facts name a replica whose folder is gone, perhaps because it is no longer mounted."""
    root = facts.get("replica")
    return root is not None and is_absent(Path(str(root)))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
