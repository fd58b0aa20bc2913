"""Where enumeration starts, what is sent and under which numbers it is received: the plan that all ask."""

from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from enumeration.generations import UnknownGenerationError
from enumeration.plan import (
    Destination,
    Enumeration,
    SessionPlan,
    Source,
    enumeration,
    number_generations,
    plan_session,
)
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.errors import EnumerationError, SubscriptionExpiredError
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.genhistory import Generation, GenStatus

HQ, NORTH = 11, 22
ORDERS, LINES = 1, 2


def generation(number: int, nick: int = ORDERS, **others: Any) -> Generation:
    row = {"generation": number, "guidsrc": f"g{number}", "pubid": "p", "art_nick": nick, "nicknames": (HQ,)}
    return Generation(**row | {"genstatus": GenStatus.CLOSED, "changecount": number} | others)


HISTORY = [generation(1), generation(2, LINES), generation(3), generation(4, genstatus=GenStatus.OPEN)]


def about(nickname: int, **marks: Any) -> SubscriptionRow:
    ends = {"subscriber_server": "x", "pubid": "p", "subid": "s", "replid": "r", "replnickname": nickname}
    return SubscriptionRow(**ends, status=1, subscriber_type=1, priority=0.0, **marks)


def source(sentgen: int = 0, history: Collection[Generation] = HISTORY, **others: Any) -> Source:
    mark = about(NORTH, sentgen=sentgen, sentguid=f"g{sentgen}" if sentgen else None)
    given = Source(
        "hq", lambda number: [row for row in history if row.generation > number], mark, (ORDERS, LINES)
    )
    return replace(given, **others)


def destination(recgen: int | None = 0, held: Collection[str] = (), guid: str | None = None) -> Destination:
    row = (
        None
        if recgen is None
        else about(HQ, recgen=recgen, recguid=guid or (f"g{recgen}" if recgen else None))
    )
    return Destination("north", lambda guids: set(guids) & set(held), row)


def numbers(rows: Collection[Generation]) -> list[int]:
    return [row.generation for row in rows]


CASES: dict[str, tuple[Source, Destination | None, tuple[int, list[int], list[int]]]] = {
    "all there is, the first time": (source(), destination(), (0, [1, 2, 3, 4], [])),
    "what comes after both watermarks": (source(2), destination(2), (2, [3, 4], [])),
    "from the lower watermark: what was sent last was not received": (
        source(3),
        destination(1),
        (1, [2, 3, 4], []),
    ),
    "from the lower watermark: what was received last was not noted": (
        source(1),
        destination(3),
        (1, [2, 3, 4], []),
    ),
    "not what the destination holds": (source(), destination(held=("g2", "g3")), (0, [1, 4], [2, 3])),
    "not what had settled at the destination, if it does not wait for it": (
        source(
            history=[
                generation(1, maxversion=5),
                generation(2, maxversion=6),
                generation(3, maxversion=5, waits_for="r"),
                generation(4, maxversion=None),
            ]
        ),
        replace(destination(), settled=5),
        (0, [2, 3, 4], [1]),
    ),
    "of the articles in question": (source(tablenicks=(LINES,)), destination(), (0, [2], [])),
    "to one that is not asked how far it received": (source(2), destination(None), (2, [3, 4], [])),
    "to one that cannot be asked": (source(1), None, (1, [2, 3, 4], [])),
    "to one that cannot be asked, not what it is said to hold": (
        source(0, [generation(1, nicknames=(HQ, NORTH)), generation(2)]),
        None,
        (0, [2], [1]),
    ),
}


@pytest.mark.parametrize("rule", CASES)
def test_what_is_sent(rule: str) -> None:
    from_, to, expected = CASES[rule]
    found = enumeration(from_, to)
    assert (found.from_generation_exclusive, numbers(found.generations), numbers(found.known)) == expected
    assert not any(row.is_open for row in found.generations)


def test_a_destination_that_received_what_the_source_never_made() -> None:
    with pytest.raises(UnknownGenerationError, match="'north' remembers generation 2"):
        enumeration(source(1), destination(2, guid="other"))


def test_generations_without_changes_are_no_work() -> None:
    empty = Enumeration(0, [generation(1, changecount=0)], [])
    full = Enumeration(0, [generation(1)], [])
    assert SessionPlan(True, True, full, empty).has_work
    assert not SessionPlan(False, True, full, empty).has_work
    assert not SessionPlan(True, True, empty, empty).has_work


def test_what_waits_for_another_destination_is_not_sent_and_not_known() -> None:
    history = [generation(1), generation(2, waits_for="r"), generation(3, waits_for="other")]
    found = enumeration(source(history=history), destination())
    assert (numbers(found.generations), numbers(found.known), numbers(found.elsewhere)) == ([1, 2], [], [3])


@pytest.mark.parametrize(("asked", "is_work"), [("as before", False), ("less", True), ("", True)])
def test_what_a_destination_refused_is_no_work_until_it_asks_something_else(
    asked: str, is_work: bool
) -> None:
    history = [generation(4, waits_for="r", refused_by="as before")]
    to = replace(destination(3), rules=lambda _: asked)
    found = enumeration(source(3, [generation(3), *history]), to)
    assert numbers(found.generations) == [4]
    assert found.has_changes == is_work
    assert found.waiting_changes == (0 if is_work else 4)
    both = enumeration(source(3, [generation(3), *history, generation(5)]), to)
    assert both.has_changes
    assert numbers(both.waiting) == ([] if is_work else [4])


def plan(*, upload: bool = True, download: bool = True) -> SessionPlan:
    up = Enumeration(0, [generation(5), generation(6, LINES)], [generation(7, LINES)])
    return SessionPlan(upload, download, up, Enumeration(0, [generation(1), generation(2)], []))


def test_articles_are_those_of_which_something_is_carried() -> None:
    assert plan().tablenicks == [ORDERS, LINES]
    assert plan(upload=False).tablenicks == [ORDERS]
    assert numbers(plan().of_articles([LINES]).up.generations) == [6]
    assert numbers(plan().of_articles([ORDERS]).up.known) == []


def test_each_side_numbers_what_it_receives_and_then_what_is_resolved() -> None:
    found = number_generations(plan(), {PUBLISHER: 2, SUBSCRIBER: 7})
    assert found[PUBLISHER].received == {5: 3, 6: 4}
    assert found[PUBLISHER].resolved == {ORDERS: 5}
    assert found[SUBSCRIBER].received == {1: 8, 2: 9}
    assert found[SUBSCRIBER].resolved == {ORDERS: 10}


def test_a_side_that_is_sent_nothing_numbers_nothing() -> None:
    found = number_generations(plan(upload=False), {PUBLISHER: 2, SUBSCRIBER: 7})
    assert (found[PUBLISHER].received, found[PUBLISHER].resolved) == ({}, {})
    assert found[SUBSCRIBER].resolved == {ORDERS: 10}


def test_what_the_publisher_lost_is_not_sent_to_it_as_if_it_was_new() -> None:
    lost = [generation(1, genstatus=GenStatus.CLOSED_ELSEWHERE)]
    sources = {PUBLISHER: source(), SUBSCRIBER: source(history=lost, root="north")}
    destinations = {PUBLISHER: destination(), SUBSCRIBER: destination(held=[row.guidsrc for row in HISTORY])}
    with pytest.raises(
        EnumerationError, match="'north' received changes in a session that its publisher 'hq'"
    ):
        plan_session(sources, destinations, upload=True, download=True)
    held = {**destinations, PUBLISHER: destination(held=["g1"])}
    assert plan_session(sources, held, upload=True, download=True).up.generations == []


@pytest.mark.parametrize(("cleaned", "is_refused"), [(2, False), (3, True)])
def test_inv_37_a_source_that_has_cleaned_up_what_it_has_yet_to_send_is_refused(
    cleaned: int, is_refused: bool
) -> None:
    down = source(2, cleaned=cleaned)
    up = replace(source(), root="north", other=about(HQ), after=lambda _: [])
    sources = {PUBLISHER: down, SUBSCRIBER: up}
    destinations = {PUBLISHER: destination(), SUBSCRIBER: destination(2)}
    with pytest.raises(SubscriptionExpiredError, match="up to generation 3") if is_refused else nullcontext():
        plan_session(sources, destinations, upload=True, download=True)
