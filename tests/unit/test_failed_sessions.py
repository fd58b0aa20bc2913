"""A session that failed is not "succeeded" in `status` and `history`, at each end that can be read. No Spark."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

import mergerepl
from mergerepl import errors
from mergerepl.cli.main import main
from mergerepl.errors import ConflictError, EngineLostError, LeaseError, MergeReplError, OutOfReachError
from mergerepl.model.results import SessionResult
from mergerepl.sessions import run_again
from mergerepl.sessions.targets import Target
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from tests.calls import merge_history, merge_status
from tests.networks import Network


@pytest.fixture
def hq(tmp_path: Path) -> Path:
    """A publisher with the subscribers north and south, in step."""
    return Network(tmp_path).root("hq")


def last(root: Path) -> tuple[str, str]:
    """Return how the last session ended by `status`, and its reason."""
    found = next(each for each in merge_status(root).subscriptions if not each.subscriber.endswith("south"))
    return found.last_sync_status, found.last_sync_summary


def as_json(*arguments: str) -> dict[str, object]:
    shown = CliRunner().invoke(main, [*arguments, "--json"])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


def test_a_session_that_failed_is_recorded_at_both_ends(hq: Path) -> None:
    north = hq.parent / "north"
    shutil.rmtree(north / "orders")
    with pytest.raises(MergeReplError, match="orders") as failed:
        mergerepl.Project.load(hq).sync("north")
    for root in (hq, north):
        assert last(root) == ("failed", failed.value.message)
        (record,) = merge_history(root)
        assert (record.runstatus, record.messages) == ("failed", (failed.value.message,))
        assert any("failed: " in each for each in merge_status(root).problems)


@pytest.mark.parametrize(("asked", "gone"), [("hq", "north"), ("north", "hq")])
@pytest.mark.parametrize("is_mounted", [True, False])
def test_an_end_that_cannot_be_reached_is_a_failed_session_at_the_other(
    hq: Path, asked: str, gone: str, is_mounted: bool
) -> None:
    root, other, north = hq.parent / asked, hq.parent / gone, hq.parent / "north"
    other.rename(other.with_name("aside"))
    if is_mounted:
        other.mkdir()
    for _ in range(2):
        with pytest.raises(OutOfReachError):
            mergerepl.Project.load(root).sync(Path(north).name)
    found = as_json("status", "-f", str(root))["status"][0]["details"]["subscriptions"][0]
    assert (found["last_sync_status"], found["last_sync_date"] is None) == ("failed", False)
    assert f"'{other}' is out of reach" in found["last_sync_summary"]
    sessions = as_json("history", "-f", str(root))["runs"]
    assert [each["status"] for each in sessions] == ["failed"], "what repeats is recorded once"
    assert [each["details"]["error_class"] for each in sessions] == ["OutOfReachError"]
    shown = CliRunner().invoke(main, ["status", "-f", str(root)]).stdout
    assert (
        f"Warning: {north}: The last session of '{north}' failed: Replica '{other}' is out of reach" in shown
    )
    # Nothing to do again: the failure is over, and the next quiet session commits nothing.
    if is_mounted:
        other.rmdir()
    other.with_name("aside").rename(other)
    assert mergerepl.Project.load(root).sync(Path(north).name).ok
    assert last(root) == ("succeeded", "nothing to do")
    assert [each.runstatus for each in merge_history(root)] == ["failed"]
    assert merge_status(root).problems == ()


def test_three_failures_in_a_row_are_critical_until_a_session_succeeds(hq: Path) -> None:
    north = hq.parent / "north"
    north.rename(north.with_name("aside"))
    table = hq / "_mergerepl" / "sysmergesubscriptions"
    found = []
    for _ in range(5):
        with pytest.raises(OutOfReachError):
            mergerepl.Project.load(hq).sync("north")
        (row,) = (each for each in merge_status(hq).subscriptions if each.subscriber == str(north))
        (warning,) = mergerepl.Replica(hq).status()[0].warnings
        found.append((row.failures, warning.level, DeltaTable(str(table)).version()))
    assert [each[:2] for each in found] == [*((1, "warning"), (2, "warning")), *[(3, "critical")] * 3]
    assert found[-1][2] == found[2][2], "what repeats commits nothing"
    assert warning.text.startswith(f"The last 3 rounds or more of '{north}' failed: ")
    north.with_name("aside").rename(north)
    assert mergerepl.Project.load(hq).sync("north").ok
    assert [each.failures for each in merge_status(hq).subscriptions] == [0, 0]


def test_all_tries_of_a_round_count_as_one_failure(hq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mergerepl.sessions.time.sleep", lambda _: None)
    north, table = hq.parent / "north", hq / "_mergerepl" / "sysmergesubscriptions"
    north.rename(north.with_name("aside"))
    for failures in (1, 2, 3):
        before = DeltaTable(str(table)).version()
        with pytest.raises(OutOfReachError):
            mergerepl.Project.load(hq).sync("north", retries=3)
        assert sum(each.failures for each in merge_status(hq).subscriptions) == failures
        assert DeltaTable(str(table)).version() == before + 1
    assert len(merge_history(hq)) == 1


def result(error: MergeReplError | None) -> SessionResult:
    details = None if error is None else error.details()
    return SessionResult("p", "s", "succeeded" if error is None else "failed", error=details)


@pytest.mark.parametrize(
    ("error", "retries", "tries"),
    [
        (OutOfReachError("x"), 0, 1),
        (OutOfReachError("x"), 4, 5),
        (EngineLostError("x"), 4, 3),
        (ConflictError("x"), 4, 1),
    ],
)
def test_what_may_pass_is_tried_again_after_the_others(
    monkeypatch: pytest.MonkeyPatch, error: MergeReplError, retries: int, tries: int
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("mergerepl.sessions.time.sleep", waits.append)
    monkeypatch.setattr("mergerepl.sessions.random.uniform", lambda _, most: most)
    targets = [Target(Location.of("/hq"), Location.of(f"/{name}"), "p") for name in ("bad", "good")]
    ran: list[str] = []

    def run(item: Target) -> SessionResult:
        ran.append(item.subscriber.name)
        return result(error if ran[-1] == "bad" else None)

    assert [each.status for each in run_again(run, targets, retries)] == ["failed", "succeeded"]
    assert ran == ["bad", "good", *["bad"] * (tries - 1)]
    assert waits == [1.0, 2.0, 4.0, 8.0][: tries - 1]
    # The error of the only session is raised.
    ran.clear()

    def raise_(_: Target) -> SessionResult:
        ran.append("")
        raise error

    with pytest.raises(type(error)):
        run_again(raise_, targets[:1], retries)
    assert len(ran) == tries


def test_the_page_has_the_errors_of_each_class() -> None:
    text = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (transient|memory|permanent) \| [^|]+ \| (.+) \|$", text, re.M)
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    named: dict[str, list[str]] = {"transient": [], "memory": [], "permanent": []}
    for kind in kinds:
        if issubclass(kind, MergeReplError):
            named[errors.error_class(kind)].append(kind.__name__)
    assert dict(rows) == {
        "transient": ", ".join(sorted(named["transient"])),
        "memory": ", ".join(named["memory"]),
        "permanent": "all others",
    }


def test_a_replica_that_another_agent_holds_has_not_failed(hq: Path) -> None:
    with lease(hq, purpose="test"), pytest.raises(LeaseError):
        mergerepl.Project.load(hq).sync("north")
    assert merge_history(hq) == ()
    assert last(hq)[0] == "waiting"


def test_a_dry_run_records_nothing(hq: Path) -> None:
    shutil.rmtree(hq.parent / "north")
    table = hq / "_mergerepl" / "sysmergesubscriptions"
    before = DeltaTable(str(table)).version()
    with pytest.raises(OutOfReachError):
        mergerepl.Project.load(hq).sync("north", dry_run=True)
    assert DeltaTable(str(table)).version() == before
    assert merge_history(hq) == ()
