"""Columns of a transactional article that change at the publisher, and what becomes of them at the subscribers."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mergerepl.delta.table import open_table
from tests.schema_changes import MAPPED
from tests.transactional.publications import dies, new_table, publication_file, run

pytestmark = pytest.mark.spark

FEATURES = f"{MAPPED}, 'delta.enableTypeWidening' = 'true'"


def rows(spark: SparkSession, table: Path) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.read.format("delta").load(str(table)).collect()))


REPLACED = "select 2L id, 'B' text, 2L qty union all select 3L, 'c', 3L"


@pytest.mark.slow
def test_a_renamed_column_and_a_replaced_table_reach_a_subscriber_in_one_sync(
    spark: SparkSession, replica_dir: Path
) -> None:
    items, there = (
        new_table(replica_dir / "hq", "items", {1: ("a", 1), 2: ("b", 2)}),
        replica_dir / "north" / "items",
    )
    file = publication_file(replica_dir)
    run("apply", "-f", file)
    for table in (items, there):
        spark.sql(f"alter table delta.`{table}` set tblproperties ({MAPPED})")
    spark.sql(f"alter table delta.`{items}` rename column note to text")
    spark.sql(
        f"create or replace table delta.`{items}` using delta as select id, text, int(qty) qty from ({REPLACED})"
    )
    run("sync", "-f", file)
    assert open_table(items).properties["delta.enableChangeDataFeed"] == "true"
    assert rows(spark, there) == rows(spark, items)


@pytest.mark.slow
def test_columns_are_followed_by_tables_that_can_and_a_death_is_made_up_for(
    spark: SparkSession, replica_dir: Path
) -> None:
    hq, north, south = (replica_dir / name for name in ("hq", "north", "south"))
    items = new_table(hq, "items", {1: ("a", 1), 2: ("b", 2)})
    file = publication_file(replica_dir, subscribers=[{"subscriber": "./north"}, {"subscriber": "./south"}])
    run("apply", "-f", file)
    here, there = f"delta.`{items}`", f"delta.`{north / 'items'}`"
    for table in (here, there):
        spark.sql(f"alter table {table} set tblproperties ({FEATURES})")
    spark.sql(f"alter table {here} rename column note to text")
    spark.sql(f"alter table {here} alter column qty type bigint")
    spark.sql(f"alter table {here} add columns (day date)")
    spark.sql(f"update {here} set text = 'A', qty = {2**40}, day = '2024-02-29' where id = 1")
    spark.sql(f"alter table {here} drop column day")
    # A death between a statement and the position, twice.
    for _ in range(2):
        dies("distribute.after_columns", "sync", "north", "-f", file)
    run("sync", "north", "-f", file)
    assert [each["name"] for each in open_table(north / "items").fields] == ["id", "text", "qty"]
    assert rows(spark, north / "items") == rows(spark, items) == [(1, "A", 2**40), (2, "b", 2)]
    # A table without column mapping stops, and the other subscriptions go on.
    stopped = run("sync", "south", "-f", file, code=1)["error"]
    assert stopped["number"] == "21076"
    assert "was renamed to text" in stopped["message"]
    statement = stopped["message"].partition("Run `ALTER")[2].partition("`, then")[0]
    spark.sql(f"ALTER{statement}")
    stopped = run("sync", "south", "-f", file, code=1)["error"]
    statement = stopped["message"].partition("Run `ALTER")[2].partition("`, then")[0]
    assert "delta.enableTypeWidening" in statement
    spark.sql(f"ALTER{statement}")
    run("sync", "south", "-f", file)
    assert rows(spark, south / "items") == rows(spark, items)
    # As dbt does: the properties go, also column mapping, and the feed is set again.
    spark.sql(f"create or replace table {here} using delta as {REPLACED}")
    run("sync", "-f", file)
    assert open_table(items).properties["delta.enableChangeDataFeed"] == "true"
    assert (
        rows(spark, north / "items")
        == rows(spark, south / "items")
        == rows(spark, items)
        == [(2, "B", 2), (3, "c", 3)]
    )
