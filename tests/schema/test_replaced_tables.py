"""A replaced table at the publisher is row changes by key, with the columns that it gained."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import mergerepl
from mergerepl import MergeReplError
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from tests.faults.deaths import dies
from tests.replacements import create_or_replace
from tests.schema.stars import ARTICLES, Row, Star

OLD = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
NEW = OLD.append(pa.field("c", pa.int32()))
LADDER = (
    "schema.before_record",
    "schema.after_record",
    "schema.after_capture",
    "replace.after_properties",
    "replace.after_capture",
    "schema.after_alter",
)


def rows(*values: Sequence[object]) -> list[Row]:
    return [dict(zip(("id", "a", "b", "c"), each, strict=False)) for each in values]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star with unsent edits at both subscribers whose publisher's tables were replaced twice; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root")
    star.write("north", 1, {"a": "n1"})
    star.write("south", 3, {"a": "s3"})
    star.write("hq", 2, {"b": "h2"})
    star.replace("hq", rows((1, "x", "y", None), (2, "x", "h2", 2), (4, "x", "new", 4)), NEW)
    star.replace("hq", rows((1, "x", "y", None), (2, "x", "h2", 2), (4, "x", "new", 5)), NEW)
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def check(star: Star) -> None:
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        # The delete of row 3 wins over the edit of it, which is logged; nobody edited what row 1 had.
        expected = {1: ("n1", "y", None), 2: ("x", "h2", 2), 4: ("x", "new", 5)}
        assert tables["hq"] == {key: dict(zip("abc", each, strict=True)) for key, each in expected.items()}
        assert tables["north"] == tables["south"] == tables["hq"]
        assert [row["a"] for row in star.conflicts("hq", name)] == ["s3"]


def leave_undone_and_check(star: Star) -> None:
    """Check that a session does what the one before left undone: a table's id, its properties."""
    # As a replacement that a writing session passed, and as a death before the properties were set.
    hq = Replica(Location.of(star.root / "hq"))
    hq.save_info(replace(hq.info(), table_ids={**hq.info().table_ids, 1: "former"}))
    star.write("hq", 4, {"b": "later"})
    star.table("hq", "by_column").alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    (north,) = star.sync("north")
    assert north.error is None
    for name in ARTICLES:
        assert star.rows("north", name)[4]["b"] == "later"
        assert has_feed(star, name)


def test_an_apply_captures_a_replacement_that_no_session_followed(star: Star) -> None:
    file = star.root / "mergerepl.yml"
    file.write_text(
        file.read_text(encoding="utf-8").replace("tracking: column", "tracking: row"), encoding="utf-8"
    )
    planned = star.project.apply(dry_run=True)
    assert {each.outcome for each in planned.subscriptions} == {"followed"}
    star.project.apply()
    assert not star.project.apply().steps
    check(star)


@pytest.mark.slow
@pytest.mark.parametrize("point", LADDER)
def test_a_sync_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    with dies(point, action="stop"):
        star.sync("north")
    check(star)


def has_feed(star: Star, name: str) -> bool:
    return star.table("hq", name).metadata().configuration.get("delta.enableChangeDataFeed") == "true"


def test_a_replaced_table_is_row_changes(star: Star) -> None:
    north, south = star.sync()
    # Of the replaced rows only those travel that differ: one changed twice, one came, one went.
    assert [north.download.updates, north.download.inserts, north.download.deletes] == [2, 2, 2]
    assert north.fallbacks == south.fallbacks == ()
    # Of each article, what was written before the replacement and the replacement have versions of their own.
    generations = Replica(Location.of(star.root / "hq")).genhistory(from_generation_exclusive=0)
    assert [each.maxversion for each in generations[:2]] == [3, 5]
    assert has_feed(star, "by_row")
    check(star)
    leave_undone_and_check(star)


@pytest.mark.parametrize(
    "point", [pytest.param("replace.after_properties", marks=pytest.mark.slow), "replace.after_capture"]
)
def test_a_capture_that_dies_leaves_no_table_without_its_properties(star: Star, point: str) -> None:
    kept = pa.Table.from_pylist(rows((1, "x", "y", None), (2, "x", "h2", 2)), schema=NEW)
    create_or_replace(star.root / "hq" / "by_row", kept)
    assert not has_feed(star, "by_row")
    with dies(point, action="stop"):
        star.sync("north")
    # No further commit reaches the tables.
    (north,) = star.sync("north")
    assert north.error is None
    found = star.table("hq", "by_row").metadata().configuration
    assert found["delta.enableChangeDataFeed"] == "true"
    assert found["delta.deletedFileRetentionDuration"] == "interval 14 days"
    done = [each["operation"] for each in star.table("hq", "by_row").history()]
    later = done[: done.index("CREATE OR REPLACE TABLE AS SELECT")]
    assert later.count("SET TBLPROPERTIES") == 1
    assert star.rows("north", "by_row") == star.rows("hq", "by_row")


@pytest.mark.spark
@pytest.mark.slow
def test_a_replacement_while_a_session_writes_is_known_afterwards(star: Star) -> None:
    with dies("publisher.before_merge", action="stop"):
        star.sync("north")
    star.replace("hq", rows((1, "x", "y", None), (2, "x", "h2", 2), (4, "x", "new", 5)), NEW)
    star.sync("north")
    # At once: no further commit may reach the tables.
    assert has_feed(star, "by_row")
    assert has_feed(star, "by_column")
    star.write("hq", 4, {"b": "later"})
    (north,) = star.sync("north")
    assert north.error is None
    for name in ARTICLES:
        assert star.rows("north", name) == star.rows("hq", name)
        assert star.rows("hq", name)[4] == {"a": "x", "b": "later", "c": 5}
        assert has_feed(star, name)


@pytest.mark.slow
def test_a_replacement_with_a_key_twice_is_refused_as_a_whole(star: Star) -> None:
    star.replace("hq", rows((1, "x", "y", None), (1, "x", "z", 2)), NEW)
    with pytest.raises(MergeReplError, match="several rows"):
        star.sync("north")
    assert star.tables("by_row")["north"][2]["b"] == "y"
    # The new column is recorded; without its rows it does not count.
    hq = mergerepl.Replica(star.root / "hq")
    assert hq.schema.list() == ()
    star.replace("hq", rows((1, "x", "y", None), (2, "x", "h2", 2), (4, "x", "new", 5)), NEW)
    check(star)
    assert [[text for text in each.changes if "add" in text] for each in hq.schema.list()] == [
        ["add c int"]
    ] * 2
