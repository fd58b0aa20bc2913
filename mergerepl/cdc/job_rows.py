"""The jobs of a database as values: their defaults and their allowed parameters. Pure."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.logreader.lsn import MAX_SLOT
from mergerepl.model.cdc import Job

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
        raise CdcUsageError.bad_parameter(22990, "job_type", job_type, "it is capture, cleanup or logreader")
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
