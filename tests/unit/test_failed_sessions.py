"""A session that failed is not "succeeded" in `status` and `history`, at each end that can be read. No Spark."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

import mergerepl
from mergerepl.cli.main import main
from mergerepl.errors import LeaseError, MergeReplError, OutOfReachError
from mergerepl.store.lease import lease
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
