"""What foreign commits come to, case by case: stamps, tombstones, and the commits that count as a change."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

from mergerepl.model.tracking_options import TrackingOptions
from mergerepl.systables.tracking import CHANGE_BSN, CONTEXT, INSERT_BSN
from mergerepl.tracking.database import packed, unpacked
from mergerepl.tracking.foreign import CHANGED, IS_THERE, LAST_IS_OWN, SHARED, TOMBSTONES, folded

pytestmark = pytest.mark.spark

ALL, INSERT, UPDATE, DELETE = (
    TrackingOptions.ALL,
    TrackingOptions.INSERT,
    TrackingOptions.UPDATE,
    TrackingOptions.DELETE,
)
SCHEMA = (
    "k string, version bigint, bsn binary, csn bigint, time timestamp, by string, is_own boolean, "
    f"before struct<{CHANGE_BSN}:binary,{INSERT_BSN}:binary,{CONTEXT}:string>, "
    f"after struct<{CHANGE_BSN}:binary,{INSERT_BSN}:binary,{CONTEXT}:string>, differs boolean, shared boolean"
)
OLD, COPIED, LOST = (3, 2), (9, 9), (0, 0)
"""Change and insert BSN: of the row as ours left it, copied by a foreign writer from elsewhere, lost."""

CASES: dict[str, Any] = {
    # events: version, before, after, whether columns differ, or "own"; then stamps, tombstones (CSN, insert), changes
    "update with stale stamps": ([(1, OLD, OLD, True)], (101, 2), [], [1]),
    "update that lost the stamps": ([(1, OLD, LOST, True)], (101, 2), [], [1]),
    "rewritten unchanged": ([(1, OLD, LOST, False)], OLD, [], []),
    "inserted with copied stamps": ([(1, None, COPIED, True)], (101, 101), [], [1]),
    "deleted": ([(1, OLD, None, True)], None, [(201, 2)], [1]),
    "deleted, inserted in the next commit": (
        [(1, OLD, None, True), (2, None, COPIED, True)],
        (102, 102),
        [(201, 2)],
        [1, 2],
    ),
    "deleted and inserted in one commit": ([(1, OLD, COPIED, True)], (101, 2), [], [1]),
    "came and went": ([(1, None, LOST, True), (2, LOST, None, True)], None, [(202, 101)], [1, 2]),
    "updated twice": ([(1, OLD, OLD, True), (2, OLD, OLD, True)], (102, 2), [], [1, 2]),
    "updated, then rewritten unchanged": ([(1, OLD, OLD, True), (2, OLD, LOST, False)], (101, 2), [], [1]),
    "updated, then ours": ([(1, OLD, OLD, True), (2, OLD, (7, 2), "own")], (7, 2), [], [1]),
    "two rows: inserted twice": ([(1, None, LOST, True), (2, None, LOST, True)], (102, 102), [], [1, 2]),
    "two rows: deleted twice": (
        [(1, OLD, None, True), (2, OLD, None, True)],
        None,
        [(201, 2), (202, None)],
        [1, 2],
    ),
    "inserted, updated, deleted, inserted": (
        [(1, None, LOST, True), (2, LOST, LOST, True), (3, LOST, None, True), (4, None, LOST, True)],
        (104, 104),
        [(203, 101)],
        [1, 2, 3, 4],
    ),
}


def stamp(pair: tuple[int, int] | None) -> tuple[bytes | None, bytes | None, str | None] | None:
    if pair is None:
        return None
    return (*(packed(number) if number else None for number in pair), "ctx" if pair == OLD else None)


def number(stored: bytes | None) -> int | None:
    return None if stored is None else unpacked(stored)


def events() -> list[tuple[Any, ...]]:
    at = datetime(2024, 5, 1, tzinfo=UTC)
    return [
        (
            name,
            version,
            packed(100 + version),
            200 + version,
            at,
            "peer",
            differs == "own",
            stamp(before),
            stamp(after),
            differs is True,
            False,
        )
        for name, (history, *_) in CASES.items()
        for version, before, after, differs in history
    ]


def test_the_state_after_foreign_commits(spark: SparkSession) -> None:
    frame = spark.createDataFrame(events(), SCHEMA)
    found = {row["k"]: row for row in folded(frame, ["k"], ALL).collect()}
    for name, (history, stamps, tombstones, changes) in CASES.items():
        row = found[name]
        assert row[IS_THERE] is (stamps is not None), name
        if stamps is not None:
            assert tuple(unpacked(row[each]) for each in (CHANGE_BSN, INSERT_BSN)) == stamps, name
        left = [(each["csn"], number(each["insert_bsn"])) for each in row[TOMBSTONES]]
        assert left == tombstones, name
        assert row[CHANGED] == changes, name
        assert row[LAST_IS_OWN] is (history[-1][3] == "own"), name
        assert row[SHARED] is name.startswith("two rows"), name
    assert found["rewritten unchanged"][CONTEXT] == "ctx"
    assert found["update with stale stamps"][CONTEXT] == "peer"


@pytest.mark.parametrize(
    ("options", "name", "stamps", "tombstones"),
    [
        (UPDATE | DELETE, "inserted with copied stamps", (None, None), []),
        (INSERT | DELETE, "update with stale stamps", OLD, []),
        (INSERT | UPDATE, "deleted, inserted in the next commit", (102, 102), []),
        (DELETE, "came and went", None, [(202, None)]),
    ],
)
def test_what_is_not_tracked_leaves_no_mark(
    spark: SparkSession, options: TrackingOptions, name: str, stamps: Any, tombstones: Any
) -> None:
    frame = spark.createDataFrame([each for each in events() if each[0] == name], SCHEMA)
    [row] = folded(frame, ["k"], options).collect()
    if stamps is not None:
        assert tuple(number(row[each]) for each in (CHANGE_BSN, INSERT_BSN)) == stamps
    assert [(each["csn"], number(each["insert_bsn"])) for each in row[TOMBSTONES]] == tombstones
