"""Rows of Arrow as frames, and rows that are kept."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.spark.in_memory import collected, frame_of, keep_for_joins, release

pytestmark = pytest.mark.spark


def test_no_row_after_an_empty_chunk_is_lost(spark: SparkSession) -> None:
    parts = [pa.table({"a": pa.array(values, pa.int64())}) for values in ([1, 2], [], [3])]
    rows = pa.concat_tables(parts)
    assert rows["a"].num_chunks == 3
    assert collected(frame_of(spark, rows)).to_pylist() == rows.to_pylist()


def test_rows_kept_for_joins_are_joined_as_they_are(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def kept(name: str):
        rows, known = (spark.range(100).select(F.col("id").cast("string").alias("key"), "id") for _ in "ab")
        joined = rows.join(known.withColumnRenamed("id", name).hint("merge"), on="key", how="left")
        return keep_for_joins(joined.select("key", name))

    one, other = kept("one"), kept("other")
    both = one.join(other, on="key", how="full_outer")
    both.explain()
    plan = capsys.readouterr().out
    assert "SortMergeJoin" in plan
    assert "Exchange" not in plan
    assert "Sort [" not in plan
    assert both.where("one = other").count() == 100
    assert both.sparkSession is spark
    for frame in (one, other):
        release(frame)
    assert spark.conf.get("spark.sql.adaptive.enabled") == "true"
