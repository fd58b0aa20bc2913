"""Wider types at the publisher reach every subscriber whose table has type widening, before the rows that need them."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from tests.faults.deaths import dies
from tests.schema.stars import ARTICLES, Star

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LADDER = (
    "",
    "schema.before_record",
    "schema.after_record",
    "schema.after_capture",
    "schema.before_alter",
    "schema.after_alter",
    "schema.after_alter:2",
    "schema.before_capture",
    "schema.before_articles",
    "schema.before_published_version",
    "schema.after_articles",
    "stage.after_manifest",
    "publisher.after_merge",
    "subscriber.before_merge",
)
TYPES = {"qty": "integer", "price": "float", "cost": "decimal(5,2)", "day": "date"}
WIDE = {"qty": "BIGINT", "price": "DOUBLE", "cost": "DECIMAL(12,4)", "day": "TIMESTAMP_NTZ"}
WIDENING = (
    "SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported')"
)
FIRST: Mapping[str, Any] = {"qty": 7, "price": 0.5, "cost": Decimal("1.25"), "day": datetime(2024, 2, 29)}
BIG = {"qty": 2**40, "price": 0.1, "cost": Decimal("12345678.1234"), "day": datetime(2024, 3, 1, 12, 30)}


def with_numbers(table: Path) -> None:
    """Add columns of four types with values."""
    opened = DeltaTable(str(table))
    opened.alter.add_columns([Field(name, PrimitiveType(type_), True) for name, type_ in TYPES.items()])
    opened.update({"qty": "7", "price": "0.5", "cost": "1.25", "day": "date '2024-02-29'"})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Star, Path]:
    """Return a star with unsent edits of the narrow types whose publisher widened four columns; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root", prepared=with_numbers)
    for replica in ("north", "south"):
        alter(spark, star, replica, WIDENING)
    update(spark, star, "north", 1, "qty = 8, price = 0.25, cost = 2.5, day = DATE '2024-01-01'")
    update(spark, star, "south", 2, "qty = 9")
    update(spark, star, "hq", 1, "qty = 10, price = 4, cost = 3, day = DATE '2024-01-02'")
    alter(spark, star, "hq", WIDENING, *(f"ALTER COLUMN {name} TYPE {type_}" for name, type_ in WIDE.items()))
    update(
        spark,
        star,
        "hq",
        3,
        "qty = 1099511627776, price = 0.1, cost = 12345678.1234, day = TIMESTAMP_NTZ '2024-03-01 12:30:00'",
    )
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def alter(spark: SparkSession, star: Star, replica: str, *changes: str) -> None:
    for name in ARTICLES:
        for change in changes:
            spark.sql(f"ALTER TABLE delta.`{star.root / replica / name}` {change}")


def update(spark: SparkSession, star: Star, replica: str, key: int, values: str) -> None:
    for name in ARTICLES:
        spark.sql(f"UPDATE delta.`{star.root / replica / name}` SET {values} WHERE id = {key}")


def rows(spark: SparkSession, star: Star, replica: str, name: str) -> dict[int, dict[str, Any]]:
    found = spark.read.format("delta").load(str(star.root / replica / name)).select("id", *TYPES).collect()
    return {row["id"]: {key: value for key, value in row.asDict().items() if key != "id"} for row in found}


@pytest.mark.parametrize("point", LADDER)
def test_wider_types_travel(star: Star, spark: SparkSession, point: str) -> None:
    if point:
        with dies(point, action="stop"):
            star.sync("north")
    star.settle()
    won = {"qty": 10, "price": 4.0, "cost": Decimal("3.0000"), "day": datetime(2024, 1, 2)}
    cost = {"cost": Decimal("1.2500")}
    expected = {1: won, 2: {**FIRST, **cost, "qty": 9}, 3: BIG}
    lost = {"qty": 8, "price": 0.25, "cost": Decimal("2.5000"), "day": datetime(2024, 1, 1)}
    for name in ARTICLES:
        for replica in ("hq", "north", "south"):
            table = spark.read.format("delta").load(str(star.root / replica / name))
            assert {n: t.upper() for n, t in table.dtypes if n in WIDE} == WIDE
            assert rows(spark, star, replica, name) == expected, (name, replica)
        (logged,) = star.conflicts("hq", name)
        assert {key: logged[key] for key in lost} == lost


def test_a_conflict_that_was_logged_with_former_types_is_decided(star: Star, spark: SparkSession) -> None:
    star.settle()
    alter(spark, star, "hq", "ALTER COLUMN cost TYPE DECIMAL(20,8)")
    star.settle()
    words = ["conflicts", "resolve", "--all", "--loser", "-f", str(star.root / "hq")]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    star.settle()
    for name in ARTICLES:
        for replica in ("hq", "north", "south"):
            found = rows(spark, star, replica, name)[1]
            assert (found["qty"], found["cost"]) == (8, Decimal("2.5")), (name, replica)
            assert found["day"] == datetime(2024, 1, 1)
