"""Which generations a session sends: case tables of the pure rules over rows of MSmerge_genhistory."""

from datetime import UTC, datetime
from typing import Any

import pytest

from enumeration.generations import (
    Held,
    UnknownGenerationError,
    Watermark,
    generations_to_send,
    make_generation,
    received_generation,
    start_generation,
)
from mergerepl.systables.genhistory import Generation, GenStatus

HERE, THERE, THIRD = 11, 22, 33
T1, T2 = 1, 2
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def generation(number: int, **others: Any) -> Generation:
    row = {"generation": number, "guidsrc": f"g{number}", "pubid": "p", "art_nick": T1, "nicknames": (HERE,)}
    return Generation(**row | {"genstatus": GenStatus.CLOSED, "changecount": 1} | others)


nothing: Held = frozenset[str]().intersection
HISTORY = [generation(number) for number in range(1, 6)]


@pytest.mark.parametrize(
    ("sent", "received", "start"),
    [
        pytest.param(0, 0, 0, id="first session"),
        pytest.param(3, 3, 3, id="in step"),
        pytest.param(4, 2, 2, id="sent, and never noted as received"),
        pytest.param(2, 4, 2, id="received, and never noted as sent"),
        pytest.param(5, 0, 0, id="the destination started again"),
    ],
)
def test_enumeration_starts_at_the_lower_watermark(sent: int, received: int, start: int) -> None:
    marks = [Watermark(number, f"g{number}" if number else None) for number in (sent, received)]
    found = start_generation(
        sent=marks[0], received=marks[1], source_genhistory=HISTORY, source="hq", destination="north"
    )
    assert found == start


@pytest.mark.parametrize(
    ("sent", "received", "message"),
    [
        (Watermark(3, "other"), Watermark(3, "g3"), "'hq' remembers generation 3"),
        (Watermark(3, "g3"), Watermark(3, "other"), "'north' remembers generation 3"),
        (Watermark(9, "g9"), Watermark(3, "g3"), "'hq' remembers generation 9"),
    ],
)
def test_a_watermark_that_the_source_does_not_know_is_refused(
    sent: Watermark, received: Watermark, message: str
) -> None:
    with pytest.raises(UnknownGenerationError, match=message):
        start_generation(
            sent=sent, received=received, source_genhistory=HISTORY, source="hq", destination="north"
        )


@pytest.mark.parametrize(
    ("row", "is_sent"),
    [
        pytest.param(generation(3), True, id="closed and new"),
        pytest.param(generation(2), False, id="the start itself"),
        pytest.param(generation(3, genstatus=int(GenStatus.OPEN)), False, id="open"),
        pytest.param(generation(3, genstatus=int(GenStatus.CLOSED_ELSEWHERE)), True, id="from elsewhere"),
        pytest.param(generation(3, nicknames=(HERE, THERE)), True, id="the destination is said to hold it"),
        pytest.param(generation(3, guidsrc="held"), False, id="the destination holds it"),
        pytest.param(generation(3, art_nick=T2), False, id="of an article that is not synchronized"),
        pytest.param(generation(3, nicknames=()), True, id="nobody noted as holder"),
    ],
)
def test_a_generation_is_sent_once(row: Generation, is_sent: bool) -> None:
    found = generations_to_send([row], {"held"}.intersection, from_generation_exclusive=2, tablenicks=[T1])
    assert found == ([row] if is_sent else [])


def test_a_destination_that_cannot_be_asked_has_what_it_is_said_to_hold() -> None:
    found = generations_to_send(
        [generation(3, nicknames=(HERE, THERE)), generation(4, nicknames=(HERE,))],
        nothing,
        from_generation_exclusive=2,
        destination_nickname=THERE,
        tablenicks=[T1],
    )
    assert [row.generation for row in found] == [4]


def test_generations_are_sent_in_the_order_of_their_numbers() -> None:
    found = generations_to_send(
        reversed(HISTORY), nothing, from_generation_exclusive=1, destination_nickname=THERE, tablenicks=[T1]
    )
    assert [row.generation for row in found] == [2, 3, 4, 5]


def test_make_generation_closes_what_is_open_and_nothing_else() -> None:
    rows = [generation(1, genstatus=int(status)) for status in GenStatus]
    closed = {
        GenStatus.OPEN: GenStatus.CLOSED,
        GenStatus.CLOSED: GenStatus.CLOSED,
        GenStatus.CLOSED_ELSEWHERE: GenStatus.CLOSED_ELSEWHERE,
    }
    assert [row.genstatus for row in make_generation(rows)] == [int(closed[status]) for status in GenStatus]
    assert [row.genstatus for row in rows] == [int(status) for status in GenStatus]


def test_a_received_generation_keeps_its_guid_and_names_its_new_holder() -> None:
    row = received_generation(generation(7, nicknames=(THIRD,)), generation=4, nickname=THERE, now=NOW)
    assert row == generation(
        4, guidsrc="g7", nicknames=(THERE, THIRD), genstatus=int(GenStatus.CLOSED_ELSEWHERE), coldate=NOW
    )
