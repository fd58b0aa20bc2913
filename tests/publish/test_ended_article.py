"""An article less under active subscriptions: each uploads once more, then the article ends and its tables stay."""

import logging
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

import mergerepl
from mergerepl.conflicts.purge import purge_when_due
from mergerepl.errors import PublicationError
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import contents, genhistory
from tests.faults.deaths import dies
from tests.schema.stars import SUBSCRIBERS, Star

ENDED = "by_column"
KEPT = "by_row"


def without(star: Star, name: str = ENDED) -> str:
    """Take an article out of the file, which is not applied; return its line."""
    file = star.root / "mergerepl.yml"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    line = next(each for each in lines if f"name: {name}," in each)
    file.write_text("".join(each for each in lines if each != line), encoding="utf-8")
    return line


def with_line(star: Star, line: str, before: str = "subscriptions:") -> None:
    file = star.root / "mergerepl.yml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(before, f"{line}{before}"), encoding="utf-8")


def articles(star: Star, replica: str) -> list[str]:
    found = mergerepl.Replica(star.root / replica).status()[0].details.articles
    return sorted(each.article for each in found)


def waiting(star: Star, replica: str = "hq") -> set[tuple[str, str]]:
    """Return the schema changes that wait, by subscriber."""
    found = mergerepl.Replica(star.root / replica).pending()
    return {(Path(each.subscriber).name, text) for each in found for text in each.schema}


@pytest.fixture
def star(prepared: tuple[Star, Path]) -> Star:
    prepared[0].load(prepared[1])
    return prepared[0]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Star, Path]:
    """Return a star with unsent edits at all replicas, and its copy."""
    star = Star(tmp_path_factory.mktemp("star") / "root", subscribers=tuple(SUBSCRIBERS))
    star.write("north", 1, {"a": "n1"})
    star.write("south", 2, {"b": "s2"})
    star.write("east", 2, {"a": "e2"})
    star.write("hq", 3, {"a": "h3"})
    return star, star.save(tmp_path_factory.mktemp("saved") / "root")


def check(star: Star) -> None:
    """Synchronize to the end: the publisher has each edit, nobody tracks the table, and the other article goes on."""
    star.settle()
    rows = star.rows("hq", ENDED)
    assert [rows[1]["a"], rows[2], rows[3]["a"]] == ["n1", {"a": "e2", "b": "s2"}, "h3"]
    assert all(articles(star, name) == [KEPT] for name in ("hq", *SUBSCRIBERS))
    star.write("north", 3, {"b": "later"})
    star.settle()
    assert star.rows("hq", ENDED) == rows
    tables = star.tables(KEPT)
    assert tables["hq"][3]["b"] == "later"
    assert list(tables.values()) == [tables["hq"]] * 4
    assert not star.project.apply().steps


def test_an_article_ends_after_the_last_upload_of_each_subscription(star: Star) -> None:
    without(star)
    planned = star.project.apply(dry_run=True)
    assert [each.action for each in planned.steps] == ["end", "record"]
    assert {(each.outcome, each.why) for each in planned.subscriptions} == {
        ("followed", "by_column: after one more upload")
    }
    star.project.apply()
    assert waiting(star) == {(name, "the article ends") for name in SUBSCRIBERS}
    star.sync("north")
    assert waiting(star) == {(name, "the article ends") for name in ("south", "east")}
    star.sync("south")
    assert articles(star, "hq") == [ENDED, KEPT]
    star.sync("east")
    assert articles(star, "hq") == articles(star, "east") == [KEPT]
    assert mergerepl.Replica(star.root / "north").pending()[0].article == KEPT
    (result,) = star.sync("north")
    assert result.schema == ("by_column: the article ended; its table stays",)
    check(star)


@pytest.mark.slow
def test_what_an_article_leaves_goes_with_a_cleanup_and_a_new_copy_needs_a_free_place(star: Star) -> None:
    star.add("hq", "c")
    star.write("hq", 1, {"a": "h1"})
    star.settle()
    line = without(star)
    star.project.apply()
    with dies("end.after_ended", action="stop"):
        star.sync()
    star.sync()
    # A change recorded for an article that ended holds back none of the others.
    star.table("hq", KEPT).alter.add_columns([Field("d", PrimitiveType("string"), True)])
    assert {each.schema for each in star.sync()} == {("by_row: add d string",)}
    assert not waiting(star)
    publisher = Replica(Location.of(star.root / "hq"))
    (ended,) = publisher.all_ended
    assert not publisher.info().cleaned[ended]
    star.project.cleanup()
    for name in (contents.NAME, genhistory.NAME):
        nick = "tablenick" if name == contents.NAME else "art_nick"
        left = DeltaTable(str(publisher.folder / name)).to_pyarrow_table(filters=[(nick, "=", ended)])
        assert all(row["changecount"] == 0 for row in left.to_pylist() if name != contents.NAME)
        assert not left.num_rows or name != contents.NAME
    assert star.conflicts("hq", ENDED)
    purge_when_due((publisher.reread(),), now=datetime.now(UTC) + timedelta(days=15))
    assert not star.conflicts("hq", ENDED)
    with_line(star, line)
    with pytest.raises(PublicationError, match=r"the table's article ended\. Move the table away"):
        star.project.apply(dry_run=True)
    for name in SUBSCRIBERS:
        (star.root / name / ENDED).rename(star.root / f"{name}-{ENDED}")
    assert {each.why for each in star.project.apply(dry_run=True).subscriptions} == {"it gets by_column"}


@pytest.mark.slow
@pytest.mark.parametrize("point", ["apply.before_end", "apply.after_end", "record.after_subscriber"])
def test_an_apply_that_dies_is_finished_by_the_next_one(star: Star, point: str) -> None:
    without(star)
    with dies(point, action="stop"):
        star.project.apply()
    star.sync("south")
    star.project.apply()
    check(star)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        *(
            "capture.before_replinfo",
            "stage.after_manifest",
            "subscriber.after_done",
            "watermarks.before_publisher",
        ),
        *(f"end.{each}" for each in ("before_sent", "after_sent", "before_ended", "after_ended")),
        *("end.before_forgotten", "end.after_forgotten"),
    ],
)
@pytest.mark.parametrize("others", ["before", "after"])
def test_a_sync_that_dies_is_finished_by_the_next_one(star: Star, point: str, others: str) -> None:
    without(star)
    star.project.apply()
    for name in ("north", "south") if others == "before" else ():
        star.sync(name)
    if others == "before" or not point.startswith(
        ("end.before_e", "end.after_e", "end.before_f", "end.after_f")
    ):
        with dies(point, action="stop"):
            star.sync("east")
    check(star)


@pytest.mark.slow
def test_a_session_that_died_keeps_the_article_until_it_is_finished(star: Star) -> None:
    without(star)
    star.project.apply()
    star.sync("north")
    star.write("north", 3, {"b": "n3"})
    with dies("stage.after_manifest", action="stop"):
        star.sync("north")
    star.sync("south")
    star.sync("east")
    assert articles(star, "hq") == [ENDED, KEPT]
    star.sync("north")
    assert star.rows("hq", ENDED)[3]["b"] == "n3"
    check(star)


@pytest.mark.slow
def test_what_is_written_after_the_last_upload_is_counted_and_stays(
    star: Star, caplog: pytest.LogCaptureFixture
) -> None:
    without(star)
    star.project.apply()
    star.settle()
    star.table("north", ENDED).update({"b": "'n1b'"}, predicate="id = 1")
    assert star.rows("hq", ENDED)[1]["b"] == "y"
    line = without(star, KEPT)
    with_line(star, line)
    star.write("south", 1, {"b": "s1"})
    check(star)


@pytest.mark.slow
def test_a_subscriber_that_wrote_again_is_told_that_it_is_not_sent(
    star: Star, caplog: pytest.LogCaptureFixture
) -> None:
    without(star)
    star.project.apply()
    star.sync("north")
    star.write("north", 1, {"b": "n1b"})
    star.sync("south")
    star.sync("east")
    with caplog.at_level(logging.WARNING):
        star.sync("north")
    assert (
        "article 'by_column' ended at the publisher; 1 commit written here after the last upload"
        in caplog.text
    )
    assert star.rows("north", ENDED)[1]["b"] == "n1b"
    assert star.rows("hq", KEPT)[1]["b"] == "n1b"
    check(star)


@pytest.mark.slow
def test_a_subscription_that_leaves_the_file_is_not_waited_for(star: Star) -> None:
    line = without(star)
    star.project.apply()
    star.sync("north")
    star.sync("east")
    file = star.root / "mergerepl.yml"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(each for each in lines if "./south" not in each), encoding="utf-8")
    planned = star.project.apply()
    assert [each.action for each in planned.steps] == ["unsubscribe", "end", "record"]
    assert articles(star, "hq") == [KEPT]
    # An article of that name is another one.
    with_line(star, line)
    with pytest.raises(
        PublicationError, match=r"by_column.*has yet to hear of it.*Run `mergerepl sync north"
    ):
        star.project.apply()


@pytest.mark.slow
def test_a_restored_publisher_ends_what_its_subscribers_have_forgotten(star: Star) -> None:
    without(star)
    star.project.apply()
    copy = shutil.copytree(star.root / "hq", star.root / "copy")
    star.settle()
    assert articles(star, "east") == [KEPT]
    shutil.rmtree(star.root / "hq")
    copy.rename(star.root / "hq")
    assert articles(star, "hq") == [ENDED, KEPT]
    (planned,) = (each for each in star.project.apply().steps if each.action == "end")
    assert planned.object == ENDED
    assert articles(star, "hq") == [KEPT]
    assert {each.error["error"] for each in star.sync() if each.error is not None} == {"EnumerationError"}


@pytest.mark.slow
def test_an_article_that_comes_back_before_it_ended_stays(star: Star) -> None:
    line = without(star)
    star.project.apply()
    star.sync("north")
    with_line(star, line)
    assert [each.action for each in star.project.apply().steps] == ["change", "record"]
    star.write("north", 1, {"b": "n1b"})
    star.settle()
    tables = star.tables(ENDED)
    assert tables["hq"][1] == {"a": "n1", "b": "n1b"}
    assert list(tables.values()) == [tables["hq"]] * 4


@pytest.mark.slow
def test_a_new_subscriber_waits_for_the_end(star: Star) -> None:
    without(star)
    star.project.apply()
    with pytest.raises(PublicationError, match=r"It cannot end now.*Run `mergerepl sync` until it has ended"):
        star.subscribe("west")


@pytest.mark.spark
@pytest.mark.slow
def test_spark_ends_it_as_well(star: Star) -> None:
    file = star.root / "mergerepl.yml"
    file.write_text(f"engine: spark\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    without(star)
    star.project.apply()
    check(star)
