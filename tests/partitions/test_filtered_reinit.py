"""A subscriber of a part is reinitialised by difference with its partition: what left is removed and is no delete."""

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import Project
from mergerepl.errors import PublicationError
from mergerepl.merge.reinit import outcome
from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import unfinished_sessions
from tests.faults.deaths import dies
from tests.networks import Hub, lose_changes, publish, writing_late

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ARTICLES = [
    {"name": "customers", "key": ["id"], "filter": "region = HOST_NAME()"},
    {"name": "orders", "key": ["id"], "tracking": "column"},
    {"name": "items", "key": ["id"]},
]
JOINS = [{"article": "orders", "parent": "customers", "on": "orders.customer = customers.id"}]
PLACES = {"north": "North", "south": "South"}


@pytest.fixture(scope="module")
def published(spark: SparkSession, worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    ids = list(range(1, 9))
    hub.table("customers", {"id": ids, "region": ["North", "South"] * 4, "a": ["x"] * 8})
    hub.table("orders", {"id": ids, "customer": ids, "a": ["x"] * 8})
    hub.table("items", {"id": ids[:2], "a": ["x", "y"]})
    to = [{"subscriber": f"./{name}", "host_name": region} for name, region in PLACES.items()]
    publish(hub.folder, "sales", ARTICLES, to, joins=JOINS)
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path) -> Hub:
    """North has 1, 3, 5 and 7. 3 left while north was away, 2 came, 5 was deleted and 9 is new; 1 changed at north unseen,
    order 7 too; 7 changed at hq; of the other part 4 changed and 6 was deleted.
    """
    hub = published.copied(replica_dir)
    update(hub, "north", "customers", 1, a="unseen")
    update(hub, "north", "orders", 7, a="unseen")
    lose_changes(hub.root("north"))
    update(hub, "hq", "customers", 3, region="South")
    update(hub, "hq", "customers", 2, region="North")
    update(hub, "hq", "customers", 7, a="hq")
    update(hub, "hq", "customers", 4, a="hq")
    DeltaTable(str(hub.root("hq") / "customers")).delete("id in (5, 6)")
    DeltaTable(str(hub.root("hq") / "orders")).delete("id = 5")
    insert(hub, "hq", "customers", {"id": 9, "region": "North", "a": "new"})
    insert(hub, "hq", "orders", {"id": 9, "customer": 9, "a": "new"})
    assert project(hub).sync("south").ok
    hub.expire("north", datetime.now(UTC))
    return hub


def project(hub: Hub) -> Project:
    return Project.load(hub.root("hq"))


def update(hub: Hub, place: str, table: str, key: int, **values: str) -> None:
    new = {name: f"'{value}'" for name, value in values.items()}
    DeltaTable(str(hub.root(place) / table)).update(predicate=f"id = {key}", updates=new)


def insert(hub: Hub, place: str, table: str, row: dict[str, object]) -> None:
    at = DeltaTable(str(hub.root(place) / table))
    write_deltalake(at, pa.Table.from_pylist([row], schema=pa.schema(at.schema().to_arrow())), mode="append")


def rows(hub: Hub, place: str, table: str) -> dict[int, dict[str, object]]:
    found = DeltaTable(str(hub.root(place) / table)).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


def check(hub: Hub) -> None:
    """Check that each subscriber has the publisher's rows of its part, and no others."""
    customers, orders = rows(hub, "hq", "customers"), rows(hub, "hq", "orders")
    for place, region in PLACES.items():
        theirs = {key: row for key, row in customers.items() if row["region"] == region}
        assert rows(hub, place, "customers") == theirs, place
        assert rows(hub, place, "orders") == {k: o for k, o in orders.items() if o["customer"] in theirs}
        assert rows(hub, place, "items") == rows(hub, "hq", "items")


POINTS = [
    *("stage.before_manifest", "stage.after_manifest", "reinit.after_void"),
    *("subscriber.before_merge", "subscriber.after_merge", "run.after_contents"),
    *("bookkeeping.before_replinfo", "watermarks.before_publisher", "watermarks.after_publisher"),
]


def reinitialised(hub: Hub, **how: bool) -> None:
    if unfinished_sessions(Replica(hub.root("hq")).staging):
        assert project(hub).sync("north").ok
    else:
        project(hub).reinit("north", **how)


@pytest.mark.parametrize("point", ["", *POINTS])
def test_the_subscriber_gets_its_part_and_what_left_is_no_delete(hub: Hub, point: str) -> None:
    before = {table: rows(hub, "hq", table) for table in ("customers", "orders")}
    if point:
        with dies(point):
            project(hub).reinit("north", upload_first=True)
    reinitialised(hub, upload_first=True)
    assert {table: rows(hub, "hq", table) for table in before} == before
    check(hub)
    assert [each.status for each in project(hub).sync().sessions] == ["nothing_to_do"] * 2
    kept = {
        (row["id"], row["mergerepl_kind"])
        for log in (hub.root("north") / "_mergerepl" / "unsent").glob("*/customers/_delta_log")
        for row in DeltaTable(str(log.parent)).to_pyarrow_table().to_pylist()
    }
    assert {(1, "replaced"), (3, "removed"), (5, "removed")} <= kept
    # Changes travel as before: within the part, out of it, into it, and of a key that left.
    update(hub, "north", "customers", 7, a="north")
    update(hub, "north", "orders", 2, a="north")
    update(hub, "hq", "customers", 1, region="South")
    update(hub, "south", "customers", 3, a="south")
    assert project(hub).sync().ok
    update(hub, "hq", "customers", 3, region="North")
    assert project(hub).sync().ok
    assert project(hub).sync().ok
    check(hub)
    customers = rows(hub, "hq", "customers")
    assert [customers[key]["a"] for key in (3, 7)] == ["south", "north"]
    assert rows(hub, "hq", "orders")[2]["a"] == "north"
    assert project(hub).validate().ok


def test_what_was_not_sent_is_refused_or_exported_and_late_writes_go_up(hub: Hub) -> None:
    update(hub, "north", "customers", 7, a="unsent")
    insert(hub, "north", "orders", {"id": 70, "customer": 1, "a": "unsent"})
    DeltaTable(str(hub.root("north") / "customers")).delete("id = 3")  # It has left meanwhile.
    before = {place: rows(hub, place, "customers") for place in ("hq", "north")}
    with pytest.raises(
        PublicationError, match=r"3 changes that the publisher lacks: .*they go up by sessions"
    ):
        project(hub).reinit("north", upload_first=True)
    with pytest.raises(PublicationError, match="Leave out --table"):
        project(hub).reinit("north", discard_local=True, table="orders")
    assert before == {place: rows(hub, place, "customers") for place in ("hq", "north")}

    def late() -> None:
        """A row that stays, one that is replaced, one that leaves, and a new one."""
        update(hub, "north", "orders", 1, a="late")
        update(hub, "north", "customers", 1, a="late")
        insert(hub, "north", "orders", {"id": 71, "customer": 1, "a": "late"})

    with writing_late(late, of=outcome):
        done = project(hub).reinit("north", discard_local=True).articles
    assert {each.article: each.unsent for each in done} == {"customers": 2, "orders": 1, "items": 0}
    for _ in range(2):
        assert project(hub).sync().ok
    check(hub)
    orders = rows(hub, "hq", "orders")
    assert (orders[1]["a"], orders[71]["a"], 70 in orders) == ("late", "late", False)
    assert rows(hub, "hq", "customers")[7]["a"] == "hq"
    assert 3 in rows(hub, "hq", "customers")


def test_with_a_common_past_a_session_sends_first(hub: Hub) -> None:
    hub.expire("north", None)
    update(hub, "north", "orders", 1, a="unsent")
    insert(hub, "north", "customers", {"id": 70, "region": "North", "a": "unsent"})
    project(hub).reinit("north", upload_first=True)
    check(hub)
    assert rows(hub, "hq", "orders")[1]["a"] == "unsent"
    assert rows(hub, "hq", "customers")[70]["a"] == "unsent"
    assert rows(hub, "hq", "customers")[1]["a"] == "x"
