"""The jobs of a database: `cdc_jobs`. `mergerepl agent run` runs them (cdc.md 9). No Spark.

`capture` captures changes, `cleanup` removes old change rows. Where transactional publications are served from the same
log, `logreader` replaces `capture` and reads for both. The two replace each other automatically.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

from mergerepl.cdc.capture import held, log_reader
from mergerepl.cdc.consumer import is_shared
from mergerepl.cdc.database import database_at
from mergerepl.cdc.job_rows import (
    CAPTURE,
    CLEANUP,
    LOG_READER,
    STARTED,
    STOPPED,
    changed_job,
    checked_type,
    new_job,
)
from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.logreader.positions import read_state
from mergerepl.model.cdc import Job
from mergerepl.model.later import answers_later
from mergerepl.store.location import Location
from mergerepl.systables.cdc import CDC_JOBS

WAIT_S = 60.0
"""Seconds that a command waits for the cycle that holds the log."""


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


def help_jobs(database: str | os.PathLike[str]) -> list[Job]:
    """Return the jobs of a database.

    Raises: CdcUsageError 22901 if the database is not enabled.
    """
    found = database_at(database)
    found.require_enabled()
    return sorted(found.control.rows(CDC_JOBS), key=lambda job: job.job_type)


def add_job(
    database: str | os.PathLike[str],
    job_type: str,
    *,
    start_job: bool = True,
    lock_wait_s: float = WAIT_S,
    **parameters: Unpack[JobParameters],
) -> Job:
    """Create a job. A database has one of each type; its first capture instance creates them.

    Args:
        database: The folder.
        job_type: `capture`, `cleanup`, or `logreader` where the log is read for publications, too.
        start_job: Whether it is started at once.
        lock_wait_s: Seconds to wait for a scan that holds the log.
        parameters: `JobParameters`.

    Raises: CdcUsageError for a wrong parameter, or if a job of this type exists; CdcError 22911 for a capture job if
        publications read the log; ScanInProgressError (22903).
    """
    checked_type(job_type)
    found = database_at(database)
    found.require_enabled()
    requested = STARTED if start_job else STOPPED

    def add(jobs: Sequence[Job]) -> list[Job]:
        state = read_state(found.log)
        if job_type != CLEANUP and is_shared(state) != (job_type == LOG_READER):
            raise _not_here(found.root, job_type)
        if any(job.job_type == job_type for job in jobs):
            raise CdcUsageError.bad_parameter(
                22990,
                "job_type",
                job_type,
                "the database has this job already; change it (`cdc jobs change`)",
            )
        return [*jobs, new_job(state.database.database_id, job_type, parameters, requested=requested)]

    return _only(_change(database, add, lock_wait_s), job_type)


def change_job(
    database: str | os.PathLike[str],
    job_type: str = CAPTURE,
    *,
    lock_wait_s: float = WAIT_S,
    **parameters: Unpack[JobParameters],
) -> Job:
    """Change parameters of a job; None keeps a parameter. The change takes effect when the job is stopped and started.

    Args: as `add_job`.

    Raises: CdcUsageError for a wrong parameter, or if the job does not exist; ScanInProgressError (22903).
    """
    return _with(database, job_type, lambda job: changed_job(job, parameters), lock_wait_s)


def drop_job(database: str | os.PathLike[str], job_type: str, *, lock_wait_s: float = WAIT_S) -> None:
    """Remove a job; if it runs, its cycle is finished first.

    Raises: CdcUsageError if the job does not exist; ScanInProgressError (22903).
    """

    def drop(jobs: Sequence[Job]) -> list[Job]:
        _only(jobs, job_type)
        return [job for job in jobs if job.job_type != job_type]

    _change(database, drop, lock_wait_s)


def start_job(
    database: str | os.PathLike[str], job_type: str = CAPTURE, *, lock_wait_s: float = WAIT_S
) -> Job:
    """Request a start of a job: a running agent starts it within a second.

    Raises: CdcUsageError if the job does not exist; ScanInProgressError (22903).
    """
    return _with(
        database,
        job_type,
        lambda job: (
            job if job.requested == STARTED else replace(job, requested=STARTED, starts=job.starts + 1)
        ),
        lock_wait_s,
    )


@answers_later("cdc", CdcUsageError.later)
def stop_job(
    database: str | os.PathLike[str],
    job_type: str = CAPTURE,
    *,
    of_start: int | None = None,
    lock_wait_s: float = WAIT_S,
) -> Job:
    """Request a stop of a job, and wait until its running cycle is finished; no change is lost.

    Args:
        database: The folder.
        job_type: As for `add_job`.
        of_start: Stop only this start of the job (its `starts`): a later one goes on.
        lock_wait_s: Seconds to wait for a cycle that runs.

    Raises: CdcUsageError if the job does not exist; ScanInProgressError (22903).
    """
    return _with(
        database,
        job_type,
        lambda job: job if of_start not in (None, job.starts) else replace(job, requested=STOPPED),
        lock_wait_s,
    )


def _not_here(root: Location, job_type: str) -> CdcError:
    if job_type == CAPTURE:
        return CdcError.log_is_shared(root)
    return CdcUsageError.bad_parameter(
        22990, "job_type", job_type, "this job is for a database whose log is read for publications, too"
    )


def _with(
    database: str | os.PathLike[str], job_type: str, change: Callable[[Job], Job], wait_s: float
) -> Job:
    checked_type(job_type)

    def changed(jobs: Sequence[Job]) -> list[Job]:
        chosen = _only(jobs, job_type)
        return [change(job) if job is chosen else job for job in jobs]

    return _only(_change(database, changed, wait_s), job_type)


def _change(
    database: str | os.PathLike[str], change: Callable[[Sequence[Job]], list[Job]], wait_s: float
) -> list[Job]:
    found = database_at(database)
    found.require_enabled()
    with held(log_reader(found, wait_s=wait_s), "cdc jobs"):
        found.require_enabled()
        return found.control.edit(CDC_JOBS, change)


def _only(jobs: Sequence[Job], job_type: str) -> Job:
    for job in jobs:
        if job.job_type == checked_type(job_type):
            return job
    raise CdcUsageError.bad_parameter(
        22990, "job_type", job_type, f"the database has no such job; add it (`cdc jobs add ROOT {job_type}`)"
    )
