"""`schema alter`: subscribers are asked first; the next sync carries the change."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import Field
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from mergerepl.cli.main import main
from mergerepl.errors import SchemaMismatchError, SchemaStoppedError
from tests.schema.stars import Star
from tests.schema_changes import MAPPED


def run(star: Star, *words: str) -> tuple[int, str]:
    """Run a command on a star; return its exit code and output."""
    found = CliRunner().invoke(main, [*words, "-f", str(star.root / "mergerepl.yml")])
    return found.exit_code, found.output


def versions(star: Star) -> list[int]:
    return [star.table(replica, "by_row").version() for replica in ("hq", "north", "south")]


def test_a_column_is_added_after_the_subscribers_were_asked(tmp_path: Path) -> None:
    star = Star(tmp_path)
    statement = ("schema", "alter", "by_row", "--ddl", "ADD COLUMN note STRING COMMENT 'it''s'")
    before = versions(star)
    code, text = run(star, *statement, "--dry-run", "--json")
    assert code == 0, text
    planned = json.loads(text)
    assert [each["answer"] for each in planned["answers"]] == ["follows", "follows"]
    assert planned["answers"][0]["statements"] == ["ADD COLUMN `note` string"]
    assert versions(star) == before
    star.table("north", "by_row").update({"a": "'n1'"}, predicate="id = 1")
    code, text = run(star, *statement)
    assert code == 0, text
    star.table("hq", "by_row").update({"note": "'new'"}, predicate="id = 2")
    star.settle()
    for replica in ("hq", "north", "south"):
        assert star.rows(replica, "by_row")[2]["note"] == "new"
        assert star.rows(replica, "by_row")[1] == {"a": "n1", "b": "y", "note": None}
        field = next(each for each in star.table(replica, "by_row").schema().fields if each.name == "note")
        assert field.metadata["comment"] == "it's"


def test_a_subscriber_that_cannot_follow_stops_the_statement(tmp_path: Path) -> None:
    star = Star(tmp_path)
    star.table("south", "by_row").alter.add_columns([Field("note", PrimitiveType("integer"), True)])
    before = versions(star)
    schema = star.project.at().schema
    for dry_run in (True, False):
        with pytest.raises(SchemaStoppedError, match=r"south\] .*column of that name of its own \(int\)"):
            schema.alter("by_row", ddl="ADD COLUMN note STRING", dry_run=dry_run)
    assert versions(star) == before
    (tmp_path / "north").rename(tmp_path / "away")
    with pytest.raises(SchemaStoppedError, match="south"):
        schema.alter("by_row", ddl="ADD COLUMN note STRING")
    answers = schema.alter("by_row", ddl="ADD COLUMN remark STRING", dry_run=True).answers
    assert [(each.answer, each.reason) for each in answers] == [
        ("not asked", "it is out of reach"),
        ("follows", ""),
    ]
    (tmp_path / "away").rename(tmp_path / "north")
    assert schema.alter("by_row", ddl="ADD COLUMN note STRING", ask=False).answers == ()
    found = {Path(each.subscriber).name: each.error for each in star.sync()}
    assert found["north"] is None
    assert "of its own" in str(found["south"])


REFUSED = {
    "DROP COLUMN c": "no column 'c'",
    "ADD COLUMN A STRING": "it has a column 'a'",
    "RENAME COLUMN a TO B": "it has a column 'b'",
    "RENAME COLUMN a TO A": "differs in letter case alone does not travel",
    "RENAME COLUMN a TO c": "no column mapping",
    "DROP COLUMN a": "no column mapping",
    "DROP COLUMN id": "'id' is in the key of article 'by_row', so the change does not travel",
    "ALTER COLUMN a TYPE BIGINT": "does not widen that to BIGINT",
    "ALTER COLUMN id TYPE DECIMAL(20,0)": "enableTypeWidening",
}


def test_what_the_table_cannot_take_is_refused(tmp_path: Path) -> None:
    star = Star(tmp_path)
    schema, before = star.project.at().schema, versions(star)
    for ddl, says in REFUSED.items():
        with pytest.raises(SchemaMismatchError, match=says):
            schema.alter("by_row", ddl=ddl)
    assert versions(star) == before
    # Columns that a user changed before other rows are followed first.
    star.add("hq", "c")
    star.write("hq", 1, {"a": "h1"})
    with pytest.raises(SchemaMismatchError, match="Run `mergerepl sync`"):
        schema.alter("by_row", ddl="ADD COLUMN d STRING")


@pytest.mark.spark
@pytest.mark.slow
def test_columns_are_renamed_and_dropped(tmp_path: Path, spark: SparkSession) -> None:
    star = Star(tmp_path)
    star.write("north", 1, {"a": "n1"})
    for replica in ("hq", "north"):
        spark.sql(f"ALTER TABLE delta.`{star.root / replica / 'by_row'}` SET TBLPROPERTIES ({MAPPED})")
    schema = star.project.at().schema
    with pytest.raises(SchemaStoppedError, match=r"south\].*no column mapping"):
        schema.alter("by_row", ddl="RENAME COLUMN a TO c")
    # A column that cannot be dropped stays, as the subscriber's own.
    answers = schema.alter("by_row", ddl="DROP COLUMN b", dry_run=True).answers
    assert [each.statements for each in answers] == [("DROP COLUMN `b`",), ()]
    spark.sql(f"ALTER TABLE delta.`{star.root / 'south' / 'by_row'}` SET TBLPROPERTIES ({MAPPED})")
    with pytest.raises(SchemaMismatchError, match="does not travel"):
        schema.alter("by_row", ddl="RENAME COLUMN id TO number")
    schema.alter("by_row", ddl="RENAME COLUMN a TO c")
    star.settle()
    code, text = run(star, "schema", "alter", "by_row", "--ddl", "DROP COLUMN b")
    assert code == 2, text
    assert "Say --yes" in text
    code, text = run(star, "schema", "alter", "by_row", "--ddl", "DROP COLUMN b", "--yes")
    assert code == 0, text
    star.settle()
    for replica in ("hq", "north", "south"):
        found = spark.read.format("delta").load(str(star.root / replica / "by_row"))
        assert found.columns == ["id", "c"]
        assert {row["id"]: row["c"] for row in found.collect()}[1] == "n1"
