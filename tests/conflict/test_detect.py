"""What is a conflict: a case table of rows that both sides have changed without knowing of each other's change."""

import pytest
from pyspark.sql import SparkSession

from mergerepl.rows.nested import Fields
from tests import phases
from tests.phases import COLUMN_TRACKED, ROW_TRACKED, Change, Pair, Setting

pytestmark = pytest.mark.spark

WHOLE_ROWS = Setting(tracking="column", whole_rows=True)


def hq(row: str | None, colv: str = "", lineage: str = "hq 1") -> Change:
    return Change(row, lineage, colv, 100.0)


def north(row: str | None, colv: str = "", lineage: str = "north 1") -> Change:
    return Change(row, lineage, colv, 75.0)


MERGE: tuple[str, list[str]] = ("merge", [])
Case = tuple[Change, Change, tuple[str, list[str]]]

BY_ROW: dict[str, Case] = {
    "rows that are the same": (hq("p q"), north("p q"), MERGE),
    "one column differs": (hq("p y"), north("p z"), ("conflict", ["b"])),
    "two columns differ": (hq("p y"), north("q z"), ("conflict", ["a", "b"])),
    "a value against NULL": (hq("p y"), north("- y"), ("conflict", ["a"])),
    "NULL against NULL": (hq("- y"), north("- y"), MERGE),
    "an empty text against NULL": (hq("x "), north("x -"), ("conflict", ["b"])),
    "a letter in another case": (hq("p y"), north("P y"), ("conflict", ["a"])),
    "a blank at the end": (hq("x y"), north("x y "), ("conflict", ["b"])),
    "two deletes": (hq(None), north(None), MERGE),
    "a delete at the publisher against an update": (hq(None), north("p y"), ("conflict", [])),
    "a delete at the subscriber against an update": (hq("p y"), north(None), ("conflict", [])),
    "a delete against a row as it was": (hq(None), north("x y"), ("conflict", [])),
}
BY_COLUMN: dict[str, Case] = {
    "each side another column": (hq("p y", "a: hq 1"), north("x q", "b: north 1"), MERGE),
    "one column to different values": (hq("p y", "a: hq 1"), north("q y", "a: north 1"), ("conflict", ["a"])),
    "one column to the same value": (hq("p y", "a: hq 1"), north("p y", "a: north 1"), MERGE),
    "one column at both sides and another at one": (
        hq("p y", "a: hq 1"),
        north("q z", "a: north 1, b: north 1"),
        ("conflict", ["a"]),
    ),
    "both columns to different values": (
        hq("p z", "a: hq 1, b: hq 1"),
        north("q y", "a: north 1, b: north 1"),
        ("conflict", ["a", "b"]),
    ),
    "a change that the other side knows is none": (
        hq("p z", "a: hq 1, b: hq 2", "hq 2"),
        north("q y", "a: north 2", "hq 1, north 2"),
        MERGE,
    ),
    "and in the other direction": (
        hq("p y", "a: hq 2", "hq 2, north 1"),
        north("q z", "a: north 1, b: north 2", "north 2"),
        MERGE,
    ),
    "a column that nobody changed since the snapshot": (
        hq("p y", "a: hq 1"),
        north("x q", "b: north 1"),
        MERGE,
    ),
    "each side another column of a published row": (
        hq("p y", "a: hq 2", "published 1, hq 2"),
        north("x q", "b: north 2", "published 1, north 2"),
        MERGE,
    ),
    "a new row against the published one of its key, in every column": (
        hq("x y", lineage="published 1"),
        north("p q", "a: north 1, b: north 1"),
        ("conflict", ["a", "b"]),
    ),
    "and against a change of the published row": (
        hq("p y", "a: north 1", "published 1, hq 2"),
        north("q z", "a: north 3, b: north 3", "north 3"),
        ("conflict", ["b"]),
    ),
    "a delete against a change of one column": (hq(None), north("x q", "b: north 1"), ("conflict", [])),
    "a change of one column against a delete": (hq("p y", "a: hq 1"), north(None), ("conflict", [])),
    "two deletes, tracked by column": (hq(None), north(None), MERGE),
}
IN_WHOLE_ROWS: dict[str, Case] = {
    "halves that may not be put together": (
        hq("p y", "a: hq 1"),
        north("x q", "b: north 1"),
        ("conflict", ["a", "b"]),
    ),
    "whole rows that are the same": (hq("p y", "a: hq 1"), north("p y", "a: north 1"), MERGE),
}
ABOVE_FLOOR_3: dict[str, Case] = {
    "a change up to the floor is known to everybody": (
        hq("p z", "a: hq 3, b: hq 4", "hq 4"),
        north("q y", "a: north 4", "north 4"),
        MERGE,
    ),
    "two changes above the floor": (
        hq("p y", "a: hq 4", "hq 4"),
        north("q y", "a: north 4", "north 4"),
        ("conflict", ["a"]),
    ),
}
FRESH_ABOVE_FLOOR_3: dict[str, Case] = {
    "a new row knows no change of another one of its key, however old": (
        hq("p z", "a: hq 3, b: hq 3", "hq 4"),
        north("q z", "a: north 4", "north 4")._replace(born=9),
        ("conflict", ["a"]),
    ),
    "nor one of its own writer": (
        hq("p z", "a: north 1, b: north 1", "north 1"),
        north("q z", "a: north 4, b: north 4", "north 4")._replace(born=9),
        ("conflict", ["a"]),
    ),
}
TABLES = (
    (ROW_TRACKED, BY_ROW),
    (COLUMN_TRACKED, BY_COLUMN),
    (WHOLE_ROWS, IN_WHOLE_ROWS),
    (Setting(tracking="column", floor=3), ABOVE_FLOOR_3),
    (Setting(tracking="column", floor=3, fresh_after=8), FRESH_ABOVE_FLOOR_3),
)
CASES = {
    rule: (Pair(*sides, setting), said) for setting, table in TABLES for rule, (*sides, said) in table.items()
}


@pytest.fixture(scope="module")
def detected(spark: SparkSession, fields: Fields) -> dict[str, tuple[str, list[str]]]:
    return phases.detected(spark, {rule: pair for rule, (pair, _) in CASES.items()}, fields)


@phases.for_few_and_many
@pytest.mark.parametrize("rule", CASES)
def test_what_is_a_conflict(detected: dict[str, tuple[str, list[str]]], rule: str) -> None:
    assert detected[rule] == CASES[rule][1]


def test_no_two_rules_have_one_name() -> None:
    assert len(CASES) == sum(len(table) for _, table in TABLES)
