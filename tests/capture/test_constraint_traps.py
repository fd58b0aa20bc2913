"""CHECK constraints of a destination: what is checked before the MERGE, and what Delta means by one."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl.delta.log import head_version
from mergerepl.delta.metadata import CHAR_VARCHAR
from mergerepl.delta.table import open_table
from mergerepl.errors import ApplyError, CaptureError, EngineError, SchemaMismatchError
from mergerepl.publish.rows import note_captured
from tests.calls import conflicts_of
from tests.networks import Pair, restate


@pytest.mark.slow
def test_a_check_is_computed_from_published_columns_and_must_be_true(
    spark: SparkSession, replica_dir: Path
) -> None:
    query = "select id, concat('a', id) as a, cast(id as double) as b, id as secret from range(6)"
    pair = Pair(spark, replica_dir, {"orders": (query, {"key": ["id"], "columns": ["id", "a", "b"]})})
    pair.sql("alter table hq.orders add constraint hidden check (secret is null or secret >= 0)")
    pair.sql("alter table hq.orders add constraint mixed check (b < 100 or secret = 7)")
    pair.sql("alter table hq.orders add constraint positive check (b >= 0)")
    pair.sql("update north.orders set a = 'changed' where id = 1")
    pair.sql("insert into north.orders values (10, 'new', 10.0)")
    pair.sync()
    rows = pair.rows("hq", "orders")
    assert {(1, "changed", 1.0, 1), (10, "new", 10.0, None)} < set(rows)
    # What only the table knows of a row is asked of it: here nothing, and 1.
    for change, key in (
        ("insert into north.orders values (12, 'big', 200.0)", 12),
        ("update north.orders set b = 200 where id = 1", 1),
    ):
        pair.sql(change)
        pair.sync_withholds(rf"CHECK constraint 'mixed'.*'id': '{key}'")
        pair.sql(f"delete from north.orders where id = {key}")
    pair.sql("insert into hq.orders values (7, 'seven', 7, 7)")
    pair.sync()
    pair.sql("update north.orders set b = 200 where id = 7")
    pair.sync()
    assert (7, "seven", 200.0, 7) in pair.rows("hq", "orders")
    # Delta refuses a NULL, which SQL's CHECK would take.
    with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"):
        pair.sql("insert into hq.orders values (11, 'null', null, 0)")
    pair.sql("insert into north.orders values (11, 'null', null)")
    pair.sync_withholds(r"CHECK constraint '(mixed|positive)'.*'id': '11'")


@pytest.mark.slow
def test_what_a_table_was_made_not_to_take_later_is_found_before_anything_is_applied(
    spark: SparkSession, replica_dir: Path
) -> None:
    query = "select id, concat('r', id) as region, cast(null as string) as rowguid from range(6)"
    settings = {"key": ["id"], "columns": ["id", "region"]}
    pair = Pair(spark, replica_dir, {"orders": (query, settings)})
    # Of the left-out column, not of the GUID that staged rows have.
    pair.sql("alter table hq.orders add constraint short check (rowguid is null or length(rowguid) = 3)")
    pair.sql("update north.orders set region = 'n' where id = 0")
    pair.sync()
    path = replica_dir / "hq" / "orders"
    rows = spark.read.format("delta").load(str(path)).collect()
    frame = spark.createDataFrame(rows, "id long, region string, rowguid string")
    overwrite = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    overwrite.partitionBy("region").save(str(path))
    pair.sync()
    pair.sql("update north.orders set region = '' where id = 1")
    pair.sync_withholds(r"partition column 'region' that no value is empty.*'id': '1'")
    pair.sql("update north.orders set region = repeat('é', 124) where id = 0")
    pair.sql("update north.orders set region = null where id = 1")
    pair.sync()
    assert {(0, "é" * 124, None), (1, None, None)} < set(pair.rows("hq", "orders"))
    pair.sql("alter table hq.orders set tblproperties ('delta.randomizeFilePrefixes' = 'true')")
    pair.sql("update north.orders set region = 'a b' where id = 0")
    pair.sync()
    pair.sql(r"update north.orders set region = 'x\u0000y' where id = 1")
    pair.sql("update north.orders set region = repeat('/', 300) where id = 0")
    pair.sync()
    assert {(0, "/" * 300, None), (1, "x\0y", None)} < set(pair.rows("hq", "orders"))
    pair.sql("alter table hq.orders set tblproperties ('delta.appendOnly' = 'true')")
    pair.sql("delete from north.orders where id = 2")
    pair.sync_withholds(r"refuses the delete. append-only table .*'id': '2'")
    pair.sql("alter table hq.orders set tblproperties ('delta.appendOnly' = 'false')")
    pair.sync()
    assert 2 not in {row[0] for row in pair.rows("hq", "orders")}
    log = DeltaTable(str(path))
    log.alter.set_table_properties({"delta.isolationLevel": "WriteSerializable"})
    pair.sql("update north.orders set region = 'w' where id = 4")
    pair.sync_refused(
        ApplyError, r"isolationLevel = WriteSerializable.*Nothing of this article was applied. Set it to"
    )
    log.alter.set_table_properties({"delta.isolationLevel": "Serializable"})
    pair.sync()
    assert (4, "w", None) in pair.rows("hq", "orders")
    # As by a job while a session works, whose MERGE is captured then.
    restate(path, lambda body: body["fields"][1].update(metadata={CHAR_VARCHAR: "char(9)"}))
    facts = open_table(path)
    note_captured(path.parent, {1: (path, facts.version, facts.metadata.table_id)})
    pair.sql("update north.orders set region = 'x' where id = 3")
    pair.sync_refused(
        ApplyError, r"'region' is a char\(n\) at one side only.*orders: char\(9\);.*orders: none"
    )


@pytest.mark.slow
@pytest.mark.parametrize("tracking", ["column", "row"])
def test_generated_columns_neither_conflict_nor_hide_a_broken_rule(
    spark: SparkSession, replica_dir: Path, tracking: str
) -> None:
    """Two halves of a row are merged and checked before anything is applied, or no later session could end either."""
    path = replica_dir / "hq" / "lines"
    spark.sql(
        f"create table delta.`{path}` (id int, state int, `unit-price` int, note string, "
        "total int generated always as (state * `unit-price`)) using delta"
    )
    spark.sql(f"insert into delta.`{path}` (id, state, `unit-price`) select id, 2, 3 from range(5)")
    pair = Pair(spark, replica_dir, {"lines": (None, {"key": ["id"], "tracking": tracking})})
    pair.sql("update hq.lines set state = 5 where id in (1, 2)")
    pair.sql("update north.lines set `unit-price` = 7 where id in (1, 2)")
    pair.sql("delete from north.lines where id = 3")
    pair.sql("update hq.lines set state = 4 where id = 3")
    pair.sync()
    is_merged = tracking == "column"
    columns = {
        conflict.key["id"]: conflict.conflict_columns for conflict in conflicts_of(replica_dir / "hq").list()
    }
    assert columns == (
        {"3": ()} if is_merged else {"1": ("state", "unit-price"), "2": ("state", "unit-price"), "3": ()}
    )
    price = 7 if is_merged else 3
    both = (5, price, None, 5 * price)
    assert {row[0]: row[1:] for row in pair.same_rows("lines")} == {
        0: (2, 3, None, 6),
        1: both,
        2: both,
        3: (4, 3, None, 12),
        4: (2, 3, None, 6),
    }
    assert pair.sync().status == "nothing_to_do"
    if not is_merged:
        # A replica that is sent such a value and one that computes it would differ.
        table = DeltaTable(str(replica_dir / "hq" / "lines"))
        rows = table.to_pyarrow_table()
        plain = pa.table(rows.columns, names=rows.column_names)
        write_deltalake(table, plain, mode="overwrite", schema_mode="overwrite")
        pair.sync_refused(SchemaMismatchError, r"'total' is not generated as \(.*\) any more")
        return
    pair.sql("alter table north.lines add constraint few check (total <= 40)")
    pair.sql("update hq.lines set state = 13 where id = 0")
    pair.sql("update north.lines set `unit-price` = 20 where id = 0")
    # Neither do halves that break it together, nor one of the rows as a whole; the other side's takes its place.
    assert pair.sync().waiting == 0
    assert (0, 13, 3, None, 39) in pair.same_rows("lines")
    # Halves that only go together are merged.
    pair.sql("update hq.lines set state = 14 where id = 0")
    pair.sql("update north.lines set `unit-price` = 1 where id = 0")
    assert pair.sync().waiting == 0
    assert (0, 14, 1, None, 14) in pair.same_rows("lines")


@pytest.mark.slow
def test_a_row_of_a_key_and_generated_columns_alone_has_no_column_to_conflict(
    spark: SparkSession, replica_dir: Path
) -> None:
    path = replica_dir / "hq" / "halves"
    spark.sql(
        f"create table delta.`{path}` (id int, half int generated always as (cast(id / 2 as int))) using delta"
    )
    pair = Pair(spark, replica_dir, {"halves": (None, {"key": ["id"], "tracking": "column"})})
    for replica in ("hq", "north"):
        pair.sql(f"insert into {replica}.halves (id) values (4)")
    pair.sync()
    assert pair.same_rows("halves") == [(4, 2)]
    assert pair.conflicts() == 0


@pytest.mark.slow
def test_delta_computes_generated_columns_of_merged_rows(spark: SparkSession, replica_dir: Path) -> None:
    """Each side changed one factor and saw the product 0; the merged row has another one, which neither sent."""
    path = replica_dir / "hq" / "orders"
    spark.sql(
        f"create table delta.`{path}` (id bigint, x int, y int, product int generated always as (x * y), a string, "
        "ts timestamp, day date generated always as (cast(ts as date))) using delta"
    )
    rows = spark.sql("select id, 0 as x, 0 as y, 'a' as a, cast(null as timestamp) as ts from range(4)")
    rows.write.format("delta").mode("append").save(str(path))
    pair = Pair(spark, replica_dir, {"orders": (None, {"key": ["id"], "tracking": "column"})})
    pair.sql("update hq.orders set x = 5 where id = 1")
    pair.sql("update north.orders set y = 7 where id = 1")
    pair.sql("insert into north.orders (id, x, y, a) values (10, 2, 3, 'new')")
    pair.sql("delete from hq.orders where id = 2")
    pair.sync()
    assert {row[:5] for row in pair.same_rows("orders")} == {
        (0, 0, 0, 0, "a"),
        (1, 5, 7, 35, "a"),
        (3, 0, 0, 0, "a"),
        (10, 2, 3, 6, "new"),
    }
    pair.sql("update north.orders set x = 1 where id = 1")
    pair.sync()
    assert (1, 1, 7, 7, "a") in {row[:5] for row in pair.same_rows("orders")}
    assert pair.sync().status == "nothing_to_do"

    # What day a time falls on is another thing in each time zone, and Delta computes it at each replica.
    def in_rome(statement: str) -> None:
        spark.conf.set("spark.sql.session.timeZone", "Europe/Rome")
        try:
            pair.sql(statement)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")

    in_rome("update hq.orders set ts = timestamp '2024-01-01 00:30:00' where id = 1")
    before = head_version(replica_dir / "north" / "orders")
    with pytest.raises(
        CaptureError, match=r"1 changed rows .* generated column 'day' .* time zone UTC, .* Nothing was"
    ):
        pair.sync()
    assert head_version(replica_dir / "north" / "orders") == before
    # Delta checks what a row was before as well, so that no session in another time zone can update it.
    in_rome("delete from hq.orders where id = 1")
    pair.sql("insert into hq.orders (id, x, y, a, ts) values (1, 1, 7, 'a', timestamp '2023-12-31 23:30:00')")
    pair.sync()
    assert {str(row[6]) for row in pair.same_rows("orders") if row[0] == 1} == {"2023-12-31"}


@pytest.mark.slow
def test_a_table_partitioned_by_time_is_read_in_utc_only(spark: SparkSession, replica_dir: Path) -> None:
    """Its values in the log have no time zone where delta-rs wrote them."""

    def rows(*ids: int) -> pa.Table:
        times = pa.array([1_704_067_200_000_000 + number for number in ids], pa.timestamp("us", tz="UTC"))
        return pa.table({"id": list(ids), "at": times, "a": ["x"] * len(ids)})

    table = replica_dir / "hq" / "orders"
    write_deltalake(str(table), rows(1, 2), partition_by=["at"])
    pair = Pair(spark, replica_dir, {"orders": (None, {"key": ["id"]})})
    write_deltalake(str(table), rows(3), mode="append")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Rome")
    try:
        pair.sync_refused(
            EngineError, "partitioned by the timestamp column 'at'.* Europe/Rome .*Set it to UTC"
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    pair.sync()
    assert [row[1] for row in pair.same_rows("orders")] == rows(1, 2, 3)["at"].to_pylist()


@pytest.mark.slow
def test_texts_inside_of_columns_have_their_lengths_too(spark: SparkSession, replica_dir: Path) -> None:
    """delta-rs writes longer ones."""
    table = replica_dir / "hq" / "orders"
    nested = "s struct<c:varchar(3),n:int>, l array<varchar(2)>, m map<varchar(1),struct<x:char(1)>>"
    spark.sql(f"create table delta.`{table}` (id bigint, {nested}) using delta")
    pair = Pair(spark, replica_dir, {"orders": (None, {"key": ["id"]})})
    fits = {"s": {"c": "abc", "n": 1}, "l": ["ab", None], "m": [("a", {"x": "b"})]}
    schema = DeltaTable(str(table)).to_pyarrow_table().schema
    too_long = {"s": {"c": "abcd", "n": 1}, "l": ["ab", "abc"], "m": [("a", {"x": "bc"})]}
    for name, value in too_long.items():
        rows = pa.Table.from_pylist([{"id": 1, **fits}, {"id": 2, **fits, name: value}], schema=schema)
        write_deltalake(str(replica_dir / "north" / "orders"), rows, mode="append")
        pair.sync_withholds(rf"type .*char.* of column '{name}'.*'id': '2'")
        pair.sql("delete from north.orders where true")
        pair.sync()
    pair.sql("insert into north.orders select 3, struct('abc', 1), array('ab', null), map('a', struct('b'))")
    pair.sync()
    assert len(pair.same_rows("orders")) == 1
