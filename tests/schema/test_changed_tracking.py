"""`tracking` changes under active subscriptions: no value is lost unlogged, whoever edited before it or after it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import mergerepl
from mergerepl.errors import PublicationError, SchemaMismatchError
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import catalog
from tests.faults.deaths import dies
from tests.schema.stars import ARTICLES, SUBSCRIBERS, Star

APPLYING = (
    "apply.before_change",
    "schema.before_record",
    "schema.after_record",
    "capture.before_replinfo",
    "schema.after_capture",
    "apply.after_change",
)
SYNCING = (
    *APPLYING[1:5],
    "schema.before_capture",
    "schema.before_articles",
    "schema.before_published_version",
    "schema.after_articles",
    "stage.after_manifest",
    "subscriber.before_merge",
)
WRITTEN = {"n1", "h1", "s2", "h2", "e3", "h3", "n1b", "s3", "h1a"}


def change(star: Star) -> None:
    """Exchange the tracking of both articles in the file, which is not applied."""
    file = star.root / "mergerepl.yml"
    text = file.read_text(encoding="utf-8")
    for before, after in (
        ("tracking: row", "tracking: was_row"),
        ("tracking: column", "tracking: row"),
        ("tracking: was_row", "tracking: column"),
    ):
        text = text.replace(before, after)
    file.write_text(text, encoding="utf-8")


def prepare(star: Star) -> Star:
    """Edit rows at all replicas, some of them captured by sessions that died, none sent."""
    star.write("north", 1, {"a": "n1"})
    star.write("south", 2, {"b": "s2"})
    star.write("east", 3, {"a": "e3"})
    for name in ("north", "east"):
        with dies("stage.before_pointer", action="stop"):
            star.sync(name)
    star.write("hq", 1, {"b": "h1"})
    change(star)
    return star


def edit_again(star: Star) -> None:
    star.write("hq", 2, {"b": "h2"})
    star.write("hq", 3, {"a": "h3"})
    star.write("hq", 1, {"a": "h1a"})
    star.write("north", 1, {"b": "n1b"})
    star.write("south", 3, {"b": "s3"})


def check(star: Star) -> None:
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert list(tables.values()) == [tables["hq"]] * 4
        kept = {value for row in tables["hq"].values() for value in row.values()}
        lost = {row[each] for row in star.conflicts("hq", name) for each in "ab"}
        assert kept | lost >= WRITTEN
        assert star.conflicts("hq", name)
    status = mergerepl.Replica(star.root / "south").status()[0].details
    assert {each.article: each.tracking for each in status.articles} == {
        "by_row": "column",
        "by_column": "row",
    }


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star with unsent edits whose file exchanges the tracking, and its copy."""
    star = prepare(Star(tmp_path_factory.mktemp("star") / "root", subscribers=tuple(SUBSCRIBERS)))
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def test_the_tracking_is_exchanged_among_unsent_edits(star: Star) -> None:
    star.apply_followed()
    with dies("stage.before_pointer", action="stop"):
        star.sync("north")
    # North's second edit is on top of one that it captured by row.
    edit_again(star)
    with pytest.raises(SchemaMismatchError, match="`mergerepl sync` follows that before"):
        star.project.sync("south", dry_run=True)
    (result,) = star.sync("south")
    assert result.schema == ("by_row: tracking by column", "by_column: tracking by row")
    check(star)
    found = mergerepl.Replica(star.root / "south").schema.list()
    assert [each.changes for each in found] == [("tracking by row",), ("tracking by column",)]


@pytest.mark.slow
@pytest.mark.parametrize("point", APPLYING)
def test_an_apply_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    with dies(point, action="stop"):
        star.project.apply()
    edit_again(star)
    star.sync("south")
    star.project.apply()
    check(star)


@pytest.mark.slow
@pytest.mark.parametrize("point", SYNCING)
def test_a_sync_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    star.project.apply()
    edit_again(star)
    with dies(point, action="stop"):
        star.sync("north")
    check(star)


@pytest.mark.spark
@pytest.mark.slow
def test_spark_follows_it_as_well(star: Star) -> None:
    file = star.root / "mergerepl.yml"
    file.write_text(f"engine: spark\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    star.project.apply()
    edit_again(star)
    check(star)


@pytest.mark.slow
def test_a_staged_session_keeps_its_decisions(tmp_path: Path) -> None:
    star = Star(tmp_path / "root", subscribers=tuple(SUBSCRIBERS))
    prepare(star)
    with dies("stage.after_manifest", action="stop"):
        star.sync("north")
    star.project.apply()
    edit_again(star)
    check(star)


@pytest.mark.slow
def test_it_is_changed_back_before_anybody_synchronized(star: Star) -> None:
    star.project.apply()
    edit_again(star)
    change(star)
    star.project.apply()
    star.write("hq", 1, {"a": "h1a"})
    star.sync("east")
    change(star)
    star.project.apply()
    check(star)


@pytest.mark.slow
def test_a_new_subscriber_gets_the_new_tracking(tmp_path: Path) -> None:
    star = Star(tmp_path / "root", subscribers=("north", "south"))
    star.write("south", 2, {"b": "s2"})
    change(star)
    star.project.apply()
    star.write("south", 2, {"a": "s2a"})
    star.subscribe("east")
    star.write("east", 2, {"b": "e2"})
    star.settle()
    for name in ARTICLES:
        tables = star.tables(name)
        assert list(tables.values()) == [tables["hq"]] * 4


@pytest.mark.slow
def test_a_reinitialisation_that_cannot_send_names_the_changed_tracking(star: Star) -> None:
    star.project.apply()
    publisher = Replica(Location.of(star.root / "hq"))
    north = str(star.root / "north")
    publisher.control.change_where(
        catalog.SUBSCRIPTIONS, {"expired_at": datetime.now(UTC)}, subscriber_server=north
    )
    with pytest.raises(
        PublicationError, match=r"'by_row' changed since .* \(tracking by column\): its changes"
    ):
        star.project.reinit("north", upload_first=True)
