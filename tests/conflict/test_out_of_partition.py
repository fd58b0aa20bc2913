"""Which rows a subscriber must write inside of its partition, and what becomes of those that lie outside."""

import pytest
from pyspark.sql import Row, SparkSession

from conflict.out_of_partition import Uploaded, bound_to_partition, rejected
from mergerepl.changes import RESOLVED_COLUMNS

pytestmark = pytest.mark.spark

ROWS = "row struct<c0:string,c1:string,c2:int>"
LOSER = f"struct<deleted:boolean,lineage:map<int,bigint>,priority:double,unknown:array<string>,{ROWS.replace(' ', ':')}>"
WINNER = "struct<lineage:map<int,bigint>,priority:double>"
STATE = (
    "deleted boolean, tombstone_type int, partchangegen bigint, born_generation bigint, lineage map<int,bigint>, "
    "colv1 map<string,struct<nickname:int,version:bigint>>, priority double, unknown array<string>"
)
CHANGES = (
    "rowguid string, deleted boolean, tombstone_type int, generation bigint, partchangegen bigint, "
    "born_generation bigint, lineage map<int,bigint>, colv1 map<string,struct<nickname:int,version:bigint>>, "
    f"priority double, unknown array<string>, {ROWS}"
)
RESOLVED = (
    f"rowguid string, verdict string, {STATE}, {ROWS}, publisher_action string, publisher_generation bigint, "
    "subscriber_action string, subscriber_generation bigint, conflict_type int, conflict_columns array<string>, "
    "publisher_wins boolean, resolver string, made_columns array<string>, note string, "
    f"loser {LOSER}, winner {WINNER}"
)
NORTH, AGENT = 2, -1
OLD, BORN = 8, 9
Version = tuple[dict[int, int], tuple[str, int] | None]
"""Lineage, and region and value; None: deleted."""

CASES: dict[str, tuple[Version, Version | None, str, tuple[str, int] | None, bool]] = {
    # the subscriber's version, the publisher's (None: unknown), verdict, final row -> whether it is bound.
    "an insert": (({2: 1}, ("N", 1)), None, "upload", ("N", 1), True),
    "an insert over the tombstone of another row": (
        ({2: 1}, ("N", 1)),
        ({1: 5}, None),
        "merge",
        ("N", 1),
        True,
    ),
    "an insert over a delete that it knows": (
        ({1: 5, 2: 6}, ("N", 1)),
        ({1: 5}, None),
        "upload",
        ("N", 1),
        True,
    ),
    "an insert that meets another row of the key": (
        ({2: 1}, ("N", 1)),
        ({0: 1}, ("N", 1)),
        "conflict",
        ("N", 1),
        True,
    ),
    "an update of the region": (({0: 1, 2: 2}, ("S", 1)), ({0: 1}, ("N", 1)), "upload", ("S", 1), True),
    "an update of a region that was NULL": (
        ({0: 1, 2: 2}, ("S", 1)),
        ({0: 1}, (None, 1)),  # type: ignore[arg-type]
        "upload",
        ("S", 1),
        True,
    ),
    "an update of the value": (({0: 1, 2: 2}, ("N", 7)), ({0: 1}, ("N", 1)), "upload", ("N", 7), False),
    "an edit of a row that the publisher moved": (
        ({0: 1, 2: 2}, ("N", 7)),
        ({0: 1, 1: 2}, ("S", 1)),
        "merge",
        ("S", 7),
        False,
    ),
    "an edit that lost": (({0: 1, 2: 2}, ("S", 1)), ({0: 1, 1: 2}, ("N", 1)), "conflict", ("N", 1), False),
    "a delete": (({0: 1, 2: 2}, None), ({0: 1}, ("N", 1)), "upload", None, False),
    "a version that the publisher has": (({0: 1}, ("S", 1)), ({0: 1}, ("S", 1)), "known", ("S", 1), False),
    "an older version": (({0: 1}, ("S", 1)), ({0: 1, 1: 2}, ("N", 1)), "download", ("N", 1), False),
}


def row(name: str, values: tuple[str, int] | None) -> Row:
    return Row(c0=name, c1=values[0] if values else "gone", c2=values[1] if values else 0)


@pytest.fixture(scope="module")
def uploaded(spark: SparkSession) -> Uploaded:
    def change(name: str, version: Version, priority: float) -> tuple[object, ...]:
        lineage, values = version
        type_ = 1 if values is None else None
        colv = {"c1": Row(nickname=max(lineage), version=max(lineage.values()))}
        born = BORN if name.startswith("an insert") else OLD
        return name, values is None, type_, 3, None, born, lineage, colv, priority, None, row(name, values)

    def outcome(name: str, verdict: str, values: tuple[str, int] | None) -> tuple[object, ...]:
        state = (values is None, None, None, None, {0: 1}, None, 7.0, None)
        return name, verdict, *state, row(name, values), *[None] * 12

    return Uploaded(
        spark.createDataFrame([change(name, case[0], 50.0) for name, case in CASES.items()], CHANGES),
        spark.createDataFrame(
            [change(name, case[1], 100.0) for name, case in CASES.items() if case[1]], CHANGES
        ),
        spark.createDataFrame([outcome(name, case[2], case[3]) for name, case in CASES.items()], RESOLVED),
    )


def test_inserts_and_moves_are_bound(uploaded: Uploaded) -> None:
    found = {each.rowguid for each in bound_to_partition(uploaded, ["c1"], fresh_after=OLD).collect()}
    assert found == {name for name, case in CASES.items() if case[-1]}


def test_the_publishers_row_stands_and_the_subscribers_is_logged(uploaded: Uploaded) -> None:
    bound = bound_to_partition(uploaded, ["c1"], fresh_after=OLD)
    outcome = rejected(uploaded, bound, note="A rule.", resolver_nickname=AGENT, clock=0)
    assert outcome.columns == list(RESOLVED_COLUMNS)
    found = {each.rowguid: each for each in outcome.collect()}
    assert set(found) == {name for name, case in CASES.items() if case[-1]}
    for name, each in found.items():
        (mine, sent), known = CASES[name][0], CASES[name][1]
        theirs, there = known or ({}, None)
        joined = {writer: max(mine.get(writer, 0), theirs.get(writer, 0)) for writer in {*mine, *theirs}}
        assert each.lineage == {**joined, AGENT: max(joined.values()) + 1}, name
        assert (each.verdict, each.conflict_type, each.publisher_wins) == ("conflict", 11, True)
        assert each.deleted == (there is None)
        assert each.tombstone_type == (6 if there is None else None)
        assert each.row == (row(name, sent) if known is None else row(name, there))
        assert each.priority == (50.0 if known is None else 100.0)
        assert each.loser == Row(
            deleted=False, lineage=mine, priority=50.0, unknown=None, row=row(name, sent)
        )
        assert each.note == "A rule."
