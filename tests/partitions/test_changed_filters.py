"""`filter` and `joins` change under active subscriptions: rows leave and come, and no write is lost."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import mergerepl
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
        articles = [
            {"name": "customers", "key": ["id"], "filter": clause, "partition_options": options},
            {"name": "orders", "key": ["id"], "tracking": "column", "partition_options": options},
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
        return self.project.apply()

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

    def apply(clause: str) -> Any:
        stated = {
            "publication": "sales",
            "publisher": "./hq",
            "articles": [{"name": "customers", "key": ["id"], "filter": clause}],
            "subscriptions": [{"subscriber": "./one", "host_name": "North"}],
        }
        file.write_text(json.dumps(stated), encoding="utf-8")
        return network.project.apply()

    def sync() -> None:
        (session,) = network.project.sync().sessions
        assert session.error is None, session.error

    apply(REGION)
    assert set(network.rows("one", "customers")) == {1, 2}
    sync()
    network.table("one", "customers").update({"a": "'unsent'"}, predicate="id = 2")
    assert [(each.action, each.object) for each in apply(OTHER).steps] == [
        ("change", "sales"),
        ("record", "sales"),
    ]
    assert not network.project.apply().steps
    assert set(network.rows("one", "customers")) == {1, 2}
    sync()
    assert set(network.rows("one", "customers")) == {1, 3}
    assert network.rows("hq", "customers")[2]["a"] == "unsent"
    left = mergerepl.Replica(tmp_path / "hq").row("customers", key={"id": "2"})
    assert [each.reason for each in left.partitions] == ["filter"]
    network.table("hq", "customers").update({"a": "'hq'"})
    network.table("hq", "customers").update({"other": "'North'"}, predicate="id = 4")
    sync()
    assert set(network.rows("one", "customers")) == {1, 3, 4}
    assert {row["a"] for row in network.rows("one", "customers").values()} == {"hq"}
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
