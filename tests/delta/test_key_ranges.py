"""Every changed key lies in one of the ranges that a MERGE states."""

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import PUBLISHER_ACTION, ROW
from mergerepl.delta import merge
from mergerepl.delta.merge import key_ranges
from mergerepl.delta.table import open_table
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.key_bounds import KeyBounds, within_bounds
from mergerepl.rows.sql import quote
from tests.drawn_tables import transaction

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
        *("p", "pubid", "orders", "artid", 1, "orders", ("k y",), ("k y", "v"), (type_, "string")),
        *(False, "row", "priority", "", False),
    )


def keys(type_: str, numbers: list[int]) -> pa.Table:
    values: list[object] = list(numbers)
    if type_ == "date":
        values = [_FIRST + timedelta(days=number) for number in numbers]
    if type_ == "string":
        values = [f"{number:05}" for number in numbers]
    of = {"bigint": pa.int64(), "int": pa.int32(), "date": pa.date32(), "string": pa.string()}
    return pa.table({"k y": pa.array(values, of[type_]), "v": ["old"] * len(values)})


@pytest.fixture(autouse=True)
def _few_rows_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_ROWS", 2000)


def table_of(folder: Path, type_: str) -> Path:
    table = folder / "t"
    for first in range(0, 2000, 250):
        write_deltalake(table, keys(type_, list(range(first, first + 250))), mode="append")
    return table


@pytest.mark.parametrize("case", CASES)
def test_keys_lie_in_few_ranges(spark: SparkSession, tmp_path: Path, case: str) -> None:
    type_, numbers, most = CASES[case]
    table, of_type = table_of(tmp_path, type_), article(type_)
    rows = spark.createDataFrame(keys(type_, numbers)).select(F.col(quote("k y")).alias("c0"))
    lowest, highest = rows.agg(F.min("c0").cast("string"), F.max("c0").cast("string")).collect()[0]
    found = key_ranges(lambda: rows, open_table(table), of_type, {"c0": (lowest, highest)}, len(numbers))
    assert len(found) == most if most is not None else 1 < len(found) <= 32
    named = rows.withColumnRenamed("c0", "k y")
    inside = [within_bounds(of_type, each).alias(f"r{i}") for i, each in enumerate(found)]
    for row in named.select("k y", *inside).collect() if found else ():
        assert sum(row[1:]) == 1, row


def test_few_rows_and_days_that_arrow_does_not_know_have_no_ranges(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = open_table(table_of(tmp_path, "date"))
    days = spark.sql("select explode(array(date'-0044-03-15', date'1970-01-01', date'+10000-01-01')) as c0")
    for ends in (("-0044-03-15", "1970-01-01"), ("1970-01-01", "+10000-01-01")):
        assert key_ranges(lambda: days, table, article("date"), {"c0": ends}, 2) == []
    monkeypatch.setattr(merge, "_ROWS", 2001)
    assert key_ranges(lambda: days, table, article("date"), {"c0": ("1970-01-01", "1975-01-01")}, 2) == []


def test_rows_of_several_ranges_are_merged(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(tmp_path, "bigint")
    changes = [
        (3, "update"),
        (1200, "delete"),
        (1201, "leave"),
        (1999, "update"),
        (5000, "insert"),
        (None, "insert"),
    ]
    counts = {action: sum(each == action for _, each in changes) for _, action in changes}

    def staged(session: SparkSession) -> DataFrame:
        rows = session.createDataFrame(changes, "key bigint, action string")
        return rows.select(
            F.col("action").alias(PUBLISHER_ACTION),
            F.struct(F.col("key").alias("c0"), F.lit("new").alias("c1")).alias(ROW),
        )

    stated: list[int] = []
    same_key: Any = merge.same_key

    def noted(of: PublishedArticle, bounds: KeyBounds, ranges: list[KeyBounds]) -> Any:
        stated.append(len(ranges))
        return same_key(of, bounds, ranges)

    monkeypatch.setattr(merge, "same_key", noted)
    commit = merge.merge_rows(
        lambda: spark,
        staged,
        table,
        article("bigint"),
        action=PUBLISHER_ACTION,
        actions=counts,
        bounds={"c0": ("3", "5000")},
        transaction=transaction(1),
        from_version_exclusive=0,
    )
    assert stated == [4]
    assert commit.merged_rows == (2, 2, 2)
    rows = DeltaTable(str(table)).to_pyarrow_table()
    new = rows.filter(pc.equal(rows["v"], "new"))["k y"].to_pylist()
    assert sorted(new, key=str) == [1999, 3, 5000, None]
    assert rows.num_rows == 2000
    assert not {1200, 1201} & set(rows["k y"].to_pylist())
