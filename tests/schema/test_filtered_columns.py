"""Schema changes and replaced tables travel in publications with row filters, for filtered articles as well."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.faults.deaths import dies
from tests.replacements import create_or_replace
from tests.schema.stars import Published, Row

pytestmark = pytest.mark.slow
TABLES = ("customers", "orders", "items")
PLACES = {"north": "North", "south": "South"}
FILE = """\
publication: sales
publisher: ./hq
retention: 14 days
articles:
  - {name: customers, key: [id], filter: "region = HOST_NAME()"}
  - {name: orders, key: [id], tracking: column}
  - {name: items, key: [id]}
joins:
  - {article: orders, parent: customers, on: "orders.customer = customers.id", unique: true}
subscriptions:
  - {subscriber: ./north, type: server, priority: 75.0, host_name: North}
  - {subscriber: ./south, type: server, priority: 50.0, host_name: South}
"""


class Network(Published):
    """A publisher whose customers are filtered by region; orders follow them, and everybody has all items."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        ids = pa.array([1, 2, 3], pa.int64())
        regions = ["North", "South", "South"]
        write_deltalake(str(root / "hq/customers"), pa.table({"id": ids, "region": regions, "a": ["x"] * 3}))
        write_deltalake(str(root / "hq/orders"), pa.table({"id": ids, "customer": ids, "a": ["x"] * 3}))
        write_deltalake(str(root / "hq/items"), pa.table({"id": ids, "a": ["x"] * 3}))
        (root / "mergerepl.yml").write_text(FILE, encoding="utf-8")
        self.project.apply()

    def settle(self) -> None:
        """Synchronize both subscribers; only the first one has edits of its own."""
        for result in self.project.sync().sessions:
            assert result.error is None, result.error

    def check(self) -> None:
        """Check that every subscriber has the publisher's rows of its partition, and no others."""
        customers = self.rows("hq", "customers")
        for place, region in PLACES.items():
            theirs = {key: row for key, row in customers.items() if row["region"] == region}
            assert self.published(place, "customers") == theirs
            orders = self.rows("hq", "orders")
            assert self.published(place, "orders") == {
                k: row for k, row in orders.items() if row["customer"] in theirs
            }
            assert self.published(place, "items") == self.rows("hq", "items")

    def published(self, place: str, name: str) -> dict[int, Row]:
        """Return the rows of a subscriber's table with the publisher's columns."""
        columns = {field.name for field in self.table("hq", name).schema().fields}
        found = self.rows(place, name).items()
        return {key: {n: value for n, value in row.items() if n in columns} for key, row in found}


def add_columns(network: Network) -> None:
    """Add a column to all tables with unsent edits at a subscriber; rows move, before the columns came and after."""
    for name in TABLES:
        network.table("north", name).update({"a": "'n1'"}, predicate="id = 1")
        # Before the column, and not captured yet: order 2 and its customer come to the north.
        if name == "customers":
            network.table("hq", name).update({"region": "'North'"}, predicate="id = 2")
        network.table("hq", name).alter.add_columns([Field("c", PrimitiveType("string"), True)])
        network.table("hq", name).update({"c": "'C1'"}, predicate="id = 1")
    network.table("hq", "customers").update({"region": "'North'", "c": "'C3'"}, predicate="id = 3")
    network.table("hq", "customers").update({"region": "'South'"}, predicate="id = 2")


@pytest.mark.parametrize(
    "point", ["", "schema.after_record", "schema.after_capture", "schema.after_alter", "stage.after_manifest"]
)
def test_columns_travel_with_row_filters(tmp_path: Path, point: str) -> None:
    network = Network(tmp_path)
    add_columns(network)
    if point:
        with dies(point, action="stop"):
            network.project.sync("north")
    network.settle()
    network.check()
    assert set(network.rows("north", "customers")) == {1, 3}
    assert set(network.rows("south", "orders")) == {2}
    for name in TABLES:
        # By row, the publisher's concurrent edit wins; by column, both stay.
        assert network.rows("hq", name)[1]["a"] == ("n1" if name == "orders" else "x")
        assert network.rows("north", name)[1]["c"] == "C1"


def test_a_row_goes_up_whose_file_at_the_publisher_lacks_the_new_column(tmp_path: Path) -> None:
    network = Network(tmp_path)
    for name in TABLES:
        network.table("hq", name).alter.add_columns([Field("c", PrimitiveType("string"), True)])
    network.settle()
    for name in TABLES:
        network.table("north", name).update({"c": "'N1'"}, predicate="id = 1")
    network.settle()
    network.check()
    assert {network.rows("hq", name)[1]["c"] for name in TABLES} == {"N1"}


def test_filtered_articles_wait_for_each_other_and_the_others_go_on(tmp_path: Path) -> None:
    network = Network(tmp_path)
    own = network.table("north", "orders")
    own.alter.add_columns([Field("c", PrimitiveType("long"), True)])
    for name in TABLES:
        network.table("hq", name).alter.add_columns([Field("c", PrimitiveType("string"), True)])
        network.table("north", name).update({"a": "'n1'"}, predicate="id = 1")
    for _ in range(2):
        (result,) = network.project.sync("north").sessions
        assert set(result.refused) == {"customers", "orders"}
        assert "Article 'customers' waits for article 'orders'" in str(result.error)
        assert [network.rows("hq", name)[1]["a"] for name in TABLES] == ["x", "x", "n1"]
    mine = network.table("north", "orders").to_pyarrow_table().drop_columns(["c"])
    write_deltalake(str(tmp_path / "north/orders"), mine, mode="overwrite", schema_mode="overwrite")
    network.settle()
    network.check()
    assert {network.rows("hq", name)[1]["a"] for name in TABLES} == {"n1"}


def test_an_article_without_filter_whose_changes_are_gone_stops_no_filtered_one(tmp_path: Path) -> None:
    network = Network(tmp_path)
    for name in TABLES:
        network.table("north", name).update({"a": "'n1'"}, predicate="id = 1")
    items = tmp_path / "hq/items"
    before = set(items.glob("*.parquet"))
    write_deltalake(str(items), network.table("hq", "items").to_pyarrow_table().slice(2), mode="append")
    (lost,) = set(items.glob("*.parquet")) - before
    lost.rename(tmp_path / "lost")
    (result,) = network.project.sync("north").sessions
    assert result.refused == ("items",)
    assert [network.rows("hq", name)[1]["a"] for name in TABLES[:2]] == ["n1", "n1"]
    (tmp_path / "lost").rename(lost)
    network.table("hq", "items").delete("id = 3")
    network.settle()
    network.check()


@pytest.mark.parametrize("point", ["", "schema.after_alter", "schema.before_articles"])
def test_a_comment_travels_and_a_column_is_adopted_with_row_filters(tmp_path: Path, point: str) -> None:
    network = Network(tmp_path)
    for name in TABLES:
        network.table("north", name).alter.add_columns([Field("c", PrimitiveType("string"), True)])
        network.table("north", name).update({"c": "'N1'"}, predicate="id = 1")
    add_columns(network)
    for name in TABLES:
        network.table("hq", name).alter.set_column_metadata("a", {"comment": "said"})
    if point:
        with dies(point, action="stop"):
            network.project.sync("north")
    network.settle()
    network.settle()
    network.check()
    for name in TABLES:
        for place in PLACES:
            found = network.table(place, name).schema().fields
            assert {each.metadata.get("comment") for each in found if each.name == "a"} == {"said"}
        # Both sides filled row 1: the publisher's value wins.
        assert network.rows("hq", name)[1]["c"] == "C1"


def test_a_replaced_table_travels_with_row_filters(tmp_path: Path) -> None:
    network = Network(tmp_path)
    # One customer moves, one is new and one is gone; their orders follow, and the columns have another one.
    rows = [(1, "South", "x", "C1"), (3, "North", "x", "C3"), (4, "North", "x", None)]
    columns = dict(zip(("id", "region", "a", "c"), map(list, zip(*rows, strict=True)), strict=True))
    create_or_replace(tmp_path / "hq/customers", pa.table(columns))
    network.table("hq", "orders").update({"customer": "4"}, predicate="id = 2")
    network.settle()
    network.check()
    assert set(network.rows("north", "orders")) == {2, 3}
    assert set(network.rows("south", "orders")) == {1}


@pytest.mark.spark
@pytest.mark.parametrize("point", ["", "schema.after_alter", "schema.after_dropped_values"])
def test_a_dropped_column_ends_with_row_filters(tmp_path: Path, point: str) -> None:
    network = Network(tmp_path)
    for name in TABLES:
        network.table("north", name).update({"a": "'n1'"}, predicate="id = 1")
        rows = network.table("hq", name).to_pyarrow_table().drop_columns(["a"])
        write_deltalake(str(tmp_path / "hq" / name), rows, mode="overwrite", schema_mode="overwrite")
    # A row moves between the parts after the column ended.
    network.table("hq", "customers").update({"region": "'North'"}, predicate="id = 2")
    if point:
        with dies(point, action="stop"):
            network.project.sync("north")
    network.settle()
    network.settle()
    network.check()
    assert set(network.rows("north", "orders")) == {1, 2}
    for name in TABLES:
        assert network.rows("north", name)[1]["a"] == "n1"
        table = tmp_path / "north" / "_mergerepl" / f"MSmerge_conflict_sales_{name}"
        assert [row["a"] for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()] == ["n1"]


def test_other_columns_are_published_while_rows_move(tmp_path: Path) -> None:
    network = Network(tmp_path / "root")

    def state(columns: str) -> None:
        text = FILE
        for name, filtered in zip(TABLES, ("region, ", "customer, ", ""), strict=True):
            stated = f"name: {name}, key: [id]"
            text = text.replace(stated, f"{stated}, columns: [{filtered}{columns}]")
        (network.root / "mergerepl.yml").write_text(text, encoding="utf-8")
        network.project.apply()

    state("a")
    add_columns(network)
    state("a, c")
    for _ in range(2):
        network.settle()
    network.check()
    assert network.published("north", "customers")[3]["c"] == "C3"
