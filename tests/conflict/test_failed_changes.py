"""What becomes of changes that a table refuses."""

from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from conflict.failed_changes import put_back, undone, withheld
from mergerepl.changes import PUBLISHER, RESOLVED_COLUMNS, SUBSCRIBER

pytestmark = pytest.mark.spark

CHANGES = (
    "rowguid string, deleted boolean, tombstone_type int, generation bigint, partchangegen bigint, "
    "born_generation bigint, lineage map<int,bigint>, colv1 map<string,struct<nickname:int,version:bigint>>, "
    "priority double, unknown array<string>, row struct<c0:string>"
)
REFUSED = (
    "rowguid string, verdict string, publisher_action string, subscriber_action string, "
    "refused_at_publisher string, refused_at_subscriber string"
)
LOGGED, NEW, WAITING = 5, 6, 9
"""The generation whose rows are logged already, a later one, and the one in which changes wait."""

UP, DOWN = (SUBSCRIBER, "upload"), (PUBLISHER, "download")
Case = tuple[tuple[str, str], bool, int, int | None, tuple[str | None, str | None, str | None, str | None]]
CASES: dict[str, tuple[Case, tuple[int | None, int | None] | None]] = {
    # (side and verdict), deleted, generation, born, (actions, rules) -> conflict_type, born; None: does not wait here.
    "insert refused at the publisher": (
        (UP, False, NEW, NEW, ("insert", None, "CHECK x", None)),
        (5, WAITING),
    ),
    "insert refused at the subscriber": (
        (DOWN, False, NEW, NEW, (None, "insert", None, "CHECK x")),
        (6, WAITING),
    ),
    "delete refused at the publisher": (
        (UP, True, NEW, None, ("delete", None, "append-only", None)),
        (7, None),
    ),
    "delete refused at the subscriber": (
        (DOWN, True, NEW, None, (None, "delete", None, "append")),
        (8, None),
    ),
    "update refused at the publisher": (
        (UP, False, NEW, None, ("update", None, "NOT NULL", None)),
        (9, None),
    ),
    "update refused at the subscriber": ((DOWN, False, NEW, 3, (None, "update", None, "type")), (10, 3)),
    "an update of a deleted row is an insert there": (
        (UP, False, NEW, None, ("insert", None, "c", None)),
        (5, None),
    ),
    "one that was refused before by the same rules is not logged again": (
        (UP, False, LOGGED, LOGGED, ("insert", None, "CHECK x", None)),
        (None, WAITING),
    ),
    "what two sides came to and the publisher refuses is the subscriber's to log": (
        ((SUBSCRIBER, "merge"), False, NEW, None, ("update", "update", "CHECK x", None)),
        (9, None),
    ),
    "the publisher's version waits with it": (
        ((PUBLISHER, "merge"), False, NEW, None, ("update", "update", "CHECK x", None)),
        (None, None),
    ),
    "a winner that the loser's side refuses": (
        ((PUBLISHER, "conflict"), False, NEW, None, ("metadata", "update", None, "CHECK x")),
        (10, None),
    ),
    "an older version of what the other side sends does not wait": (
        ((PUBLISHER, "upload"), False, NEW, None, ("update", None, "CHECK x", None)),
        None,
    ),
    "a row that nobody refuses": (
        ((SUBSCRIBER, "upload"), False, NEW, None, ("update", None, None, None)),
        None,
    ),
}


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for side in (PUBLISHER, SUBSCRIBER):
        own = {rule: case for rule, (case, _) in CASES.items() if case[0][0] == side}
        sent = [
            (
                rule,
                deleted,
                1 if deleted else None,
                generation,
                None,
                born,
                {1: 2},
                None,
                7.0,
                None,
                Row(c0=rule),
            )
            for rule, (_, deleted, generation, born, _) in own.items()
        ]
        # A row that no table refuses is not in REFUSED.
        refused = [
            (rule, verdict, actions[0], actions[1], actions[2], actions[3])
            for rule, ((_, verdict), _, _, _, actions) in own.items()
            if any(actions[2:])
        ]
        outcome = withheld(
            spark.createDataFrame(sent, CHANGES),
            spark.createDataFrame(refused, REFUSED),
            side=side,
            generation=WAITING,
            logged=[LOGGED],
        )
        assert outcome.columns == list(RESOLVED_COLUMNS)
        rows |= {row["rowguid"]: row for row in outcome.collect()}
    return rows


@pytest.mark.parametrize("rule", CASES)
def test_what_becomes_of_it(found: dict[str, Row], rule: str) -> None:
    ((side, _), deleted, _, _, actions), expected = CASES[rule]
    row = found.get(rule)
    if expected is None:
        assert row is None
        return
    assert row is not None
    kind, born = expected
    assert (row["verdict"], row["conflict_type"], row["born_generation"]) == ("refused", kind, born)
    # Its source records its own version once more; nothing is done at the other side.
    other = PUBLISHER if side == SUBSCRIBER else SUBSCRIBER
    assert (row[f"{side}_action"], row[f"{side}_generation"]) == ("metadata", WAITING)
    assert (row[f"{other}_action"], row[f"{other}_generation"]) == (None, None)
    assert (row["deleted"], row["lineage"], row["priority"], row["row"]) == (
        deleted,
        {1: 2},
        7.0,
        Row(c0=rule),
    )
    if kind is None:
        assert (row["loser"], row["publisher_wins"]) == (None, None)
        assert row["note"] == actions[2 if side == SUBSCRIBER else 3]
    else:
        assert row["loser"] == Row(
            deleted=deleted, lineage={1: 2}, priority=7.0, unknown=None, row=Row(c0=rule)
        )
        assert row["note"] == next(rule for rule in actions[2:] if rule)
        assert row["publisher_wins"] == (side == SUBSCRIBER)
    assert row["winner"] is None


UNDONE: dict[
    str, tuple[str | None, str | None, tuple[bool, int], tuple[bool, int], tuple[int, str] | None]
] = {
    # The publisher's planned action and rule; (deleted, value) at the subscriber and at the publisher
    # -> conflict_type and the subscriber's action; None: nothing is undone.
    "an insert": ("insert", "CHECK x", (False, 1), (True, 1), (5, "delete")),
    "a delete": ("delete", "append-only", (True, 1), (False, 1), (7, "insert")),
    "an update": ("update", "NOT NULL", (False, 1), (False, 2), (9, "update")),
    "an insert where the publisher has another row": (
        "insert",
        "CHECK x",
        (False, 1),
        (False, 2),
        (5, "update"),
    ),
    "equal at both sides, though the table would refuse to write it": (
        "update",
        "append-only",
        (False, 1),
        (False, 1),
        None,
    ),
    "deleted at both sides": (None, "append-only", (True, 1), (True, 2), None),
    "refused at the subscriber alone": ("metadata", None, (False, 1), (False, 2), None),
}
IMAGE = "struct<c0:int>"


def test_what_is_undone(spark: SparkSession) -> None:
    rejected, refused = [], []
    nothing: dict[str, Any] = dict.fromkeys(RESOLVED_COLUMNS)
    for name, (action, rule, (deleted, value), (gone, held), _) in UNDONE.items():
        loser = Row(deleted=deleted, lineage={1: 2}, priority=7.0, unknown=None, row=Row(c0=value))
        of_both = {"verdict": "conflict", "conflict_type": 11, "note": "", "loser": loser}
        rejected.append(Row(**{**nothing, "rowguid": name, "deleted": gone, "row": Row(c0=held), **of_both}))
        refused.append((name, "upload", action, None, rule, None if rule else "CHECK y"))
    types = {
        "deleted": "boolean",
        "row": IMAGE,
        "conflict_type": "int",
        "loser": f"struct<deleted:boolean,lineage:map<int,bigint>,priority:double,unknown:array<string>,row:{IMAGE}>",
    }
    schema = ", ".join(f"{name} {types.get(name, 'string')}" for name in RESOLVED_COLUMNS)
    rows = undone(spark.createDataFrame(rejected, schema), spark.createDataFrame(refused, REFUSED))
    rows = put_back(rows, generation=WAITING)
    assert rows.columns == list(RESOLVED_COLUMNS)
    found = {row["rowguid"]: row for row in rows.collect()}
    assert {name: (row["conflict_type"], row["subscriber_action"]) for name, row in found.items()} == {
        name: expected for name, (*_, expected) in UNDONE.items() if expected is not None
    }
    for name, row in found.items():
        assert (row["verdict"], row["resolver"], row["note"]) == (
            "undone",
            "compensate_for_errors",
            UNDONE[name][1],
        )
        assert (row["publisher_action"], row["subscriber_generation"]) == (None, WAITING)
