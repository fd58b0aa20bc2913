"""Queued updating: subscribers write, their edits go to the publisher, and the publisher wins (transactional.md 12)."""

import random
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl import Replica
from mergerepl import transactional as tr
from mergerepl.store.location import Location
from mergerepl.systables.transactional import TRANSACTIONS
from mergerepl.transactional import agents
from mergerepl.transactional.catalog import DistributionStore, distributor_at, subscriptions_of
from mergerepl.transactional.distribution import Agent
from tests.cdc.databases import add, delete, merge, update
from tests.faults.deaths import killed
from tests.properties import queued_model as model
from tests.transactional.publications import dies, new_table, publication_file, rows, run, state, warnings

pytestmark = pytest.mark.spark

ORDERS = [{"name": "orders", "key": ["id"]}]
POINTS = (
    "queue.before_plan",
    "queue.after_plan",
    "queue.after_merge",
    "queue.after_losers",
    "queue.after_position",
    "queue.after_position:2",
)
ALWAYS = ("queue.after_plan", "queue.after_merge")
"""Where every run of the tests dies, one after the other; `--long` dies everywhere."""


def writing(*names: str) -> list[dict[str, Any]]:
    """Return subscriptions whose subscribers write."""
    return [{"subscriber": f"./{name}", "updatable": "queued"} for name in names]


class Orders:
    """One published table and subscribers that write."""

    def __init__(self, folder: Path, *names: str, table: Mapping[int, tuple[str, int]], **keys: Any) -> None:
        self.folder, self.names = folder, names
        self.hq = new_table(folder / "hq", "orders", table)
        self.file = publication_file(folder, ORDERS, subscribers=writing(*names), **keys)
        run("apply", "-f", self.file)

    def at(self, name: str) -> Path:
        return self.folder / name / "orders"

    def sync(self) -> list[dict[str, Any]]:
        return list(run("sync", "-f", self.file)["sessions"])

    def rest(self) -> list[tuple[Any, ...]]:
        """Synchronize until everything is everywhere; return the rows that all have."""
        self.sync()
        self.sync()
        assert {session["status"] for session in self.sync()} == {"nothing_to_do"}
        found = rows(self.hq)
        assert [rows(self.at(name)) for name in self.names] == [found] * len(self.names)
        return found

    def unsent(self) -> dict[str, int]:
        """Return the commits whose edits were not sent, by subscriber, as `pending` prints them."""
        found: Counter[str] = Counter()
        for each in run("pending", "-f", self.file):
            if each["direction"] == "upload" and each["uncaptured_commits"]:
                found[Path(each["subscriber"]).name] += each["uncaptured_commits"]
        return dict(found)

    def losers(self) -> Counter[tuple[str, Any, Any, Any]]:
        """Return the logged losers: subscriber, key, losing and winning quantity."""
        logged = Replica(self.folder / "hq").conflicts.list(with_rows=True)
        return Counter(
            (
                Path(each.origin_datasource).name,
                int(str(each.key["id"])),
                each.losing_row and each.losing_row["qty"],
                each.winning_row and each.winning_row["qty"],
            )
            for each in logged
        )


@pytest.mark.slow
def test_edits_reach_the_publisher_and_come_back_and_the_publisher_wins(
    spark: SparkSession, replica_dir: Path
) -> None:
    """Two subscribers on one row; an update against a delete; the same insert at both."""
    start = {1: ("a", 1), 2: ("b", 2), 3: ("c", 3), 4: ("d", 4), 5: ("e", 5)}
    orders = Orders(replica_dir, "north", "south", table=start)
    north, south = orders.at("north"), orders.at("south")
    merge(north, {1: (None, 0), 2: ("b", 20), 3: ("c", 30), 9: ("n", 90)})
    update(south, "id = 3", qty="31")
    merge(south, {4: (None, 0), 9: ("s", 91)})
    update(orders.hq, "id = 4", qty="44")
    delete(orders.hq, "id = 5")
    update(south, "id = 5", qty="55")
    first, second = orders.sync()
    assert first["upload"] == {"inserts": 1, "updates": 2, "deletes": 1, "conflicts": 0}
    assert second["upload"] == {"inserts": 0, "updates": 0, "deletes": 0, "conflicts": 4}
    wanted = [(2, "b", 20), (3, "c", 30), (4, "d", 44), (9, "n", 90)]
    assert orders.rest() == wanted
    assert orders.losers() == {
        ("south", 3, 31, 30): 1,
        ("south", 4, None, 44): 1,
        ("south", 5, 55, None): 1,
        ("south", 9, 91, 90): 1,
    }
    listed = run("conflicts", "list", "-f", replica_dir / "hq", "--table", "orders")
    assert (listed["total"], {each["conflict_type"] for each in listed["conflicts"]}) == (4, {1, 3, 4})
    chosen = next(each["conflict_id"] for each in listed["conflicts"] if each["key"] == {"id": "9"})
    (shown,) = run("conflicts", "show", chosen[:8], "-f", replica_dir / "hq")["conflicts"]
    assert shown["losing_row"] == {"id": 9, "note": "s", "qty": 91}
    assert shown["winning_row"] == {"id": 9, "note": "n", "qty": 90}
    refused = run("conflicts", "resolve", chosen, "--loser", "-f", replica_dir / "hq", code=2)
    assert "cannot be decided again" in refused["error"]["message"]
    assert warnings(replica_dir / "hq") == []
    texts = [each["command"] for each in run("transactional", "browse", "-f", replica_dir / "hq")]
    assert [text.partition(",0x")[0] for text in texts if text.startswith("{CALL [sp_MSins")] == [
        "{CALL [sp_MSins_dboorders] (9,'n',90"
    ]
    assert [each["differing_rows"] for each in run("validate", "-f", orders.file)] == [0, 0]


def a_year_later(hq: Path) -> None:
    """Let the transactions of this year be of the next one."""
    control = DistributionStore(Location.of(hq)).control
    found, now = control.rows(TRANSACTIONS), datetime.now(UTC)
    year = timedelta(days=365)
    ahead = [
        row if row.commit_time > now else replace(row, commit_time=row.commit_time + year) for row in found
    ]
    assert ahead != found
    control.replace(TRANSACTIONS, ahead)


def test_a_lost_edit_is_logged_once_where_the_reading_dies(spark: SparkSession, replica_dir: Path) -> None:
    """The short one of the stories below: it runs by default."""
    orders = Orders(replica_dir, "north", table={1: ("a", 1), 2: ("b", 2)})
    update(orders.hq, "id = 1", qty="11")
    update(orders.at("north"), "id > 0", qty="qty * 10")
    hq = replica_dir / "hq"
    assert orders.unsent() == {"north": 1}
    assert state(hq)["subscriptions"][0]["uncaptured_commits"] == 2
    dies("queue.after_merge", "sync", "-f", orders.file)
    # The publisher has the edits, the reading is not done.
    assert orders.unsent() == {"north": 1}
    # This machine's clock goes back by a year, others' do not: the loser is not old for that.
    a_year_later(hq)
    (done,) = orders.sync()
    assert done["upload"] == {"inserts": 0, "updates": 1, "deletes": 0, "conflicts": 1}
    assert rows(orders.hq) == rows(orders.at("north")) == [(1, "a", 11), (2, "b", 20)]
    assert orders.losers() == {("north", 1, 10, 11): 1}
    assert orders.unsent() == {}
    assert state(hq)["subscriptions"][0]["upload"] == 0
    (counted,) = run("conflicts", "list", "--count-by", "table,type,resolver", "-f", hq)["counts"]
    assert {
        name: counted[name] for name in ("article", "conflict_type", "resolver", "conflicts", "columns")
    } == {
        "article": "orders",
        "conflict_type": 1,
        "resolver": "publisher wins",
        "conflicts": 1,
        "columns": {"qty": 1},
    }
    page = replica_dir / "page.html"
    assert run("conflicts", "report", "-o", page, "-f", hq)["conflicts"] == 1
    assert "publisher wins" in page.read_text(encoding="utf-8")
    # Nothing is past its retention yet.
    a_year_later(hq)
    assert {each["kind"]: each["rows"] for each in run("cleanup", "-f", hq)["removed"]}["conflicts"] == 0
    assert len(orders.losers()) == 1
    (table,) = (hq / "_transactional").glob("conflict_*")
    DeltaTable(str(table)).update({"created": "created - interval '380' day"})
    planned = run("cleanup", "--only", "conflicts", "--older-than", "0s", "--dry-run", "-f", hq)["removed"]
    assert [(each["type"], each["kind"], each["rows"]) for each in planned] == [
        ("transactional", "conflicts", 1)
    ]
    assert run("conflicts", "drop", "--older-than", "0s", "--dry-run", "-f", hq)["conflicts"] == 1
    assert {each["kind"]: each["rows"] for each in run("cleanup", "-f", hq)["removed"]}["conflicts"] == 1
    assert not orders.losers()


@pytest.fixture(scope="module")
def dying(spark: SparkSession, worker_folder: Path) -> Orders:
    folder = worker_folder / "queued-crash"
    folder.mkdir()
    return Orders(folder, "north", "south", table=dict.fromkeys(range(1, 5), ("x", 0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "points", [ALWAYS, *((each,) for each in POINTS)], ids=lambda points: "+".join(points)
)
def test_a_reading_that_dies_is_finished_and_logs_each_loser_once(
    dying: Orders, points: tuple[str, ...]
) -> None:
    before = dying.losers()
    base = max(qty for *_, qty in rows(dying.hq)) + 10
    update(dying.at("north"), "id = 1", qty=str(base + 1))
    update(dying.at("south"), "id in (1, 2)", qty=str(base + 2))
    update(dying.hq, "id = 3", qty=str(base + 3))
    update(dying.at("south"), "id = 3", qty=str(base + 4))
    for point in points:
        dies(point, "sync", "-f", dying.file)
        # A user goes on before the next run.
        update(dying.at("north"), "id = 4", qty=f"qty + {base}")
    found = {key: qty for key, _, qty in dying.rest()}
    # Whoever was read first holds row 1; row 3 is the publisher's.
    assert (found[1], found[2], found[3]) in [(base + 1, base + 2, base + 3), (base + 2, base + 2, base + 3)]
    new = dying.losers() - before
    assert set(new.values()) == {1}
    assert {loser[:3] for loser in new} == {
        ("south", 3, base + 4),
        ("north", 1, base + 1) if found[1] == base + 2 else ("south", 1, base + 2),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "kind"),
    [
        ("queue.after_plan", "killgroup"),
        ("queue.after_plan", "jvm"),
        ("queue.after_merge", "kill"),
        ("queue.after_merge", "jvm"),
        ("queue.after_losers", "killgroup"),
        ("queue.after_position", "kill"),
    ],
)
def test_a_reading_that_is_killed_is_finished_and_logs_each_loser_once(
    dying: Orders, point: str, kind: str
) -> None:
    """kill -9 of a real `mergerepl sync`: of Python, of its JVM, of both, before and after the publisher has the edits."""
    before = dying.losers()
    base = max(qty for *_, qty in rows(dying.hq)) + 10
    update(dying.hq, "id = 3", qty=str(base))
    update(dying.at("north"), "id in (1, 3)", qty=str(base + 1))
    command = [Path(sys.executable).with_name("mergerepl"), "sync", "-f", dying.file]
    killed(command, point, kind, cwd=dying.folder)
    # A user goes on before the next run.
    update(dying.at("north"), "id = 4", qty=str(base + 2))
    found = {key: qty for key, _, qty in dying.rest()}
    assert (found[1], found[3], found[4]) == (base + 1, base, base + 2)
    assert dying.losers() - before == {("north", 3, base + 1, base): 1}


def subscription_of(store: DistributionStore, name: str) -> tuple[str, Any]:
    ((publication, row),) = subscriptions_of(store, subscriber=name)
    return publication, row


def read_queue(store: DistributionStore, name: str, spark: SparkSession) -> None:
    publication, row = subscription_of(store, name)
    agents.read_queue(store, publication, row, lambda: spark)


def distribute(store: DistributionStore, name: str, spark: SparkSession) -> None:
    """Run the distribution agent alone: edits that were not read are overwritten."""
    publication, row = subscription_of(store, name)
    tr.Distributor(store.root, spark=spark).capture()
    Agent(store, row, lambda: spark, publication).run()


KEYS = range(1, 25)
NAMES = ("north", "south")


def edits(rng: random.Random, most: int) -> dict[int, int | None]:
    return {key: rng.choice((None, 1, 2, 3)) for key in rng.sample(KEYS, rng.randint(1, most))}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_drawn_histories_are_those_of_the_model(spark: SparkSession, replica_dir: Path, seed: int) -> None:
    """Edits everywhere, readings and batches in any order, also batches over edits that were not read."""
    rng = random.Random(seed)
    start = {key: 0 for key in KEYS if rng.random() < 0.5}
    orders = Orders(replica_dir, *NAMES, table={key: ("x", qty) for key, qty in start.items()})
    world = model.World(model.ALL, table={str(key): qty for key, qty in start.items()})
    world.subscribers = [model.Subscriber(dict(world.table)) for _ in NAMES]
    store = distributor_at(replica_dir / "hq")

    def write(
        table: Path, there: dict[str, model.Row], chosen: dict[int, int | None]
    ) -> dict[str, model.Row]:
        new = {key: qty for key, qty in chosen.items() if there.get(str(key)) != qty}
        if new:
            merge(table, {key: ("x" if qty is not None else None, qty) for key, qty in new.items()})
        return {str(key): qty for key, qty in new.items()}

    for step in ("s0", "s1", "p", "q0", *rng.choices(("s0", "s1", "p", "q0", "q1", "d0", "d1"), k=9)):
        kind, number = step[0], int(step[1:] or 0)
        at = world.subscribers[number]
        if kind == "p":
            for key, qty in write(orders.hq, world.table, edits(rng, 8)).items():
                world.write(key, qty)
        elif kind == "s":
            for key, qty in write(orders.at(NAMES[number]), at.table, edits(rng, 12)).items():
                at.write(key, qty, is_own=False)
        elif kind == "q":
            read_queue(store, NAMES[number], spark)
            while any(not each[0] for each in at.log[at.read :]):
                world.read_queue(number)
        else:
            distribute(store, NAMES[number], spark)
            world.distribute(number, len(world.log))
        for name, table in (
            ("hq", world.table),
            *zip(NAMES, (s.table for s in world.subscribers), strict=True),
        ):
            engine = {str(key): qty for key, _, qty in rows(replica_dir / name / "orders")}
            assert engine == {key: qty for key, qty in table.items() if qty is not None}, (step, name)
    world.rest()
    assert {str(key): qty for key, _, qty in orders.rest()} == {
        key: qty for key, qty in world.table.items() if qty is not None
    }
    lost = Counter(
        (name, int(key), new)
        for name, at in zip(NAMES, world.subscribers, strict=True)
        for _, key, _, new in at.losers
    )
    found: Counter[tuple[str, int, Any]] = Counter()
    for (name, key, qty, _), n in orders.losers().items():
        found[name, key, qty] += n
    assert found == lost
    assert lost


@pytest.mark.slow
def test_edits_that_cannot_be_read_stop_the_subscription_and_are_not_overwritten(
    spark: SparkSession, replica_dir: Path
) -> None:
    """Files of the change feed are gone; a commit of the log is gone."""
    orders = Orders(replica_dir, "north", "south", table={1: ("a", 1), 2: ("b", 2)})
    north, hq = orders.at("north"), rows(orders.hq)
    update(north, "id = 1", qty="10")
    update(orders.hq, "id = 2", qty="22")
    update(north, "id = 2", qty="20")
    current = {Path(uri).name for uri in DeltaTable(str(north)).file_uris()}
    files = [each for each in north.rglob("*.parquet") if each.name not in current]
    commit = sorted((north / "_delta_log").glob("*.json"))[-2]
    edited = rows(north)
    for lost, number in ((files, "21074"), ([commit], None)):
        for each in lost:
            shutil.move(each, replica_dir / each.name)
        first, second = run("sync", "-f", orders.file, code=1)["sessions"]
        assert (first["error"].get("number"), second["error"]) == (number, None)
        refused = run("reinit", "-f", replica_dir / "hq", "--all", "--yes", code=1)
        assert refused["error"]["message"] == first["error"]["message"]
        for each in lost:
            shutil.move(replica_dir / each.name, each)
        assert rows(north) == edited
        assert [row for row in rows(orders.hq) if row[0] == 1] == hq[:1]
    assert orders.rest() == [(1, "a", 10), (2, "b", 22)]
    assert orders.losers() == {("north", 2, 20, 22): 1}


@pytest.mark.slow
def test_edits_of_a_subscriber_that_begins_again_go_up_first(spark: SparkSession, replica_dir: Path) -> None:
    orders = Orders(replica_dir, "north", table={1: ("a", 1), 2: ("b", 2)})
    update(orders.at("north"), "id = 1", qty="10")
    run("reinit", "-f", replica_dir / "hq", "--all", "--yes")
    assert rows(orders.hq) == rows(orders.at("north")) == [(1, "a", 10), (2, "b", 2)]
    add(orders.at("north"), {3: ("c", 3)})
    assert orders.rest() == [(1, "a", 10), (2, "b", 2), (3, "c", 3)]


@pytest.mark.slow
def test_a_row_that_the_publisher_refuses_stops_before_anything_is_sent(
    spark: SparkSession, replica_dir: Path
) -> None:
    orders = Orders(replica_dir, "north", table={1: ("a", 1), 2: ("b", 2)})
    spark.sql(f"alter table delta.`{orders.hq}` add constraint small check (qty < 100)")
    merge(orders.at("north"), {1: ("a", 1000), 2: ("b", 20)})
    refused = run("sync", "-f", orders.file, code=1)
    assert refused["error"]["number"] == "547"
    assert rows(orders.hq) == [(1, "a", 1), (2, "b", 2)]
    update(orders.at("north"), "id = 1", qty="10")
    assert orders.rest() == [(1, "a", 10), (2, "b", 20)]


@pytest.mark.slow
def test_added_columns_are_followed_and_keys_must_be_unique(spark: SparkSession, replica_dir: Path) -> None:
    orders = Orders(replica_dir, "north", table={1: ("a", 1), 2: ("b", 2)})
    north = orders.at("north")
    update(north, "id = 1", qty="10")
    spark.sql(f"alter table delta.`{orders.hq}` add column (more string)")
    spark.sql(f"update delta.`{orders.hq}` set more = 'm' where id = 2")
    assert orders.rest() == [(1, "a", 10, None), (2, "b", 2, "m")]
    spark.sql(f"update delta.`{north}` set more = 'n' where id = 1")
    assert orders.rest() == [(1, "a", 10, "n"), (2, "b", 2, "m")]
    spark.sql(f"insert into delta.`{north}` values (1, 'double', 5, null)")
    refused = run("sync", "-f", orders.file, code=1)
    assert refused["error"]["number"] == "2627"
    delete(north, "note = 'double'")
    assert orders.rest() == [(1, "a", 10, "n"), (2, "b", 2, "m")]


@pytest.mark.parametrize(
    ("article", "subscription", "said"),
    [
        ({"filter": "qty > 1"}, {}, "with a `filter`"),
        ({"columns": ["id", "qty"]}, {}, "with `columns`"),
        ({"upd_cmd": "MCALL"}, {}, "with `upd_cmd: MCALL`"),
        ({}, {"sync_type": "none", "verify": False}, "with `verify: false`"),
        ({}, {"procedures": {"sp_MSins_dboorders": "mine"}}, "with procedures of your own"),
    ],
)
def test_what_subscribers_that_write_cannot_have_is_refused(
    replica_dir: Path, article: dict[str, Any], subscription: dict[str, Any], said: str
) -> None:
    new_table(replica_dir / "hq", "orders", {1: ("a", 1)})
    one = {**writing("north")[0], **subscription}
    file = publication_file(replica_dir, [{**ORDERS[0], **article}], subscribers=[one])
    refused = run("apply", "-f", file, code=2)
    assert said in refused["error"]["message"]
    assert not (replica_dir / "hq" / "_transactional").exists()
