"""DROP COLUMN at the publisher: the column goes, or stays unpublished; a value that was not sent is a logged conflict."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from tests.faults.deaths import dies
from tests.schema.stars import ARTICLES, Star

pytestmark = [pytest.mark.spark, pytest.mark.slow]
WITHOUT_B = pa.schema([("id", pa.int64()), ("a", pa.string())])
LADDER = (
    "schema.before_record",
    "schema.after_record",
    "schema.after_capture",
    "schema.before_alter",
    "schema.after_alter",
    "schema.before_capture",
    "schema.before_dropped_values",
    "schema.between_dropped_values",
    "schema.after_dropped_values",
    "schema.after_dropped_values:2",
    "schema.before_articles",
    "stage.after_manifest",
    "publisher.after_merge",
)
Logged = list[tuple[int, str, str | None]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star without column mapping whose publisher replaced its tables without a column, beside unsent edits."""
    star = Star(tmp_path_factory.mktemp("star") / "root", subscribers=("north", "south", "east"))
    star.write("east", 2, {"b": "e2"})
    star.write("north", 1, {"b": "n1"})
    star.write("north", 2, {"a": "n2", "b": "n2b"})
    star.write("south", 3, {"a": "s3"})
    star.write("hq", 3, {"b": "h3"})
    rows = [{"id": key, "a": "h1" if key == 1 else "x"} for key in (1, 2, 3)]
    star.replace("hq", rows, WITHOUT_B)
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def logged(star: Star, replica: str, name: str) -> Logged:
    """Return what a replica has logged of an article: key, a, b of each losing row."""
    found = star.conflicts(replica, name)
    return sorted((row["id"], row["a"], row["b"]) for row in found)


def check(star: Star) -> None:
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert tables["hq"] == {1: {"a": "h1"}, 2: {"a": "n2"}, 3: {"a": "s3"}}
        for replica in star.subscribers:
            assert {key: {"a": row["a"]} for key, row in tables[replica].items()} == tables["hq"]
        # The column that stays is the subscriber's own.
        assert tables["north"][2]["b"] == "n2b"
        assert logged(star, "north", name) == [(1, "x", "n1"), (2, "n2", "n2b")]
    # By row, each unsent row has a value of the field; by column, only a row whose field was set.
    assert logged(star, "south", "by_row") == [(3, "s3", "y")]
    assert logged(star, "south", "by_column") == []
    for name in ARTICLES:
        assert logged(star, "east", name) == [(2, "x", "e2")]
        # An edit that was only in the dropped column, at either side, meets no other one.
        assert logged(star, "hq", name) == []


def test_a_dropped_column_stays_unpublished_and_unsent_values_are_logged(star: Star) -> None:
    check(star)
    for name in ARTICLES:
        (mark,) = [c["userMetadata"] for c in star.table("north", name).history() if "leave" in str(c)]
        assert "schema:leave:c2:b" in mark
    found = mergerepl.Replica(star.root / "north").conflicts.list(with_rows=True)
    (one,) = (each for each in found if (each.article, each.key["id"]) == ("by_column", "2"))
    assert one.losing_row == {"id": 2, "a": "n2", "b": "n2b"}
    assert (one.winning_row, one.conflict_type, one.conflict_columns) == (None, 11, ("b",))
    assert "The publisher does not publish b any more, and this value was not sent" in one.reason_text
    changes = mergerepl.Replica(star.root / "hq").schema.list()[0].changes
    assert changes == ("drop b", "the table was replaced")


@pytest.mark.parametrize("point", LADDER)
def test_a_sync_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    with dies(point, action="stop"):
        star.sync("north")
    check(star)


def test_a_write_just_before_the_column_ends_is_logged(star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    from mergerepl.merge.schema import down

    def written(point: str) -> None:
        if point == "schema.before_alter":
            monkeypatch.setattr(down, "failpoint", lambda _: None)
            star.write("north", 3, {"b": "late"})

    monkeypatch.setattr(down, "failpoint", written)
    star.sync("north")
    star.settle()
    for name in ARTICLES:
        assert (3, "x", "late") in logged(star, "north", name)
        assert star.rows("north", name)[3]["b"] == "late"


@pytest.mark.parametrize("by", ["subscriber_wins", "publisher_wins"])
def test_an_edit_that_nobody_sees_wins_no_row(tmp_path: Path, by: str) -> None:
    star = Star(tmp_path / "root", by, subscribers=("north", "south"))
    # First edits, captured twice; then rows with metadata of former sessions.
    for is_again in (False, True):
        star.write("north", 1, {"b": f"n1{is_again}"})
        star.project.capture("north")
        star.write("north", 1, {"b": f"N1{is_again}"})
        if is_again:
            break
        star.write("south", 3, {"a": "s3"})
        star.settle()
    star.write("hq", 1, {"a": "h1"})
    star.write("north", 2, {"a": "n2"})
    star.write("north", 2, {"b": "n2b"})
    star.write("hq", 2, {"b": "h2"})
    star.write("north", 3, {"b": "n3"})
    star.delete("hq", 3)
    star.replace("hq", [{"id": 1, "a": "h1"}, {"id": 2, "a": "x"}], WITHOUT_B)
    star.settle()
    for name in ARTICLES:
        for rows in star.tables(name).values():
            assert {key: row["a"] for key, row in rows.items()} == {1: "h1", 2: "n2"}
        assert logged(star, "hq", name) == []
        assert {b for _, _, b in logged(star, "north", name)} == {"N1True", "n2b", "n3"}
    assert not any(each.download.total for result in star.sync() for each in result.articles)


def test_a_value_that_came_while_a_session_ran_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergerepl.merge.apply import side

    star = Star(tmp_path / "root", subscribers=("north",))
    # The other article is not merged beside it.
    star.table("hq", "by_column").update({"a": "'h3'"}, predicate="id = 3")

    def written(point: str) -> None:
        if point == "subscriber.before_merge":
            monkeypatch.setattr(side, "failpoint", lambda _: None)
            star.table("north", "by_column").update({"b": "'late'"}, predicate="id = 3")

    monkeypatch.setattr(side, "failpoint", written)
    (result,) = star.sync()
    assert result.error is None
    star.replace("hq", [{"id": key, "a": "h3" if key == 3 else "x"} for key in (1, 2, 3)], WITHOUT_B)
    star.settle()
    assert logged(star, "north", "by_column") == [(3, "h3", "late")]


def check_returned(star: Star, spark: SparkSession) -> None:
    """Check that b stops each subscriber until its old values went, by the statements that the messages give."""
    for result, replica in zip(star.sync(), star.subscribers, strict=True):
        assert "SET `b` = NULL WHERE `b` IS NOT NULL" in str(result.error)
        assert star.rows(replica, "by_row")[2]["b"] is not None
    for name in ARTICLES:
        assert [b for key, _, b in logged(star, "north", name) if key in (1, 2)] == ["n1", "n2b"]
        for replica in ("north", "south"):
            star.table(replica, name).update({"b": "NULL"}, predicate="b IS NOT NULL")
        east = f"ALTER TABLE delta.`{star.root / 'east' / name}`"
        spark.sql(f"{east} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
        spark.sql(f"{east} DROP COLUMN b")
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name) | {"east": spark_rows(spark, star, "east", name)}
        assert {key: row["b"] for key, row in tables["hq"].items()} == {1: "new", 2: None, 3: None}
        assert list(tables.values()) == [tables["hq"]] * 4


def spark_rows(spark: SparkSession, star: Star, replica: str, name: str) -> dict[int, dict[str, str]]:
    found = spark.read.format("delta").load(str(star.root / replica / name)).collect()
    return {row["id"]: {k: v for k, v in row.asDict().items() if k != "id"} for row in found}


def test_a_name_that_a_drop_left_behind_is_published_again_once_it_is_empty(
    star: Star, spark: SparkSession
) -> None:
    star.settle()
    star.add("hq", "b")
    star.write("hq", 1, {"b": "new"})
    check_returned(star, spark)


def test_a_drop_and_an_addition_of_one_name_are_two_steps_of_a_session(
    star: Star, spark: SparkSession
) -> None:
    star.add("hq", "b")
    star.write("hq", 1, {"b": "new"})
    check_returned(star, spark)


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_session_whose_rows_have_a_dropped_column_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    from mergerepl.merge.apply import side

    star = Star(tmp_path / "root", subscribers=("north",))
    # The other article is not merged beside it.
    north, hq = star.table("north", "by_row"), star.table("hq", "by_row")
    north.update({"b": "'n1'"}, predicate="id = 1")
    north.update({"a": "'n2'"}, predicate="id = 2")
    hq.update({"b": "'h3'"}, predicate="id = 3")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "a": ["x"] * 3})

    def drop() -> None:
        write_deltalake(str(star.root / "hq" / "by_row"), rows, mode="overwrite", schema_mode="overwrite")

    if is_dead:
        with dies("publisher.before_merge", action="stop"):
            star.sync("north")
        drop()
    else:

        def dropped(point: str) -> None:
            if point == "publisher.before_merge":
                monkeypatch.setattr(side, "failpoint", lambda _: None)
                drop()

        monkeypatch.setattr(side, "failpoint", dropped)
        with pytest.raises(mergerepl.MergeReplError, match="was not carried out to its end"):
            raise star.sync("north")[0].error or AssertionError
    star.settle()
    tables = star.tables("by_row")
    assert tables["hq"] == {1: {"a": "x"}, 2: {"a": "n2"}, 3: {"a": "x"}}
    assert {key: row["a"] for key, row in tables["north"].items()} == {1: "x", 2: "n2", 3: "x"}
    assert logged(star, "north", "by_row") == [(1, "x", "n1"), (2, "n2", "y")]
