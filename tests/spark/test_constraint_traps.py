"""CHECK constraints of a destination: what can be told before the MERGE, and what Delta means by one."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mergerepl.errors import ApplyError, CaptureError
from mergerepl.store.deltalog import head_version
from tests.spark.test_key_traps import Pair


@pytest.mark.timeout(900)
def test_a_check_is_told_from_published_columns_and_must_be_true(
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
    # Delta refuses a NULL, which SQL's CHECK would take.
    with pytest.raises(Exception, match="DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"):
        pair.sql("insert into hq.orders values (11, 'null', null, 0)")
    pair.sql("insert into north.orders values (11, 'null', null)")
    tables = [replica_dir / replica / "orders" for replica in ("hq", "north")]
    before = [head_version(table) for table in tables]
    with pytest.raises(ApplyError, match=r"CHECK constraint 'positive'.*\"id\":11.*Nothing was applied"):
        pair.sync()
    assert [head_version(table) for table in tables] == before


@pytest.mark.timeout(900)
def test_delta_computes_generated_columns_of_merged_rows(spark: SparkSession, replica_dir: Path) -> None:
    """Each side changed one factor and saw the product 0; the merged row has another one, told by neither."""
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
