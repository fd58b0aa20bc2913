"""Comments, defaults and DROP NOT NULL at the publisher reach every subscriber, and no row is sent for them."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.delta.tables import open_table
from mergerepl.errors import SchemaMismatchError, SchemaStoppedError
from mergerepl.merge.schema.down import require_expression
from mergerepl.merge.schema.follow import article_row
from mergerepl.merge.schema.subscribers_table import table_at
from mergerepl.model.definition import PublishedField
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from tests.faults.deaths import dies
from tests.schema.stars import ARTICLES, Star
from tests.schema.stars import LADDER as FOLLOWING

LADDER = [each for each in FOLLOWING if each != "stage.after_manifest"]


def comment(star: Star, replica: str, column: str, text: str) -> None:
    for name in ARTICLES:
        star.table(replica, name).alter.set_column_metadata(column, {"comment": text})


def field(star: Star, replica: str, name: str, column: str) -> tuple[str, str, bool]:
    """Return the comment and the default of a column, and whether it takes NULL."""
    found = next(each for each in star.table(replica, name).schema().fields if each.name == column)
    said = found.metadata
    return said.get("comment", ""), said.get("CURRENT_DEFAULT", ""), found.nullable


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star with unsent edits whose publisher has other comments, also of a new column; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root")
    star.write("north", 1, {"a": "n1"})
    star.write("south", 2, {"b": "s2"})
    comment(star, "hq", "a", "first")
    star.write("hq", 3, {"a": "h3"})
    comment(star, "hq", "a", "the customer's name")
    comment(star, "south", "b", "south's own")
    star.add("hq", "c")
    comment(star, "hq", "c", "new")
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def check(star: Star) -> None:
    star.settle()
    for name in ARTICLES:
        for replica in ("hq", "north", "south"):
            assert field(star, replica, name, "a")[0] == "the customer's name"
            assert field(star, replica, name, "c")[0] == "new"
        assert field(star, "south", name, "b")[0] == "south's own"
        tables = star.tables(name)
        assert [tables["hq"][key][each] for key, each in ((1, "a"), (2, "b"), (3, "a"))] == ["n1", "s2", "h3"]
        assert tables["north"] == tables["south"] == tables["hq"]
        assert star.conflicts("hq", name) == []


@pytest.mark.slow
def test_comments_travel_with_unsent_edits(star: Star) -> None:
    with pytest.raises(SchemaMismatchError, match="`mergerepl sync` follows that before"):
        star.project.sync("north", dry_run=True)
    check(star)
    found = mergerepl.Replica(star.root / "south").schema.list()
    assert {words for each in found for words in each.changes} == {
        *("comment of a: first", "comment of a: the customer's name", "add c string")
    }


@pytest.mark.parametrize("point", [pytest.param(point, marks=pytest.mark.slow) for point in LADDER])
def test_a_sync_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    with dies(point, action="stop"):
        star.sync("north")
    check(star)


def require_b(star: Star, *, nullable: bool) -> None:
    """Replace the publisher's tables by the same rows, in columns of which b is NOT NULL or takes NULL."""
    kept = [{"id": key, **row} for key, row in star.rows("hq", "by_row").items()]
    fields = [("id", pa.int64()), ("a", pa.string()), pa.field("b", pa.string(), nullable=nullable)]
    star.replace("hq", kept, pa.schema(fields))


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["", "schema.after_record", "schema.after_capture", "schema.before_articles"]
)
def test_not_null_of_the_publisher_holds_for_rows_that_go_up(tmp_path: Path, point: str) -> None:
    star = Star(tmp_path / "root")
    star.write("north", 1, {"b": None})
    star.write("north", 2, {"b": "n2"})
    require_b(star, nullable=False)
    star.write("hq", 3, {"a": "h3"})
    if point:
        with dies(point, action="stop"):
            star.sync("north")
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert [tables["hq"][key]["b"] for key in (1, 2)] == ["y", "n2"]
        assert tables["north"][1]["b"] is None
        assert tables["south"] == tables["hq"]
        assert tables["north"][3]["a"] == "h3"
        assert [field(star, replica, name, "b")[2] for replica in tables] == [False, True, True]
    refused = mergerepl.Replica(star.root / "hq").conflicts.list()
    assert {(each.article, each.conflict_type, each.reason_code) for each in refused} == {
        (name, 9, 2) for name in ARTICLES
    }
    found = mergerepl.Replica(star.root / "south").schema.list()
    assert {each.changes for each in found} == {("b is NOT NULL", "the table was replaced")}
    assert not star.project.apply().steps
    # Corrected where it was written, or allowed again.
    star.table("north", "by_row").update({"b": "'n1'"}, predicate="id = 1")
    star.settle()
    require_b(star, nullable=True)
    star.settle()
    assert {row["b"] for row in star.tables("by_row")["hq"].values()} == {"n1", "n2", "y"}
    for name in ARTICLES:
        tables = star.tables(name)
        assert tables["north"] == tables["south"] == tables["hq"]


def test_a_comment_alone_sends_no_row(star: Star) -> None:
    star.settle()
    before = {name: star.table("north", name).version() for name in ARTICLES}
    comment(star, "hq", "b", "alone")
    for result in star.sync():
        assert (result.error, sum(each.total for each in (result.upload, result.download))) == (None, 0)
    for name in ARTICLES:
        assert star.table("north", name).version() == before[name] + 1
        assert field(star, "south", name, "b")[0] == "alone"


@pytest.fixture(scope="module")
def prepared_by_spark(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Star, Path]:
    """Return a star whose publisher dropped NOT NULL and has another default; one article's copies lack defaults."""

    def alter(path: Path, *changes: str) -> None:
        for change in changes:
            spark.sql(f"ALTER TABLE delta.`{path}` {change}")

    feature = "SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"

    def with_default(path: Path) -> None:
        if path.name == "by_row":
            alter(path, feature, "ALTER COLUMN b SET DEFAULT 'first'")

    root = tmp_path_factory.mktemp("star") / "root"
    star = Star(root, prepared=with_default, required="a")
    for name in ARTICLES:
        north, hq = (root / replica / name for replica in ("north", "hq"))
        spark.sql(f"UPDATE delta.`{north}` SET b = 'n1' WHERE id = 1")
        changes = ["ALTER COLUMN a DROP NOT NULL", "ALTER COLUMN b SET DEFAULT concat('it''s', ' b')"]
        alter(hq, *([feature] if name == "by_column" else []), *changes)
        alter(hq, "ADD COLUMN c STRING", "ALTER COLUMN c SET DEFAULT 'sea'")
        spark.sql(f"UPDATE delta.`{hq}` SET a = NULL WHERE id = 3")
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("point", ["", *LADDER, "schema.after_alter:2"])
def test_a_null_arrives_where_the_publisher_dropped_not_null(
    prepared_by_spark: tuple[Star, Path], spark: SparkSession, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    star, saved = prepared_by_spark
    star.load(saved)
    if point:
        with dies(point, action="stop"):
            star.sync("north")
    star.settle()
    for name in ARTICLES:
        default = "concat('it''s', ' b')" if name == "by_row" else ""
        for replica in ("north", "south"):
            assert field(star, replica, name, "a") == ("", "", True)
            assert field(star, replica, name, "b") == ("", default, True)
            assert field(star, replica, name, "c") == ("", "'sea'" if default else "", True)
        for replica in ("hq", "north", "south"):
            rows = spark.read.format("delta").load(str(star.root / replica / name)).collect()
            assert {(each.id, each.a, each.b, each.c) for each in rows} == {
                (1, "x", "n1", None),
                (2, "x", "y", None),
                (3, None, "y", None),
            }
    assert "the default of column 'b' is left out, because table" in caplog.text
    words = {
        (each.table, said)
        for each in mergerepl.Replica(star.root / "north").schema.list()
        for said in each.changes
    }
    assert ("by_row", "default of b: concat('it''s', ' b')") in words
    assert (
        "by_column",
        "default of b: concat('it''s', ' b') (left out here: the table lacks allowColumnDefaults)",
    ) in words
    assert ("by_row", "a takes NULL") in words


@pytest.mark.slow
def test_a_comment_that_a_session_passed_is_named_and_the_next_one_brings_all(
    star: Star, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mergerepl.merge.apply import side

    star.settle()
    star.table("north", "by_row").update({"b": "'n3'"}, predicate="id = 3")

    def stated(point: str) -> None:
        if point == "publisher.before_merge":
            monkeypatch.setattr(side, "failpoint", lambda _: None)
            star.table("hq", "by_row").alter.set_column_metadata("b", {"comment": "late"})

    monkeypatch.setattr(side, "failpoint", stated)
    star.sync("north")
    assert "changed the comment of column 'b' while a session wrote" in caplog.text
    star.settle()
    assert field(star, "north", "by_row", "b")[0] == ""
    star.table("hq", "by_row").alter.set_column_metadata("b", {"comment": "again"})
    star.settle()
    assert field(star, "north", "by_row", "b")[0] == "again"


@pytest.mark.spark
@pytest.mark.slow
def test_a_default_becomes_part_of_a_statement_only_if_it_is_one_expression(
    star: Star, spark: SparkSession
) -> None:
    north = Replica(Location.of(star.root / "north"))
    article = next(each for each in north.articles if each.name == "by_row")
    row = article_row(north, article.nickname)
    hq = Replica(Location.of(star.root / "hq"))
    publishers = open_table(hq.root / "by_row")
    at = table_at(hq, north, article, row.definitions[article.version], publishers)
    for text in ("'x'", "concat('it''s', ' b')", "current_timestamp()", "named_struct('a', array(1, 2))"):
        require_expression(lambda: spark, at, PublishedField(1, "a", "string", default=text))
    refused = (
        "'x' z",
        "'x', ALTER COLUMN b DROP NOT NULL",
        "'x' COMMENT 'y'",
        "1) + (2",
        "b",
        "unheard_of()",
        "'x",
    )
    for text in refused:
        with pytest.raises(SchemaStoppedError, match="no expression that Spark knows"):
            require_expression(lambda: spark, at, PublishedField(1, "a", "string", default=text))
