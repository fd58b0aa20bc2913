"""Validation of what the control plane says: which articles there are at either side."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

import mergerepl
from mergerepl import Project
from mergerepl.delta.log import head_version
from mergerepl.errors import ConfigurationError
from mergerepl.merge.repair.certificate import diverged_after
from mergerepl.model.publication import Article, Publication, Subscription
from mergerepl.model.results import ArticleValidation
from mergerepl.monitoring.quiet import nothing_to_do
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, sessions
from tests.calls import validated
from tests.networks import Network, article_row, lose_changes, make_pair, publication_row


@pytest.mark.parametrize(("side", "name"), [(0, "publisher"), (1, "subscriber")])
def test_an_article_that_one_side_lacks_is_different(tmp_path: Path, side: int, name: str):
    hq, north = tmp_path / "hq", tmp_path / "north"
    pair = make_pair(tmp_path)
    assert [article.ok for article in validated(hq, level="rowcount")[str(north)]] == [True]
    pair[side].control.replace(catalog.ARTICLES, [])
    (orders,) = validated(hq, level="rowcount")[str(north)]
    assert (orders.article, orders.ok, orders.missing_at) == ("orders", False, name)
    rows = (0, 2) if name == "publisher" else (2, 0)
    assert (orders.publisher_rows, orders.subscriber_rows, orders.differing_rows) == (*rows, 2)


@pytest.fixture
def two_publications(tmp_path: Path) -> Path:
    """A publisher whose publications `sales` and `staff` share a subscriber; a row of `staff` is not there yet."""
    for rows, replica in enumerate(make_pair(tmp_path), 1):
        names = [publication_row("sales", "pub-1"), publication_row("staff", "pub-2")]
        control = replica.control
        control.replace(catalog.PUBLICATIONS, names)
        people = article_row("orders", 2, pubid="pub-2", source_table="people")
        control.replace(catalog.ARTICLES, [article_row("orders", 1), people])
        itself, about = control.rows(catalog.SUBSCRIPTIONS)
        control.replace(catalog.SUBSCRIPTIONS, [itself, about, replace(about, pubid="pub-2", subid="sub-2")])
        write_deltalake(str(replica.root / "people"), pa.table({"id": [1] * rows}))
        lose_changes(replica.root)
    return tmp_path / "hq"


@pytest.mark.parametrize("side", ["hq", "north"])
def test_an_article_that_cannot_be_compared_has_the_error_beside_those_that_can(
    tmp_path: Path, side: str
) -> None:
    hq, north = tmp_path / "hq", tmp_path / "north"
    for replica in make_pair(tmp_path):
        (orders,) = replica.control.rows(catalog.ARTICLES)
        people = replace(orders, name="people", nickname=2, artid="people", source_table="people")
        replica.control.replace(catalog.ARTICLES, [people, orders])
        if replica.root.name != side:
            write_deltalake(str(replica.root / "people"), pa.table({"id": [1]}))
            lose_changes(replica.root)
    orders, people = validated(hq, level="rowcount")[str(north)]
    assert (people.article, people.ok, orders.article, orders.ok) == ("people", False, "orders", True)
    assert str(tmp_path / side / "people") in str(people.error)


def stated(hq: Path, name: str) -> Project:
    people = (Article("orders", "orders", ("id",)),)
    return Project(Publication(name, str(hq), people, (Subscription(str(hq.parent / "north")),)))


def test_only_the_publication_that_is_asked_for_is_compared(two_publications: Path):
    hq, north = two_publications, str(two_publications.parent / "north")
    (sales,) = validated(stated(hq, "sales"), level="rowcount")[north]
    (staff,) = validated(stated(hq, "staff"), level="rowcount")[north]
    assert [(each.publication, each.ok) for each in (sales, staff)] == [("sales", True), ("staff", False)]
    assert validated(hq, level="rowcount")[north] == (sales, staff)
    with pytest.raises(ConfigurationError, match="no active subscription to publication 'other'"):
        validated(stated(hq, "other"), level="rowcount")


def test_a_session_is_validated_by_its_publication(two_publications: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "mergerepl.sessions._session", lambda item, *_: nothing_to_do(item.subscriber, item.publication)
    )
    result = mergerepl.Project.load(two_publications).sync(validate="rowcount")
    found = [
        [(each.publication, each.ok) for each in session.validation or ()] for session in result.sessions
    ]
    assert (found, result.ok) == ([[("sales", True)], [("staff", False)]], False)


def test_a_validation_after_a_session_is_recorded_until_a_higher_one_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(tmp_path)
    hq, north = network.root("hq"), network.root("north")
    monkeypatch.setattr("mergerepl.spark.session.session", lambda **_: pytest.fail("started Spark"))
    network.add_rows("north", 9)
    lose_changes(north)

    def synced() -> tuple[str, ...]:
        (session,) = Project.load(hq).sync("north", validate="rowcount").sessions
        return tuple(each.result for each in session.validation or ())

    assert synced() == ("different",)
    for root in (hq, north):
        (row,) = Replica(root).control.rows(sessions.ARTICLEHISTORY)
        assert (row.phase_id, row.level, row.result) == (3, "rowcount", "different")
        assert (row.publisher_rows, row.subscriber_rows, row.differing_rows) == (3, 4, 1)
        details = mergerepl.Replica(root).status()[0].details
        assert [[*each.diverged] for each in details.subscriptions if each.subscriber == str(north)] == [
            ["orders"]
        ]
    assert any("has other rows" in each.text for each in mergerepl.Replica(hq).status()[0].warnings)
    DeltaTable(str(north / "orders")).delete("id = 9")
    lose_changes(north)
    assert Project.load(hq).validate("north", level="rowcount").ok
    row = next(each for each in Replica(hq).relations() if each.subscriber_server == str(north))
    assert (row.diverged, row.last_validated) == ({}, row.attempted_validate)
    # A result that is no news writes nothing; and not again within the interval.
    before = head_version(hq / "_mergerepl" / "sysmergesubscriptions")
    assert Project.load(hq).validate("north", level="rowcount").ok
    assert head_version(hq / "_mergerepl" / "sysmergesubscriptions") == before
    (session,) = (
        Project.load(hq).sync("north", validate="rowcount", validate_interval=timedelta(hours=1)).sessions
    )
    assert session.validation is None


def test_a_session_without_rows_compares_none_and_takes_no_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hq = Network(tmp_path).root("hq")
    monkeypatch.setattr("mergerepl.spark.session.session", lambda **_: pytest.fail("started Spark"))
    (session,) = Project.load(hq).sync("north", validate="touched").sessions
    assert [(each.level, each.result, each.publisher_rows) for each in session.validation or ()] == [
        ("touched", "equal", 0)
    ]
    with pytest.raises(ConfigurationError, match="leave out the interval"):
        Project.load(hq).sync("north", validate="touched", validate_interval=timedelta(hours=1))


NOW = datetime(2026, 11, 1, tzinfo=UTC)
FOUND = {level: f"{level} before" for level in ("rowcount", "touched", "checksum")}


@pytest.mark.parametrize(
    ("before", "level", "result", "after"),
    [
        (None, "rowcount", "different", "rowcount 2026-11-01T00:00:00+00:00"),
        (None, "checksum", "equal", None),
        ("rowcount", "checksum", "different", "checksum 2026-11-01T00:00:00+00:00"),
        ("checksum", "rowcount", "different", FOUND["checksum"]),
        ("checksum", "rowcount", "equal", FOUND["checksum"]),
        ("rowcount", "checksum", "equal", None),
        ("checksum", "checksum", "equal", None),
        ("checksum", "checksum", "uncertain", FOUND["checksum"]),
        ("checksum", "checksum", "not_compared", FOUND["checksum"]),
        ("rowcount", "touched", "different", "touched 2026-11-01T00:00:00+00:00"),
        ("checksum", "touched", "different", FOUND["checksum"]),
        ("rowcount", "touched", "equal", FOUND["rowcount"]),
        ("touched", "touched", "equal", FOUND["touched"]),
        ("touched", "rowcount", "equal", FOUND["touched"]),
        ("touched", "checksum", "equal", None),
    ],
)
def test_only_a_passing_validation_of_the_level_ends_a_divergence(
    before: str | None, level: str, result: str, after: str | None
) -> None:
    found = ArticleValidation(
        "orders",
        level,
        *(3, 3, int(result == "different")),
        error={} if result == "not_compared" else None,
        unsent_at_publisher=int(result == "uncertain"),
    )
    assert found.result == result
    known = {} if before is None else {1: FOUND[before]}
    assert diverged_after(known, {1: found}, NOW) == ({} if after is None else {1: after})


def test_a_column_that_has_yet_to_travel_is_not_equal(tmp_path: Path) -> None:
    hq, north = tmp_path / "hq", tmp_path / "north"
    make_pair(tmp_path)
    column = [Field("note", PrimitiveType("string"))]
    DeltaTable(str(north / "orders")).alter.add_columns(column)
    # A column of the subscriber's own is left out.
    assert validated(hq, level="rowcount")[str(north)][0].ok
    DeltaTable(str(hq / "orders")).alter.add_columns(column)
    (orders,) = validated(hq, level="rowcount")[str(north)]
    assert (orders.ok, orders.is_transient) == (False, False)
    assert (orders.publisher_rows, orders.subscriber_rows, orders.differing_rows) == (2, 2, 0)
    assert "column 'note' was added" in str(orders.error)
