"""What a row that both sides have changed comes to: its final state, what each side does, and who lost."""

import pytest
from pyspark.sql import SparkSession

from mergerepl.rows.nested import Fields
from tests import phases
from tests.phases import BY_COLUMNS, COLUMN_TRACKED, Change, Pair, Resolved, Setting

pytestmark = pytest.mark.spark

UPDATE, COLUMN, DELETE_WINS, DELETE_LOSES = 1, 2, 3, 4
FLOOR_5 = Setting(floor=5)


def hq(row: str | None, colv: str = "", *, priority: float = 100.0, lineage: str = "hq 1") -> Change:
    return Change(row, lineage, colv, priority, last="p o")


def north(row: str | None, colv: str = "", *, priority: float = 75.0, lineage: str = "north 1") -> Change:
    return Change(row, lineage, colv, priority, last="s o")


BY_ROW: dict[str, tuple[Pair, Resolved]] = {
    "the publisher wins": (
        Pair(hq("p y"), north("s y")),
        Resolved("p y", "hq 2, north 1", None, 100.0, "metadata", "update", UPDATE, "s y"),
    ),
    "the subscriber wins": (
        Pair(hq("p y", priority=50.0), north("s y")),
        Resolved("s y", "hq 2, north 1", None, 75.0, "update", "metadata", UPDATE, "p y"),
    ),
    "a resolution comes after all that both sides know": (
        Pair(hq("p y", lineage="hq 1, south 7"), north("s y", lineage="north 3, south 2")),
        Resolved("p y", "hq 8, north 3, south 7", None, 100.0, "metadata", "update", UPDATE, "s y"),
    ),
    "a resolution comes after the floor": (
        Pair(hq("p y", lineage="hq 6"), north("s y", lineage="north 6"), FLOOR_5),
        Resolved("p y", "hq 7, north 6", None, 100.0, "metadata", "update", UPDATE, "s y"),
    ),
    "rows that are the same are no event": (
        Pair(hq("p y"), north("p y")),
        Resolved("p y", "hq 1, north 1", None, 100.0, "metadata", "metadata"),
    ),
    "rows that are the same keep the higher priority": (
        Pair(hq("p y", priority=50.0), north("p y")),
        Resolved("p y", "hq 1, north 1", None, 75.0, "metadata", "metadata"),
    ),
    "a row that is deleted at both sides": (
        Pair(hq(None), north(None)),
        Resolved(None, "hq 1, north 1", None, 100.0, "metadata", "metadata"),
    ),
    "a delete that wins": (
        Pair(hq(None), north("s y")),
        Resolved(None, "hq 2, north 1", None, 100.0, "metadata", "delete", DELETE_WINS, "s y"),
    ),
    "a delete of the subscriber that wins": (
        Pair(hq("p y", priority=50.0), north(None)),
        Resolved(None, "hq 2, north 1", None, 75.0, "delete", "metadata", DELETE_WINS, "p y"),
    ),
    "a delete that loses": (
        Pair(hq("p y"), north(None)),
        Resolved("p y", "hq 2, north 1", None, 100.0, "metadata", "insert", DELETE_LOSES, "deleted"),
    ),
    "a delete of the publisher that loses": (
        Pair(hq(None, priority=50.0), north("s y")),
        Resolved("s y", "hq 2, north 1", None, 75.0, "insert", "metadata", DELETE_LOSES, "deleted"),
    ),
}
DIRECTIONS: dict[str, tuple[Pair, Resolved]] = {
    "the publisher does nothing in a download": (
        Pair(hq("p y"), north("s y"), Setting(upload=False)),
        Resolved("p y", "hq 2, north 1", None, 100.0, None, "update", UPDATE, "s y"),
    ),
    "what a download merges has not reached the publisher": (
        Pair(hq("p y"), north("p y"), Setting(upload=False)),
        Resolved("p y", "hq 1, north 1", None, 75.0, None, "metadata"),
    ),
    "the subscriber does nothing in an upload": (
        Pair(hq("p y", priority=50.0), north("s y"), Setting(download=False)),
        Resolved("s y", "hq 2, north 1", None, 75.0, "update", None, UPDATE, "p y"),
    ),
    "a client's row is the publisher's once it is there": (
        Pair(hq("p y", priority=30.0), north("p y", priority=0.0), Setting(client=True)),
        Resolved("p y", "hq 1, north 1", None, 100.0, "metadata", "metadata"),
    ),
    "a client's row stays a client's in a download": (
        Pair(hq("p y", priority=30.0), north("p y", priority=0.0), Setting(client=True, upload=False)),
        Resolved("p y", "hq 1, north 1", None, 0.0, None, "metadata"),
    ),
    "a client hands on the priority of another's change": (
        Pair(hq("p y", priority=20.0), north("s y", priority=30.0), Setting(client=True)),
        Resolved("s y", "hq 2, north 1", None, 30.0, "update", "metadata", UPDATE, "p y"),
    ),
    "a late change at the subscriber lends itself no priority": (
        Pair(hq("p y"), north("p y"), Setting(unpublished="subscriber")),
        Resolved("p y", "hq 1, north 1", None, 75.0, "metadata", "metadata"),
    ),
}
HALVES = (hq("p y", "a: hq 1"), north("x s", "b: north 1"))
WINNER_ALSO = (hq("p q", "a: hq 1, b: hq 1"), north("s y", "a: north 1"))
LOSER_ALSO = (hq("p y", "a: hq 1"), north("s z", "a: north 1, b: north 1"))
LOSER_ABOVE = (hq("p q", "a: hq 1, b: hq 1", priority=50.0), north("s y", "a: north 1"))
BY_COLUMN: dict[str, tuple[Pair, Resolved]] = {
    "each side keeps the column that it changed": (
        Pair(*HALVES, COLUMN_TRACKED),
        Resolved("p s", "hq 1, north 1", "a: hq 1, b: north 1", 100.0, "update", "update"),
    ),
    "of a column changed alike the publisher's version is kept": (
        Pair(hq("p y", "a: hq 1"), north("p y", "a: north 1"), COLUMN_TRACKED),
        Resolved("p y", "hq 1, north 1", "a: hq 1", 100.0, "metadata", "metadata"),
    ),
    "a side that has the merged row does nothing": (
        Pair(hq("p y", "a: hq 1"), north("p s", "a: north 1, b: north 1"), COLUMN_TRACKED),
        Resolved("p s", "hq 1, north 1", "a: hq 1, b: north 1", 100.0, "update", "metadata"),
    ),
    "of a column that neither changed the later version is kept": (
        Pair(
            hq("p y", "a: hq 3, b: south 1", lineage="hq 3, south 2"),
            north("p y", "a: north 3, b: south 2", lineage="north 3, south 2"),
            COLUMN_TRACKED,
        ),
        Resolved("p y", "hq 3, north 3, south 2", "a: hq 3, b: south 2", 100.0, "metadata", "metadata"),
    ),
    "the winner's whole row stays": (
        Pair(*LOSER_ALSO, COLUMN_TRACKED),
        Resolved("p y", "hq 2, north 1", "a: hq 2, b: hq 2", 100.0, "metadata", "update", COLUMN, "s z"),
    ),
    "a column that the loser left alone keeps its version": (
        Pair(*WINNER_ALSO, COLUMN_TRACKED),
        Resolved("p q", "hq 2, north 1", "a: hq 2, b: hq 1", 100.0, "metadata", "update", COLUMN, "s y"),
    ),
    "the subscriber's whole row stays where it wins": (
        Pair(*LOSER_ABOVE, COLUMN_TRACKED),
        Resolved("s y", "hq 2, north 1", "a: hq 2, b: hq 2", 75.0, "update", "metadata", COLUMN, "p q"),
    ),
    "a row that comes back from a delete has its own columns": (
        Pair(hq("p y", "a: hq 1"), north(None), COLUMN_TRACKED),
        Resolved("p y", "hq 2, north 1", "a: hq 1", 100.0, "metadata", "insert", DELETE_LOSES, "deleted"),
    ),
    "a row that is deleted has no columns": (
        Pair(hq(None), north("x s", "b: north 1"), COLUMN_TRACKED),
        Resolved(None, "hq 2, north 1", None, 100.0, "metadata", "delete", DELETE_WINS, "x s"),
    ),
    "halves that may not be put together": (
        Pair(*HALVES, Setting(tracking="column", whole_rows=True)),
        Resolved("p y", "hq 2, north 1", "a: hq 1, b: hq 2", 100.0, "metadata", "update", COLUMN, "x s"),
    ),
}
BY_COLUMNS_TOO: dict[str, tuple[Pair, Resolved]] = {
    "by columns, the loser keeps what the winner left alone": (
        Pair(*LOSER_ALSO, BY_COLUMNS),
        Resolved("p z", "hq 2, north 1", "a: hq 2, b: north 1", 100.0, "update", "update", COLUMN, "s z"),
    ),
    "by columns, the winner keeps what the loser left alone": (
        Pair(*WINNER_ALSO, BY_COLUMNS),
        Resolved("p q", "hq 2, north 1", "a: hq 2, b: hq 1", 100.0, "metadata", "update", COLUMN, "s y"),
    ),
    "by columns, a subscriber that wins": (
        Pair(*LOSER_ABOVE, BY_COLUMNS),
        Resolved("s q", "hq 2, north 1", "a: hq 2, b: hq 1", 75.0, "update", "update", COLUMN, "p q"),
    ),
    "by columns, a delete takes the whole row": (
        Pair(hq(None), north("x s", "b: north 1"), BY_COLUMNS),
        Resolved(None, "hq 2, north 1", None, 100.0, "metadata", "delete", DELETE_WINS, "x s"),
    ),
    "by columns, halves that may not be put together": (
        Pair(*HALVES, Setting("column", "columns", whole_rows=True)),
        Resolved("p y", "hq 2, north 1", "a: hq 1, b: hq 2", 100.0, "metadata", "update", COLUMN, "x s"),
    ),
}
CASES = BY_ROW | DIRECTIONS | BY_COLUMN | BY_COLUMNS_TOO


ON_SPARK = [
    rule
    for rule, (pair, _) in CASES.items()
    if pair.setting in (phases.ROW_TRACKED, COLUMN_TRACKED, BY_COLUMNS)
]
"""One session; a session of other terms is another plan."""


@pytest.fixture(scope="module")
def resolved(spark: SparkSession, fields: Fields, request: pytest.FixtureRequest) -> dict[str, Resolved]:
    pairs = phases.asked(request, spark, {rule: pair for rule, (pair, _) in CASES.items()})
    return phases.resolved(spark, pairs, fields)


@pytest.mark.on_spark(*(f"{rule}-" for rule in ON_SPARK))
@phases.for_few_and_many
@pytest.mark.parametrize("rule", CASES)
def test_what_a_row_comes_to(resolved: dict[str, Resolved], rule: str) -> None:
    assert resolved[rule] == CASES[rule][1]
