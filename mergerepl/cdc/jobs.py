"""The jobs of a database: `cdc_jobs`. `mergerepl agent run` runs them (cdc.md 9). No Spark.

`capture` captures changes, `cleanup` removes old change rows. Where transactional publications are served from the same
log, `logreader` replaces `capture` and reads for both. The two replace each other automatically.
"""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypedDict, Unpack

from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.cdc.tables import CdcTables, is_shared
from mergerepl.logreader.lsn import MAX_SLOT
from mergerepl.logreader.positions import read_state
from mergerepl.model.cdc import Job
from mergerepl.model.later import answers_later
from mergerepl.model.listing import Listing
from mergerepl.systables.cdc import CDC_JOBS

WAIT_S = 60.0
"""Seconds that a command waits for the cycle that holds the log, if its caller states none."""

CAPTURE: Final = "capture"
CLEANUP: Final = "cleanup"
LOG_READER: Final = "logreader"
"""Replaces the capture job where transactional publications are served from the same log."""

JOB_TYPES: Final = (CAPTURE, CLEANUP, LOG_READER)

STARTED: Final = "started"
STOPPED: Final = "stopped"

RETENTION_MIN: Final = 4320
THRESHOLD: Final = 5000
SCHEDULE: Final = "02:00"

_LONGEST_POLLING_S = 86_399
_LONGEST_RETENTION_MIN = 52_594_800
_MOST = 2**31 - 1

_READING: Mapping[str, Any] = {"maxtrans": 1000, "maxscans": 10, "continuous": True, "pollinginterval": 5}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    CAPTURE: _READING,
    LOG_READER: _READING,
    CLEANUP: {"retention": RETENTION_MIN, "threshold": THRESHOLD, "schedule": SCHEDULE},
}

_BOUNDS: Mapping[str, tuple[int, int, int]] = {
    # number of the error, lowest, highest
    "maxtrans": (22991, 1, MAX_SLOT),
    "maxscans": (22970, 1, _MOST),
    "pollinginterval": (22990, 0, _LONGEST_POLLING_S),
    "retention": (22994, 1, _LONGEST_RETENTION_MIN),
    "threshold": (22850, 1, 2**63 - 1),
}

_UNITS = {"pollinginterval": "seconds", "retention": "minutes"}


class JobParameters(TypedDict, total=False):
    """The parameters of a job, with their defaults. None keeps a parameter.

    capture and logreader: maxtrans (1,000), transactions of a cycle at most; maxscans (10), cycles before it waits;
    continuous (True), whether it continues after waiting; pollinginterval (5), seconds to wait.
    cleanup: retention (4,320), minutes that change rows are kept; threshold (5,000), rows of a statement at most; schedule
    (`02:00`), time of day, local.
    """

    maxtrans: int | None
    maxscans: int | None
    continuous: bool | None
    pollinginterval: int | None
    retention: int | None
    threshold: int | None
    schedule: str | None


class Jobs:
    """The jobs of a database; it has at most one of each type."""

    def __init__(self, tables: CdcTables) -> None:
        self._tables = replace(tables, lock_wait_s=tables.lock_wait_s or WAIT_S)

    def list(self) -> Listing[Job]:
        """Return the jobs, by type.

        Raises: CdcUsageError 22901 if the database is not enabled.
        """
        self._tables.require_enabled()
        return Listing(sorted(self._tables.control.rows(CDC_JOBS), key=lambda job: job.job_type))

    def add(self, job_type: str, *, start: bool = True, **parameters: Unpack[JobParameters]) -> Job:
        """Create a job that was dropped: the first capture instance creates them all.

        Args:
            job_type: `capture`, `cleanup`, or `logreader` where the log is read for publications, too.
            start: Whether it is started at once.
            parameters: `JobParameters`.

        Raises: CdcUsageError for a wrong parameter, or if a job of this type exists; CdcError 22911 for a capture job if
            publications read the log; ScanInProgressError (22903).
        """
        checked_type(job_type)

        def add(jobs: Sequence[Job]) -> Sequence[Job]:
            state = read_state(self._tables.log)
            if job_type != CLEANUP and is_shared(state) != (job_type == LOG_READER):
                if job_type == CAPTURE:
                    raise CdcError.log_is_shared(self._tables.root)
                raise _refused_type(job_type, "it is for a database whose log is read for publications, too")
            if any(job.job_type == job_type for job in jobs):
                raise _refused_type(job_type, "the database has it already; change it (`cdc jobs change`)")
            requested = STARTED if start else STOPPED
            return [*jobs, new_job(state.database.database_id, job_type, parameters, requested=requested)]

        return _only(self._edit(add), job_type)

    def change(self, job_type: str = CAPTURE, **parameters: Unpack[JobParameters]) -> Job:
        """Change parameters of a job; None keeps one. The change takes effect when the job is stopped and started.

        Raises: CdcUsageError for a wrong parameter, or if the job does not exist; ScanInProgressError (22903).
        """
        return self._change(job_type, lambda job: changed_job(job, parameters))

    def drop(self, job_type: str) -> None:
        """Remove a job; if it runs, its cycle is finished first.

        Raises: CdcUsageError if the job does not exist; ScanInProgressError (22903).
        """
        self._edit(lambda jobs: [job for job in jobs if job is not _only(jobs, job_type)])

    def start(self, job_type: str = CAPTURE) -> Job:
        """Request a start of a job: a running agent starts it within a second.

        Raises: CdcUsageError if the job does not exist; ScanInProgressError (22903).
        """

        def start(job: Job) -> Job:
            is_started = job.requested == STARTED
            return job if is_started else replace(job, requested=STARTED, starts=job.starts + 1)

        return self._change(job_type, start)

    @answers_later("cdc", CdcUsageError.later)
    def stop(self, job_type: str = CAPTURE, *, of_start: int | None = None) -> Job:
        """Request a stop of a job, and wait until its running cycle is finished; no change is lost.

        `of_start`: stop only this start of the job (its `starts`); a later one goes on.

        Raises: CdcUsageError if the job does not exist; ScanInProgressError (22903).
        """
        return self._change(
            job_type,
            lambda job: job if of_start not in (None, job.starts) else replace(job, requested=STOPPED),
        )

    def _change(self, job_type: str, change: Callable[[Job], Job]) -> Job:
        def changed(jobs: Sequence[Job]) -> Sequence[Job]:
            chosen = _only(jobs, job_type)
            return [change(job) if job is chosen else job for job in jobs]

        return _only(self._edit(changed), job_type)

    def _edit(self, change: Callable[[Sequence[Job]], Sequence[Job]]) -> Sequence[Job]:
        self._tables.require_enabled()
        with self._tables.held("cdc jobs"):
            self._tables.require_enabled()
            return self._tables.control.edit(CDC_JOBS, lambda jobs: [*change(jobs)])


def _only(jobs: Sequence[Job], job_type: str) -> Job:
    for job in jobs:
        if job.job_type == checked_type(job_type):
            return job
    raise _refused_type(
        job_type, f"the database has no such job; add it (`mergerepl cdc jobs add {job_type}`)"
    )


def _refused_type(job_type: str, allowed: str) -> CdcUsageError:
    return CdcUsageError.bad_parameter(22990, "job_type", job_type, allowed)


def new_job(database_id: str, job_type: str, given: Mapping[str, Any], *, requested: str = STARTED) -> Job:
    """Return a job with its defaults and the given parameters.

    Raises: CdcUsageError.
    """
    job = Job(
        database_id=database_id,
        job_type=checked_type(job_type),
        job_id=str(uuid.uuid4()),
        requested=requested,
        **_DEFAULTS[job_type],
    )
    return changed_job(job, given)


def changed_job(job: Job, given: Mapping[str, Any]) -> Job:
    """Return a job with other parameters; None keeps a parameter.

    `continuous` False has a pollinginterval of 0; one above 0 makes the job continuous, unless `continuous` is given.

    Raises: CdcUsageError.
    """
    changes = {name: value for name, value in given.items() if value is not None}
    for name, value in changes.items():
        if name not in _DEFAULTS[job.job_type]:
            allowed = f"the {job.job_type} job has only: {', '.join(_DEFAULTS[job.job_type])}"
            raise CdcUsageError.bad_parameter(22990, name, value, allowed)
        if name in _BOUNDS:
            check_parameters(**{name: value})
    if "schedule" in changes and not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d", changes["schedule"]):
        raise CdcUsageError.bad_parameter(
            22990, "schedule", changes["schedule"], "it is a time such as 02:00"
        )
    if changes.get("continuous") is False:
        changes["pollinginterval"] = 0
    elif changes.get("pollinginterval", 0) > 0:
        changes.setdefault("continuous", True)
    return replace(job, **changes)


def check_parameters(**given: int) -> None:
    """Check the numbers that jobs and their manual commands share.

    Raises: CdcUsageError.
    """
    for name, value in given.items():
        number, lowest, highest = _BOUNDS[name]
        if not lowest <= value <= highest:
            unit = f" of {_UNITS[name]}" if name in _UNITS else ""
            allowed = f"it is a number{unit} from {lowest:,} to {highest:,}"
            raise CdcUsageError.bad_parameter(number, name, value, allowed)


def checked_type(job_type: str) -> str:
    """Return the type of a job.

    Raises: CdcUsageError.
    """
    if job_type not in JOB_TYPES:
        raise _refused_type(job_type, "it is capture, cleanup or logreader")
    return job_type


def with_default_jobs(database_id: str, jobs: Sequence[Job], *, is_shared: bool) -> list[Job]:
    """Return the jobs of a database that gets its first instance: those that are missing, with their defaults, started.

    `is_shared`: the log is read for publications, too.
    """
    known = {job.job_type for job in jobs}
    wanted = (LOG_READER if is_shared else CAPTURE, CLEANUP)
    return [*jobs, *(new_job(database_id, each, {}) for each in wanted if each not in known)]


def fitting_jobs(database_id: str, jobs: Sequence[Job], *, is_shared: bool) -> list[Job]:
    """Return the jobs after the log got its first publication or lost its last one: one default job reads it.

    A dropped job does not come back.
    """
    leaving, coming = (CAPTURE, LOG_READER) if is_shared else (LOG_READER, CAPTURE)
    kept = [job for job in jobs if job.job_type != leaving]
    if len(kept) == len(jobs) or any(job.job_type == coming for job in jobs):
        return kept
    return [*kept, new_job(database_id, coming, {})]
