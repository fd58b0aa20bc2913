"""What a file's bounds in the log say, rounded or cut by its writer, hides no row: from no report, from no MERGE."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow.parquet import write_table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.row import _row_by_delta_rs, _row_by_spark
from mergerepl.rows.key_bounds import bound_measures, bounds_found, within_bounds

pytestmark = pytest.mark.spark

MOMENT = datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=UTC)
LATER = MOMENT.replace(microsecond=123999)
# Spark cuts texts at 32 letters, deltalake at 64.
SHARED = "a" * 70
COLUMNS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "whole": (
        "decimal(38,0)",
        pa.decimal128(38, 0),
        [Decimal(2**53 + 1), Decimal(2**53), Decimal("9" * 38), Decimal(2**53 + 3)],
    ),
    "fraction": (
        "decimal(38,10)",
        pa.decimal128(38, 10),
        [
            Decimal(f"{'9' * 28}.9999999999"),
            Decimal("9007199254740992.1234567891"),
            Decimal("-9007199254740992.1234567891"),
            Decimal("9007199254740992.1234567892"),
        ],
    ),
    "cents": (
        "decimal(18,2)",
        pa.decimal128(18, 2),
        [Decimal(f"1234567890123456.9{n}") for n in (1, 2, 3, 4)],
    ),
    "big": ("bigint", pa.int64(), [2**53 + 1, -(2**63), 2**63 - 1, 2**53]),
    "text": ("string", pa.string(), [f"{SHARED}b", "\U0010ffff" * 70, f"{SHARED}c", f"{'😀' * 40}z"]),
    "moment": (
        "timestamp",
        pa.timestamp("us", "UTC"),
        [MOMENT, LATER, datetime(1, 1, 1, 0, 0, 0, 1, UTC), LATER.replace(microsecond=123001)],
    ),
    "local": (
        "timestamp_ntz",
        pa.timestamp("us"),
        [each.replace(tzinfo=None) for each in (LATER, MOMENT, datetime(9999, 12, 31, 23, 59, 59, 999999))]
        + [datetime(1, 1, 1, 0, 0, 0, 1)],
    ),
    "day": ("date", pa.date32(), [date(1, 1, 1), date(9999, 12, 31), date(1582, 10, 15), date(1969, 12, 31)]),
}
BOUNDED = ("big", "text", "day")


def keyed_by(column: str) -> PublishedArticle:
    types = tuple(type_ for type_, _, _ in COLUMNS.values())
    names = tuple(COLUMNS)
    return PublishedArticle(
        *("p", "pubid", "t", "artid", 1, "t", (column,), names, types, False, "", "", "", False)
    )


@pytest.fixture(scope="module")
def table(spark: SparkSession, worker_folder: Path) -> Path:
    """Four files of one row: two by deltalake, two by Spark."""
    path = worker_folder / "file_bounds"
    rows = pa.table({name: pa.array(values, type_) for name, (_, type_, values) in COLUMNS.items()})
    for number in range(2):
        write_deltalake(path, rows.slice(number, 1), mode="append")
    for number in range(2, 4):
        file = worker_folder / f"file_bounds_{number}.parquet"
        write_table(rows.slice(number, 1), file)
        spark.read.parquet(str(file)).write.format("delta").mode("append").save(str(path))
    return path


def expected(number: int) -> dict[str, Any]:
    return {name: values[number] for name, (_, _, values) in COLUMNS.items()}


def test_files_state_bounds_that_their_rows_are_not_within(table: Path) -> None:
    """Otherwise the tests below would show nothing."""
    commit = (table / "_delta_log" / f"{0:020}.json").read_text(encoding="utf-8")
    added = next(json.loads(line)["add"] for line in commit.splitlines() if '"add"' in line)
    largest = json.loads(added["stats"])["maxValues"]
    assert largest["whole"] < expected(0)["whole"]
    assert Decimal(str(largest["cents"])) != expected(0)["cents"]
    assert "123456" not in largest["moment"]


@pytest.mark.parametrize("column", COLUMNS)
def test_a_row_is_found_by_its_key(table: Path, column: str) -> None:
    for number in range(4):
        key = expected(number)[column]
        assert _row_by_delta_rs(table, keyed_by(column), [key]) == expected(number)


def test_a_row_is_found_by_its_key_where_spark_reads(
    spark: SparkSession, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    for column in ("whole", "fraction", "moment", "local"):
        assert _row_by_spark(table, keyed_by(column), [expected(0)[column]]) == expected(0)


def test_rows_are_within_the_bounds_of_their_keys(spark: SparkSession, table: Path) -> None:
    """As a MERGE looks for a key: one that it misses, it would insert again."""
    rows = spark.read.format("delta").load(str(table))
    found: list[DataFrame] = []
    for column in BOUNDED:
        article = keyed_by(column)
        for number in range(4):
            key = F.lit(str(expected(number)[column])).cast(COLUMNS[column][0])
            measures = bound_measures(article, lambda _, key=key: key)
            measured = spark.range(1).agg(*(each.alias(name) for name, each in measures.items())).collect()[0]
            within = rows.where(within_bounds(article, bounds_found(article, measured.asDict())))
            of_key = within.where(F.array(F.col(column)) == F.array(key))
            found.append(of_key.select(F.lit(f"{column} {number}").alias("key")))
    counts = reduce(DataFrame.union, found).groupBy("key").count().collect()
    assert {row["key"]: row["count"] for row in counts} == {f"{c} {n}": 1 for c in BOUNDED for n in range(4)}
