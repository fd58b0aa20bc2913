"""Every changed key lies in one of the ranges that a MERGE states, and files between these are left out."""

from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.key_ranges import key_ranges
from mergerepl.delta.table import open_table
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.key_bounds import within_bounds
from mergerepl.rows.sql import quote

pytestmark = pytest.mark.spark

_FIRST = date(1970, 1, 1)

CASES = {
    "both ends": ("bigint", [*range(20), *range(1980, 2000)], 2),
    "three places": ("int", [0, 1, 2, 1000, 1999], 3),
    "all over": ("bigint", [*range(0, 2000, 20)], None),
    "days": ("date", [0, 1, 1500, 1999], 3),
    "ends of the type": ("bigint", [-(2**63), 0, 2**63 - 1], 3),
    "one range": ("bigint", list(range(450, 550)), 0),
    "most rows": ("bigint", [*range(700), *range(1300, 2000)], 0),
    "texts": ("string", [0, 1999], 0),
}


def article(type_: str) -> PublishedArticle:
    return PublishedArticle(
        *("p", "pubid", "orders", "artid", 1, "orders", ("k y",), ("k y",), (type_,)),
        *(False, "row", "priority", "", False),
    )


def keys(type_: str, numbers: list[int]) -> pa.Table:
    values: list[object] = list(numbers)
    if type_ == "date":
        values = [_FIRST + timedelta(days=number) for number in numbers]
    if type_ == "string":
        values = [f"{number:05}" for number in numbers]
    of = {"bigint": pa.int64(), "int": pa.int32(), "date": pa.date32(), "string": pa.string()}
    return pa.table({"k y": pa.array(values, of[type_])})


@pytest.mark.parametrize("case", CASES)
def test_keys_lie_in_few_ranges(spark: SparkSession, tmp_path: Path, case: str) -> None:
    type_, numbers, most = CASES[case]
    for first in range(0, 2000, 250):
        write_deltalake(tmp_path / "t", keys(type_, list(range(first, first + 250))), mode="append")
    of_type = article(type_)
    rows = spark.createDataFrame(keys(type_, numbers)).select(F.col(quote("k y")).alias("c0"))
    lowest, highest = rows.agg(F.min("c0").cast("string"), F.max("c0").cast("string")).collect()[0]
    found = key_ranges(rows, open_table(tmp_path / "t"), of_type, {"c0": (lowest, highest)}, len(numbers))
    assert len(found) == most if most is not None else 1 < len(found) <= 32
    named = rows.withColumnRenamed("c0", "k y")
    inside = [within_bounds(of_type, each) for each in found]
    for row in (
        named.select("k y", *(each.alias(f"r{i}") for i, each in enumerate(inside))).collect()
        if found
        else ()
    ):
        assert sum(row[1:]) == 1, row
