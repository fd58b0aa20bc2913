"""`columns` of an article change under active subscriptions: no table loses a column, no unsent value goes in silence."""

import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import mergerepl
from mergerepl.errors import PublicationError, RefusedArticlesError, SchemaStoppedError
from tests.faults.deaths import dies, killed
from tests.schema.stars import ARTICLES, SUBSCRIBERS, Published, Star
from tests.schema.stars import LADDER as FOLLOWING

APPLYING = (
    "apply.before_change",
    "schema.before_record",
    "schema.after_record",
    "schema.before_published_columns",
    "capture.before_replinfo",
    "schema.after_capture",
    "apply.after_change",
)
SYNCING = (
    "schema.before_alter",
    "schema.after_alter",
    "schema.before_capture",
    "schema.before_dropped_values",
    "schema.between_dropped_values",
    "schema.after_dropped_values",
    "schema.before_record",
    "schema.after_record",
    "schema.after_capture",
    "schema.before_articles",
    "schema.before_published_version",
    "schema.after_articles",
    "stage.after_manifest",
    "publisher.after_merge",
    "subscriber.before_merge",
)


def state(star: Star, columns: str) -> None:
    """Write the columns of both articles into the file; empty: all."""
    file = star.root / "mergerepl.yml"
    lines = file.read_text(encoding="utf-8").splitlines()
    stated = f", columns: [{columns}]" if columns else ""
    for place, line in enumerate(lines):
        if "name: by_" in line:
            head, _, tail = line.partition("key: [id]")
            lines[place] = f"{head}key: [id]{stated}{tail[tail.index(', tracking') :]}"
    file.write_text("\n".join([*lines, ""]), encoding="utf-8")


def rows(star: Star, replica: str, name: str, columns: str) -> dict[int, dict[str, str | None]]:
    found = star.rows(replica, name)
    return {key: {each: row[each] for each in columns.split()} for key, row in found.items()}


# ---- fewer


def unsent(star: Star) -> Star:
    """Edit rows at all replicas, some captured by a session that died, none sent."""
    star.write("north", 1, {"b": "n1"})
    star.write("north", 2, {"a": "n2"})
    star.write("south", 3, {"a": "s3", "b": "s3b"})
    with dies("stage.before_pointer", action="stop"):
        star.sync("north")
    star.write("hq", 1, {"a": "h1", "b": "h1b"})
    return star


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star with unsent edits, and its copy."""
    star = unsent(Star(tmp_path_factory.mktemp("star") / "root", subscribers=tuple(SUBSCRIBERS)))
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def check_left(star: Star) -> None:
    """Check that b is everybody's own, and that its unsent values are logged where they were written."""
    star.settle()
    expected = {1: {"a": "h1"}, 2: {"a": "n2"}, 3: {"a": "s3"}}
    for name in ARTICLES:
        for replica in ("hq", *star.subscribers):
            assert rows(star, replica, name, "a") == expected, (replica, name)
        assert star.rows("hq", name)[1]["b"] == "h1b"
        assert star.rows("north", name)[1]["b"] == "n1"
        assert star.rows("south", name)[3]["b"] == "s3b"
        assert star.rows("east", name)[1]["b"] == "y"
        for replica, value in (("north", "n1"), ("south", "s3b")):
            logged = [each["b"] for each in star.conflicts(replica, name)]
            assert logged.count(value) == 1, (replica, name, logged)


@pytest.mark.slow
def test_a_column_that_is_left_out_stays_in_every_table(tmp_path: Path) -> None:
    star = Star(tmp_path / "root", subscribers=("north",))
    state(star, "a")
    star.project.apply()
    star.write("hq", 1, {"b": "h1"})
    star.write("hq", 2, {"a": "h2"})
    (result,) = star.sync()
    assert result.schema == tuple(
        f"{name}: {change}" for name in ARTICLES for change in ("leave b out", "listed columns are published")
    )
    star.write("north", 1, {"b": "n1"})
    star.write("north", 3, {"a": "n3"})
    star.settle()
    for name in ARTICLES:
        assert star.rows("hq", name) == {
            1: {"a": "x", "b": "h1"},
            2: {"a": "h2", "b": "y"},
            3: {"a": "n3", "b": "y"},
        }
        assert star.rows("north", name) == star.rows("hq", name) | {1: {"a": "x", "b": "n1"}}


@pytest.mark.spark
def test_an_unsent_value_of_a_column_that_is_left_out_is_logged(tmp_path: Path) -> None:
    star = Star(tmp_path / "root", "subscriber_wins", subscribers=("north",))
    star.write("north", 1, {"b": "n1"})
    star.write("hq", 1, {"a": "h1"})
    state(star, "a")
    star.project.apply()
    (result,) = star.sync()
    assert result.schema == tuple(
        f"{name}: {text}" for name in ARTICLES for text in ("leave b out", "listed columns are published")
    ) + tuple(f"{name}: 1 unsent row logged at the subscriber" for name in ARTICLES)
    for name in ARTICLES:
        assert [each["b"] for each in star.conflicts("north", name)] == ["n1"]
        # The edit of b neither won the row nor lost it.
        assert star.rows("hq", name)[1]["a"] == star.rows("north", name)[1]["a"] == "h1"
        assert star.conflicts("hq", name) == []
    # The publisher's users learn of it, too.
    assert "1 unsent row logged at the subscriber" in mergerepl.Replica(star.root / "hq").history()[0].text


@pytest.mark.spark
@pytest.mark.slow
def test_values_of_a_column_that_is_left_out_are_logged(star: Star) -> None:
    state(star, "a")
    star.apply_followed()
    star.write("north", 1, {"b": "n1"})
    check_left(star)
    found = mergerepl.Replica(star.root / "south").schema.list()
    assert [each.changes for each in found] == [("leave b out", "listed columns are published")] * 2
    versions = {name: star.table("hq", name).version() for name in ARTICLES}
    star.write("hq", 1, {"b": "its own"})
    star.write("north", 1, {"b": "its own too"})
    star.settle()
    assert {name: star.table("hq", name).version() - was for name, was in versions.items()} == {
        "by_row": 1,
        "by_column": 1,
    }


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("point", [each for each in APPLYING if each != "schema.before_published_columns"])
def test_an_apply_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    state(star, "a")
    with dies(point, action="stop"):
        star.project.apply()
    star.write("south", 3, {"b": "s3b"})
    star.sync("east")
    star.project.apply()
    check_left(star)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("point", ["schema.before_record", "schema.after_record"])
def test_an_apply_that_died_is_taken_back(star: Star, point: str) -> None:
    state(star, "a")
    with dies(point, action="stop"):
        star.project.apply()
    state(star, "")
    star.project.apply()
    assert not star.project.apply().steps
    star.subscribe("west")
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert list(tables.values()) == [tables["hq"]] * 5
        assert tables["hq"][3]["b"] == "s3b"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("point", SYNCING)
def test_a_sync_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    state(star, "a")
    star.project.apply()
    with dies(point, action="stop"):
        star.sync("north")
    star.write("north", 1, {"b": "n1"})
    check_left(star)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["stage.after_manifest", "publisher.after_merge", "subscriber.before_merge"]
)
def test_a_staged_session_is_finished_first(star: Star, point: str) -> None:
    with dies(point, action="stop"):
        star.sync("south")
    state(star, "a")
    star.project.apply()
    star.settle()
    for name in ARTICLES:
        for replica in ("hq", *star.subscribers):
            found = rows(star, replica, name, "a")
            assert found == {1: {"a": "h1"}, 2: {"a": "n2"}, 3: {"a": "s3"}}, (replica, name)
        known = {row["b"] for replica in ("hq", "south") for row in star.rows(replica, name).values()}
        assert "s3b" in known


# ---- more


def check_published(star: Star, more: dict[int, str | None]) -> None:
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert {key: row["c"] for key, row in tables["hq"].items()} == more
        assert list(tables.values()) == [tables["hq"]] * len(tables)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star of a, with b that no subscriber has, c that the publisher has, and unsent edits; and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root", subscribers=tuple(SUBSCRIBERS))
    state(star, "a, b")
    star.project.apply()
    star.add("hq", "c")
    star.write("hq", 1, {"c": "c1"})
    star.sync()
    star.write("hq", 2, {"c": "c2"})
    star.write("north", 1, {"b": "n1"})
    star.write("south", 2, {"a": "s2"})
    star.write("hq", 3, {"a": "h3"})
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


@pytest.fixture
def wide(kept: tuple[Star, Path]) -> Star:
    """Return that star as it was prepared."""
    kept[0].load(kept[1])
    return kept[0]


def check_more(star: Star) -> None:
    check_published(star, {1: "c1", 2: "c2", 3: None})
    for name in ARTICLES:
        found = star.rows("hq", name)
        assert (found[1]["b"], found[2]["a"], found[3]["a"]) == ("n1", "s2", "h3")
        assert star.conflicts("hq", name) == []


def test_a_column_of_the_publisher_is_published_with_its_values(wide: Star) -> None:
    state(wide, "a, b, c")
    planned = wide.project.apply(dry_run=True)
    assert [each.action for each in planned.steps] == ["sync"] * 3 + ["change", "change", "record"]
    assert {each.why for each in planned.subscriptions} == {"by_row: after its changes went up"}
    wide.project.apply()
    assert not wide.project.apply().steps
    check_more(wide)


KILLED = "schema.after_record", "schema.before_published_columns", "schema.after_capture"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "is_killed"),
    [
        *((each, False) for each in ("apply.before_sync", "apply.after_sync", *APPLYING)),
        *((each, True) for each in KILLED),
    ],
)
def test_an_apply_that_publishes_a_column_and_dies_is_finished_by_the_next_one(
    wide: Star, point: str, is_killed: bool
) -> None:
    state(wide, "a, b, c")
    if is_killed:
        killed([sys.executable, "-m", "mergerepl", "apply"], point, cwd=wide.root)
    else:
        with dies(point, action="stop"):
            wide.project.apply()
    wide.sync("east")
    wide.project.apply()
    check_more(wide)


@pytest.mark.slow
def test_all_columns_are_published_and_then_those_that_come(wide: Star) -> None:
    state(wide, "")
    wide.project.apply()
    check_more(wide)
    wide.add("hq", "d")
    wide.write("hq", 1, {"d": "d1"})
    wide.settle()
    assert wide.rows("south", "by_row")[1]["d"] == "d1"
    state(wide, "a, b, c, d")
    wide.project.apply()
    wide.add("hq", "e")
    wide.settle()
    assert "e" not in wide.rows("south", "by_row")[1]


@pytest.mark.slow
def test_one_column_is_left_out_and_another_is_published(wide: Star) -> None:
    state(wide, "a, c")
    wide.project.apply()
    wide.settle()
    for name in ARTICLES:
        for replica in ("hq", *wide.subscribers):
            found = rows(wide, replica, name, "a c")
            assert found == {1: {"a": "x", "c": "c1"}, 2: {"a": "s2", "c": "c2"}, 3: {"a": "h3", "c": None}}
    # Its edits went up before, for both articles.
    assert {wide.rows("hq", name)[1]["b"] for name in ARTICLES} == {"n1"}
    assert all(wide.conflicts("north", name) == [] for name in ARTICLES)


def returned(root: Path) -> Star:
    """Return a star whose publisher left a column out and publishes it again, after edits of it at both sides."""
    star = Star(root, subscribers=("north",))
    state(star, "a")
    star.project.apply()
    star.settle()
    star.write("north", 1, {"b": "own"})
    star.write("hq", 1, {"b": "h1"})
    state(star, "")
    planned = star.project.apply(dry_run=True)
    assert {each.outcome for each in planned.subscriptions} == {"stops"}
    star.project.apply()
    return star


def empty(star: Star, reason: str) -> None:
    """Run the statement in the message about a subscriber whose column has old values, at both of its tables."""
    said = re.search(r"UPDATE delta.`(?P<table>.*?)` SET `b` = NULL WHERE `b` IS NOT NULL", reason)
    assert said is not None, reason
    assert said["table"] in {str(star.root / "north" / name) for name in ARTICLES}
    for name in ARTICLES:
        star.table("north", name).update({"b": "NULL"}, predicate="b IS NOT NULL")


@pytest.mark.slow
def test_a_column_that_comes_back_is_filled_anew_once_it_is_empty(tmp_path: Path) -> None:
    star = returned(tmp_path / "root")
    with pytest.raises(RefusedArticlesError) as stopped:
        star.sync()
    assert star.rows("north", "by_row")[1]["b"] == "own"
    empty(star, str(stopped.value))
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert {key: row["b"] for key, row in tables["hq"].items()} == {1: "h1", 2: "y", 3: "y"}
        assert tables["north"] == tables["hq"]
        assert star.conflicts("hq", name) == []


@pytest.mark.slow
def test_a_subscriber_that_slept_through_both_changes_has_another_column(tmp_path: Path) -> None:
    """Rows that it did not hear of say values of the former column, which the publisher emptied since."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "a": ["x", "x"], "b": ["y", "y"]})
    write_deltalake(str(tmp_path / "hq" / "t"), rows)
    network = Published(tmp_path)

    def publish(columns: str) -> None:
        article = f"{{name: t, key: [id], tracking: column{columns}}}"
        lines = ["publication: sales", "publisher: ./hq", f"articles: [{article}]"]
        lines.append("subscriptions: [{subscriber: ./north}]")
        (tmp_path / "mergerepl.yml").write_text("\n".join(lines), encoding="utf-8")
        network.project.apply()

    publish("")
    network.table("hq", "t").update({"b": "'h2'"}, predicate="id = 2")
    publish(", columns: [a]")
    network.table("hq", "t").update({"b": "NULL"}, predicate="id = 2")
    publish("")
    with pytest.raises(SchemaStoppedError, match="SET `b` = NULL"):
        network.project.sync()
    network.table("north", "t").update({"b": "NULL"}, predicate="true")
    for _ in range(2):
        (session,) = network.project.sync().sessions
        assert session.error is None
    assert network.rows("hq", "t") == {1: {"a": "x", "b": "y"}, 2: {"a": "x", "b": None}}
    assert network.rows("north", "t") == network.rows("hq", "t")


@pytest.mark.slow
@pytest.mark.parametrize("point", FOLLOWING)
def test_a_sync_that_takes_a_column_back_and_dies_is_finished_by_the_next_one(
    tmp_path: Path, point: str
) -> None:
    star = returned(tmp_path / "root")
    for name in ARTICLES:
        star.table("north", name).update({"b": "NULL"}, predicate="b IS NOT NULL")
    star.write("north", 2, {"a": "n2"})
    with dies(point, action="stop"):
        star.sync("north")
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert {key: row["b"] for key, row in tables["hq"].items()} == {1: "h1", 2: "y", 3: "y"}
        assert tables["hq"][2]["a"] == "n2" or name == "by_row"
        assert tables["north"] == tables["hq"]


# ---- what is refused


def test_what_is_needed_cannot_be_left_out(tmp_path: Path) -> None:
    star = Star(tmp_path / "root", subscribers=("north",), required=("b",))
    state(star, "a")
    with pytest.raises(PublicationError, match="NOT NULL without a default"):
        star.project.apply()
    state(star, "a, z")
    with pytest.raises(PublicationError, match="names column 'z'"):
        star.project.apply()
    state(star, "")
    assert not star.project.apply().steps
