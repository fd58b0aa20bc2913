"""Rows that all products share: listings, their HTML, the exit code of a check, and tasks that a type does not have."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from mergerepl import Agent, Listing, Project
from mergerepl.agents import control
from mergerepl.cli.main import main
from mergerepl.errors import ConfigurationError, LeaseError
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.cdc import AgentStatus
from mergerepl.model.conflicts import ConflictRecord
from mergerepl.model.listing import MOST_ROWS
from mergerepl.model.progress import NoProgress
from mergerepl.model.results import ArticleValidation, SessionResult, SyncResult
from mergerepl.model.tasks import (
    CRITICAL,
    UNKNOWN,
    WARNING,
    Captured,
    CleanupResult,
    Removed,
    Status,
    StatusWarning,
    ValidationResult,
    check_code,
)
from mergerepl.model.transactional import Publication
from mergerepl.products import merge
from mergerepl.publish.steps import Step, carry_out
from mergerepl.transactional.refusals import TransactionalUsageError
from tests.networks import make_pair, make_replica


@dataclass(frozen=True)
class Inner:
    n: int = 1


@dataclass(frozen=True)
class Row:
    name: str
    lsn: bytes = Lsn(b"\x01" * 10)
    time: datetime = datetime(2026, 3, 1, tzinfo=UTC)
    inner: Inner = Inner()
    names: tuple[str, ...] = ("a", "b")
    counts: dict[int, int] = field(default_factory=lambda: {1: 2})


def test_a_listing_is_a_tuple_that_becomes_a_table() -> None:
    rows = Listing([Row("x"), Row("y")])
    assert (rows[0], rows[:1], len(rows)) == (Row("x"), (Row("x"),), 2)
    table = rows.to_arrow()
    assert table.column_names == ["name", "lsn", "time", "inner", "names", "counts"]
    first = table.to_pylist()[0]
    assert (first["lsn"], first["inner"], first["names"], first["counts"]) == (
        f"0x{'01' * 10}",
        {"n": 1},
        ["a", "b"],
        '{"1": 2}',
    )
    assert list(rows.to_pandas()["name"]) == ["x", "y"]
    mixed = Listing(
        [Status("merge", "/hq", "publisher", (), Inner()), Status("cdc", "/hq", "database", (), {1: 2})]
    )
    assert mixed.to_arrow()["details"].to_pylist() == ['{"n": 1}', '{"1": 2}']


def test_a_notebook_shows_escaped_rows_and_no_more_than_a_hundred() -> None:
    shown = Listing([Row("<script>alert(1)</script>")] * (MOST_ROWS + 7))._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert shown.count("<tr>") == MOST_ROWS + 1
    assert "7 more rows" in shown
    assert Listing()._repr_html_() == "<p>no rows</p>"
    equal = ArticleValidation("orders", "checksum", 1, 1, 0, subscriber="/data/north")
    assert "/data/north" in ValidationResult(Listing([equal]))._repr_html_()


def test_objects_and_results_show_themselves(tmp_path: Path) -> None:
    make_replica(tmp_path, "hq")
    project = Project.load(tmp_path / "hq")
    assert f"<td>{tmp_path}/north</td>" in project._repr_html_()
    assert "<td>merge</td>" in project.at()._repr_html_()
    done = SyncResult("sales", (SessionResult("sales", "/data/north", "succeeded"),))
    assert "<td>/data/north</td>" in done._repr_html_()
    lost = ConflictRecord(
        *("c1", "sales", "orders", "guid", {"id": 1}, 1, 1, "both", "north", "hq"),
        datetime(2026, 3, 1, tzinfo=UTC),
        {"id": 1, "n": "<b>"},
        {"id": 1, "n": 2},
        conflict_columns=("n",),
    )
    assert "<td>n</td><td>&lt;b&gt;</td><td>2</td><td>*</td>" in lost._repr_html_()


@pytest.mark.parametrize(
    ("levels", "code"),
    [
        ([], 0),
        ([WARNING], 1),
        ([WARNING, CRITICAL], 2),
        ([UNKNOWN], 3),
        ([WARNING, UNKNOWN], 3),
        ([UNKNOWN, CRITICAL], 2),
    ],
)
def test_the_gravest_warning_gives_the_exit_code(levels: list[str], code: int) -> None:
    warnings = tuple(StatusWarning("orders", level, "text") for level in levels)
    assert (
        check_code([Status("merge", "/hq", "publisher", ()), Status("cdc", "/hq", "database", warnings)])
        == code
    )


def test_a_task_that_a_type_does_not_have_is_refused(tmp_path: Path) -> None:
    make_replica(tmp_path, "hq")
    (tmp_path / "base" / "_tracking").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"base is tracking: no changes that wait for a sync"):
        Project.load(tmp_path / "base").pending()
    with pytest.raises(ConfigurationError, match=r"hq is merge: no paused tables"):
        Project.load(tmp_path / "hq").at().resume("orders")
    with pytest.raises(ConfigurationError, match=r"no kind of cleanup 'dust'"):
        Project.load(tmp_path / "hq").cleanup(only=["dust"])


def test_one_of_several_products_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    make_replica(tmp_path, "hq")
    (tmp_path / "hq" / "_tracking").mkdir()
    merge, tracked = Project.load(tmp_path / "hq").status()
    assert (merge.type, merge.details.nickname) == ("merge", 1)
    assert (tracked.type, tracked.details, [each.level for each in tracked.warnings]) == (
        "tracking",
        None,
        [UNKNOWN],
    )


def test_a_product_that_fails_does_not_keep_another_from_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pair(tmp_path)
    both = Project.load(tmp_path / "hq", tmp_path / "north")

    def fails_at_hq(root: Path, **terms: object) -> object:
        if root.name == "hq":
            raise LeaseError("hq is held")
        removed = Removed("merge", str(root), "conflicts", "log", 3)
        return {"capture": Captured("merge", str(root), 3), "cleanup": CleanupResult(Listing([removed]))}[
            task
        ]

    fails_at_hq.__module__ = merge.__name__
    for task, of in (
        ("capture", lambda project: [(each.changes, each.error) for each in project.capture()]),
        ("cleanup", lambda project: [(each.rows, each.error) for each in project.cleanup().removed]),
    ):
        monkeypatch.setattr(merge, task, fails_at_hq)
        assert of(both) == [(0, "hq is held"), (3, None)]
        with pytest.raises(LeaseError):
            of(Project.load(tmp_path / "hq"))
    cleanup = ("cleanup", "-f", str(tmp_path / "north"))
    asked = CliRunner().invoke(main, [*cleanup, "--older-than", "0s"])
    assert (asked.exit_code, f"Remove 3 conflicts at {tmp_path}/north?" in asked.stderr) == (2, True)
    for words in (cleanup, (*cleanup, "--older-than", "0s", "--yes")):
        assert CliRunner().invoke(main, words).exit_code == 0


class Steps(NoProgress):
    """Keeps the names of steps."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def step(self, name: str, **_: object) -> None:
        self.names.append(name)


def test_a_publisher_that_fails_does_not_keep_another_from_its_sync(tmp_path: Path) -> None:
    for name in ("hq", "shop"):
        (tmp_path / name).mkdir()
    hq, shop = (Publication(f"feed_{name}", str(tmp_path / name), ()) for name in ("hq", "shop"))
    done = Project(hq, shop).sync()
    assert [(each.publication, each.status) for each in done.sessions] == [
        ("feed_hq", "failed"),
        ("feed_shop", "failed"),
    ]
    steps = Steps()
    Project(hq, shop).sync(dry_run=True, progress=steps)
    assert steps.names == ["read the log"] * 2
    with pytest.raises(TransactionalUsageError, match="streams cannot be 0"):
        Project(hq, shop).sync(streams=0)
    with pytest.raises(TransactionalUsageError, match="publishes nothing"):
        Project(hq).sync()


def test_a_step_that_removes_rows_is_one_of_the_plan_that_was_shown() -> None:
    done: list[str] = []
    steps = [
        Step("capture", "orders", "a new instance", lambda run: done.append("capture")),
        Step("disable", "old", "its rows go", lambda run: done.append("disable"), removes_rows=True),
    ]
    with pytest.raises(ConfigurationError, match="'disable old' removes rows and was not in it"):
        carry_out(steps, None, NoProgress(), planned=[steps[0].plan])
    assert done == []
    for planned in (None, [each.plan for each in steps]):
        carry_out(steps, None, NoProgress(), planned=planned)
    assert done == ["capture", "disable"] * 2


def test_a_process_of_several_folders_is_stopped_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pair(tmp_path)
    stopped: list[str] = []
    monkeypatch.setattr(control, "agent_status", lambda root: AgentStatus(root, 7, "host"))
    monkeypatch.setattr(control, "stop_agent", lambda root, wait_s: stopped.append(root))
    agent = Agent(tmp_path / "hq", tmp_path / "north")
    assert [(each.root, each.pid) for each in agent.stop()] == [(root, 7) for root in agent.roots]
    assert (len(stopped), len(agent.roots)) == (1, 2)
