"""The rules of lineage and colv1 as Spark expressions come to what the same rules do in plain Python (I17)."""

import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mergerepl.frames import F
from mergerepl.rows import lineage_columns as columns
from mergerepl.rows import lineage_value as value
from mergerepl.systables.contents import COLV1_TYPE, LINEAGE_TYPE

pytestmark = pytest.mark.spark

FLOORS = (0, 2)
NICKNAMES = (-2, -1, 1, 2, 3)
COLUMNS = ("a", "b c", "d")
Case = dict[str, Any]


def draw_cases(seed: int, count: int) -> list[Case]:
    """Return pairs of lineages with small versions, so that equal, covering and concurrent ones are all frequent."""
    chance = random.Random(seed)

    def lineage() -> dict[int, int]:
        return {n: chance.randint(1, 4) for n in chance.sample(NICKNAMES, chance.choice((0, 1, 2, 3, 5)))}

    return [
        {
            "one": lineage(),
            "other": lineage(),
            "nickname": chance.choice(NICKNAMES),
            "colv": {
                name: {"nickname": chance.choice(NICKNAMES), "version": chance.randint(1, 4)}
                for name in chance.sample(COLUMNS, chance.randint(0, 3))
            },
            "changed": chance.sample(COLUMNS, chance.randint(0, 2)),
        }
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return draw_cases(17, 3000)


@pytest.fixture(scope="module")
def frame(spark: SparkSession, cases: list[Case]) -> DataFrame:
    numbered = [{"number": number, **case} for number, case in enumerate(cases)]
    types = (
        f"one {LINEAGE_TYPE}, other {LINEAGE_TYPE}, nickname int, colv {COLV1_TYPE}, changed array<string>"
    )
    return spark.createDataFrame(numbered, f"number int, {types}")


def computed(frame: DataFrame, **expressions: Any) -> list[dict[str, Any]]:
    chosen = frame.select("number", *(column.alias(name) for name, column in expressions.items()))
    return [row.asDict(recursive=True) for row in sorted(chosen.collect(), key=lambda row: row["number"])]


FEW_OR_MANY = pytest.mark.parametrize("is_written_out", [False, True], ids=["few", "many"])


@FEW_OR_MANY
@pytest.mark.parametrize("floor", FLOORS)
def test_inv_17_who_covers_whom(
    frame: DataFrame, cases: list[Case], floor: int, is_written_out: bool
) -> None:
    one, other = F.col("one"), F.col("other")
    found = computed(
        frame,
        covers=columns.covers(one, other, floor=floor, is_written_out=is_written_out),
        itself=columns.covers(one, one, floor=floor, is_written_out=is_written_out),
        **{
            name: columns.is_covered(F.try_element_at(F.col("colv"), F.lit(name)), one, floor=floor)
            for name in COLUMNS
        },
    )
    for row, case in zip(found, cases, strict=True):
        assert row["covers"] == value.covers(case["one"], case["other"], floor), case
        assert row["itself"], case
        for name in COLUMNS:
            entry = case["colv"].get(name)
            version = (entry["nickname"], entry["version"]) if entry else None
            assert row[name] == value.is_covered(version, case["one"], floor), case
    assert 0 < sum(row["covers"] for row in found) < len(found)


@FEW_OR_MANY
@pytest.mark.parametrize("floor", FLOORS)
def test_inv_17_one_more_change(
    frame: DataFrame, cases: list[Case], floor: int, is_written_out: bool
) -> None:
    one, nickname = F.col("one"), F.col("nickname")
    version = columns.next_version(one, floor=floor)
    found = computed(
        frame,
        bumped=columns.with_version(one, nickname, version, is_written_out=is_written_out),
        first=columns.with_version(columns.empty_lineage(), nickname, version, is_written_out=is_written_out),
    )
    for row, case in zip(found, cases, strict=True):
        bumped = value.bump(case["one"], case["nickname"], floor)
        assert row["bumped"] == bumped, case
        assert row["first"] == {case["nickname"]: bumped[case["nickname"]]}, case


@FEW_OR_MANY
def test_inv_17_two_lineages_become_one(frame: DataFrame, cases: list[Case], is_written_out: bool) -> None:
    both = F.col("one"), F.col("other")
    merged = columns.merge(*both)
    if is_written_out:
        others = F.array_remove(columns.writers(*both), F.col("nickname"))
        versions = columns.versions_of(*both, others)
        last = columns.later_version(*both, F.col("nickname"))
        merged = columns.of_entries(others, versions, F.col("nickname"), last)
    found = computed(frame, merged=merged)
    for row, case in zip(found, cases, strict=True):
        assert row["merged"] == value.merge(case["one"], case["other"]), case


def test_changed_columns_get_the_version_and_others_keep_theirs(frame: DataFrame, cases: list[Case]) -> None:
    version = F.lit(9).cast("bigint")
    changed = columns.with_columns_changed(F.col("colv"), F.col("changed"), F.col("nickname"), version)
    found = computed(frame, changed=changed)
    for row, case in zip(found, cases, strict=True):
        entry = {"nickname": case["nickname"], "version": 9}
        assert row["changed"] == {**case["colv"], **dict.fromkeys(case["changed"], entry)}, case
