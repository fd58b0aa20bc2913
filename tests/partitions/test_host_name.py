"""A subscription's host_name changes: its subscriber becomes another partition, and no write is lost."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import mergerepl
from mergerepl.filters.clause import SessionFunction
from mergerepl.publish.partitions import add, list_partitions
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from tests.faults.deaths import dies
from tests.faults.ladder import PARTITION_CHANGED
from tests.schema.stars import Published

FILE = """\
publication: sales
publisher: ./hq
retention: 14 days
articles:
  - {{name: customers, key: [id], filter: "region = HOST_NAME()", partition_options: {options}}}
  - {{name: orders, key: [id], tracking: column, partition_options: {options}}}
  - {{name: items, key: [id]}}
joins:
  - {{article: orders, parent: customers, on: "orders.customer = customers.id", unique: true}}
subscriptions:
"""
REGIONS = ("North", "South", "West")


class Regions(Published):
    """A publisher with two customers of each region, an order for each, and items that everybody has."""

    def __init__(self, root: Path, options: int = 0, **places: str) -> None:
        super().__init__(root)
        self.options, self.places = options, dict(places)
        ids = pa.array(range(1, 7), pa.int64())
        regions = [region for region in REGIONS for _ in range(2)]
        write_deltalake(str(root / "hq/customers"), pa.table({"id": ids, "region": regions, "a": ["x"] * 6}))
        write_deltalake(str(root / "hq/orders"), pa.table({"id": ids, "customer": ids, "a": ["x"] * 6}))
        write_deltalake(str(root / "hq/items"), pa.table({"id": ids, "a": ["x"] * 6}))
        self.apply()

    def apply(self, **places: str) -> list[str]:
        """Apply the file with these values of host_name; return the details of its steps."""
        self.places |= places
        stated = "".join(f"  - {{subscriber: ./{n}, host_name: {v}}}\n" for n, v in self.places.items())
        text = FILE.format(options=self.options) + stated
        (self.root / "mergerepl.yml").write_text(text, encoding="utf-8")
        return [step.detail for step in self.project.apply().steps]

    def sync(self, *names: str) -> None:
        """Synchronize some subscribers, or all."""
        for result in self.project.sync(*names).sessions:
            assert result.error is None, result.error

    def check(self) -> None:
        """Check that every subscriber has the publisher's rows of its partition, and no others."""
        customers, orders = self.rows("hq", "customers"), self.rows("hq", "orders")
        for place, region in self.places.items():
            theirs = {key: row for key, row in customers.items() if row["region"] == region}
            assert self.rows(place, "customers") == theirs, place
            assert self.rows(place, "orders") == {k: o for k, o in orders.items() if o["customer"] in theirs}
            assert self.rows(place, "items") == self.rows("hq", "items")

    def partition_of(self, name: str) -> int | None:
        """Return the partition of a subscriber at the publisher."""
        rows = Replica(Location.of(self.root / "hq")).relations()
        return next(row.partition_id for row in rows if Path(row.subscriber_server).name == name)


def move_with_unsent_changes(network: Regions) -> None:
    """Give the subscriber `one` the South, with changes that wait in both directions."""
    network.table("one", "customers").update({"a": "'unsent'"}, predicate="id = 1")
    network.table("one", "orders").delete("id = 2")
    write_deltalake(
        str(network.root / "one/orders"),
        pa.table({"id": pa.array([70], pa.int64()), "customer": pa.array([2], pa.int64()), "a": ["new"]}),
        mode="append",
    )
    # Not read yet under the former name: one order comes to the North, a customer of the North is changed.
    network.table("hq", "orders").update({"customer": "1"}, predicate="id = 5")
    network.table("hq", "customers").update({"a": "'hq'"}, predicate="id = 2")
    # And one row goes where the subscriber will be.
    network.table("hq", "customers").update({"region": "'South'"}, predicate="id = 6")
    network.apply(one="South")


def check_moved(network: Regions) -> None:
    network.check()
    assert set(network.rows("one", "customers")) == {3, 4, 6}
    assert network.rows("hq", "customers")[1]["a"] == "unsent"
    assert network.rows("hq", "customers")[2]["a"] == "hq"
    assert set(network.rows("hq", "orders")) == {1, 3, 4, 5, 6, 70}


@pytest.mark.slow
def test_a_changed_host_name_is_another_partition_after_the_next_session(tmp_path: Path) -> None:
    ids = pa.array([1, 2], pa.int64())
    write_deltalake(str(tmp_path / "hq/customers"), pa.table({"id": ids, "region": ["North", "South"]}))
    stated = {
        "publication": "sales",
        "publisher": "./hq",
        "articles": [{"name": "customers", "key": ["id"], "filter": "region = HOST_NAME()"}],
    }
    network, file = Published(tmp_path), tmp_path / "mergerepl.yml"
    for region, there in (("North", 1), ("South", 2)):
        subscriptions = [{"subscriber": "./one", "host_name": region}]
        file.write_text(json.dumps(stated | {"subscriptions": subscriptions}), encoding="utf-8")
        network.project.apply()
        assert set(network.rows("one", "customers")) == {1}
        (session,) = network.project.sync().sessions
        assert session.error is None
        assert set(network.rows("one", "customers")) == {there}
    left, came = (
        mergerepl.Replica(tmp_path / "hq").row("customers", key={"id": str(number)}) for number in (1, 2)
    )
    one = str(tmp_path / "one")
    assert [(each.subscriber, each.reason) for each in left.partitions] == [(one, "host_name")]
    assert [(each.subscriber, each.reason) for each in came.partitions] == [(one, None)]
    assert [[each.outside for each in row.replicas] for row in (left, came)] == [
        [False, True],
        [False, False],
    ]
    assert all(each.current for row in (left, came) for each in row.replicas)


@pytest.mark.slow
def test_a_subscriber_moves_to_another_partition_with_its_unsent_changes(tmp_path: Path) -> None:
    network = Regions(tmp_path, one="North")
    first = network.partition_of("one")
    move_with_unsent_changes(network)
    assert network.partition_of("one") == first
    network.sync()
    check_moved(network)
    assert network.partition_of("one") not in (first, None)
    found = list_partitions(Location.of(network.root / "hq"))
    (group,) = [each for each in found if each.host_name == "South"]
    assert [Path(each).name for each in group.subscribers] == ["one"]
    # Its own writes are those of the new partition.
    network.table("one", "customers").update({"a": "'south'"}, predicate="id = 3")
    network.table("hq", "customers").update({"a": "'not for it'"}, predicate="id = 1")
    network.sync()
    check = network.rows("one", "customers")
    assert network.rows("hq", "customers")[3]["a"] == "south"
    assert set(check) == {3, 4, 6}


POINTS = (
    *PARTITION_CHANGED,
    "capture.before_replinfo",
    "run.before_mappings",
    "run.after_MSmerge_past_partition_mappings",
    "stage.after_manifest",
    "stage.before_pointer",
)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_move_that_dies_is_finished_by_the_next_session(tmp_path: Path, point: str) -> None:
    network = Regions(tmp_path, one="North")
    move_with_unsent_changes(network)
    with dies(point, action="stop"):
        network.sync()
    # Meanwhile rows go on moving.
    network.table("hq", "customers").update({"region": "'North'"}, predicate="id = 4")
    network.table("hq", "customers").update({"region": "'South'"}, predicate="id = 5")
    network.sync()
    network.check()
    assert set(network.rows("one", "customers")) == {3, 5, 6}
    assert network.rows("hq", "customers")[1]["a"] == "unsent"
    assert set(network.rows("hq", "orders")) == {1, 3, 4, 5, 6, 70}


@pytest.mark.slow
@pytest.mark.parametrize("options", [0, 1, 3])
def test_two_subscribers_exchange_their_partitions(tmp_path: Path, options: int) -> None:
    network = Regions(tmp_path, options, one="North", two="South")
    network.table("one", "customers").update({"a": "'one'"}, predicate="id = 1")
    network.table("two", "orders").update({"a": "'two'"}, predicate="id = 3")
    network.apply(one="South", two="North")
    network.sync("one")
    # The other one has not moved yet: both are sent the South.
    network.table("hq", "orders").update({"a": "'hq'"}, predicate="id = 4")
    network.sync()
    network.sync()
    network.check()
    assert network.rows("two", "customers")[1]["a"] == "one"
    assert network.rows("one", "orders")[3]["a"] == "two"
    assert network.rows("one", "orders")[4]["a"] == "hq"


@pytest.mark.slow
def test_a_subscriber_joins_a_partition_that_another_has(tmp_path: Path) -> None:
    network = Regions(tmp_path, one="North", two="South")
    # The other subscriber has changes of rows that come, and of rows that leave at the first one.
    network.table("two", "customers").update({"a": "'two'"}, predicate="id = 3")
    network.table("two", "customers").update({"region": "'North'"}, predicate="id = 4")
    network.apply(one="South")
    network.sync("one")
    network.sync()
    network.sync()
    network.check()
    assert network.rows("one", "customers")[3]["a"] == "two"
    assert network.rows("hq", "customers")[4]["region"] == "North"


@pytest.mark.slow
def test_a_value_that_changes_again_before_a_session_moves_once(tmp_path: Path) -> None:
    network = Regions(tmp_path, one="North")
    first = network.partition_of("one")
    network.apply(one="South")
    network.apply(one="North")
    network.sync()
    assert network.partition_of("one") == first
    for region in ("West", "South", "North"):
        network.table("hq", "customers").update({"a": f"'{region}'"})
        network.apply(one=region)
        network.sync()
        network.check()
    assert network.partition_of("one") == first


@pytest.mark.slow
def test_option_3_maps_rows_to_subscribed_partitions_only(tmp_path: Path) -> None:
    network = Regions(tmp_path, 3, one="North")
    add(Location.of(tmp_path / "hq"), {SessionFunction.HOST_NAME: "West"}, publication="sales")
    network.table("hq", "customers").update({"a": "'hq'"})
    network.table("hq", "customers").update({"region": "'West'"}, predicate="id = 2")
    network.sync()
    network.check()
    stored = [
        DeltaTable(str(tmp_path / f"hq/_mergerepl/MSmerge_{name}_partition_mappings")).to_pyarrow_table()
        for name in ("current", "past")
    ]
    assert {number for table in stored for number in table["partition_id"].to_pylist()} == {
        network.partition_of("one")
    }
    # A subscription of the partition gets the mappings of what changes from then on.
    network.apply(two="West")
    network.table("hq", "customers").update({"region": "'North'"}, predicate="id = 2")
    network.table("hq", "customers").update({"a": "'later'"}, predicate="id = 5")
    network.sync()
    network.check()
