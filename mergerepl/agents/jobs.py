"""The jobs of one agent process: capture, log reader and cleanup of databases, distributions, syncs of merge publications.

The process ends with its JVM.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial

from mergerepl.agents.control import DISTRIBUTE, SYNC, distributes, jobs_of, replication_jobs, synced_from
from mergerepl.agents.loop import CaptureState, CleanupState, Repeated, Timer, run_until_stopped
from mergerepl.cdc.cleaning import cleanup
from mergerepl.cdc.jobs import CAPTURE, CLEANUP, LOG_READER, Jobs
from mergerepl.cdc.sources import run_cycles
from mergerepl.cdc.tables import CdcTables, tables_at
from mergerepl.errors import MergeReplError, Transient
from mergerepl.logreader.log_reader import LogReader
from mergerepl.model.cdc import Job, JobEvent
from mergerepl.model.products import MERGE
from mergerepl.model.results import SessionResult
from mergerepl.model.words import changes
from mergerepl.roots import existing
from mergerepl.store.lease import AGENT_LOCK, check_held, lease
from mergerepl.store.location import Location

log = logging.getLogger(__name__)

_LOOK_AT_STORE_S = 5.0
"""Seconds between two looks at the jobs of a database in a store."""

_LOOK_FOR_JOBS_S = 60.0
"""The same for a root in a store that had no jobs when the agent began."""

_LOCK_WAIT_S = 10.0
"""A job waits this long for a command that holds the log or a subscriber."""

Report = Callable[[JobEvent], None]


@dataclass(frozen=True)
class Intervals:
    """Seconds from the end of a run to the next: for the syncs of a merge publisher, for a publisher's distributions."""

    sync_s: float = 60.0
    distribute_s: float = 5.0


@dataclass(frozen=True)
class Views:
    """What is written for people and monitors every `interval_s` seconds: the name of each work, and the work."""

    interval_s: float = 60.0
    works: Mapping[str, Callable[[], object]] = field(default_factory=dict)


def run_reported(root: Location, job: str, work: Callable[[], tuple[str, bool]], report: Report) -> bool:
    """Run a job once and report its text, if it has one. Returns whether it succeeded; a job that failed runs again.

    `work` returns a text and whether something failed.
    """
    try:
        text, is_failed = work()
    except MergeReplError as error:
        text, is_failed = error.message, True
        log.log(logging.INFO if isinstance(error, Transient) else logging.WARNING, "%s", text)
    except Exception as error:
        # The other roots and jobs go on.
        text, is_failed = f"{type(error).__name__}: {error}", True
        log.exception("%s: job %s failed", root, job)
    if text:
        report(JobEvent(datetime.now(UTC), str(root), job, text, is_failed))
    return not is_failed


@dataclass
class DatabaseJobs:
    """The jobs of one database. The log reader is kept between runs, so that it reads only changed parts again."""

    database: CdcTables
    report: Report
    is_asked_to_stop: Callable[[], bool]
    capture: CaptureState = field(default_factory=CaptureState)
    cleanup: CleanupState = field(default_factory=CleanupState)
    unreadable: str = ""
    """The reported reason why the jobs cannot be read."""

    @cached_property
    def reader(self) -> LogReader:
        """The log reader of the capture job."""
        return LogReader(self.database.root, None, _LOCK_WAIT_S, is_long_running=True)

    def look(self) -> None:
        """Run the due jobs. A folder whose jobs cannot be read is reported once; the others go on."""
        try:
            jobs = self._jobs()
        except MergeReplError as error:
            if error.message != self.unreadable:
                self.unreadable = error.message
                event = JobEvent(
                    datetime.now(UTC), str(self.database.root), "agent", error.message, is_failed=True
                )
                self.report(event)
            return
        self.unreadable = ""
        self.capture = self.capture.requested(jobs.get(CAPTURE) or jobs.get(LOG_READER), time.monotonic())
        if self.capture.running is not None and self.capture.is_due(time.monotonic()):
            is_done = self._run(self.capture.running.job_type, self._capture)
            self.capture = self.capture.after_run(time.monotonic(), is_done=is_done)
        if self.is_asked_to_stop():
            return
        if self.cleanup.is_due(jobs.get(CLEANUP), datetime.now().astimezone()):
            self.cleanup = CleanupState(datetime.now().astimezone())
            self._run(CLEANUP, self._cleanup)

    def _jobs(self) -> dict[str, Job]:
        return {job.job_type: job for job in jobs_of(self.database)}

    def _run(self, job_type: str, work: Callable[[], tuple[str, bool]]) -> bool:
        return run_reported(self.database.root, job_type, work, self.report)

    def _capture(self) -> tuple[str, bool]:
        job = self.capture.running
        if job is None:
            return "", False
        done = run_cycles(
            self.reader,
            maxtrans=job.maxtrans or 1,
            maxscans=job.maxscans or 1,
            is_asked_to_stop=lambda: self._is_to_stop(job.job_type),
        )
        if not job.continuous:
            # As in the original, the job has ended: it runs again when it is started again.
            Jobs(self.database).stop(job.job_type, of_start=job.starts)
        paused = "".join(f" Paused: {why}" for why in done.paused.values())
        if not done.transactions and not done.paused:
            return "", False
        return f"transactions {done.transactions:,}, change rows {done.rows:,}.{paused}", False

    def _is_to_stop(self, job_type: str) -> bool:
        job = self._jobs().get(job_type)
        return self.is_asked_to_stop() or job is None or job.requested != "started"

    def _cleanup(self) -> tuple[str, bool]:
        done = cleanup(self.database)
        failed = "".join(f" {name} failed: {why}" for name, why in done.failed.items())
        is_silent = not (done.rows or failed)
        return "" if is_silent else f"change rows removed {sum(done.rows.values()):,}.{failed}", False


def sync_merge(root: Location) -> tuple[str, bool]:
    """Run the merge sessions of a root's publications. Returns their reports, without sessions that changed nothing."""
    from mergerepl.sessions import synchronize

    if not (targets := synced_from(root)):
        return "", False
    result = synchronize(targets, types={MERGE}, long_running=True)
    for each in result.sessions:
        if each.status == "nothing_to_do" and not each.is_failed:
            _note_idle(root, each.publication, each.subscriber)
    texts = [_session_text(each) for each in result.sessions]
    return "; ".join(text for text in texts if text), not result.ok


IDLE_EVERY = timedelta(hours=1)
"""Rounds with nothing to do are one row of the history in this time."""

_idle: dict[tuple[Location, str, str], tuple[datetime, int]] = {}
"""Subscription -> since when, and how many rounds had nothing to do that the history does not have yet."""


def _note_idle(root: Location, publication: str, subscriber: str) -> None:
    from mergerepl.merge.session.session_history import record_idle

    key, now = (root, publication, subscriber), datetime.now(UTC)
    since, rounds = _idle.get(key, (now, 0))
    if now - since >= IDLE_EVERY:
        record_idle(root, publication, subscriber, since, rounds + 1)
        since, rounds = now, -1
    _idle[key] = since, rounds + 1


def _session_text(session: SessionResult) -> str:
    name = f"{session.publication} with {session.subscriber}"
    if session.is_failed:
        return f"{name}: {session.reason}"
    if session.status == "nothing_to_do":
        return ""
    conflicts = session.upload.conflicts + session.download.conflicts
    return f"{name}: up {changes(session.upload)}, down {changes(session.download)}, conflicts {conflicts:,}"


def distribute_all(root: Location) -> tuple[str, bool]:
    """Run the distribution agents of a root. Returns their reports, without agents that had no commands."""
    if not distributes(root):
        return "", False
    from mergerepl.transactional.distributor import Distributor

    done = Distributor(root, lock_wait_s=_LOCK_WAIT_S).deliver()
    texts = [
        f"{each.publication} at {each.subscriber}: transactions {each.transactions:,}, commands {each.commands:,}"
        for each in done
        if each.batches or each.skipped
    ]
    return "; ".join(texts), False


def run(
    roots: Sequence[str],
    *,
    report: Report,
    is_asked_to_stop: Callable[[], bool],
    pause: Callable[[float], None] = time.sleep,
    intervals: Intervals | None = None,
    views: Views | None = None,
) -> None:
    """Run the jobs of roots until asked to stop: the work that runs is finished first.

    A folder without jobs (yet) is polled. `pause` waits some seconds between; it may work. Without `intervals` the
    agent runs only captures, log readers and cleanups. `views` come after the jobs of a round.

    Raises: ConfigurationError if a folder does not exist; LeaseError if another agent has one of them.
    """
    from mergerepl.spark import session as engine

    places = [Location.of(existing(root, may_be_stored=True)) for root in roots]
    with ExitStack() as stack:
        for root in places:
            stack.enter_context(lease(root, purpose="agent", file=AGENT_LOCK))
        try:
            looks: list[Callable[[], object]] = []
            for root in places:
                database = tables_at(root, lock_wait_s=_LOCK_WAIT_S)
                is_asked = database.is_enabled or bool(jobs_of(database))
                look = DatabaseJobs(database, report, is_asked_to_stop).look
                if root.is_local:
                    looks.append(look)
                else:
                    looks.append(partial(check_held, root, file=AGENT_LOCK))
                    looks.append(_repeated_look(look, _LOOK_AT_STORE_S if is_asked else _LOOK_FOR_JOBS_S))
                if intervals is not None:
                    looks += _repeated_jobs(root, intervals, report)
                    is_asked = is_asked or bool(replication_jobs(root))
                text = (
                    "its jobs run"
                    if is_asked
                    else "no jobs yet: no capture, no log to read, nothing published"
                )
                report(JobEvent(datetime.now(UTC), str(root), "agent", text))
            if views is not None:
                looks += [_view(places[0], name, work, views, report) for name, work in views.works.items()]
            run_until_stopped(looks, is_asked_to_stop=is_asked_to_stop, pause=pause)
        finally:
            # Before the locks are released, so that the next holder does not overlap with this JVM.
            engine.stop()


def _repeated_look(look: Callable[[], object], interval_s: float) -> Callable[[], None]:
    """Return jobs of a database in a store, whose table of jobs costs requests to look at."""

    def work() -> bool:
        look()
        return True

    return Repeated(work, Timer(interval_s)).look


def _view(
    root: Location, name: str, work: Callable[[], object], views: Views, report: Report
) -> Callable[[], object]:
    def once() -> tuple[str, bool]:
        work()
        return "", False

    return Repeated(lambda: run_reported(root, name, once, report), Timer(views.interval_s)).look


def _repeated_jobs(root: Location, intervals: Intervals, report: Report) -> list[Callable[[], object]]:
    is_served = root.is_local or distributes(root)
    distribute_s = intervals.distribute_s if is_served else max(intervals.distribute_s, _LOOK_FOR_JOBS_S)
    works = ((DISTRIBUTE, distribute_all, distribute_s), (SYNC, sync_merge, intervals.sync_s))

    def repeated(
        job: str, work: Callable[[Location], tuple[str, bool]], interval_s: float
    ) -> Callable[[], object]:
        return Repeated(lambda: run_reported(root, job, lambda: work(root), report), Timer(interval_s)).look

    return [repeated(*each) for each in works]
