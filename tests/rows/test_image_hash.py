"""Images with different bits have different hashes, images with the same bits the same one."""

import pytest
from pyspark.sql import SparkSession

from mergerepl.frames import F
from mergerepl.rows.images import image_hash, image_type

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("type_", ["float", "double"])
def test_floating_point_numbers(spark: SparkSession, type_: str) -> None:
    nan, infinite = float("nan"), float("inf")
    values = [0.0, -0.0, nan, infinite, -infinite, 1.5, -1.5, None, nan, -0.0]
    rows = spark.createDataFrame(list(enumerate(values)), f"n int, value {type_}")
    images = rows.select("n", F.struct(F.col("value").alias("c0")).alias("row"))
    found = images.select("n", image_hash("row", image_type(images, "row")).alias("hash")).collect()
    of = {row.n: row.hash for row in found}
    assert len({of[n] for n in range(8)}) == 8
    assert (of[8], of[9]) == (of[2], of[1])
