"""A column that a subscriber made itself becomes the published one of that name and type; its values are changes."""

from pathlib import Path

import pytest

from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from tests.faults.deaths import dies
from tests.schema.stars import ARTICLES, Star
from tests.schema.stars import LADDER as FOLLOWING

LADDER = [each for each in FOLLOWING if each != "schema.before_published_version"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star in which the publisher and a subscriber added and filled the same column; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root")
    star.add("north", "c")
    star.write("north", 1, {"c": "N1"})
    star.write("north", 2, {"c": "N2"})
    star.sync()
    # One edit with a value that no session sent, and one without.
    star.write("north", 2, {"a": "n2"})
    star.write("north", 3, {"b": "n3"})
    star.add("hq", "c")
    for key in (1, 3):
        star.write("hq", key, {"c": f"C{key}"})
    star.write("south", 2, {"b": "s2"})
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def check(star: Star) -> None:
    star.settle()
    # NULL is no value of the subscriber's: the edit of row 3 says nothing of the column.
    expected = {
        1: {"a": "x", "b": "y", "c": "C1"},
        2: {"a": "n2", "b": "s2", "c": "N2"},
        3: {"a": "x", "b": "n3", "c": "C3"},
    }
    by_row, by_column = (star.tables(name) for name in ARTICLES)
    assert by_column["hq"] == expected
    lost = {2: {"a": "n2", "b": "y", "c": "N2"}, 3: {"a": "x", "b": "y", "c": "C3"}}
    assert by_row["hq"] == expected | lost
    for tables in (by_row, by_column):
        assert tables["north"] == tables["south"] == tables["hq"]
    for name in ARTICLES:
        losing = {(row["a"], row["b"], row["c"]) for row in star.conflicts("hq", name)}
        assert ("x", "y", "N1") in losing, "both sides filled the row"
        assert (("x", "n3", None) in losing) == (name == "by_row")
        added = [
            each["operation"] for each in star.table("north", name).history() if "ADD" in each["operation"]
        ]
        assert len(added) == 1, "the agent added no column"
    assert Replica(Location.of(star.root / "north")).info().article_versions == {1: 2, 2: 2}


@pytest.mark.slow
def test_a_column_that_both_sides_added_is_one_column(star: Star) -> None:
    check(star)


@pytest.mark.slow
@pytest.mark.parametrize("point", LADDER)
def test_a_sync_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    with dies(point, action="stop"):
        star.sync("north")
    check(star)


@pytest.mark.slow
def test_a_column_that_its_user_takes_away_during_the_adoption_is_added(star: Star) -> None:
    from deltalake import write_deltalake

    with dies("schema.after_alter", action="stop"):
        star.sync("north")
    path = str(star.root / "north" / "by_row")
    rows = star.table("north", "by_row").to_pyarrow_table().drop_columns(["c"])
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    star.settle()
    tables = star.tables("by_row")
    assert {key: row["c"] for key, row in tables["hq"].items()} == {1: "C1", 2: None, 3: "C3"}
    assert tables["north"] == tables["south"] == tables["hq"]


@pytest.mark.slow
def test_another_type_stops_the_subscription(star: Star) -> None:
    star.add("hq", "d")
    star.add("south", "d", "long")
    north, south = star.sync()
    assert north.error is None
    assert south.error is not None
    assert "has a column of that name of its own (bigint). Rename or drop that one" in south.reason
