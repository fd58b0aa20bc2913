"""`mergerepl schema skip`: a subscriber leaves out a dropped column, a comment or a default, and the others go on."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.cli.main import main
from mergerepl.errors import ConfigurationError, SchemaMismatchError
from mergerepl.merge.schema.skip import forget_stale_skips
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import catalog
from tests.faults.deaths import dies
from tests.schema.stars import ARTICLES, Star


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star whose publisher recorded another comment, beside unsent edits; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root", subscribers=("north", "south", "east"))
    star.write("north", 1, {"a": "n1"})
    star.write("south", 2, {"b": "s2"})
    comment(star, "hq", "first")
    star.project.capture()
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def comment(star: Star, replica: str, text: str) -> None:
    for name in ARTICLES:
        star.table(replica, name).alter.set_column_metadata("a", {"comment": text})


def comments(star: Star, name: str) -> dict[str, str]:
    """Return the comment of a column at each replica."""
    found = {}
    for replica in ("hq", *star.subscribers):
        (column,) = (each for each in star.table(replica, name).schema().fields if each.name == "a")
        found[replica] = column.metadata.get("comment", "")
    return found


def skip(star: Star, version: int, *options: str, at: str = "north") -> Result:
    words = ["schema", "skip", str(version), "--at", at, *options, "-f", str(star.root / "mergerepl.yml")]
    return CliRunner().invoke(main, words)


def versions(star: Star) -> dict[str, int]:
    """Return the numbers of the last changes by article."""
    found = mergerepl.Replica(star.root / "hq").schema.list()
    return {each.table: each.version for each in reversed(found)}


def recorded(star: Star, replica: str) -> list[tuple[int, ...]]:
    """Return the skips that a replica has recorded of subscriptions."""
    rows = Replica(Location.of(star.root / replica)).relations()
    return sorted(row.skipped_changes for row in rows)


def test_a_skipped_comment_stays_as_it_is_until_a_later_one(star: Star) -> None:
    number = versions(star)["by_row"]
    done = skip(star, number)
    assert done.exit_code == 0, done.output
    assert f"north skips change {number} of by_row: comment of a: first." in done.output
    (status,) = mergerepl.Replica(star.root / "north").status()
    assert [each.schema_skipped for each in status.details.subscriptions] == [(number,)]
    star.settle()
    assert comments(star, "by_row") == {"hq": "first", "north": "", "south": "first", "east": "first"}
    assert set(comments(star, "by_column").values()) == {"first"}
    (listed,) = (e for e in mergerepl.Replica(star.root / "hq").schema.list() if e.version == number)
    assert [
        [Path(name).name for name in names] for names in (listed.done, listed.pending, listed.skipped)
    ] == [*(["south", "east"], [], ["north"])]
    comment(star, "hq", "second")
    star.sync()
    assert set(comments(star, "by_row").values()) == {"second"}
    # Sessions without a row are in the history of both sides.
    for replica in ("hq", "north"):
        place = mergerepl.Replica(star.root / replica)
        assert "by_row: comment of a: second" in place.history()[0].text
        (status,) = place.status()
        assert {each.last_sync_status for each in status.details.subscriptions} == {"succeeded"}
    for name in ARTICLES:
        tables = star.tables(name)
        assert (tables["hq"][1]["a"], tables["hq"][2]["b"]) == ("n1", "s2")
        assert all(rows == tables["hq"] for rows in tables.values())


@pytest.mark.slow
def test_a_skip_ends_before_or_after_the_change(star: Star) -> None:
    by_row, by_column = (versions(star)[name] for name in ARTICLES)
    for number in (by_row, by_column):
        assert skip(star, number).exit_code == 0
    done = skip(star, by_row, "--undo", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["statements"] == []
    star.settle()
    assert comments(star, "by_row")["north"] == "first"
    assert comments(star, "by_column")["north"] == ""
    done = skip(star, by_column, "--undo")
    assert done.exit_code == 0, done.output
    assert "ALTER COLUMN `a` COMMENT 'first'" in done.output
    assert [recorded(star, each) for each in ("north", "hq")] == [[()], [(), (), ()]]


def test_a_dry_run_records_nothing(star: Star) -> None:
    done = skip(star, versions(star)["by_row"], "--dry-run")
    assert done.exit_code == 0, done.output
    assert "would be skipped" in done.output
    assert recorded(star, "north") == [()]


@pytest.mark.parametrize("undo", [False, True])
def test_a_skip_that_dies_is_finished_by_the_same_command(star: Star, undo: bool) -> None:
    number, north = versions(star)["by_row"], mergerepl.Replica(star.root / "north")
    if undo:
        north.schema.skip(number)
    before = recorded(star, "north")
    with dies("schema.between_skips", action="stop"):
        north.schema.skip(number, undo=undo)
    assert recorded(star, "north") == before
    # A session goes by the subscriber's row.
    north.schema.skip(number, undo=undo)
    wanted = () if undo else (number,)
    assert [recorded(star, each) for each in ("north", "hq")] == [[wanted], [(), (), wanted]]


def test_a_reinitialisation_forgets_skips_that_a_restored_publisher_knows_nothing_of(star: Star) -> None:
    by_row, by_column = (versions(star)[name] for name in ARTICLES)
    for number in (by_row, by_column):
        mergerepl.Replica(star.root / "north").schema.skip(number)
    publisher, subscriber = (Replica(Location.of(star.root / name)) for name in ("hq", "north"))
    (pubid,) = {each.pubid for each in publisher.articles}
    forget_stale_skips(publisher, subscriber, pubid)
    assert recorded(star, "north") == [(by_row, by_column)]
    publisher.control.remove_where(catalog.SCHEMACHANGE, schemaversion=by_column)
    forget_stale_skips(publisher, subscriber, pubid)
    assert [recorded(star, each)[-1] for each in ("north", "hq")] == [(by_row,)] * 2


def test_what_cannot_be_skipped_is_refused_by_name(star: Star) -> None:
    number = versions(star)["by_row"]
    north, hq = (mergerepl.Replica(star.root / name) for name in ("north", "hq"))
    with pytest.raises(ConfigurationError, match="has no active subscription"):
        hq.schema.skip(number)
    with pytest.raises(ConfigurationError, match="schema change 77 is not recorded"):
        north.schema.skip(77)
    with pytest.raises(ConfigurationError, match="is not skipped"):
        north.schema.skip(number, undo=True)
    star.add("hq", "c")
    star.project.capture()
    added = versions(star)["by_row"]
    with pytest.raises(SchemaMismatchError, match="cannot be skipped, because rows that arrive have values"):
        north.schema.skip(added)
    star.sync("north")
    with pytest.raises(SchemaMismatchError, match="has arrived already"):
        north.schema.skip(number)
    assert recorded(star, "north") == [()]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("point", ["", "schema.before_alter", "schema.after_alter", "schema.before_articles"])
def test_a_column_whose_drop_is_skipped_is_the_subscribers_own(
    tmp_path: Path, spark: SparkSession, point: str
) -> None:
    def mapped(table: Path) -> None:
        terms = "SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        spark.sql(f"ALTER TABLE delta.`{table}` {terms}")

    def rows(replica: str) -> dict[int, dict[str, str]]:
        found = spark.read.format("delta").load(str(star.root / replica / "by_row")).collect()
        return {row["id"]: {k: v for k, v in row.asDict().items() if k != "id"} for row in found}

    def run(replica: str, statement: str) -> None:
        spark.sql(statement.format(table=f"delta.`{star.root / replica / 'by_row'}`"))

    star = Star(tmp_path / "root", subscribers=("north", "south", "east"))
    for replica in ("hq", *star.subscribers):
        mapped(star.root / replica / "by_row")
    star.settle()
    run("north", "UPDATE {table} SET b = 'n1' WHERE id = 1")
    run("south", "DELETE FROM {table} WHERE id = 3")
    run("hq", "ALTER TABLE {table} DROP COLUMN b")
    run("hq", "UPDATE {table} SET a = 'h2' WHERE id = 2")
    star.project.capture()
    number = versions(star)["by_row"]
    assert skip(star, number).exit_code == 0
    if point:
        with dies(point, action="stop"):
            star.sync("north")
    star.settle()
    assert rows("hq") == rows("south") == rows("east") == {1: {"a": "x"}, 2: {"a": "h2"}}
    assert rows("north") == {1: {"a": "x", "b": "n1"}, 2: {"a": "h2", "b": "y"}}
    # What was not sent is logged, as for any column that stays.
    assert [(row["id"], row["b"]) for row in star.conflicts("north", "by_row")] == [(1, "n1")]
    done = skip(star, number, "--undo")
    assert "DROP COLUMN `b`" in done.output
    run("north", "ALTER TABLE {table} DROP COLUMN b")
    star.settle()
    assert rows("north") == rows("hq")
