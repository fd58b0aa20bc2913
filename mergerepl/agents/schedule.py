"""When the jobs of a database are due. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta

from mergerepl.model.cdc import Job

RETRY_S = 5.0
"""So long a capture job that failed waits at least."""

CLEANUP_RETRY = timedelta(hours=1)


@dataclass(frozen=True)
class CaptureState:
    """What the agent knows of a capture job: the parameters with which it was started, and when it is due."""

    running: Job | None = None
    due_s: float = 0.0

    def requested(self, job: Job | None, now_s: float) -> "CaptureState":
        """Take note of what is asked of the job. Other parameters wait until it is stopped and started."""
        if job is None or job.requested != "started":
            return CaptureState()
        if self.running is None:
            return CaptureState(job, now_s)
        # The agent looks twice a second. A job that was stopped and started between two looks is another start.
        is_same = (self.running.job_id, self.running.starts) == (job.job_id, job.starts)
        return self if is_same else CaptureState(job, now_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether it is to run now."""
        return self.running is not None and now_s >= self.due_s

    def ran(self, now_s: float) -> "CaptureState":
        """Return the state after a run."""
        wait_s = (self.running.pollinginterval or 0) if self.running else 0
        return replace(self, due_s=now_s + wait_s)

    def failed(self, now_s: float) -> "CaptureState":
        """Return the state after a run that failed."""
        wait_s = (self.running.pollinginterval or 0) if self.running else 0
        return replace(self, due_s=now_s + max(wait_s, RETRY_S))


@dataclass(frozen=True)
class CleanupState:
    """What the agent knows of a cleanup job: when it last tried to run it. A run that failed is tried again in an hour."""

    tried: datetime | None = None

    def is_due(self, job: Job | None, now: datetime) -> bool:
        """Return whether it is to run now: its time has come since its last run. An agent makes up for a missed run."""
        if job is None or job.requested != "started":
            return False
        at = time.fromisoformat(job.schedule or "02:00")
        today = now.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
        last_time = today if now >= today else today - timedelta(days=1)
        has_run = job.last_run is not None and job.last_run >= last_time
        return not has_run and (self.tried is None or now - self.tried >= CLEANUP_RETRY)
