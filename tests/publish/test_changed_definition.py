"""Every key of a file under active subscriptions: whether a change is followed, asks for a diff, or is refused."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mergerepl.config.schema import ArticleKeys, JoinKeys, PublicationKeys, ResolverKeys, SubscriptionKeys
from mergerepl.config.stated import check_stated
from mergerepl.errors import ConfigurationError, PublicationError
from mergerepl.model.publication import (
    Article,
    ConflictLogging,
    Join,
    Publication,
    Resolution,
    SubscriberType,
    SyncType,
    Tracking,
)
from mergerepl.model.resolvers import ResolverInfo
from mergerepl.publish.agent import Agent
from mergerepl.publish.outcomes import planned_subscriptions
from mergerepl.publish.stated import prepare
from tests.publish.publishing import orders, table
from tests.publish.stored_publication import COLUMNS, HQ, Replicas, plan, publication, subscribed

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
FOLLOWED, DIFF, REFUSED = "followed", "diff", "refused"
LINES = Article("lines", "lines", ("id",))
TO = (subscribed(), subscribed("south"))


def one(**settings: Any) -> Publication:
    """Return a publication of one article with two subscribers."""
    return publication(orders(**{"tracking": Tracking.COLUMN, **settings}), to=TO)


def filtered(*, by: str = "id = CAST(HOST_NAME() AS INT)", to: str = "1", **settings: Any) -> Publication:
    hosts = (subscribed(host_name=to), subscribed("south", host_name="2"))
    return publication(orders(filter=by, **settings), to=hosts)


def joined(**settings: Any) -> Publication:
    join = {"article": "lines", "parent": "orders", "on": "lines.id = orders.id", **settings}
    return replace(filtered(), articles=(*filtered().articles, LINES), joins=(Join(**join),))


def of_publication(**settings: Any) -> Publication:
    return replace(one(), **settings)


def of_north(**settings: Any) -> Publication:
    return replace(one(), subscriptions=(subscribed(**settings), TO[1]))


def resolver(name: str, **info: Any) -> Publication:
    return one(resolver=name, resolver_info=ResolverInfo(**info))


NO_JOIN = replace(joined(), joins=())
NO_JOIN_LESS = replace(NO_JOIN, articles=NO_JOIN.articles[:1])
TWO = replace(
    NO_JOIN, articles=(NO_JOIN.articles[0], replace(LINES, filter="qty = CAST(HOST_NAME() AS INT)"))
)
BOTH = replace(TWO, joins=joined().joins)


def of_parent(parent: str) -> Publication:
    """Return a publication of two filtered articles, one of which is the parent of a third."""
    items = Article("items", "items", ("id",))
    join = Join("items", parent, f"items.id = {parent}.id")
    return replace(TWO, articles=(*TWO.articles, items), joins=(join,))


CASES: list[tuple[str, str, Publication, Publication, str]] = [
    ("name", "of an article", one(), of_publication(articles=(replace(orders(), name="o"),)), REFUSED),
    ("table", "", one(), of_publication(articles=(replace(orders(), table="lines"),)), REFUSED),
    ("key", "", one(), one(key=("qty",)), REFUSED),
    ("rowguid", "", one(), one(key=(), rowguid="qty"), REFUSED),
    ("tracking", "to `row`", one(), one(tracking=Tracking.ROW), FOLLOWED),
    ("tracking", "to `column`", one(tracking=Tracking.ROW), one(), FOLLOWED),
    ("columns", "more", one(columns=("id",)), one(columns=("id", "qty")), FOLLOWED),
    ("columns", "fewer", one(columns=("id", "qty")), one(columns=("id",)), FOLLOWED),
    ("columns", "given or left out", one(), one(columns=("id", "qty")), FOLLOWED),
    ("filter", "another", filtered(), filtered(by="id > 1 AND id = CAST(HOST_NAME() AS INT)"), FOLLOWED),
    ("filter", "another, with other functions", filtered(), filtered(by="id = 1"), REFUSED),
    ("filter", "the first one", one(), one(filter="id = 1"), REFUSED),
    ("filter", "the last one", filtered(), filtered(by=None), REFUSED),
    ("partition_options", "among `0` to `2`", filtered(), filtered(partition_options=2), FOLLOWED),
    ("partition_options", "to `3`", filtered(), filtered(partition_options=3), REFUSED),
    ("partition_options", "from `3`", filtered(partition_options=3), filtered(), REFUSED),
    ("compensate_for_errors", "", one(), one(compensates=True), FOLLOWED),
    ("resolver.name", "between two that take both sides", one(), resolver("publisher_wins"), FOLLOWED),
    ("resolver.name", "to `upload_only`", one(), resolver("upload_only"), FOLLOWED),
    ("resolver.name", "to `download_only`", one(), resolver("download_only"), FOLLOWED),
    ("resolver.name", "from `download_only`", resolver("download_only"), one(), FOLLOWED),
    ("resolver.name", "from `upload_only`", resolver("upload_only"), one(), DIFF),
    ("resolver.name", "from `upload_only`", resolver("upload_only"), resolver("download_only"), DIFF),
    ("resolution", "", one(), one(resolution=Resolution.COLUMNS), FOLLOWED),
    ("column", "", resolver("maximum", columns=("qty",)), resolver("maximum", columns=("b",)), FOLLOWED),
    ("columns", "of a resolver", resolver("delta", columns=("qty",)), resolver("delta", columns=("b",)), FOLLOWED),
    ("resolver_info", "", resolver("maximum", columns=("qty",)), resolver("maximum", columns=("b",)), FOLLOWED),
    ("delimiter", "", one(), one(resolver_info=ResolverInfo(delimiter="|")), FOLLOWED),
    ("update_delete", "", one(), one(resolver_info=ResolverInfo(update_delete="delete_wins")), FOLLOWED),
    ("function", "", resolver("custom", function="a"), resolver("custom", function="b"), FOLLOWED),
    ("joins", "more, of an article with a filter", TWO, BOTH, FOLLOWED),
    ("joins", "more, the first one of an article without a filter", NO_JOIN, joined(), REFUSED),
    ("joins", "fewer, of an article with a filter", BOTH, TWO, FOLLOWED),
    ("joins", "fewer, the last one of an article without a filter", joined(), NO_JOIN, REFUSED),
    ("article", "", joined(), replace(joined(article="orders", parent="lines"), articles=joined().articles), REFUSED),
    ("parent", "", of_parent("orders"), of_parent("lines"), FOLLOWED),
    ("on", "", joined(), joined(on="lines.qty = orders.id"), FOLLOWED),
    ("unique", "", joined(), joined(unique=True), FOLLOWED),
    ("publication", "", one(), of_publication(name="stock"), REFUSED),
    ("publisher", "another folder", one(), of_publication(publisher="/other"), REFUSED),
    ("articles", "one more", one(), of_publication(articles=(*one().articles, LINES)), FOLLOWED),
    ("articles", "one less", replace(one(), articles=(*one().articles, LINES)), one(), FOLLOWED),
    ("articles", "one less, which a filter or a join names", joined(), NO_JOIN_LESS, REFUSED),
    ("subscriptions", "one more", one(), of_publication(subscriptions=(*TO, subscribed("east"))), FOLLOWED),
    ("subscriptions", "one less", one(), of_publication(subscriptions=TO[:1]), FOLLOWED),
    ("retention", "", one(), of_publication(retention=timedelta(days=40)), FOLLOWED),
    ("conflict_retention", "", one(), of_publication(conflict_retention=3), FOLLOWED),
    ("conflict_logging", "", one(), of_publication(conflict_logging=ConflictLogging.BOTH), FOLLOWED),
    ("engine", "", one(), of_publication(engine="spark"), FOLLOWED),
    ("allow_partition_realignment", "", filtered(), replace(filtered(), allow_partition_realignment=False), REFUSED),
    ("subscriber", "another folder", one(), of_publication(subscriptions=(subscribed("west"), TO[1])), FOLLOWED),
    ("name", "of a subscription", one(), of_north(name="n"), FOLLOWED),
    ("type", "of a subscription", one(), of_north(type=SubscriberType.CLIENT, priority=0.0), REFUSED),
    ("priority", "", one(), of_north(priority=10.0), FOLLOWED),
    ("sync_type", "", one(), of_north(sync_type=SyncType.NONE), FOLLOWED),
    ("host_name", "", filtered(), filtered(to="3"), FOLLOWED),
    ("suser_sname", "", one(), of_north(suser_sname="N"), FOLLOWED),
    ("catalog", "", one(), of_publication(catalog="sales"), FOLLOWED),
]  # fmt: skip


def outcome(before: Publication, after: Publication) -> str:
    """Return the outcome of a changed file whose subscribers are active."""
    paths = [
        HQ.parent / root[1:] / each.table for root in roots(before, after) for each in articles(before, after)
    ]
    tables = {path: table(path, *COLUMNS) for path in paths}
    try:
        check_stated(after)
        lines = plan(Replicas(before).stored(after, tables=tables), after)
    except (ConfigurationError, PublicationError):
        return REFUSED
    return DIFF if any(line.startswith("reinit ") for line in lines) else FOLLOWED


def roots(*stated: Publication) -> set[str]:
    return {root for each in stated for root in (each.publisher, *(s.subscriber for s in each.subscriptions))}


def articles(*stated: Publication) -> set[Article]:
    return {article for each in stated for article in each.articles}


@pytest.mark.parametrize("case", CASES, ids=[f"{key} {change}" for key, change, *_ in CASES])
def test_a_change_under_active_subscriptions_is_followed_or_refused(
    case: tuple[str, str, Publication, Publication, str],
) -> None:
    *_, before, after, expected = case
    assert outcome(before, after) == expected


def test_every_key_has_a_case_and_a_row_in_the_docs() -> None:
    models = (ArticleKeys, JoinKeys, PublicationKeys, ResolverKeys, SubscriptionKeys)
    keys = {key for model in models for key in model.model_fields} - {"resolver", "alerts"}
    assert {key.removeprefix("resolver.") for key, *_ in CASES} == keys | {"name"}
    section = (
        PAGE.read_text(encoding="utf-8").split("\n### Under active subscriptions\n")[1].split("\n## ")[0]
    )
    rows = re.findall(r"^\| (?:`resolver`: )?(`[\w.`, ]+`) \| ([^|]*?) ?\| (\w+) \|", section, re.MULTILINE)
    shown = {
        (key, change, expected) for named, change, expected in rows for key in re.findall(r"[\w.]+", named)
    }
    assert shown == {(key, change, expected) for key, change, _, _, expected in CASES}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (filtered(), filtered(columns=("b",), by="qty = CAST(HOST_NAME() AS INT)"), "which is not published"),
        (
            filtered(by="qty = CAST(HOST_NAME() AS INT)"),
            filtered(columns=("b",)),
            "a row filter or a join reads it",
        ),
        (
            resolver("maximum", columns=("qty",)),
            one(columns=("b",), resolver="maximum", resolver_info=ResolverInfo(columns=("b",))),
            "its resolver reads it",
        ),
        (
            one(),
            one(columns=("b",), resolver="maximum", resolver_info=ResolverInfo(columns=("qty",))),
            "its resolver",
        ),
        (filtered(columns=("b",)), filtered(by="qty = CAST(HOST_NAME() AS INT)"), "does not have yet"),
        (one(), one(columns=("b", "z")), "`columns` names column 'z'"),
    ],
)
def test_columns_that_are_needed_are_not_left_out(before: Publication, after: Publication, why: str) -> None:
    stored = Replicas(before).stored(after, tables={HQ / "orders": table(HQ / "orders", *COLUMNS)})
    with pytest.raises(PublicationError, match=why):
        prepare(after, stored)


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    after, replicas = one(), Replicas(resolver("upload_only"))
    replicas.edit("hq", "subscriptions", expired_at=datetime.now(UTC))
    stored, why = replicas.stored(after), "the subscription of '/north' has expired"
    message = f"`resolver` was 'upload_only' and is 'priority' in the file.*{why}.*Put it back; or run `mergerepl sync`"
    with pytest.raises(PublicationError, match=message):
        prepare(after, stored)


def test_an_article_that_was_published_only_gets_its_filters() -> None:
    before = replace(NO_JOIN, subscriptions=joined().subscriptions)
    replicas = Replicas(before)
    for name in ("north", "south"):
        state = replicas.states[name]
        replicas.states[name] = replace(
            state, articles=[row for row in state.articles if row.name == "orders"]
        )
    lines = plan(replicas.stored(joined()), joined())
    assert [line.partition(":")[0] for line in lines] == [
        "capture /hq",
        "change sales",
        "initialise /north",
        "initialise /south",
        "record sales",
    ]


def test_a_dry_run_names_the_outcome_for_each_subscription() -> None:
    before = replace(resolver("upload_only"), subscriptions=(*TO, subscribed("west")))
    after = replace(one(), subscriptions=(*TO, subscribed("east")))
    stored = Replicas(before).stored(after)
    found = [*planned_subscriptions(prepare(after, stored), stored, Agent())]
    assert [(each.subscriber, each.outcome, each.why) for each in found] == [
        ("/north", "diff", "orders: after its changes went up"),
        ("/south", "diff", "orders: after its changes went up"),
        ("/east", "new", "it gets all tables"),
        ("/west", "ends", "the file no longer names it"),
    ]
    expired = Replicas(before)
    expired.edit("hq", "subscriptions", expired_at=datetime.now(UTC))
    stored = expired.stored(before)
    assert {each.outcome for each in planned_subscriptions(prepare(before, stored), stored, Agent())} == {
        "stops"
    }
    stored = Replicas(before).stored(before)
    assert {each.outcome for each in planned_subscriptions(prepare(before, stored), stored, Agent())} == {
        "followed"
    }
    stored = Replicas(filtered()).stored(filtered(to="3"))
    moved = [*planned_subscriptions(prepare(filtered(to="3"), stored), stored, Agent())]
    says = "it moves to another partition with its next session, after its changes went up"
    assert [(each.outcome, each.why) for each in moved] == [("followed", says), ("followed", "")]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "rows enter and leave, which only Spark can count"),
        ({"orders": {7: (2, 1)}, "lines": {7: (0, 0)}}, "orders gains 2 rows, loses 1"),
        ({"orders": {7: (0, 0)}}, ""),
    ],
)
def test_a_dry_run_says_how_many_rows_move(
    found: dict[str, dict[int, tuple[int, int]]] | None, why: str
) -> None:
    class Counting(Agent):
        def planned_moves(self, *_: object) -> dict[str, dict[int, tuple[int, int]]] | None:
            return found

    before, after = filtered(), filtered(by="id > 1 AND id = CAST(HOST_NAME() AS INT)")
    replicas = Replicas(before)
    replicas.edit("hq", "subscriptions", partition_id=7)
    stored = replicas.stored(after)
    for planned in planned_subscriptions(prepare(after, stored), stored, Counting()):
        assert (planned.outcome, planned.why) == ("followed", why)
        moves = [(each.article, each.enter, each.leave) for each in planned.moves]
        assert moves == ([("orders", 2, 1)] if why.startswith("orders") else [])
