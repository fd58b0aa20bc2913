"""What becomes of changed columns, gaps of the feed and tables that are gone: hard cases of the specification."""

import json
import shutil
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import cdc, failpoints
from mergerepl.cdc.tables import CdcTables, tables_at
from mergerepl.delta.table import open_table
from mergerepl.failpoints import FailpointError
from mergerepl.systables.cdc import DDL_HISTORY
from tests.cdc.databases import (
    add,
    changes,
    check_replay,
    delete,
    enabled,
    entries,
    new_table,
    rows_seen,
    update,
)

pytestmark = pytest.mark.spark

ROWS = {1: ("a", 1), 2: ("b", 2)}
MAPPED = {"delta.columnMapping.mode": "name", "delta.minReaderVersion": "2", "delta.minWriterVersion": "5"}


def statements(database: CdcTables, instance: str) -> list[tuple[str, bool]]:
    """Return the statements of the history without the table's name, and whether the change table was rewritten."""
    number = database.instance(instance).object_id
    rows = sorted(database.control.rows(DDL_HISTORY), key=lambda row: row.ddl_lsn)
    return [
        (row.ddl_command.partition("` ")[2] or row.ddl_command.partition(" ")[0], row.required_column_update)
        for row in rows
        if row.object_id == number
    ]


def numbers_of_errors(database: CdcTables) -> list[tuple[int, int]]:
    return [
        (each.error_number, each.error_severity) for each in cdc.Database(database.root).history(failed=True)
    ]


def test_columns_that_are_added(spark: SparkSession, replica_dir: Path) -> None:
    # Cases 26 and 27: a second instance has the new column, and all that was unread when it began.
    database = enabled(replica_dir, {"orders": ROWS})
    orders = replica_dir / "orders"
    spark.sql(f"alter table delta.`{orders}` add columns (extra double)")
    spark.sql(f"insert into delta.`{orders}` values (3, 'c', 3, 1.5)")
    cdc.Database(replica_dir).enable("orders", name="wide")
    with pytest.raises(cdc.CdcUsageError, match="two capture instances already: dbo_orders, wide") as caught:
        cdc.Database(replica_dir).enable("orders", name="third")
    assert caught.value.number == 22962
    spark.sql(f"update delta.`{orders}` set extra = 2.5 where id = 3")
    cdc.Database(replica_dir).capture()
    assert changes(database, "dbo_orders") == [(0, 2, "07", 3, "c", 3)]
    assert changes(database, "wide") == [
        (0, 2, "0f", 3, "c", 3, 1.5),
        (1, 3, "08", 3, "c", 3, 1.5),
        (1, 4, "08", 3, "c", 3, 2.5),
    ]
    assert statements(database, "dbo_orders") == [("ADD COLUMNS (`extra` DOUBLE)", False)]
    assert [each.kind for each in entries(database)] == [
        *("begin", "begin", "ddl", "transaction", "transaction")
    ]


@pytest.mark.slow
def test_columns_that_are_renamed_and_dropped(spark: SparkSession, replica_dir: Path) -> None:
    orders = replica_dir / "orders"
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in MAPPED.items())
    spark.sql(
        f"create table delta.`{orders}` (id bigint, note string, qty int) using delta "
        f"tblproperties ('delta.enableChangeDataFeed' = 'true', {properties})"
    )
    spark.sql(f"insert into delta.`{orders}` values (1, 'a', 1)")
    cdc.Database(replica_dir).enable("orders", key="id")
    spark.sql(f"update delta.`{orders}` set note = 'b'")
    spark.sql(f"alter table delta.`{orders}` rename column note to text")
    spark.sql(f"update delta.`{orders}` set text = 'c'")
    spark.sql(f"alter table delta.`{orders}` drop column qty")
    spark.sql(f"update delta.`{orders}` set text = 'd'")
    done = cdc.Database(replica_dir).capture()
    assert done.paused == {}
    database = tables_at(replica_dir)
    assert changes(database, "dbo_orders") == [
        (0, 3, "02", 1, "a", 1),
        (0, 4, "02", 1, "b", 1),
        (1, 3, "02", 1, "b", 1),
        (1, 4, "02", 1, "c", 1),
        (2, 3, "02", 1, "c", None),
        (2, 4, "02", 1, "d", None),
    ]
    assert statements(database, "dbo_orders") == [
        ("RENAME COLUMN `note` TO `text`", False),
        ("DROP COLUMN `qty`", False),
    ]
    assert [row.source_name for row in cdc.Database(replica_dir).instance("dbo_orders").columns()] == [
        *("id", "text", None)
    ]


@pytest.mark.slow
def test_types_that_change(spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Cases 29 and 30, and a death between the new type and the new rows.
    database = enabled(replica_dir, {"orders": ROWS, "texts": {1: ("7", 1), 2: ("8", 2)}})
    orders, texts = replica_dir / "orders", replica_dir / "texts"
    update(orders, "id = 1", qty="10")
    update(texts, "id = 1", note="'x'")
    cdc.Database(replica_dir).capture()
    wide = pa.schema([("id", pa.int64()), ("note", pa.string()), ("qty", pa.int64())])
    rows = pa.Table.from_pylist(
        [{"id": 1, "note": "a", "qty": 10}, {"id": 2, "note": "b", "qty": 2**40}], wide
    )
    write_deltalake(str(orders), rows, mode="overwrite", schema_mode="overwrite")
    narrow = pa.schema([("id", pa.int64()), ("note", pa.int32()), ("qty", pa.int32())])
    rows = pa.Table.from_pylist([{"id": 1, "note": 9, "qty": 1}], narrow)
    write_deltalake(str(texts), rows, mode="overwrite", schema_mode="overwrite")
    for point in ("cdc.after_end_lsn", "cdc.before_columns", "cdc.after_types"):
        monkeypatch.setattr(failpoints, "_passed", {})
        monkeypatch.setenv("MERGEREPL_FAILPOINT", f"{point}=raise")
        with pytest.raises(FailpointError):
            cdc.Database(replica_dir).capture()
        monkeypatch.delenv("MERGEREPL_FAILPOINT")
    high = database.max_lsn()
    cdc.Database(replica_dir).capture()
    assert changes(database, "dbo_orders")[2:] == [(1, 3, "04", 2, "b", 2), (1, 4, "04", 2, "b", 2**40)]
    assert statements(database, "dbo_orders") == [
        ("ALTER COLUMN `qty` TYPE BIGINT", True),
        ("REPLACE", False),
    ]
    types = {
        row.column_name: row.column_type for row in cdc.Database(replica_dir).instance("dbo_orders").columns()
    }
    assert types["qty"] == "bigint"
    # The other table is paused by name where it stands, and its instance ends there.
    assert [each.status for each in cdc.Database(replica_dir).status().sources] == ["active", "paused"]
    assert numbers_of_errors(database) == [(22976, 16)]
    ended = database.instance("dbo_texts")
    assert ended.end_lsn == high
    assert not cdc.Database(replica_dir).capture().cycles
    # Resumed as it is, it would be paused again; begun again, it has the new type.
    with pytest.raises(
        cdc.CdcError, match=r"is not resumed, for it would be paused again: .* from string to int"
    ):
        cdc.Database(replica_dir).resume("dbo_texts")
    assert [each.status for each in cdc.Database(replica_dir).status().sources] == ["active", "paused"]
    assert database.instance("dbo_texts") == ended
    assert cdc.Database(replica_dir).resume("dbo_texts", restart=True)
    more = pa.Table.from_pylist([{"id": 5, "note": 5, "qty": 5}], narrow)
    write_deltalake(str(texts), more, mode="append")
    assert cdc.Database(replica_dir).capture().paused == {}
    assert changes(database, "dbo_texts") == [(0, 2, "07", 5, 5, 5)]
    assert database.instance("dbo_texts").end_lsn is None


@pytest.mark.slow
def test_fields_that_are_added_inside_and_fields_that_are_lost(
    spark: SparkSession, replica_dir: Path
) -> None:
    # A new field is as a new column is. Where one is lost, no cast leads to the new type, by places least of all.
    for name in ("nested", "replaced", "lost"):
        spark.sql(
            f"create table delta.`{replica_dir / name}` (id int, s struct<a:int>, l array<struct<a:int>>, "
            "m map<string, struct<a:int>>) using delta tblproperties ('delta.enableChangeDataFeed' = 'true')"
        )
        spark.sql(
            f"insert into delta.`{replica_dir / name}` select 1, struct(1), array(struct(1)), map('k', struct(1))"
        )
        cdc.Database(replica_dir).enable(name, key="id")
    nested = f"delta.`{replica_dir / 'nested'}`"
    spark.sql(f"update {nested} set s.a = 2")
    spark.sql(f"alter table {nested} add columns (s.b int, l.element.b int, m.value.b int first)")
    # It begins at the position: its shape is the one of the head all the same.
    cdc.Database(replica_dir).enable("nested", name="wide")
    spark.sql(f"update {nested} set s.b = 7, l = array(named_struct('a', 1, 'b', 7), null)")
    new = "named_struct('b', 8, 'a', 1) s, array(named_struct('a', 1, 'b', 8)) l, map('k', named_struct('a', 1)) m"
    other = new.replace("'a', 1) s", "'x', 1) s")
    for name, values in (("replaced", new), ("lost", other)):
        spark.sql(
            f"create or replace table delta.`{replica_dir / name}` using delta tblproperties "
            f"('delta.enableChangeDataFeed' = 'true') as select 1 id, {values} union all select 2, {values}"
        )
    done = cdc.Database(replica_dir).capture()
    assert done.paused.keys() == {"lost"}
    assert "--restart" in done.paused["lost"]
    database = tables_at(replica_dir)
    assert numbers_of_errors(database) == [(22976, 16)]
    one, many = {"a": 1}, [{"a": 1}]
    kept = ({"k": one},)
    assert changes(database, "dbo_nested") == [
        (0, 3, "02", 1, one, many, *kept),
        (0, 4, "02", 1, {"a": 2}, many, *kept),
        (1, 3, "04", 1, {"a": 2}, many, *kept),
        (1, 4, "04", 1, {"a": 2}, [{"a": 1}, None], *kept),
    ]
    wide = [(row[1], row[2], row[4]) for row in changes(database, "wide")]
    two = {"a": 2, "b": None}
    assert wide == [
        (3, "02", {"a": 1, "b": None}),
        *((4, "02", two), (3, "06", two), (4, "06", {"a": 2, "b": 7})),
    ]
    assert statements(database, "dbo_nested") == [
        (f"ADD COLUMNS ({field}.`b` INT)", False) for field in ("`s`", "`l`.element", "`m`.value")
    ]
    assert [(row[1], row[3], row[4]) for row in changes(database, "dbo_replaced")] == [(2, 2, one)]
    rows, _ = cdc.Database(replica_dir).instance("dbo_nested").snapshot()
    assert rows.schema["s"].dataType.simpleString() == "struct<a:int>"
    assert rows.collect()[0]["s"].asDict() == {"a": 2}
    assert cdc.Database(replica_dir).resume("dbo_lost", restart=True)
    spark.sql(f"insert into delta.`{replica_dir / 'lost'}` select 3, {other}")
    assert cdc.Database(replica_dir).capture().paused == {}
    assert [row[4] for row in changes(database, "dbo_lost")] == [{"b": 8, "x": 1}]


@pytest.mark.slow
def test_gaps_are_compared_or_stop_their_table(spark: SparkSession, replica_dir: Path) -> None:
    # Cases 33 and 34.
    database = enabled(replica_dir, {"orders": ROWS})
    cdc.Database(replica_dir).enable(new_table(replica_dir, "strict", ROWS).name, key="id", on_gap="stop")
    for name in ("orders", "strict"):
        table = replica_dir / name
        DeltaTable(str(table)).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
        add(table, {3: ("c", 3)})
        update(table, "id = 3", note="'C'")
        delete(table, "id = 1")
        DeltaTable(str(table)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        update(table, "id = 2", qty="20")
    done = cdc.Database(replica_dir).capture()
    assert done.paused.keys() == {"strict"}
    assert "--compare" in done.paused["strict"]
    expected_rows = [
        (0, 1, "07", 1, "a", 1),
        (0, 2, "07", 3, "C", 3),
        (1, 3, "04", 2, "b", 2),
        (1, 4, "04", 2, "b", 20),
    ]
    assert changes(database, "dbo_orders") == expected_rows
    net = next(entry for entry in entries(database) if entry.kind == "net")
    assert net.commits[0]["version"] - net.commits[0]["from_version"] == 2
    assert sorted(numbers_of_errors(database)) == [(22859, 10), (22859, 16)]
    assert changes(database, "dbo_strict") == []
    cdc.Database(replica_dir).resume("dbo_strict", compare=True)
    assert cdc.Database(replica_dir).capture().paused == {}
    assert changes(database, "dbo_strict") == expected_rows
    assert database.instance("dbo_strict").end_lsn is None
    # Change files that VACUUM removed, with versions that can be read.
    update(replica_dir / "orders", "id = 2", qty="30")
    spark.sql(f"update delta.`{replica_dir / 'orders'}` set note = concat(note, '!')")
    shutil.rmtree(replica_dir / "orders" / "_change_data")
    assert cdc.Database(replica_dir).capture().paused == {}
    assert changes(database, "dbo_orders")[4:] == [
        *(
            (2, 3, "06", 2, "b", 20),
            (2, 4, "06", 2, "b!", 30),
            (2, 3, "02", 3, "C", 3),
            (2, 4, "02", 3, "C!", 3),
        )
    ]
    check_replay(database)


def test_tables_that_are_gone_or_replaced(spark: SparkSession, replica_dir: Path) -> None:
    # Case 32, and versions that are gone.
    database = enabled(replica_dir, {"orders": ROWS, "stock": ROWS})
    cdc.Database(replica_dir).enable(new_table(replica_dir, "kept", ROWS).name, key="id", on_gap="stop")
    shutil.rmtree(replica_dir / "orders")
    shutil.rmtree(replica_dir / "stock")
    new_table(replica_dir, "stock", {9: ("z", 9)})
    # As dbt's table materialisation does: the properties go, and are set again. The feed was there before it: no gap.
    kept = f"delta.`{replica_dir / 'kept'}`"
    DeltaTable(str(replica_dir / "kept")).alter.set_table_properties(
        {"delta.logRetentionDuration": "interval 60 days"}
    )
    spark.sql(f"create or replace table {kept} using delta as select 2L id, 'B' note, 2 qty")
    done = cdc.Database(replica_dir).capture()
    assert done.paused.keys() == {"orders", "stock"}
    assert open_table(replica_dir / "kept").properties == {
        "delta.enableChangeDataFeed": "true",
        "delta.logRetentionDuration": "interval 60 days",
    }
    assert sorted(changes(database, "dbo_kept"), key=lambda row: row[3:]) == [
        (0, 1, "07", 1, "a", 1),
        (0, 4, "02", 2, "B", 2),
        (0, 3, "02", 2, "b", 2),
    ]
    assert ("REPLACE", False) in statements(database, "dbo_kept")
    for note in ("C", "D"):
        DeltaTable(str(replica_dir / "kept")).update({"note": f"'{note}'"})
    cdc.Database(replica_dir).capture()
    assert [row[1:5] for row in changes(database, "dbo_kept")[3:]] == [
        *((3, "02", 2, "B"), (4, "02", 2, "C"), (3, "02", 2, "C"), (4, "02", 2, "D"))
    ]
    assert statements(database, "dbo_orders") == [("DROP", False)]
    assert numbers_of_errors(database) == [(22931, 16)] * 2
    assert database.instance("dbo_orders").has_drop_pending
    with pytest.raises(cdc.CdcError, match="no Delta table at its path any more") as caught:
        cdc.Database(replica_dir).resume("dbo_orders")
    assert caught.value.number == 22931
    assert cdc.Database(replica_dir).resume("dbo_stock", restart=True)
    add(replica_dir / "stock", {10: ("y", 10)})
    cdc.Database(replica_dir).capture()
    assert changes(database, "dbo_stock") == [(0, 2, "07", 10, "y", 10)]
    cdc.Database(replica_dir).disable("orders")
    assert cdc.Database(replica_dir).capture().paused == {}


@pytest.mark.slow
def test_damaged_tables_pause_alone(spark: SparkSession, replica_dir: Path) -> None:
    names = ("cut", "feed", "newer", "commit", "gap", "good")
    database = enabled(replica_dir, dict.fromkeys(names, ROWS))
    spark.sql(f"update delta.`{replica_dir / 'feed'}` set note = 'A' where id = 1")
    for name in names:
        add(replica_dir / name, {3: ("c", 3)})
    logs = {name: sorted((replica_dir / name / "_delta_log").glob("*.json")) for name in names}

    def cut(file: Path) -> bytes:
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        return whole

    newest = max((replica_dir / "cut").glob("*.parquet"), key=lambda file: file.stat().st_mtime)
    whole = cut(newest)
    for file in (replica_dir / "feed" / "_change_data").glob("*.parquet"):
        cut(file)
    features = ["fromTheFuture"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
    logs["newer"][-1].with_name(f"{len(logs['newer']):020d}.json").write_text(
        json.dumps({"protocol": {**protocol, "writerFeatures": features}})
    )
    cut(logs["commit"][-1])
    logs["gap"][-1].rename(logs["gap"][-1].with_name(f"{9:020d}.json"))
    done = cdc.Database(replica_dir).capture()
    assert done.paused.keys() == {"cut", "newer", "commit", "gap"}
    assert str(newest) in done.paused["cut"]
    assert "a feature of Delta" in done.paused["newer"]
    assert "is damaged" in done.paused["commit"]
    assert "its log has a gap" in done.paused["gap"]
    assert [row[3] for row in changes(database, "dbo_good")] == [3]
    # A feed that is damaged is no more than a gap.
    assert sorted({row[3] for row in changes(database, "dbo_feed")}) == [1, 3]
    newest.write_bytes(whole)
    assert cdc.Database(replica_dir).resume("dbo_cut")
    cdc.Database(replica_dir).capture()
    assert [row[3] for row in changes(database, "dbo_cut")] == [3]


@pytest.mark.slow
def test_a_change_table_that_cannot_be_written_pauses_its_source_alone(
    spark: SparkSession, replica_dir: Path
) -> None:
    days = replica_dir / "days"
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    write_deltalake(
        str(days), pa.Table.from_pylist([{"id": 1, "day": date(9999, 12, 31)}, {"id": 2}], schema=schema)
    )
    database = enabled(replica_dir, {"lost": ROWS, "orders": ROWS})
    cdc.Database(replica_dir).enable("days", key="id")
    features = "'delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported'"
    spark.sql(f"alter table delta.`{days}` set tblproperties ({features})")
    spark.sql(f"update delta.`{days}` set day = '2024-02-29' where id = 1")
    spark.sql(f"alter table delta.`{days}` alter column day type timestamp_ntz")
    spark.sql(f"update delta.`{days}` set day = timestamp_ntz'2024-02-29 12:30:00' where id = 1")
    shutil.rmtree(replica_dir / "_cdc" / "dbo_lost_CT")
    for name in ("lost", "orders"):
        update(replica_dir / name, "id = 1", note="'A'")
    done = cdc.Database(replica_dir).capture()
    # What the table of one instance lacks, such as a table feature, is added; what is gone pauses its source.
    assert done.paused.keys() == {"lost"}
    assert "dbo_lost_CT" in done.paused["lost"]
    assert "other tables go on" in done.paused["lost"]
    days_seen = [(row[1], row[-1]) for row in changes(database, "dbo_days")]
    assert days_seen == [
        (3, datetime(9999, 12, 31)),
        (4, datetime(2024, 2, 29)),
        (3, datetime(2024, 2, 29)),
        (4, datetime(2024, 2, 29, 12, 30)),
    ]
    assert [row[-2] for row in changes(database, "dbo_orders")] == ["a", "A"]
    assert cdc.Database(replica_dir).resume("dbo_lost", restart=True)
    update(replica_dir / "lost", "id = 2", note="'B'")
    assert cdc.Database(replica_dir).capture().paused == {}
    assert [row[-2] for row in changes(database, "dbo_lost")] == ["b", "B"]


def test_a_copied_folder_is_refused_until_it_is_adopted(spark: SparkSession, replica_dir: Path) -> None:
    # Case 41.
    (replica_dir / "a").mkdir()
    database = enabled(replica_dir / "a", {"orders": ROWS})
    add(replica_dir / "a" / "orders", {3: ("c", 3)})
    cdc.Database(replica_dir / "a").capture()
    shutil.copytree(replica_dir / "a", replica_dir / "b")
    with pytest.raises(Exception, match="is a copy of the database"):
        cdc.Database(replica_dir / "b").capture()
    assert cdc.Database(replica_dir / "b").relocate()
    add(replica_dir / "b" / "orders", {4: ("d", 4)})
    assert cdc.Database(replica_dir / "b").capture().transactions == 1
    copy = tables_at(replica_dir / "b")
    assert copy.max_lsn() > database.max_lsn()
    assert [row[3:] for row in changes(copy, "dbo_orders")] == [(3, "c", 3), (4, "d", 4)]
    (replica_dir / "b").rename(replica_dir / "c")
    assert not cdc.Database(replica_dir / "c").relocate()
    assert cdc.Database(replica_dir / "c").capture().cycles == 0
    assert rows_seen(tables_at(replica_dir / "c"), "dbo_orders")
