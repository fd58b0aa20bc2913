"""What delta-rs merges into a user's table, Spark merges bit for bit alike (decision 0015)."""

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import ROW
from mergerepl.delta.log import head_version
from mergerepl.delta.reads import feed_through_delta, write_files
from mergerepl.delta.table import open_table
from mergerepl.rows.encodings import encoded
from mergerepl.rows.images import image_type, row_image
from tests.drawn_tables import Drawn, merged, write

pytestmark = pytest.mark.spark


def found(spark: SparkSession, table: Path, versions: tuple[int, int] | None = None) -> list[Any]:
    """Return the rows of a table, or of its feed, each as the bytes that its values are."""
    names = [field["name"] for field in open_table(table).fields]
    rows: DataFrame = spark.read.format("delta").load(str(table))
    kind = F.lit("")
    if versions is not None:
        rows, kind = feed_through_delta(spark, table, *versions), F.col("_change_type")
    images = rows.select(kind.alias("kind"), row_image(names).alias(ROW))
    coded = encoded(F.col(ROW), image_type(images, ROW))
    return sorted(
        (row.kind, bytes(row.coded)) for row in images.select("kind", coded.alias("coded")).collect()
    )


def check(spark: SparkSession, folder: Path, seed: int) -> None:
    """Merge the same rows into two copies of one table, by delta-rs and by Spark, and compare all that others see."""
    drawn = Drawn(seed)
    if not set(drawn.actions.values()) - {"metadata"}:
        return
    one, other, staged = (folder / f"{seed}" / name for name in ("small", "spark", "staged"))
    by_spark = drawn.random.random() < 0.7
    rows = drawn.table()
    for table in (one, other):
        write(spark, rows, drawn.files, table, by_spark=by_spark)
    # Spark took times without a zone for instants in the table that it wrote; deltalake did not.
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_LTZ" if by_spark else "TIMESTAMP_NTZ")
    rows_of_arrow = spark.createDataFrame(drawn.staged()).coalesce(1)
    spark.conf.unset("spark.sql.timestampType")
    write_files(rows_of_arrow, staged)
    commits = [merged(spark, drawn, staged, table, small=table is one) for table in (one, other)]
    small, large = commits
    assert small is not None, seed
    assert large is not None
    assert small.merged_rows == large.merged_rows, seed
    assert (small.mark, small.txns, small.version) == (large.mark, large.txns, large.version)
    assert found(spark, one) == found(spark, other), seed
    if small.data_change:
        assert found(spark, one, (1, 1)) == found(spark, other, (1, 1)), seed
    # Repeated by either, it is done; and Spark finds each row by the bounds that delta-rs gave its file.
    assert merged(spark, drawn, staged, one, small=bool(seed % 2)) == small
    assert head_version(one) == 1
    rows = spark.read.format("delta").load(str(one))
    for name, type_ in drawn.columns:
        if pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_date(type_):
            column = F.col(f"`{name}`")
            ends = rows.agg(F.min(column).alias("least"), F.max(column).alias("most")).collect()[0]
            for end in (ends["least"], ends["most"]):
                # py4j has no dates of the years before 1000.
                value = F.lit(end.isoformat()).cast("date") if isinstance(end, date) else F.lit(end)
                assert end is None or rows.where(column == value).count(), (seed, name)


@pytest.mark.parametrize("seed", [pytest.param(range(300), marks=pytest.mark.slow, id="300"), range(1)])
def test_both_writers_come_to_the_same_bits(spark: SparkSession, replica_dir: Path, seed: range) -> None:
    for each in seed:
        check(spark, replica_dir, each)
