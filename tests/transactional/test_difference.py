"""`apply` of a transactional file as a difference of values: no table, no folder, no engine."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mergerepl.errors import MergeReplError
from mergerepl.model.transactional import Article, Publication, Subscription
from mergerepl.store.location import Location
from mergerepl.systables.transactional import ACTIVE, SUBSCRIBED, PublicationRow, SubscriptionRow
from mergerepl.transactional.publish import Stored, difference
from mergerepl.transactional.stated_articles import CheckedArticle
from tests.publish.publishing import table

ITEMS = Article("items", "items", ("id",))
LINES = Article("lines", "lines", ("id",), upd_cmd="XCALL audit")
NORTH = Subscription("/north")
FEED = Publication("feed", "/hq", (ITEMS,), (NORTH,))


def checked(stated: Publication) -> list[CheckedArticle]:
    """Return the articles as they are after their tables were read."""
    return [
        CheckedArticle(
            each, table(Location.of("/hq") / each.table), ("id", "qty"), ("int", "int"), each.filter
        )
        for each in stated.articles
    ]


def stored(applied: Publication = FEED, **subscription: Any) -> Stored:
    """Return what the distribution store holds after an `apply`."""
    rows = [each.row(1, number, number, bytes(10)) for number, each in enumerate(checked(applied), start=1)]
    known = PublicationRow(publication_id=1, publication="feed", publisher_root="/hq", max_distretention=72)
    subscriptions = {
        each.subscriber: SubscriptionRow(
            **{
                "publication_id": 1,
                "agent_id": number,
                "subscriber": each.subscriber,
                "subscription_guid": each.subscriber,
                "status": ACTIVE,
                **subscription,
            }
        )
        for number, each in enumerate(applied.subscriptions, start=1)
    }
    return Stored([known], {row.article: row for row in rows}, subscriptions)


def plan(stated: Publication, found: Stored) -> list[str]:
    steps = difference(stated, checked(stated), found)
    return [f"{step.action} {step.object}: {step.detail}" for step in steps]


def subscribed(**settings: Any) -> Publication:
    return replace(FEED, subscriptions=(replace(NORTH, **settings),))


CASES: dict[str, tuple[Publication, Stored, list[str]]] = {
    "a new publication": (
        replace(FEED, articles=(ITEMS, LINES)),
        Stored(),
        [
            "publish feed: items: CALL, SCALL, CALL; lines: CALL, XCALL audit, CALL",
            "initialise /north: automatic",
        ],
    ),
    "what was applied": (FEED, stored(), []),
    "rows that are there": (subscribed(sync_type="none"), Stored(), [
        "publish feed: items: CALL, SCALL, CALL",
        "subscribe /north: none",
    ]),
    "a first snapshot that failed": (FEED, stored(status=SUBSCRIBED), ["initialise /north: automatic"]),
    "what a subscription states": (
        subscribed(skip_errors=(20598,), streams=4),
        stored(),
        ["change /north: skip_errors, subscription_streams"],
    ),
    "retention": (replace(FEED, max_retention=timedelta(hours=5)), stored(), ["change feed: retention"]),
    "an end": (replace(FEED, subscriptions=()), stored(), ["unsubscribe /north: its tables stay"]),
    "another article": (
        replace(FEED, articles=(LINES,), subscriptions=()),
        stored(),
        [
            "unsubscribe /north: its tables stay",
            "drop items: its commands go, its table stays",
            "publish feed: lines: CALL, XCALL audit, CALL",
        ],
    ),
    "a command that changed": (
        replace(FEED, articles=(replace(ITEMS, del_cmd="NONE"),), subscriptions=()),
        stored(),
        [
            "unsubscribe /north: its tables stay",
            "change items: del_cmd: CALL to NONE",
        ],
    ),
    "no article": (
        replace(FEED, articles=(), subscriptions=()),
        stored(replace(FEED, subscriptions=())),
        ["drop items: its commands go, its table stays", "unpublish feed: it has no article"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_a_file_asks_for(case: str) -> None:
    stated, found, expected = CASES[case]
    assert plan(stated, found) == expected


REFUSED: dict[str, tuple[Publication, str]] = {
    "an article that leaves": (replace(FEED, articles=(LINES,)), "place: it is not"),
    "an article that is added": (replace(FEED, articles=(ITEMS, LINES)), "An article that is added"),
    "another key": (
        replace(FEED, articles=(replace(ITEMS, key=("qty",)),)),
        "'items' has another key in the file",
    ),
    "another destination": (
        subscribed(destination={"items": "other"}),
        "Another `destination` of subscriber",
    ),
    "subscriptions to nothing": (replace(FEED, articles=()), "no article"),
    "an error that cannot be skipped": (subscribed(skip_errors=(1,)), "1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_change_under_active_subscriptions(case: str) -> None:
    stated, message = REFUSED[case]
    with pytest.raises(MergeReplError, match=message):
        difference(stated, checked(stated), stored())


def test_one_check_of_rows_is_made_unless_the_file_waives_it() -> None:
    def checks(stated: Publication) -> list[bool]:
        return [step.check is not None for step in difference(stated, checked(stated), Stored())]

    assert checks(subscribed(sync_type="none")) == [True, True]
    assert checks(subscribed(sync_type="none", verify=False)) == [True, False]
    assert checks(FEED) == [True, False]
