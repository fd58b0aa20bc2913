"""`filter` and `joins` change under active subscriptions: rows leave and come, and no write is lost."""

import json
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

import mergerepl
from mergerepl.errors import PublicationError
from mergerepl.model.results import PlannedMoves
from tests.faults.deaths import dies, killed
from tests.faults.ladder import FILTERS_CHANGED, MAPPED
from tests.networks import writing_late
from tests.schema.stars import Published

Row = Mapping[str, Any]
HOSTS = {"one": "North", "two": "South", "three": "West"}
REGIONS = tuple(HOSTS.values())
OF_ORDERS = {"article": "lines", "parent": "orders", "on": "lines.order_id = orders.id"}


class Shop(Published):
    """Customers with two regions each, an order for each, two lines for each order, and three subscribers.

    The regions of customer n are n and n + n // 3 of REGIONS; the seller of order n is customer 10 - n.
    """

    def __init__(self, root: Path, **stated: Any) -> None:
        super().__init__(root)
        ids = list(range(1, 10))
        tables = {
            "customers": {
                "region": [REGIONS[n % 3] for n in ids],
                "other": [REGIONS[(n + n // 3) % 3] for n in ids],
            },
            "orders": {"customer": ids, "seller": [10 - n for n in ids], "state": ["open"] * 9},
        }
        for name, columns in tables.items():
            self.put(name, {"id": ids, **columns, "a": ["x"] * 9})
        self.put("lines", {"id": range(1, 19), "order_id": [1 + n // 2 for n in range(18)], "a": ["x"] * 18})
        self.apply(**stated)
        self.sync()

    @classmethod
    def of(cls, root: Path) -> "Shop":
        """Return a shop that is there."""
        shop = cls.__new__(cls)
        Published.__init__(shop, root)
        return shop

    def put(self, name: str, columns: Mapping[str, Any], at: str = "hq") -> None:
        """Append rows to a table."""
        types = {
            each: pa.string() if isinstance(next(iter(values)), str) else pa.int64()
            for each, values in columns.items()
        }
        arrays = {each: pa.array(list(values), types[each]) for each, values in columns.items()}
        write_deltalake(str(self.root / at / name), pa.table(arrays), mode="append")

    def apply(
        self, clause: str, joins: Mapping[str, str], orders: str | None = None, options: int = 0
    ) -> Any:
        """Apply a file with this filter of customers, joins of orders with customers, and filter of orders."""
        self.state(clause, joins, orders, options)
        return self.project.apply()

    def plan(self, clause: str, joins: Mapping[str, str]) -> Any:
        """Write the file, and return the plan of its `apply`."""
        self.state(clause, joins)
        return self.project.apply(dry_run=True)

    def state(
        self, clause: str, joins: Mapping[str, str], orders: str | None = None, options: int = 0
    ) -> None:
        """Write the file."""
        articles = [
            {"name": "customers", "key": ["id"], "filter": clause, "partition_options": options},
            # An article whose rows have one filter path can have the options above 1.
            {"name": "orders", "key": ["id"], "tracking": "column", "partition_options": options % 2},
            {"name": "lines", "key": ["id"]},
        ]
        if orders is not None:
            articles[1]["filter"] = orders
        joins = [{"article": "orders", "parent": name, "on": on} for name, on in joins.items()]
        stated = {
            "publication": "sales",
            "publisher": "./hq",
            "articles": articles,
            "joins": [*joins, OF_ORDERS],
            "subscriptions": [{"subscriber": f"./{n}", "host_name": host} for n, host in HOSTS.items()],
        }
        (self.root / "mergerepl.yml").write_text(json.dumps(stated), encoding="utf-8")

    def sync(self, *names: str) -> None:
        """Synchronize some subscribers, or all."""
        for result in self.project.sync(*names).sessions:
            assert result.error is None, result.error

    def settle(self) -> None:
        """Synchronize until all subscribers have heard everything."""
        self.sync()
        self.sync()

    def check(
        self, customer: Callable[[Row, str], bool], order: Callable[[Row, Mapping[int, Row]], bool]
    ) -> None:
        """Check that every subscriber has the publisher's rows of its partition, and no others.

        `customer` has a customer and a region, `order` an order and the customers of that region.
        """
        hq = {name: self.rows("hq", name) for name in ("customers", "orders", "lines")}
        for place, host in HOSTS.items():
            customers = {key: row for key, row in hq["customers"].items() if customer(row, host)}
            orders = {key: row for key, row in hq["orders"].items() if order(row, customers)}
            lines = {key: row for key, row in hq["lines"].items() if row["order_id"] in orders}
            assert self.rows(place, "customers") == customers, place
            assert self.rows(place, "orders") == orders, place
            assert self.rows(place, "lines") == lines, place


def by_region(row: Row, host: str) -> bool:
    return row["region"] == host


def by_either(row: Row, host: str) -> bool:
    return host in (row["region"], row["other"])


def by_other(row: Row, host: str) -> bool:
    return row["other"] == host


def of_customer(row: Row, customers: Mapping[int, Row]) -> bool:
    return row["customer"] in customers


def of_seller(row: Row, customers: Mapping[int, Row]) -> bool:
    return row["seller"] in customers


REGION, EITHER, OTHER = (
    "region = HOST_NAME()",
    "region = HOST_NAME() OR other = HOST_NAME()",
    "other = HOST_NAME()",
)
CUSTOMER = {"customers": "orders.customer = customers.id"}
SELLER = {"customers": "orders.seller = customers.id"}


def test_another_filter_moves_rows_with_the_next_session(tmp_path: Path) -> None:
    ids = pa.array([1, 2, 3, 4], pa.int64())
    regions, others = ["North", "North", "South", "South"], ["North", "South", "North", "South"]
    rows = pa.table({"id": ids, "region": regions, "other": others, "a": ["x"] * 4})
    write_deltalake(str(tmp_path / "hq/customers"), rows)
    network, file = Published(tmp_path), tmp_path / "mergerepl.yml"

    def state(clause: str) -> None:
        stated = {
            "publication": "sales",
            "publisher": "./hq",
            "articles": [{"name": "customers", "key": ["id"], "filter": clause}],
            "subscriptions": [{"subscriber": "./one", "host_name": "North"}],
        }
        file.write_text(json.dumps(stated), encoding="utf-8")

    state(REGION)
    network.project.apply()
    network.table("one", "customers").update({"a": "'unsent'"}, predicate="id = 2")
    state(OTHER)
    (planned,) = network.project.apply(dry_run=True).subscriptions
    assert planned.moves == (PlannedMoves("customers", enter=1, leave=1),)
    assert planned.why == "customers gains 1 row, loses 1"
    assert [(each.action, each.object) for each in network.project.apply().steps] == [
        ("change", "sales"),
        ("record", "sales"),
    ]
    assert not network.project.apply().steps
    assert set(network.rows("one", "customers")) == {1, 2}
    (session,) = network.project.sync().sessions
    assert session.error is None
    assert session.schema == ("customers: rows by the filter `other` = HOST_NAME()",)
    assert set(network.rows("one", "customers")) == {1, 3}
    assert network.rows("hq", "customers")[2]["a"] == "unsent"
    left = mergerepl.Replica(tmp_path / "hq").row("customers", key={"id": "2"})
    assert [each.reason for each in left.partitions] == ["filter"]
    (change,) = mergerepl.Replica(tmp_path / "one").schema.list()
    assert change.changes == ("rows by the filter `other` = HOST_NAME()",)


@pytest.mark.slow
def test_filters_and_joins_change_again_and_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, clause=REGION, joins=CUSTOMER)
    shop.check(by_region, of_customer)
    for clause, customer in ((EITHER, by_either), (OTHER, by_other)):
        for joins, order in ((SELLER, of_seller), (CUSTOMER, of_customer)):
            shop.apply(clause, joins)
            assert not shop.project.apply().steps
            shop.settle()
            shop.check(customer, order)
    both = "orders.customer = customers.id AND orders.state = 'open'"
    shop.apply(OTHER, {"customers": both}, orders="customer = 1")
    shop.table("hq", "orders").update({"state": "'shut'"}, predicate="id > 5")
    shop.settle()
    shop.check(
        by_other, lambda row, of: row["customer"] == 1 or (of_customer(row, of) and row["state"] == "open")
    )
    # The join goes: rows have their own filter alone.
    shop.apply(OTHER, {}, orders="other_customer = HOST_NAME()".replace("other_customer", "state"))
    shop.settle()
    assert not shop.rows("one", "orders")
    shop.apply(OTHER, CUSTOMER, orders="state = HOST_NAME()")
    shop.settle()
    shop.check(by_other, of_customer)


@pytest.mark.slow
@pytest.mark.parametrize("joins", [SELLER, CUSTOMER])
@pytest.mark.parametrize("clause", [EITHER, OTHER, f"{OTHER} OR id > 5"])
def test_a_dry_run_counts_the_rows_that_move(tmp_path: Path, clause: str, joins: Mapping[str, str]) -> None:
    shop = Shop(tmp_path, clause=REGION, joins=CUSTOMER)
    names = ("customers", "orders", "lines")
    before = {(place, name): set(shop.rows(place, name)) for place in HOSTS for name in names}
    planned = shop.plan(clause, joins).subscriptions
    shop.project.apply()
    shop.settle()
    expected = {}
    for (place, name), were in before.items():
        now = set(shop.rows(place, name))
        expected[place, name] = len(now - were), len(were - now)
    found = {
        (Path(each.subscriber).name, one.article): (one.enter, one.leave)
        for each in planned
        for one in each.moves
    }
    assert {key: found.get(key, (0, 0)) for key in expected} == expected
    assert any(sum(moves) for moves in expected.values())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a shop with changes at all replicas that are not sent, and its copy."""
    shop = Shop(tmp_path_factory.mktemp("shop") / "root", clause=REGION, joins=CUSTOMER)
    write_everywhere(shop)
    return shop.root, shutil.copytree(shop.root, tmp_path_factory.mktemp("saved") / "root")


@pytest.fixture
def shop(saved: tuple[Path, Path]) -> Shop:
    """Return the shop of `saved`, as it was."""
    root, copy = saved
    shutil.rmtree(root)
    shutil.copytree(copy, root)
    return Shop.of(root)


def write_everywhere(shop: Shop) -> None:
    """Change, insert and delete rows at all replicas: of each host some that leave, that stay and that come.

    By OTHER, customers 1, 2, 9 stay, and all others go to another subscriber.
    """
    for place in HOSTS:
        theirs = shop.rows(place, "customers")
        leaves = next(key for key, row in theirs.items() if row["region"] != row["other"])
        shop.table(place, "customers").update({"a": f"'{place}'"}, predicate=f"id = {leaves}")
        shop.table(place, "lines").update({"a": f"'{place} line'"}, predicate=f"order_id = {leaves}")
        number, other = 20 + len(place), REGIONS[(REGIONS.index(HOSTS[place]) + 1) % 3]
        # By the new filter it belongs to another subscriber.
        shop.put(
            "customers",
            {"id": [number], "region": [HOSTS[place]], "other": [other], "a": [f"{place} new"]},
            place,
        )
        row = {
            "id": [number],
            "customer": [number],
            "seller": [1],
            "state": ["open"],
            "a": [f"{place} order"],
        }
        shop.put("orders", row, place)
    # One row is changed at both ends, one is deleted, one is deleted and inserted again.
    shop.table("one", "orders").update({"a": "'one too'"}, predicate="id = 3")
    shop.table("hq", "orders").update({"a": "'hq'"}, predicate="id = 3")
    shop.table("two", "orders").delete("id = 4")
    shop.table("three", "lines").delete("id = 16")
    shop.put("lines", {"id": [16], "order_id": [8], "a": ["again"]}, "three")
    # One comes to a subscriber by the new filter and is changed; one goes away.
    shop.table("hq", "customers").update({"a": "'hq comes'"}, predicate="id = 5")
    shop.table("hq", "customers").delete("id = 7")


WRITTEN = {
    *(f"{place}{what}" for place in HOSTS for what in ("", " line", " new", " order")),
    *("one too", "hq", "again", "hq comes"),
}


def check_kept(shop: Shop, lost: Collection[str] = ()) -> None:
    """Check that each value that was written is in a row or logged, and that deleted rows are away."""
    found = set(lost)
    for name in ("customers", "orders", "lines"):
        found |= {row["a"] for row in shop.rows("hq", name).values()}
        table = DeltaTable(str(shop.root / f"hq/_mergerepl/MSmerge_conflict_sales_{name}"))
        found |= {row["a"] for row in table.to_pyarrow_table().to_pylist()}
    assert found >= WRITTEN
    assert 4 not in shop.rows("hq", "orders")
    assert 7 not in shop.rows("hq", "customers")


@pytest.mark.slow
def test_changes_that_wait_go_up_before_their_rows_leave(shop: Shop) -> None:
    outcomes = shop.plan(OTHER, SELLER).subscriptions
    assert {each.outcome for each in outcomes} == {"followed"}
    shop.apply(OTHER, SELLER)
    with writing_late(lambda: write_late(shop)):
        shop.sync("one")
    shop.settle()
    shop.settle()
    shop.check(by_other, of_seller)
    check_kept(shop)
    assert shop.rows("hq", "orders")[1]["a"] == "late"
    assert shop.rows("hq", "customers")[6]["a"] == "late hq"
    for result in shop.project.sync().sessions:
        assert result.status == "nothing_to_do"


def write_late(shop: Shop) -> None:
    """Change rows while a session of `one` works: one that may leave it, one that comes, one that moves once more."""
    keys = sorted(shop.rows("one", "orders"))
    shop.table("one", "orders").update({"a": "'late one'"}, predicate=f"id = {keys[0]}")
    shop.table("hq", "orders").update({"a": "'late'"}, predicate="id = 1")
    shop.table("hq", "customers").update({"a": "'late hq'"}, predicate="id = 6")
    shop.table("hq", "customers").update({"other": "'West'"}, predicate="id = 8")


POINTS = (
    "apply.before_change",
    "capture.before_replinfo",
    *FILTERS_CHANGED,
    "capture.before_contents",
    *MAPPED,
    "capture.after_replinfo",
    "apply.after_change",
)


KILLED = "capture.before_replinfo", "filter.after_next", "filter.after_move"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "is_killed"), [*((each, False) for each in POINTS), *((each, True) for each in KILLED)]
)
def test_an_apply_that_dies_is_finished_by_the_next_one(shop: Shop, point: str, is_killed: bool) -> None:
    shop.state(OTHER, SELLER)
    # Points of a capture are those of the run that moves rows: what waits is captured before.
    if point in ("capture.before_contents", *MAPPED, "capture.after_replinfo"):
        mergerepl.Replica(shop.root / "hq").capture()
    if is_killed:
        killed([sys.executable, "-m", "mergerepl", "apply"], point, cwd=shop.root)
    else:
        with dies(point, action="stop"):
            shop.project.apply()
    # Sessions go on under whichever filters count, and rows go on moving.
    shop.sync("one")
    shop.table("hq", "customers").update({"other": "'North'"}, predicate="id = 3")
    shop.table("hq", "orders").update({"seller": "2"}, predicate="id = 8")
    shop.sync("two")
    shop.project.apply()
    assert not shop.project.apply().steps
    shop.settle()
    shop.check(by_other, of_seller)
    check_kept(shop)


SYNCING = (
    *("schema.before_articles", "schema.before_published_version", "schema.after_articles"),
    *("stage.before_pointer", "stage.after_manifest", "publisher.after_merge", "subscriber.before_merge"),
)


@pytest.mark.slow
@pytest.mark.parametrize("point", SYNCING)
def test_a_sync_that_dies_is_finished_by_the_next_one(shop: Shop, point: str) -> None:
    shop.apply(OTHER, SELLER)
    with dies(point, action="stop"):
        shop.sync("one")
    # Once more, before it is finished.
    shop.apply(EITHER, CUSTOMER)
    shop.table("hq", "customers").update({"other": "'North'"}, predicate="id = 3")
    shop.settle()
    shop.settle()
    shop.check(by_either, of_customer)
    check_kept(shop)


@pytest.mark.slow
def test_a_filter_reads_a_column_once_every_subscriber_has_it(shop: Shop) -> None:
    shop.table("hq", "customers").alter.add_columns([Field("late", PrimitiveType("string"), nullable=True)])
    shop.table("hq", "customers").update({"late": "'North'"}, predicate="id < 5")
    with pytest.raises(
        PublicationError, match=r"needs the column 'late', which subscriber '.*/one' does not have yet"
    ):
        shop.apply("late = HOST_NAME()", CUSTOMER)
    shop.state(REGION, CUSTOMER)
    shop.settle()
    shop.table("two", "orders").update({"a": "'waits'"}, predicate="id > 0")
    with pytest.raises(
        PublicationError, match=r"'late', which was added after .*/two' has 1 commit not captured"
    ):
        shop.apply("late = HOST_NAME()", CUSTOMER)
    shop.state(REGION, CUSTOMER)
    shop.settle()
    shop.apply("late = HOST_NAME()", CUSTOMER)
    shop.table("one", "customers").update({"a": "'one'"}, predicate="id = 3")
    shop.settle()
    shop.check(lambda row, host: row["late"] == host, of_customer)
    assert set(shop.rows("one", "customers")) == {1, 2, 3, 4}


@pytest.mark.slow
@pytest.mark.parametrize("options", [1, 2, 3])
def test_what_options_keep_inside_is_decided_by_the_new_filter(tmp_path: Path, options: int) -> None:
    shop = Shop(tmp_path, clause=REGION, joins=CUSTOMER, options=options)
    row = {"region": ["North"], "other": ["South"], "a": ["inside before"]}
    shop.put("customers", {"id": [30], **row}, "one")
    shop.put("customers", {"id": [31], **row, "other": ["North"], "a": ["inside"]}, "one")
    shop.table("one", "customers").update({"a": "'edit'"}, predicate="id = 6")
    shop.apply(OTHER, CUSTOMER, options=options)
    shop.settle()
    shop.check(by_other, of_customer)
    customers = shop.rows("hq", "customers")
    assert 30 not in customers
    assert customers[31]["a"] == "inside"
    # Only the filter moved the row: its edit is taken.
    assert customers[6]["a"] == "edit"
    logged = DeltaTable(str(tmp_path / "hq/_mergerepl/MSmerge_conflict_sales_customers")).to_pyarrow_table()
    assert logged["a"].to_pylist() == ["inside before"]


@pytest.mark.slow
def test_a_subscriber_more_and_an_article_more_come_with_other_filters(shop: Shop) -> None:
    rows = {"id": [1, 2], "customer": [1, 2], "a": ["x", "y"]}
    shop.put("notes", rows)
    shop.state(OTHER, SELLER)
    file = shop.root / "mergerepl.yml"
    stated = json.loads(file.read_text(encoding="utf-8"))
    stated["articles"].append({"name": "notes", "key": ["id"]})
    stated["joins"].append({"article": "notes", "parent": "customers", "on": "notes.customer = customers.id"})
    stated["subscriptions"].append({"subscriber": "./four", "host_name": "South"})
    file.write_text(json.dumps(stated), encoding="utf-8")
    shop.project.apply()
    assert not shop.project.apply().steps
    shop.settle()
    shop.settle()
    shop.check(by_other, of_seller)
    check_kept(shop)
    for name in ("customers", "orders", "lines", "notes"):
        assert shop.rows("four", name) == shop.rows("two", name)
    assert set(shop.rows("one", "notes")) | set(shop.rows("two", "notes")) | set(
        shop.rows("three", "notes")
    ) == {1, 2}
