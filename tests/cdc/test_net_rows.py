"""Net changes: the rule table case by case, and drawn histories against the reference. All cases of a test are one job."""

import random
from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.cdc.change_rows import IS_DOUBTFUL, NET_OPTIONS, net_rows
from mergerepl.cdc.queries import is_bit_set
from mergerepl.logreader.lsn import Lsn
from tests.properties import cdc_model as model

pytestmark = pytest.mark.spark

SCHEMA = (
    "`__$start_lsn` binary, `__$seqval` binary, `__$operation` int, `__$update_mask` binary, "
    "`case` string, id int, a string, b int"
)
CAPTURED = ["case", "id", "a", "b"]
Events = list[tuple[int, int, int, str | None, int]]
"""Of one key: slot of the LSN, operation, mask, a, b."""

DELETE, INSERT, BEFORE, AFTER = 1, 2, 3, 4
A, B, ALL = 0b0100, 0b1000, 0b1111
PHASE = {DELETE: 0, BEFORE: 1, AFTER: 1, INSERT: 2}

RULES: dict[str, tuple[Events, tuple[int, int | None, str | None, int] | None]] = {
    # name: events, (operation, its mask with `all with mask`, last a, last b)
    "insert": ([(1, INSERT, ALL, "x", 1)], (2, None, "x", 1)),
    "insert then update": (
        [(1, INSERT, ALL, "x", 1), (2, BEFORE, A, "x", 1), (2, AFTER, A, "y", 1)],
        (2, None, "y", 1),
    ),
    "insert then delete": ([(1, INSERT, ALL, "x", 1), (2, DELETE, ALL, "x", 1)], None),
    "insert, delete, insert": (
        [(1, INSERT, ALL, "x", 1), (2, DELETE, ALL, "x", 1), (3, INSERT, ALL, "z", 3)],
        (2, None, "z", 3),
    ),
    "update": ([(1, BEFORE, B, "x", 1), (1, AFTER, B, "x", 2)], (4, B, "x", 2)),
    "updates of two columns": (
        [(1, BEFORE, B, "x", 1), (1, AFTER, B, "x", 2), (2, BEFORE, A, "x", 2), (2, AFTER, A, "y", 2)],
        (4, A | B, "y", 2),
    ),
    "update and back": (
        [(1, BEFORE, B, "x", 1), (1, AFTER, B, "x", 2), (2, BEFORE, B, "x", 2), (2, AFTER, B, "x", 1)],
        (4, B, "x", 1),
    ),
    "delete": ([(1, DELETE, ALL, "x", 1)], (1, None, "x", 1)),
    "update then delete": (
        [(1, BEFORE, B, "x", 1), (1, AFTER, B, "x", 2), (2, DELETE, ALL, "x", 2)],
        (1, None, "x", 2),
    ),
    "delete then insert": ([(1, DELETE, ALL, "x", 1), (2, INSERT, ALL, None, 1)], (4, ALL, None, 1)),
    "delete then insert in one commit": (
        [(1, DELETE, ALL, "x", 1), (1, INSERT, ALL, "y", 1)],
        (4, ALL, "y", 1),
    ),
    # Both rows of the key came and went.
    "two rows, and none is left": (
        [
            *((1, INSERT, ALL, "x", 1), (2, INSERT, ALL, "y", 1)),
            *((3, DELETE, ALL, "x", 1), (4, DELETE, ALL, "y", 1)),
        ],
        None,
    ),
    "delete, insert, delete": (
        [(1, DELETE, ALL, "x", 1), (2, INSERT, ALL, "y", 2), (3, DELETE, ALL, "y", 2)],
        (1, None, "y", 2),
    ),
}
TWICE: dict[str, Events] = {
    "two inserts": [(1, INSERT, ALL, "x", 1), (2, INSERT, ALL, "y", 1)],
    "two inserts in one commit": [(1, INSERT, ALL, "x", 1), (1, INSERT, ALL, "y", 1)],
    "two deletes": [(1, DELETE, ALL, "x", 1), (1, DELETE, ALL, "y", 1)],
    "update of a deleted row": [(1, DELETE, ALL, "x", 1), (2, BEFORE, A, "x", 1), (2, AFTER, A, "y", 1)],
    "two rows, and one is left": [
        *((1, INSERT, ALL, "x", 1), (2, INSERT, ALL, "y", 1)),
        *((3, DELETE, ALL, "y", 1), (4, DELETE, ALL, "z", 1)),
    ],
    "two rows updated in one commit": [(1, AFTER, A, "x", 1), (1, AFTER, A, "y", 1)],
    "another row than the last is deleted": [(1, INSERT, ALL, "two", 1), (2, DELETE, ALL, "one", 1)],
    "another row than the last is updated": [
        *((1, INSERT, ALL, "two", 1), (2, BEFORE, A, "one", 1), (2, AFTER, A, "uno", 1))
    ],
}


def frame(spark: SparkSession, cases: dict[str, Events]) -> DataFrame:
    rows = [
        (bytes(Lsn.of(7, slot)), bytes([4 * 0 + PHASE[op], *bytes(9)]), op, bytes([mask]), name, 1, a, b)
        for name, events in cases.items()
        for slot, op, mask, a, b in events
    ]
    return spark.createDataFrame(rows, SCHEMA).repartition(3)


def each_option(rows: DataFrame, key: list[str], captured: list[str]) -> dict[str, list[Any]]:
    """Return what each option gives, in one job."""
    nets = [
        net_rows(rows, key, captured, option, compared=captured).withColumn("option", F.lit(option))
        for option in NET_OPTIONS
    ]
    found: dict[str, list[Any]] = {option: [] for option in NET_OPTIONS}
    for row in reduce(DataFrame.union, nets).collect():
        found[row["option"]].append(row)
    return found


def test_first_and_last_event_decide(spark: SparkSession) -> None:
    rows = frame(spark, {name: events for name, (events, _) in RULES.items()})
    found = each_option(rows, ["case"], CAPTURED)
    expected = {name: net for name, (_, net) in RULES.items() if net is not None}
    seen = {option: {row["case"]: row for row in rows} for option, rows in found.items()}
    for option in NET_OPTIONS:
        assert {name: (row["__$operation"], row["a"], row["b"]) for name, row in seen[option].items()} == {
            name: (5 if option == "all with merge" and op != 1 else op, a, b)
            for name, (op, _, a, b) in expected.items()
        }
        masks = {
            name: None if row["__$update_mask"] is None else row["__$update_mask"][0]
            for name, row in seen[option].items()
        }
        assert masks == {
            name: mask if option == "all with mask" else None for name, (_, mask, *_) in expected.items()
        }
        # Of the last change.
        assert {name: Lsn(bytes(row["__$start_lsn"])).slot for name, row in seen[option].items()} == {
            name: max(slot for slot, *_ in RULES[name][0]) for name in expected
        }


def drawn_keys(number: int) -> tuple[dict[str, Events], dict[str, tuple[list[str], list[str]]]]:
    """Draw events of keys that may have several rows at once; and their rows before (at most one) and afterwards."""
    draw = random.Random(44)
    cases: dict[str, Events] = {}
    ends: dict[str, tuple[list[str], list[str]]] = {}
    for at in range(number):
        start = draw.sample("xyz", draw.randint(0, 1))
        rows, events = list(start), []
        for slot in range(1, draw.randint(2, 6)):
            value, old = draw.choice("xyz"), draw.choice(rows) if rows else None
            step = draw.choice((INSERT, DELETE, AFTER)) if old is not None else INSERT
            if step != INSERT and old is not None:
                rows.remove(old)
                events.append((slot, DELETE if step == DELETE else BEFORE, ALL, old, 1))
            if step != DELETE:
                rows.append(value)
                events.append((slot, step, ALL, value, 1))
        cases[f"k{at}"], ends[f"k{at}"] = events, (start, rows)
    return cases, ends


def test_keys_with_two_rows_at_once_are_doubtful_and_no_others(spark: SparkSession) -> None:
    drawn, ends = drawn_keys(400)
    rows = frame(spark, {**{name: events for name, (events, _) in RULES.items()}, **TWICE, **drawn})
    net = {row["case"]: row for row in net_rows(rows, ["case"], CAPTURED, "all", compared=CAPTURED).collect()}
    doubtful = {name for name, row in net.items() if row[IS_DOUBTFUL]}
    assert doubtful - drawn.keys() == TWICE.keys()
    unseen = 0
    for name, (start, end) in ends.items():
        found = net.get(name)
        if name in doubtful:
            continue
        operation = found["__$operation"] if found is not None else None
        if operation == INSERT and start:
            # Only who has the rows before can see it: a MERGE fails on such a row.
            unseen += 1
            continue
        assert end == (start if found is None else [] if operation == DELETE else [found["a"]]), (
            drawn[name],
            start,
        )
    assert (unseen > 5, len(doubtful) < 350, len(drawn) - len(doubtful) - unseen > 50) == (True, True, True)


@st.composite
def histories(draw: st.DrawFn) -> list[list[dict[int, tuple[int, ...]]]]:
    """Draw the states of some tables after each of their commits."""
    rows = st.tuples(*[st.integers(0, 2)] * 9)
    states = st.dictionaries(st.integers(1, 4), rows, max_size=4)
    return draw(st.lists(st.lists(states, min_size=2, max_size=6), min_size=4, max_size=12))


def model_of(states: list[dict[int, tuple[int, ...]]]) -> model.Database:
    source = model.Source(1, states=[states[0]])
    for at, state in enumerate(states[1:], 1):
        source.write(at, 0, state)
    database = model.Database([source])
    instance = model.Instance("i", 1, 0, (1, 0))
    database.instances["i"], database.low["i"] = instance, (1, 0)
    for commit in source.commits:
        lsn = (1, commit.version)
        instance.rows += model.change_rows(commit, lsn)
        database.gate.append({"lsn": lsn, "time": commit.version, "commits": [(1, commit.version)]})
    return database


@given(histories())
@settings(max_examples=3, derandomize=True)
def check_against_the_model(spark: SparkSession, drawn: list[list[dict[int, tuple[int, ...]]]]) -> None:
    databases = [model_of(states) for states in drawn]
    names = [f"c{i}" for i in range(9)]
    schema = (
        "`__$start_lsn` binary, `__$seqval` binary, `__$operation` int, `__$update_mask` binary, "
        f"history int, id int, {', '.join(f'{name} int' for name in names)}"
    )
    rows = spark.createDataFrame(list(change_table(databases)), schema)
    found = each_option(rows, ["history", "id"], ["history", "id", *names])
    for option in NET_OPTIONS:
        for at, database in enumerate(databases):
            expected = database.net_changes("i", (1, 0), database.max_lsn(), option)
            seen = sorted(
                (
                    (1, Lsn(bytes(row["__$start_lsn"])).slot),
                    row["__$operation"],
                    row["id"],
                    tuple(row[name] for name in names),
                    None if row["__$update_mask"] is None else int.from_bytes(row["__$update_mask"], "big"),
                )
                for row in found[option]
                if row["history"] == at
            )
            assert seen == expected
    assert not any(row[IS_DOUBTFUL] for rows in found.values() for row in rows)


def change_table(databases: list[model.Database]) -> Iterator[tuple[Any, ...]]:
    for at, database in enumerate(databases):
        for (cycle, slot), phase, key, operation, row, mask in database.instances["i"].rows:
            lsn, seqval = bytes(Lsn.of(cycle, slot)), bytes([phase, *key.to_bytes(9, "big")])
            yield (lsn, seqval, operation, model.mask_bytes(mask, len(row)), at, key, *row)


def test_drawn_histories_come_to_what_the_model_says(spark: SparkSession) -> None:
    check_against_the_model(spark)


def test_masks_of_many_columns_and_their_bits(spark: SparkSession) -> None:
    """200 captured columns have 25 bytes; a net mask is the OR of all, and each bit is found as in Python."""
    columns = 200
    one, other = (1 << 199) | (1 << 60) | 1, (1 << 59) | (1 << 8)
    names = ["id", *(f"c{i}" for i in range(1, columns))]
    schema = (
        "`__$start_lsn` binary, `__$seqval` binary, `__$operation` int, `__$update_mask` binary, "
        + ", ".join(f"{name} int" for name in names)
    )
    rows = [
        (bytes(Lsn.of(1, slot)), bytes(10), operation, model.mask_bytes(mask, columns), *range(columns))
        for slot, mask in ((1, one), (2, other))
        for operation in (3, 4)
    ]
    net = net_rows(spark.createDataFrame(rows, schema), ["id"], names, "all with mask", compared=names)
    mask = F.col("`__$update_mask`")
    asked = [0, 1, 2, 9, 60, 61, 62, 200, 201, 1000]
    found = net.select(mask, *(is_bit_set(place, mask).alias(f"b{place}") for place in asked)).collect()
    assert [int.from_bytes(row[0], "big") for row in found] == [one | other]
    assert [found[0][f"b{place}"] for place in asked] == [
        is_bit_set(place, bytes(found[0][0])) for place in asked
    ]
    assert {place for place in asked if found[0][f"b{place}"]} == {1, 9, 60, 61, 200}
