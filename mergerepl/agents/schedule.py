"""When an agent's jobs are due. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta

from mergerepl.model.cdc import Job

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

    def after_run(self, now_s: float, *, is_done: bool) -> "Timer":
        """Return the timer after a run that ended now."""
        wait_s = self.interval_s if is_done else max(self.interval_s, self.retry_s)
        return replace(self, due_s=now_s + wait_s)


@dataclass(frozen=True)
class CaptureState:
    """A capture job as it was started, and its timer. Changed parameters take effect after a stop and start of the job."""

    running: Job | None = None
    timer: Timer = Timer(0.0)

    def requested(self, job: Job | None, now_s: float) -> "CaptureState":
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

    def after_run(self, now_s: float, *, is_done: bool) -> "CaptureState":
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
        at = time.fromisoformat(job.schedule or "02:00")
        today = now.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
        last_time = today if now >= today else today - timedelta(days=1)
        has_run = job.last_run is not None and job.last_run >= last_time
        return not has_run and (self.tried is None or now - self.tried >= CLEANUP_RETRY)
