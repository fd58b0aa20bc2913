"""What a row had in columns that its article leaves out, when a delete of ours is undone by a late write."""

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl.delta.merge import with_left_out
from mergerepl.delta.table import open_table
from mergerepl.publish.snapshot import replica_table
from tests.networks import article_row
from tests.staging.memory import frames_in_memory

COLUMNS = {"published_columns": ("id", "a"), "published_types": ("bigint", "string"), "vertical_partition": 1}


@pytest.mark.slow
def test_rows_come_back_with_what_can_be_read_only(
    spark: SparkSession, replica_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = replica_dir / "t"
    # Users may have added second rows of 1 and 3.
    rows = {"id": [1, 1, 2, 3, 3], "a": [*"abcde"], "odd name": ["one", "one", None, "three", "four"]}
    write_deltalake(str(table), pa.table(rows))
    DeltaTable(str(table)).delete("id < 3")
    article = article_row("t", 1, **COLUMNS).published("p")
    source = spark.createDataFrame(
        [("delete", 9, None), ("insert", 1, "late"), ("update", 3, "in")], "action string, c0 long, c1 string"
    )
    kept = frames_in_memory(spark)

    def yielded(*wanted: str) -> list[tuple[object, ...]]:
        with with_left_out(source, table, article, {"c0": ("1", "9")}, 0, wanted) as (found, fields):
            columns = ["action", "c0", "c1", *fields.values()]
            return [tuple(row) for row in found.select(columns).sort("action").collect()]

    alone = [("delete", 9, None), ("insert", 1, "late"), ("update", 3, "in")]
    deleted, inserted, updated = alone
    assert yielded("odd name") == [(*deleted, None), (*inserted, "one"), (*updated, None)]
    # Dropped meanwhile, or not there yet.
    assert yielded("other") == alone
    assert frames_in_memory(spark) == kept
    DeltaTable(str(table)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with caplog.at_level(logging.WARNING):
        assert yielded("odd name") == alone
    assert "without the columns odd name: version 0 cannot be read" in caplog.text


def test_what_a_table_keeps_statistics_of_is_not_asked_of_columns_that_are_left_out(tmp_path: Path) -> None:
    """Delta refuses every later ALTER of a table without such a column."""
    stated = {"delta.dataSkippingStatsColumns": "id,secret", "delta.logRetentionDuration": "interval 9 days"}
    path = tmp_path / "t"
    write_deltalake(str(path), pa.table({"id": [1], "secret": [2]}), configuration=stated)
    facts = open_table(path)
    parts, whole = (
        replica_table(facts, columns, {}, clustering=(), is_computable=lambda _: True)
        for columns in (["id"], ["id", "secret"])
    )
    assert "delta.dataSkippingStatsColumns" not in parts.properties
    assert {*stated} <= {*whole.properties}
