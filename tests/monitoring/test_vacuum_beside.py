"""`mergerepl vacuum` beside all readers of a table: what one of them has not read stays, and is read afterwards."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import Project, Replica, cdc
from mergerepl.delta.vacuum import vacuum_read
from mergerepl.errors import MergeReplError
from mergerepl.store.location import Location
from tests.cdc.databases import add, new_table, rows_at, update

pytestmark = pytest.mark.spark

FILE = """
publication: sales
publisher: ./hq
articles: [{name: orders, key: [id]}]
subscriptions: [{subscriber: ./north}]
---
type: cdc
root: ./hq
tables: [{table: orders, key: [id]}, {table: shelf, key: [id]}]
---
type: tracking
root: ./hq
tables: [{table: shelf, key: [id]}]
"""


def age(table: Path, days: int) -> None:
    for file in table.rglob("*"):
        if file.is_file():
            at = file.stat().st_mtime - days * 86_400
            os.utime(file, (at, at))


def change_files(table: Path) -> set[str]:
    return {file.name for file in (table / "_change_data").glob("*.parquet")}


def test_vacuum_keeps_files_as_long_as_a_reader_needs_them(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "orders"
    properties = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(table), pa.table({"id": [1], "note": ["a"]}), configuration=properties)
    DeltaTable(str(table)).update({"note": "'b'"}, predicate="id = 1")
    age(table, 30)
    unread = change_files(table)
    hours, read_through = vacuum_read(spark, Location.of(table), 0)
    assert (hours > 30 * 24, read_through) == (True, 0)
    assert change_files(table) == unread != set()
    assert vacuum_read(spark, Location.of(table), DeltaTable(str(table)).version()) == (7 * 24, None)
    assert not change_files(table)


@pytest.mark.slow
def test_every_reader_finds_what_it_has_not_read(spark: SparkSession, replica_dir: Path) -> None:
    hq = replica_dir / "hq"
    orders = new_table(hq, "orders", {1: ("a", 1), 2: ("b", 2)})
    shelf, lake = new_table(hq, "shelf", {1: ("a", 1)}), replica_dir / "lake"
    (replica_dir / "mergerepl.yml").write_text(FILE)
    project = Project.load(replica_dir / "mergerepl.yml")
    project.apply()
    instance = cdc.Database(hq).instance("dbo_orders")
    instance.load(lake, consumer="lake")
    # Merge capture is lost for a month, and so are the log reader and its consumer.
    update(orders, "id = 1", note="'read late'")
    add(orders, {3: ("c", 3)})
    age(orders, 30)
    unread = change_files(orders)
    assert unread
    with pytest.raises(MergeReplError, match="Compact change tracking reads it, too"):
        Replica(hq).vacuum("shelf")
    position = next(each.position for each in cdc.Database(hq).status().sources if each.source == "orders")
    (done,) = Replica(hq).vacuum("orders")
    assert done.read_through == position < DeltaTable(str(orders)).version()
    assert done.retention_hours >= 30 * 24
    assert change_files(orders) == unread
    assert cdc.Database(hq).capture().rows == 3
    assert project.sync().sessions[0].download.updates == 1
    assert rows_at(replica_dir / "north" / "orders") == rows_at(orders)
    # All have read it. The consumer reads change tables, which keep their rows.
    (done,) = Replica(hq).vacuum("orders")
    assert (done.read_through, done.retention_hours) == (None, 14 * 24)
    assert not change_files(orders) & unread
    instance.load(lake, consumer="lake")
    assert rows_at(lake) == rows_at(orders) == {1: ("read late", 1), 2: ("b", 2), 3: ("c", 3)}
    # What Compact has not seen is not vacuumed, under whatever name.
    update(shelf, "id = 1", qty="2")
    age(shelf, 30)
    unread = change_files(shelf)
    with pytest.raises(MergeReplError, match="Compact change tracking reads it, too"):
        cdc.Database(hq).vacuum("shelf")
    assert change_files(shelf) == unread


@pytest.mark.slow
def test_a_table_that_a_queue_reads_keeps_its_unread_edits(spark: SparkSession, replica_dir: Path) -> None:
    hq, north = replica_dir / "hq", replica_dir / "north"
    write_deltalake(str(hq / "items"), pa.table({"id": pa.array([1, 2], pa.int64()), "note": ["a", "b"]}))
    (replica_dir / "mergerepl.yml").write_text(
        "publication: feed\ntype: transactional\npublisher: ./hq\narticles: [{name: items, key: [id]}]\n"
        "subscriptions: [{subscriber: ./north, updatable: queued}]\n"
    )
    project = Project.load(replica_dir / "mergerepl.yml")
    project.apply()
    assert project.sync().ok
    cdc.Database(north).enable("items", key="id")
    update(north / "items", "id = 1", note="'edit'")
    age(north / "items", 30)
    unread = change_files(north / "items")
    assert unread
    cdc.Database(north).capture()
    cdc.Database(north).vacuum("items")
    assert change_files(north / "items") == unread
    assert project.sync().ok
    assert DeltaTable(str(hq / "items")).to_pyarrow_table(filters=[("id", "=", 1)])["note"].to_pylist() == [
        "edit"
    ]
