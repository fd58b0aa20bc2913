"""RENAME COLUMN at the publisher, also an exchange of names, reaches every subscriber whose table has column mapping."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.cli.main import main
from tests.faults.deaths import dies
from tests.schema.stars import ARTICLES, Star, alter, update
from tests.schema_changes import MAPPED

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
    "stage.after_manifest",
    "publisher.after_merge",
    "subscriber.before_merge",
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Star, Path]:
    """Return a star with unsent edits whose publisher exchanged the names of two columns between edits; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root")
    star.write("north", 1, {"a": "n1"})
    star.write("south", 2, {"b": "s2"})
    star.write("hq", 1, {"b": "h1"})
    for replica in ("hq", "north", "south"):
        alter(spark, star, replica, f"SET TBLPROPERTIES ({MAPPED})")
    update(spark, star, "hq", 3, "a = 'h3'")
    exchange(spark, star, "hq")
    update(spark, star, "hq", 3, "b = 'later'")
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def exchange(spark: SparkSession, star: Star, replica: str) -> None:
    names = (("a", "x"), ("b", "a"), ("x", "b"))
    alter(spark, star, replica, *(f"RENAME COLUMN {before} TO {after}" for before, after in names))


def rows(spark: SparkSession, star: Star, replica: str, name: str) -> dict[int, tuple[str, str]]:
    found = spark.read.format("delta").load(str(star.root / replica / name)).collect()
    return {row["id"]: (row["a"], row["b"]) for row in found}


@pytest.mark.parametrize("point", LADDER)
def test_exchanged_names_travel(star: Star, spark: SparkSession, point: str) -> None:
    if point:
        with dies(point, action="stop"):
            star.sync("north")
    star.settle()
    by_column = {1: ("h1", "n1"), 2: ("s2", "x"), 3: ("y", "later")}
    for name in ARTICLES:
        expected = by_column if name == "by_column" else by_column | {1: ("h1", "x")}
        for replica in ("hq", "north", "south"):
            assert rows(spark, star, replica, name) == expected, (name, replica)
    assert [(row["a"], row["b"]) for row in star.conflicts("hq", "by_row")] == [("y", "n1")]
    assert star.conflicts("hq", "by_column") == []


def test_a_conflict_that_was_logged_under_former_names_is_decided_by_field(
    star: Star, spark: SparkSession
) -> None:
    star.settle()
    exchange(spark, star, "hq")
    alter(spark, star, "hq", "RENAME COLUMN a TO c")
    star.settle()
    (logged,) = mergerepl.Replica(star.root / "hq").conflicts.list(with_rows=True)
    assert logged.losing_row == {"id": 1, "c": "n1", "b": "y"}
    assert logged.winning_row == {"id": 1, "c": "x", "b": "h1"}
    assert set(logged.conflict_columns) == {"b", "c"}
    words = ["conflicts", "resolve", "--all", "--loser", "-f", str(star.root / "hq")]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    found = spark.read.format("delta").load(str(star.root / "hq" / "by_row")).where("id = 1").collect()
    assert [(row["c"], row["b"]) for row in found] == [("n1", "y")]


def test_a_drop_and_an_add_of_one_name_are_two_fields(star: Star, spark: SparkSession) -> None:
    star.settle()
    update(spark, star, "north", 2, "b = 'unsent'")
    alter(spark, star, "hq", "DROP COLUMN b", "ADD COLUMN b STRING", "RENAME COLUMN a TO c")
    update(spark, star, "hq", 1, "b = 'new'")
    star.settle()
    for name in ARTICLES:
        for replica in ("hq", "north", "south"):
            found = spark.read.format("delta").load(str(star.root / replica / name))
            assert found.columns == ["id", "c", "b"]
            assert {row["id"]: row["b"] for row in found.collect()} == {1: "new", 2: None, 3: None}
        (lost,) = star.conflicts("north", name)
        assert (lost["id"], lost["b"]) == (2, "unsent")
        assert mergerepl.Replica(star.root / "north").conflicts.list(with_rows=True)[0].losing_row is not None
