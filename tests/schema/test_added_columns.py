"""ADD COLUMN at the publisher reaches every subscriber before the rows that need it, and unknown is not NULL."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import Field
from deltalake.schema import PrimitiveType

import mergerepl
from mergerepl.cli.main import main
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from tests.faults.deaths import dies, killed
from tests.schema.stars import ARTICLES, LADDER, Star

SOME = ("schema.after_alter",)
"""Those at which every run of the tests stops a session."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star with unsent edits at both subscribers, whose publisher has a new column with values; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root")
    star.write("north", 1, {"a": "n1"})
    star.write("south", 2, {"b": "s2"})
    star.write("hq", 1, {"b": "h1"})
    star.add("hq", "c")
    star.write("hq", 1, {"c": "C1"})
    star.write("hq", 3, {"c": "C3"})
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def check(star: Star) -> None:
    star.settle()
    by_row, by_column = (star.tables(name) for name in ARTICLES)
    # The unsent edits say nothing of the new column.
    expected = (
        {"a": "n1", "b": "h1", "c": "C1"},
        {"a": "x", "b": "s2", "c": None},
        {"a": "x", "b": "y", "c": "C3"},
    )
    assert by_column["hq"] == dict(enumerate(expected, 1))
    assert by_row["hq"] == by_column["hq"] | {1: {"a": "x", "b": "h1", "c": "C1"}}
    for tables in (by_row, by_column):
        assert tables["north"] == tables["south"] == tables["hq"]
    assert [row["a"] for row in star.conflicts("hq", "by_row")] == ["n1"]
    assert star.conflicts("hq", "by_column") == []


def test_a_new_column_travels_before_its_rows(star: Star) -> None:
    check(star)
    for name in ARTICLES:
        # One metadata commit; no file is rewritten.
        added = [c for c in star.table("north", name).history() if c["operation"] == "ADD COLUMN"]
        assert len(added) == 1
        assert "schema:add:c3:c" in added[0]["userMetadata"]
    for replica in ("hq", "north", "south"):
        there = Replica(Location.of(star.root / replica))
        assert there.info().article_versions == {1: 2, 2: 2}
        assert {row.schemaversion for row in there.subscriptions() if not row.is_own} == {2}


@pytest.mark.parametrize(
    "point", [p if p in SOME else pytest.param(p, marks=pytest.mark.slow) for p in LADDER]
)
def test_a_sync_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    with dies(point, action="stop"):
        star.sync("north")
    check(star)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["schema.after_alter", "schema.before_published_version"])
def test_a_sync_that_is_killed_is_finished_by_the_next_one(star: Star, point: str) -> None:
    killed([sys.executable, "-m", "mergerepl", "sync", "north"], point, cwd=star.root)
    check(star)


@pytest.mark.slow
def test_a_value_of_another_replica_outlives_an_edit_without_the_column(star: Star) -> None:
    star.sync("north")
    star.write("north", 2, {"c": "N2"})
    star.sync("north")
    # South edited this row before it had the column.
    star.sync("south")
    star.settle()
    for name in ARTICLES:
        assert star.rows("hq", name)[2]["c"] == "N2"
        assert star.tables(name)["north"] == star.tables(name)["south"] == star.tables(name)["hq"]


@pytest.mark.slow
def test_a_write_just_before_the_alter_says_nothing_of_the_column(
    star: Star, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergerepl.merge.schema import down

    def written(point: str) -> None:
        if point == "schema.before_alter":
            star.write("north", 3, {"b": "n3"})
            monkeypatch.setattr(down, "failpoint", lambda _: None)

    monkeypatch.setattr(down, "failpoint", written)
    star.sync("north")
    star.settle()
    for name in ARTICLES:
        assert star.rows("hq", name)[3]["c"] == "C3"
        assert star.tables(name)["north"] == star.tables(name)["south"] == star.tables(name)["hq"]


def test_a_column_of_the_subscribers_own_is_left_out_and_one_of_that_name_and_another_type_stops_it(
    star: Star,
) -> None:
    star.add("north", "own")
    star.add("south", "c", "long")
    north, south = star.sync()
    assert north.error is None
    assert south.error is not None
    assert "has a column of that name of its own" in south.reason
    assert set(star.rows("north", "by_row")[1]) == {"a", "b", "c", "own"}
    assert star.rows("hq", "by_row")[1]["c"] == "C1"


@pytest.mark.slow
def test_a_column_with_rows_in_one_commit_is_followed(star: Star) -> None:
    from deltalake import write_deltalake

    more = pa.table({"id": pa.array([7], pa.int64()), "a": ["m"], "b": ["m"], "c": ["m"], "d": ["m"]})
    for name in ARTICLES:
        write_deltalake(str(star.root / "hq" / name), more, mode="append", schema_mode="merge")
    star.settle()
    for name in ARTICLES:
        assert star.rows("south", name)[7] == {"a": "m", "b": "m", "c": "m", "d": "m"}
        assert star.tables(name)["north"] == star.tables(name)["south"] == star.tables(name)["hq"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_new_subscriber_gets_the_columns_and_what_is_known_of_rows(star: Star) -> None:
    star.settle()
    star.subscribe("west")
    star.write("west", 3, {"c": "W3"})
    star.write("hq", 1, {"c": "C4"})
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert (tables["hq"][3]["c"], tables["hq"][1]["c"]) == ("W3", "C4")
        assert tables["west"] == tables["north"] == tables["hq"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_subscriber_made_before_a_change_of_columns_counts_gets_it_by_a_session(star: Star) -> None:
    with dies("schema.after_record"):
        star.sync("north")
    star.subscribe("west")
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert tables["hq"][3]["c"] == "C3"
        assert tables["west"] == tables["north"] == tables["hq"]


@pytest.mark.spark
@pytest.mark.slow
def test_a_column_that_is_added_while_a_session_writes_is_followed(
    star: Star, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mergerepl.merge.apply import side

    def update(replica: str, values: dict[str, str], key: int) -> None:
        star.table(replica, "by_row").update(values, predicate=f"id = {key}")

    star.settle()
    # The other article is not merged beside it.
    update("north", {"a": "'n2'"}, 2)

    def added(point: str) -> None:
        if point == "publisher.before_merge":
            monkeypatch.setattr(side, "failpoint", lambda _: None)
            star.table("hq", "by_row").alter.add_columns([Field("d", PrimitiveType("string"), True)])
            update("hq", {"b": "'h2'", "d": "'D2'"}, 2)
            update("hq", {"d": "'D3'"}, 3)

    monkeypatch.setattr(side, "failpoint", added)
    star.sync("north")
    update("hq", {"d": "'D1'"}, 1)
    star.settle()
    tables = star.tables("by_row")
    assert [tables["hq"][key]["d"] for key in (1, 2, 3)] == ["D1", "D2", "D3"]
    assert tables["north"] == tables["south"] == tables["hq"]


def test_schema_list_names_who_has_a_change(star: Star) -> None:
    hq, north = (mergerepl.Replica(star.root / name) for name in ("hq", "north"))
    assert hq.schema.list() == ()
    star.sync("north")
    found = hq.schema.list()
    assert [(each.table, each.version, each.changes) for each in found] == [
        ("by_column", 2, ("add c string",)),
        ("by_row", 1, ("add c string",)),
    ]
    for each in found:
        assert [Path(name).name for name in each.done] == ["north"]
        assert [Path(name).name for name in each.pending] == ["south"]
    assert [(each.version, each.pending) for each in north.schema.list()] == [(2, ()), (1, ())]
    shown = CliRunner().invoke(main, ["schema", "list", "-f", str(star.root / "hq"), "--json"])
    assert shown.exit_code == 0, shown.output
    assert len(json.loads(shown.stdout)["schema"]) == 2


@pytest.mark.spark
@pytest.mark.slow
def test_a_loser_without_the_column_does_not_empty_it(star: Star) -> None:
    star.settle()
    (losing,) = star.conflicts("hq", "by_row")
    assert (losing["a"], losing["c"]) == ("n1", None)
    words = ["conflicts", "resolve", "--all", "--loser", "-f", str(star.root / "hq")]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0, shown.output
    assert star.rows("hq", "by_row")[1] == {"a": "n1", "b": "y", "c": "C1"}


def test_a_dry_run_says_that_a_sync_follows_the_column_first(star: Star) -> None:
    with pytest.raises(mergerepl.SchemaMismatchError, match="`mergerepl sync` follows that before rows"):
        star.project.sync("north", dry_run=True)
    assert set(star.rows("north", "by_row")[1]) == {"a", "b"}


@pytest.mark.parametrize("terms", [{"discard_local": True}, {"upload_first": True}])
def test_a_dry_run_of_reinit_says_that_columns_are_followed_first(
    prepared: tuple[Star, Path], terms: dict[str, bool]
) -> None:
    star, saved = prepared
    star.load(saved)
    planned = star.project.reinit("north", dry_run=True, **terms).articles
    assert [(each.article, each.follows_columns) for each in planned] == [(name, True) for name in ARTICLES]
    done = CliRunner().invoke(
        main, ["reinit", "north", "--discard-local", "--dry-run", "-f", str(star.root / "mergerepl.yml")]
    )
    assert done.exit_code == 0, done.output
    assert "by_row: its columns would be followed first" in done.output
    # Without --yes: the question does not say that no row differs.
    done = CliRunner().invoke(
        main, ["reinit", "north", "--discard-local", "-f", str(star.root / "mergerepl.yml")]
    )
    assert done.exit_code == 2, done.output
    assert f"Write what differs in {', '.join(ARTICLES)}, which was not compared yet, of north" in done.output
    assert "give up all that it has not sent?" in done.output
    assert [field.name for field in star.table("north", "by_row").schema().fields] == ["id", "a", "b"]
