"""Jobs as values: their defaults, what may be changed, and when they are due."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mergerepl.agents.jobs import run_reported
from mergerepl.agents.loop import RETRY_S, CaptureState, CleanupState, Timer, run_until_stopped
from mergerepl.cdc.jobs import (
    CAPTURE,
    CLEANUP,
    LOG_READER,
    changed_job,
    fitting_jobs,
    new_job,
    with_default_jobs,
)
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.model.cdc import Job, JobEvent


def job(job_type: str, **given: Any) -> Job:
    return new_job("d", job_type, given)


def test_defaults_are_those_of_the_original() -> None:
    capture, cleanup = with_default_jobs("d", [], is_shared=False)
    assert (capture.maxtrans, capture.maxscans, capture.continuous, capture.pollinginterval) == (
        1000,
        10,
        True,
        5,
    )
    assert (cleanup.retention, cleanup.threshold, cleanup.schedule) == (4320, 5000, "02:00")
    assert capture.requested == cleanup.requested == "started"
    assert (capture.retention, cleanup.maxtrans) == (None, None)
    assert with_default_jobs("d", [cleanup], is_shared=False)[0] is cleanup
    assert len(with_default_jobs("d", [capture, cleanup], is_shared=False)) == 2


def test_who_reads_the_log_is_one_job() -> None:
    capture, cleanup, log_reader = (job(each) for each in (CAPTURE, CLEANUP, LOG_READER))
    stopped = replace(capture, requested="stopped", maxtrans=7)
    cases = [
        # name, jobs, whether publications are served, job types afterwards
        ("nothing_changes_without_publications", [capture, cleanup], False, [CAPTURE, CLEANUP]),
        ("nothing_changes_with_publications", [cleanup, log_reader], True, [CLEANUP, LOG_READER]),
        ("the_first_publication_came", [capture, cleanup], True, [CLEANUP, LOG_READER]),
        ("the_last_publication_went", [cleanup, log_reader], False, [CLEANUP, CAPTURE]),
        ("a_dropped_job_stays_dropped", [cleanup], True, [CLEANUP]),
        ("a_dropped_job_does_not_come_back", [cleanup], False, [CLEANUP]),
        ("a_death_left_both", [capture, cleanup, log_reader], True, [CLEANUP, LOG_READER]),
    ]
    for name, jobs, is_shared, expected in cases:
        after = fitting_jobs("d", jobs, is_shared=is_shared)
        assert [each.job_type for each in after] == expected, name
        assert fitting_jobs("d", after, is_shared=is_shared) == after, name
    coming = fitting_jobs("d", [stopped], is_shared=True)[0]
    assert (coming.requested, coming.maxtrans) == ("started", 1000)
    assert [each.job_type for each in with_default_jobs("d", [], is_shared=True)] == [LOG_READER, CLEANUP]


@pytest.mark.parametrize(
    ("job_type", "given", "expected"),
    [
        (CAPTURE, {"maxtrans": 5, "maxscans": None}, {"maxtrans": 5, "maxscans": 10}),
        (CAPTURE, {"continuous": False}, {"continuous": False, "pollinginterval": 0}),
        (CAPTURE, {"continuous": False, "pollinginterval": 9}, {"continuous": False, "pollinginterval": 0}),
        (CAPTURE, {"pollinginterval": 9}, {"continuous": True, "pollinginterval": 9}),
        (CAPTURE, {"pollinginterval": 0}, {"continuous": True, "pollinginterval": 0}),
        (CLEANUP, {"retention": 1, "schedule": "23:59"}, {"retention": 1, "schedule": "23:59"}),
    ],
)
def test_what_is_given_is_changed(job_type: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    changed = changed_job(job(job_type), given)
    assert {name: getattr(changed, name) for name in expected} == expected
    assert changed.job_type == job_type


def test_a_polling_interval_makes_a_job_continuous_again() -> None:
    once = changed_job(job(CAPTURE), {"continuous": False})
    assert changed_job(once, {"pollinginterval": 3}).continuous


@pytest.mark.parametrize(
    ("job_type", "given", "number"),
    [
        (CAPTURE, {"maxtrans": 0}, 22991),
        (CAPTURE, {"maxtrans": 65_535}, 22991),
        (CAPTURE, {"maxscans": 0}, 22970),
        (CAPTURE, {"pollinginterval": 86_400}, 22990),
        (CAPTURE, {"retention": 5}, 22990),
        (CLEANUP, {"retention": 0}, 22994),
        (CLEANUP, {"retention": 52_594_801}, 22994),
        (CLEANUP, {"threshold": 0}, 22850),
        (CLEANUP, {"schedule": "24:00"}, 22990),
        (CLEANUP, {"continuous": True}, 22990),
        ("merge", {}, 22990),
    ],
)
def test_wrong_parameters_are_refused(job_type: str, given: dict[str, Any], number: int) -> None:
    with pytest.raises(CdcUsageError) as refused:
        new_job("d", job_type, given)
    assert refused.value.number == number


def test_capture_runs_when_it_is_asked_for_and_then_at_its_interval() -> None:
    first = job(CAPTURE, pollinginterval=7)
    state = CaptureState().requested(first, 100.0)
    assert state.is_due(100.0)
    state = state.after_run(103.0, is_done=True)
    assert not state.is_due(109.9)
    assert state.is_due(110.0)
    # Other parameters wait until it is stopped and started.
    assert state.requested(changed_job(first, {"pollinginterval": 1}), 104.0).running == first
    assert state.requested(None, 104.0) == CaptureState()
    assert not CaptureState().is_due(104.0)
    again = CaptureState().requested(changed_job(first, {"pollinginterval": 1}), 105.0)
    assert again.is_due(105.0)
    assert again.after_run(106.0, is_done=True).is_due(107.0)
    assert not again.after_run(106.0, is_done=False).is_due(106.0 + RETRY_S - 0.1)
    # Changed, stopped and started between two looks of the agent.
    restarted = replace(changed_job(first, {"pollinginterval": 1}), starts=first.starts + 1)
    assert state.requested(restarted, 104.0).running == restarted
    assert state.requested(restarted, 104.0).is_due(104.0)
    # Dropped and added again: another job.
    assert state.requested(job(CAPTURE), 104.0).is_due(104.0)


def test_cleanup_runs_once_a_day_and_makes_up_for_a_missed_run() -> None:
    daily = job(CLEANUP)
    at = datetime.fromisoformat("2026-03-01T12:00:00")
    assert CleanupState().is_due(daily, at)
    ran = replace(daily, last_run=at)
    for moment, after_run, after_failure in (
        ("2026-03-01T12:00:01", False, False),
        ("2026-03-01T13:00:00", False, True),
        ("2026-03-02T01:59:59", False, True),
        ("2026-03-02T02:00:00", True, True),
        ("2026-03-03T00:30:00", True, True),
    ):
        now = datetime.fromisoformat(moment)
        assert CleanupState().is_due(ran, now) is after_run
        assert CleanupState(at).is_due(daily, now) is after_failure
    assert not CleanupState().is_due(None, at)
    assert not CleanupState().is_due(Job(**{**daily.__dict__, "requested": "stopped"}), at)


def test_repeated_work_waits_for_its_interval_and_longer_after_a_failure() -> None:
    timer = Timer(60.0)
    assert timer.is_due(0.0)
    assert not timer.after_run(100.0, is_done=True).is_due(159.9)
    assert timer.after_run(100.0, is_done=True).is_due(160.0)
    assert Timer(1.0).after_run(100.0, is_done=False) == Timer(1.0, 100.0 + RETRY_S)
    assert Timer(1.0, retry_s=0.0).after_run(100.0, is_done=False).is_due(101.0)


def test_the_loop_ends_after_the_work_that_runs_and_serves_between() -> None:
    done: list[str] = []

    def paused(seconds: float) -> None:
        done.append("pause")

    run_until_stopped(
        [lambda: done.append("one"), lambda: done.append("two")],
        is_asked_to_stop=lambda: len(done) > 3,
        pause=paused,
    )
    assert done == ["one", "two", "pause", "one"]


def test_a_job_that_fails_is_reported_and_leaves_the_others_alone(tmp_path: Path) -> None:
    def broken() -> tuple[str, bool]:
        raise RuntimeError("no disk")

    events: list[JobEvent] = []
    assert not run_reported(tmp_path, "sync", broken, events.append)
    assert run_reported(tmp_path, "sync", lambda: ("", False), events.append)
    assert not run_reported(tmp_path, "sync", lambda: ("north is gone", True), events.append)
    assert [(each.job, each.text, each.is_failed) for each in events] == [
        ("sync", "RuntimeError: no disk", True),
        ("sync", "north is gone", True),
    ]
