"""One process for the jobs of some databases: capture as it was asked for, cleanup once a day. It ends with its JVM."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from mergerepl.agents.control import jobs_of
from mergerepl.agents.schedule import CaptureState, CleanupState
from mergerepl.cdc.capture import log_reader, run_cycles
from mergerepl.cdc.cleaning import cleanup
from mergerepl.cdc.database import Database, database_at
from mergerepl.cdc.job_rows import CAPTURE, CLEANUP, LOG_READER
from mergerepl.cdc.jobs import stop_job
from mergerepl.errors import MergeReplError, Transient
from mergerepl.logreader.log_reader import LogReader
from mergerepl.model.cdc import Job, JobEvent
from mergerepl.store.lease import AGENT_LOCK, lease

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""So often the agent looks at what is asked of its jobs."""

_LOCK_WAIT_S = 10.0
"""So long it waits for a command that holds the log."""


@dataclass
class DatabaseJobs:
    """The jobs of one database. Kept between runs, the log reader reads again only what has changed."""

    database: Database
    report: Callable[[JobEvent], None]
    is_asked_to_stop: Callable[[], bool]
    capture: CaptureState = field(default_factory=CaptureState)
    cleanup: CleanupState = field(default_factory=CleanupState)
    unreadable: str = ""
    """Why the jobs cannot be read, as it was reported."""

    @cached_property
    def reader(self) -> LogReader:
        """The log reader of the capture job."""
        return log_reader(self.database, wait_s=_LOCK_WAIT_S, is_long_running=True)

    def look(self) -> None:
        """Run what is due. A folder whose jobs cannot be read is reported once; the others go on."""
        try:
            jobs = self._jobs()
        except MergeReplError as error:
            if error.message != self.unreadable:
                self.unreadable = error.message
                self._report("agent", error.message, is_failed=True)
            return
        self.unreadable = ""
        self.capture = self.capture.requested(jobs.get(CAPTURE) or jobs.get(LOG_READER), time.monotonic())
        if self.capture.running is not None and self.capture.is_due(time.monotonic()):
            is_done = self._run(self.capture.running.job_type, self._capture)
            now_s = time.monotonic()
            self.capture = self.capture.ran(now_s) if is_done else self.capture.failed(now_s)
        if self.is_asked_to_stop():
            return
        if self.cleanup.is_due(jobs.get(CLEANUP), datetime.now().astimezone()):
            self.cleanup = CleanupState(datetime.now().astimezone())
            self._run(CLEANUP, self._cleanup)

    def _jobs(self) -> dict[str, Job]:
        return {job.job_type: job for job in jobs_of(self.database)}

    def _run(self, job_type: str, run: Callable[[], str]) -> bool:
        """Run a job once, and report. Returns whether it was done; a job that failed is tried again."""
        try:
            text, is_failed = run(), False
        except MergeReplError as error:
            text, is_failed = error.message, True
            log.log(logging.INFO if isinstance(error, Transient) else logging.WARNING, "%s", text)
        except Exception as error:
            # The other databases, and the other job, go on.
            text, is_failed = f"{type(error).__name__}: {error}", True
            log.exception("%s: job %s failed", self.database.root, job_type)
        if text:
            self._report(job_type, text, is_failed=is_failed)
        return not is_failed

    def _report(self, job: str, text: str, *, is_failed: bool) -> None:
        self.report(JobEvent(datetime.now(UTC), str(self.database.root), job, text, is_failed))

    def _capture(self) -> str:
        job = self.capture.running
        if job is None:
            return ""
        done = run_cycles(
            self.reader,
            maxtrans=job.maxtrans or 1,
            maxscans=job.maxscans or 1,
            is_asked_to_stop=lambda: self._is_to_stop(job.job_type),
        )
        if not job.continuous:
            # As in the original, it has come to its end: it runs again when it is started again.
            stop_job(self.database.root, job.job_type, of_start=job.starts, lock_wait_s=_LOCK_WAIT_S)
        paused = "".join(f" Paused: {why}" for why in done.paused.values())
        if not done.transactions and not done.paused:
            return ""
        return f"transactions {done.transactions:,}, change rows {done.rows:,}.{paused}"

    def _is_to_stop(self, job_type: str) -> bool:
        job = self._jobs().get(job_type)
        return self.is_asked_to_stop() or job is None or job.requested != "started"

    def _cleanup(self) -> str:
        done = cleanup(self.database.root, lock_wait_s=_LOCK_WAIT_S)
        failed = "".join(f" {name} failed: {why}" for name, why in done.failed.items())
        return f"change rows removed {sum(done.rows.values()):,}.{failed}" if done.rows or failed else ""


def run(
    roots: Sequence[str],
    *,
    report: Callable[[JobEvent], None],
    is_asked_to_stop: Callable[[], bool],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Run the jobs of databases until asked to stop: the cycle that runs is finished first.

    A folder without jobs (yet) is looked at again and again. `pause` waits some seconds between; it may work meanwhile.

    Raises: ConfigurationError if there is no such folder; LeaseError if another agent has one of them.
    """
    from mergerepl.spark import session as engine

    databases = [database_at(root) for root in roots]
    with ExitStack() as stack:
        for each in databases:
            stack.enter_context(lease(each.root, purpose="agent", file=AGENT_LOCK))
        try:
            for each in databases:
                is_asked = each.is_enabled or jobs_of(each)
                text = (
                    "its jobs run" if is_asked else "no jobs yet: neither capture instances nor a log to read"
                )
                report(JobEvent(datetime.now(UTC), str(each.root), "agent", text))
            watched = [DatabaseJobs(each, report, is_asked_to_stop) for each in databases]
            while not is_asked_to_stop():
                for jobs in watched:
                    jobs.look()
                pause(LOOK_S)
        finally:
            # Before the locks are given back: who has them next has no JVM beside it.
            engine.stop()
