"""Thresholds of `status`: what a file states, the warnings of sessions, and the lines of `status --check`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mergerepl
from mergerepl.agents import jobs
from mergerepl.errors import ConfigurationError, MergeReplError, StoreError
from mergerepl.model.alerts import Alerts
from mergerepl.model.replica_status import SessionRecord
from mergerepl.model.results import PhaseCounts
from mergerepl.model.tasks import Run, StatusWarning
from mergerepl.products.session_alerts import session_warnings
from mergerepl.replica.replica import Replica
from mergerepl.systables import sessions
from tests.networks import FILE, Network

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def session(seconds: float, rows: int, conflicts: int, *, at: datetime = NOW, to: str = "/data/north") -> Run:
    record = SessionRecord(
        *("s1", "sales", to, at, at, seconds, "succeeded"),
        PhaseCounts(inserts=rows, conflicts=conflicts),
        PhaseCounts(),
    )
    return Run("merge", "session", "s1", "/data/hq", "sales", to, at, seconds, "succeeded", rows, "", record)


@pytest.mark.parametrize(
    ("alerts", "run", "said"),
    [
        (Alerts(), session(900, 1000, 900), ""),
        (Alerts(run_seconds=60), session(60, 0, 0), ""),
        (Alerts(run_seconds=60), session(61, 0, 0), "took 61.0 s"),
        (Alerts(min_rows_per_second=10), session(10, 99, 0), "carried 9.9 rows a second"),
        (Alerts(min_rows_per_second=10), session(10, 49, 0), ""),
        (Alerts(conflicts_per_session=0), session(1, 1, 1), "met 1 conflict, more than 0"),
        (Alerts(conflicts_per_session=1), session(1, 1, 1), ""),
    ],
)
def test_the_last_session_is_compared_with_the_thresholds(alerts: Alerts, run: Run, said: str) -> None:
    older = session(9999, 50, 9999, at=NOW - timedelta(hours=1))
    found = list(session_warnings([run, older], alerts))
    assert [said in each.text for each in found] == ([True] if said else [])
    assert all(each.command == "mergerepl history north" for each in found)


def test_a_line_of_a_check_names_a_command() -> None:
    told = StatusWarning("orders", "critical", "It is gone.\nRun `mergerepl apply` now.")
    assert told.line == "Critical: orders: It is gone. Run `mergerepl apply` now."
    assert StatusWarning("orders", "warning", "It is gone.").line == (
        "Warning: orders: It is gone. See `mergerepl doctor`."
    )


def test_what_one_publication_of_a_folder_leaves_out_is_the_others() -> None:
    assert Alerts(run_seconds=1) | Alerts(run_seconds=2, pending_hours=3) == Alerts(
        run_seconds=1, pending_hours=3
    )


def test_a_file_states_from_when_status_warns(tmp_path: Path) -> None:
    network = Network(tmp_path)
    network.add_rows("hq", 9)
    file = tmp_path / FILE
    project = mergerepl.Project.load(file)
    assert project.sync("south", engine="auto").ok
    assert [each.warnings for each in project.status()] == [()]
    network.write_file(alerts={"pending_hours": 0})
    (status,) = mergerepl.Project.load(file).status()
    (said,) = status.warnings
    assert (said.level, said.command) == ("warning", "mergerepl sync north")
    by_name = {Path(each.subscriber).name: each for each in status.details.subscriptions}
    assert (by_name["north"].download, by_name["south"].download) == (1, 0)
    # What a replica out of reach would send is unknown.
    network.root("north").rename(tmp_path / "away")
    (status,) = mergerepl.Project.load(file).status()
    by_name = {Path(each.subscriber).name: each for each in status.details.subscriptions}
    assert (by_name["north"].upload, by_name["north"].is_reachable) == (None, False)
    assert (by_name["south"].upload, by_name["south"].is_reachable) == (0, True)
    snapshot = mergerepl.Project.load(file).snapshot()
    assert [each.level for each in snapshot.problems] == ["warning"]
    assert [(run.subscriber, run.changes) for run in snapshot.runs] == [(str(network.root("south")), 1)]
    # The metadata of that change stays because of the one that lacks it.
    assert ("north", 1) in [(Path(each.subscriber).name, each.changes) for each in snapshot.held]


def test_history_has_phases_times_and_an_entry_an_hour_for_idle_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(tmp_path)
    network.add_rows("hq", 9)
    hq = Replica(network.root("hq"))
    project = mergerepl.Project.load(hq.root)
    monkeypatch.setattr(
        "mergerepl.merge.session.merge_session.carry_out", lambda *_, **__: fail("s3://me:word@b is full")
    )
    with pytest.raises(MergeReplError):
        project.sync("north", engine="auto")
    monkeypatch.undo()
    (failed,) = project.history(failed=True)
    assert (failed.details.error_class, failed.details.phase) == ("UnfinishedSessionError", "apply")
    assert "word" not in failed.text
    assert project.sync("north", engine="auto").ok
    network.add_rows("hq", 10)
    assert project.sync("north", engine="auto").ok
    (row, *_) = sorted(hq.control.rows(sessions.SESSIONS), key=lambda row: row.end_time, reverse=True)
    assert row.download_time is not None
    monkeypatch.setattr(jobs, "_idle", {})
    for seconds in (10**6, 0, 10**6):
        monkeypatch.setattr(jobs, "IDLE_EVERY", timedelta(seconds=seconds))
        jobs._note_idle(hq.root, "sales", str(network.root("north")))
    idle = [each for each in project.history("north") if each.status == "idle"]
    assert [each.text for each in idle] == ["rounds with nothing to do: 2"]


def fail(why: str) -> None:
    raise StoreError(f"{why}.")


@pytest.mark.parametrize(
    ("alerts", "why"),
    [
        ({"expiration": 0.8}, "write it as `80%`"),
        ({"expiration": "0%"}, "write it as `80%`"),
        ({"pending_hours": -1}, "0 or more|greater|at least"),
        ({"conflicts": 3}, "conflicts_per_session"),
    ],
)
def test_other_thresholds_are_refused(tmp_path: Path, alerts: dict[str, object], why: str) -> None:
    network = Network(tmp_path)
    network.write_file(alerts=alerts)
    with pytest.raises(ConfigurationError, match=why):
        mergerepl.Project.load(tmp_path / FILE)
