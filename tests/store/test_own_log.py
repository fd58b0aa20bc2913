"""Logs of system tables that this process reads by itself: as delta-rs reads them, and with the requests that it takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import mergerepl.delta.own_log as own_log
import mergerepl.store.objects as objects
import mergerepl.store.register as registers
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.opened import _delta_rs
from mergerepl.delta.own_state import OwnState
from mergerepl.delta.small_tables import count_rows, delete_rows, read_rows, update_rows, write_rows
from mergerepl.delta.table import open_table
from mergerepl.delta.unused_files import KEPT_ROWS, remove_unused
from mergerepl.publish.system_tables import create_conflict_table
from mergerepl.spark import session as engine
from mergerepl.store.lease import LOCK_FILE, lease
from mergerepl.store.location import Location
from mergerepl.store.register import Pace, take
from mergerepl.store.storage import storage
from tests.store.proxy import Proxy

FIELDS = [
    {"name": name, "type": type_, "nullable": True, "metadata": {}}
    for name, type_ in (("seq", "long"), ("name", "string"))
]


def rows(*numbers: int) -> pa.Table:
    return pa.table({"seq": pa.array(numbers, pa.int64()), "name": [f"n{number}" for number in numbers]})


@pytest.fixture
def root(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "600")
    return Location.of(f"s3://{bucket}/hq")


@pytest.fixture
def table(root: Location) -> Location:
    return root.join("_mergerepl", "MSmerge_history")


@contextmanager
def held(root: Location) -> Iterator[None]:
    with lease(root, purpose="a test"):
        yield


def make(table: Location) -> None:
    create_table(
        table, NewTable(FIELDS, (), {"delta.checkpointInterval": "10"}), CommitMark("s", "setup:create")
    )


def append(table: Location, *numbers: int, mode: str = "append") -> None:
    write_rows(table, rows(*numbers), mode=mode, properties={}, once=("app", max(numbers)))


def check(table: Location) -> None:
    """Compare the table as this process knows it with delta-rs' view of the store."""
    known = open_table(table)
    assert isinstance(known, OwnState)
    read = _delta_rs(table)
    assert known.version == read.version()
    assert known.metadata.table_id == str(read.metadata().id)
    assert known.properties == read.metadata().configuration
    assert known.metadata.schema_json == read.schema().to_json()
    assert (known.reader_version, known.writer_version) == (1, 2)
    assert known.transaction_version("app") == (read.transaction_version("app") or 0) & 0xFFFFFFFF
    wanted = pa.table(read.get_add_actions(flatten=True))
    names = ["path", "size_bytes", "num_records", "min.seq", "max.seq", "min.name", "max.name"]
    names = [name for name in names if name in known.files().column_names]
    assert sorted(known.files().select(names).to_pylist(), key=str) == sorted(
        wanted.select(names).to_pylist(), key=str
    )


def test_a_log_is_known_as_delta_rs_reads_it_whoever_wrote_the_commit(root, table):
    with held(root):
        make(table)
        for number in range(1, 9):
            append(table, number)
        check(table)
        update_rows(table, {"name": "'x'"}, where="seq = 3")
        delete_rows(table, where="seq = 4")
        check(table)
        append(table, 20, 21, mode="overwrite")
        append(table, 22)
        check(table)
        # From the checkpoint of version 7.
        own_log._logs.clear()
        check(table)
        assert open_table(table, 3).files().num_rows == 3


def test_rows_are_queried_without_reading_the_log_again_and_from_a_checkpoint(root, table, proxy: Proxy):
    with held(root):
        make(table)
        for number in range(1, 11):
            append(table, number)
        proxy.reset()
        assert count_rows(table, where="seq > 7") == 3
        assert proxy.requests == []
        delete_rows(table, where="seq > 10")
        assert proxy.requests == []
    own_log._logs.clear()
    objects._kept.clear()
    with held(root):
        proxy.reset()
        assert [
            row["seq"] for row in read_rows(table, ("seq",), where="seq > 8", order_limit="order by seq")
        ] == [9, 10]
        # The checkpoint and where it is, two commits after it, and the ten files.
        assert len([each for each in proxy.requests if each.kind == "GET"]) == 14
        assert {each.kind for each in proxy.requests} <= {"GET", "LIST"}


def test_an_append_to_a_known_table_takes_two_requests(root, table, proxy: Proxy):
    with held(root):
        make(table)
        for number in range(1, 4):
            append(table, number)
        proxy.reset()
        append(table, 4)
        assert proxy.counts() == {"PUT": 1, "PUT-IF": 1}
    with held(root):
        proxy.reset()
        append(table, 5)
        assert proxy.counts() == {"PUT": 1, "PUT-IF": 1}
        check(table)


def test_what_is_known_of_a_root_ends_with_the_take_of_another_agent(root, table, monkeypatch):
    with held(root):
        make(table)
        append(table, 1)
    with monkeypatch.context() as of_another_process:
        of_another_process.setattr(registers, "_released", {})
        other = take(storage(root), root / LOCK_FILE, purpose="another agent", pace=Pace(1e-9))
        _delta_rs(table).delete("seq = 1")
        other.release()
    with held(root):
        check(table)
        assert head_version(table) == 2


def test_what_is_known_of_a_root_ends_when_it_is_seen_to_be_an_older_copy(root, table):
    with held(root):
        make(table)
        append(table, 1)
        append(table, 2)
    storage(table).delete(table.join("_delta_log", f"{2:020}.json"))
    # As commands look at a replica before they take it.
    assert head_version(table) == 1
    with held(root):
        check(table)
        assert head_version(table) == 1


def test_a_table_that_is_made_again_is_another_one(root, table):
    with held(root):
        make(table)
        append(table, 1)
        storage(table).delete_tree(table)
        registers.register_of(table).forget()
        make(table)
        append(table, 5)
        check(table)


def test_the_losing_rows_of_a_column_of_another_type_are_kept_beside_the_new_table(root):
    def create(type_: str) -> None:
        create_conflict_table(
            root,
            "MSmerge_conflict_sales_orders",
            [{"name": "qty", "type": type_, "nullable": True, "metadata": {}}],
            spark_of=lambda: pytest.fail("no engine"),
            retention=timedelta(days=14),
            mark=CommitMark("s", "setup:create"),
        )

    with held(root):
        create("long")
        create("string")
        kept = root.join("_mergerepl", "MSmerge_conflict_sales_orders.kept1")
        assert [open_table(each).field("qty")["type"] for each in (kept.with_name(kept.stem), kept)] == [
            "string",
            "long",
        ]


@pytest.mark.spark
@pytest.mark.slow
def test_unused_objects_are_removed_by_a_second_look(root, table, proxy: Proxy):
    make(table)
    with held(root):
        for number in range(30):
            append(table, number, mode="overwrite")
    folder, now = table.parent, datetime(2026, 1, 1, tzinfo=UTC)
    with held(root):
        assert remove_unused(folder, now=now) == 0
        append(table, 30, mode="overwrite")
        asked = len(proxy.requests)
        assert remove_unused(folder, now=now + KEPT_ROWS) > 50
        assert len(proxy.requests) - asked <= 8
        append(table, 31, mode="overwrite")
        check(table)
    # A new process reads what is left.
    objects._kept.clear()
    with held(root):
        check(table)
        assert [row["seq"] for row in read_rows(table, ["seq"])] == [31]
    assert len([*storage(folder).files_below(folder)]) < 20


def test_spark_reads_a_table_from_a_checkpoint_that_was_written_here(root, table, spark: SparkSession):
    with held(root):
        make(table)
        for number in range(1, 9):
            append(table, number)
        append(table, 30, mode="overwrite")
    assert storage(table).exists(table.join("_delta_log", f"{7:020}.checkpoint.parquet"))
    assert engine.session() is spark

    def numbers(**options: int) -> list[int]:
        reader = spark.read.format("delta").options(**options)
        return sorted(row.seq for row in reader.load(table.spark_uri).collect())

    assert numbers() == [30]
    assert numbers(versionAsOf=8) == [*range(1, 9)]
    rows = spark.range(31, 32).selectExpr("id AS seq", "'s' AS name")
    rows.write.format("delta").mode("append").save(table.spark_uri)
    assert numbers() == [30, 31]
