"""A log reader or distribution agent that dies at any step is finished by the next run, and no command comes twice.

A command that came twice would be error 2627 or 20598: the subscriber does not overwrite in silence.
"""

import json
import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl import transactional as tr
from mergerepl.store.lease import LOCK_FILE, lease
from mergerepl.store.location import Location
from mergerepl.systables.transactional import (
    PUBLICATIONS,
    SUBSCRIPTIONS,
    PositionRow,
    PublicationRow,
    SubscriptionRow,
)
from mergerepl.transactional.catalog import DistributionStore, SubscriberStore
from mergerepl.transactional.distributor import Distributor
from mergerepl.transactional.position import BatchPlan, is_unfinished, redo_log
from mergerepl.transactional.publish import _leave
from tests.cdc.databases import add, delete, update
from tests.faults.deaths import killed
from tests.transactional.publications import dies, new_table, publication_file, rows, run
from tests.waiting import waited

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "words"),
    [("transactional.after_copy", ("reinit", "--all")), ("repair.after_article", ("repair", "north"))],
)
def test_the_engine_of_a_killed_command_is_waited_for(feed: Feed, point: str, words: Sequence[str]) -> None:
    feed.change()
    run("sync", "-f", feed.file)
    delete(feed.folder / "north" / "orders", "id = 1")
    north, hq = feed.folder / "north", feed.folder / "hq"
    killed([sys.executable, "-m", "mergerepl", *words, "-f", hq, "--yes"], point, "kill")
    assert "jvm" in json.loads((north / LOCK_FILE).read_text(encoding="utf-8"))
    run(*words, "-f", hq, "--yes")
    assert feed.differs() == []


def test_a_subscription_that_ended_is_neither_filled_nor_compared(tmp_path: Path) -> None:
    """Its row is read again once its subscriber is held; and its last batch is not waited for."""
    store, north = DistributionStore(Location.of(tmp_path / "hq")), Location.of(tmp_path / "north")
    for name in ("hq", "north"):
        (tmp_path / name).mkdir()
    store.create()
    published = PublicationRow(publication_id=1, publication="feed", publisher_root=str(store.root))
    store.control.replace(PUBLICATIONS, [published])
    subscriber = SubscriberStore(north)
    subscriber.create()
    distributor = Distributor(str(store.root), lock_wait_s=60.0)
    for work in (distributor.reinit, distributor.validate):
        store.add_subscription(
            SubscriptionRow(publication_id=1, agent_id=1, subscriber=str(north), subscription_guid="5f0c")
        )
        position = PositionRow(
            publisher=str(store.root),
            publication="feed",
            subscription_guid="5f0c",
            time=datetime.now(UTC),
            transaction_timestamp=bytes(10),
            batch=1,
        )
        subscriber.save(position)
        redo_log(north, "5f0c").stage(BatchPlan(2, bytes(10), bytes(10), {1: 0}))
        assert is_unfinished(north)
        with ThreadPoolExecutor(1) as pool:
            with lease(north, purpose="apply"):
                waiting = pool.submit(work)
                # It has read the row.
                waited(
                    lambda: "_acquired" in {each.f_code.co_name for each in sys._current_frames().values()}
                )
                store.control.remove_where(SUBSCRIPTIONS, subscription_guid="5f0c")
                _leave(subscriber, "5f0c")
            assert list(waiting.result(60)) == []
        assert not is_unfinished(north)
        assert subscriber.positions() == []
