"""A log reader or distribution agent that dies at any step is finished by the next run, and no command comes twice.

A command that came twice would be error 2627 or 20598: the subscriber does not overwrite in silence.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl import transactional as tr
from tests.cdc.databases import add, delete, update
from tests.transactional.publications import dies, new_table, publication_file, rows, run

pytestmark = pytest.mark.spark

POINTS = (
    "logreader.before_plan",
    "logreader.after_plan",
    "transactional.after_commands",
    "transactional.before_gate",
    "logreader.after_gate",
    "logreader.after_positions",
    "logreader.after_plan_removed",
    "distribute.before_plan",
    "distribute.after_plan",
    "distribute.after_article",
    "distribute.after_article:2",
    "distribute.before_write",
    "distribute.after_write",
    "distribute.before_position",
    "distribute.after_position",
)
ALWAYS = ("transactional.before_gate", "distribute.after_article")
"""Where every run of the tests dies, one after the other; `--long` dies everywhere."""
REINIT_POINTS = (
    "transactional.before_copy",
    "transactional.after_copy",
    "transactional.after_copy:2",
    "transactional.after_snapshot",
)
NAMES = ("orders", "lines")


@tr.procedure("keep_quantities", operation="update", call="MCALL")
def keep_quantities(call: tr.Call) -> None:
    call.append(call.commands.selectExpr("pkc1 AS id", "c3 AS qty", "xact_seqno"), "quantities")
    call.default()


class Feed:
    """Two published tables that every round changes alike."""

    def __init__(self, folder: Path, *, has_procedure: bool = True) -> None:
        self.folder, self.next = folder, 100
        for name in NAMES:
            new_table(folder / "hq", name, {1: ("a", 1), 2: ("b", 2)})
        articles = [
            {"name": "orders", "key": ["id"]},
            {
                "name": "lines",
                "key": ["id"],
                **({"upd_cmd": "MCALL keep_quantities"} if has_procedure else {}),
            },
        ]
        self.file = publication_file(folder, articles)
        run("apply", "-f", self.file)

    def change(self) -> None:
        self.next += 1
        for name in NAMES:
            table = self.folder / "hq" / name
            add(table, {self.next: ("new", 0)})
            update(table, f"id = {self.next}", qty=str(self.next))
            delete(table, f"id = {self.next - 1}")

    def differs(self) -> list[str]:
        """Return the tables that the subscriber has otherwise."""
        return [
            name for name in NAMES if rows(self.folder / "hq" / name) != rows(self.folder / "north" / name)
        ]


@pytest.fixture(scope="module")
def feed(spark: SparkSession, worker_folder: Path) -> Feed:
    folder = worker_folder / "feed-crash"
    folder.mkdir()
    return Feed(folder)


@pytest.mark.parametrize(
    "points",
    [ALWAYS, *(pytest.param((each,), marks=pytest.mark.slow) for each in POINTS)],
    ids=lambda points: "+".join(points),
)
def test_a_death_at_any_step_is_made_up_for(feed: Feed, points: Sequence[str]) -> None:
    feed.change()
    for point in points:
        dies(point, "sync", "-f", feed.file)
    run("sync", "-f", feed.file)
    assert feed.differs() == []
    assert sorted(row[:2] for row in rows(feed.folder / "north" / "quantities")) == [
        (key, key) for key in range(101, feed.next + 1)
    ]
    assert run("sync", "-f", feed.file)["sessions"][0]["status"] == "nothing_to_do"


@pytest.mark.slow
def test_a_small_batch_that_dies_in_process_is_made_up_for(
    spark: SparkSession, replica_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mergerepl.delta.engine_choice")
    feed = Feed(replica_dir, has_procedure=False)
    points = [each for each in POINTS if each.startswith("distribute") and "write" not in each]
    for point in points:
        feed.change()
        run("capture", "-f", feed.file)
        caplog.clear()
        dies(point, "sync", "-f", feed.file)
        run("sync", "-f", feed.file)
        assert "Spark" not in caplog.text, point
        assert feed.differs() == [], point
        assert run("sync", "-f", feed.file)["sessions"][0]["status"] == "nothing_to_do"


@pytest.mark.slow
def test_a_subscription_that_dies_while_it_begins_again_waits_for_its_snapshot(feed: Feed) -> None:
    """Tables of another moment than the position: no command is applied to them."""
    hq, north = feed.folder / "hq", feed.folder / "north"
    for place, point in enumerate(REINIT_POINTS):
        feed.change()
        run("capture", "-f", hq)
        dies(point, "reinit", "-f", hq, "--all", "--yes")
        left = [rows(north / name) for name in NAMES]
        feed.change()
        refused = run("sync", "-f", feed.file, code=1)
        assert refused["error"]["number"] == "21074"
        assert "its snapshot is not done" in refused["error"]["message"]
        assert [rows(north / name) for name in NAMES] == left
        if place % 2:
            run("reinit", "-f", hq, "--all", "--yes")
        else:
            assert [step["action"] for step in run("apply", "-f", feed.file)["steps"]] == ["initialise"]
        assert feed.differs() == [], point
        feed.change()
        run("sync", "-f", feed.file)
        assert feed.differs() == [], point
