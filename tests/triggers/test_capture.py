"""Capture's four steps on literal frames: what the feed says, what the table says, and what becomes of it."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from mergerepl.delta.feed.window import Segment
from mergerepl.errors import MergeReplError
from mergerepl.spark.in_memory import release
from tests.publish.publishing import article
from triggers.capture import TableReader, captured_net
from triggers.errors import DuplicateKeyError, FeedGapError, NullKeyError
from triggers.window import CaptureWindow

pytestmark = pytest.mark.spark

Rows = dict[str | None, str] | list[tuple[str | None, str]]


class Case(NamedTuple):
    """A window: its feed as words (`+k=v` inserted, `-k=v` deleted, `k:v>w` updated; `;` ends a commit), and the table.

    `changes` is what is captured: key -> before>after, with nothing where there was no row.
    """

    feed: str
    before: Rows
    after: Rows
    changes: dict[str, str]
    counts: tuple[int, int, int]


ABC = {"a": "1", "b": "1", "c": "1"}

CASES = {
    "one change of each kind": Case(
        "+d=1 -b=1 a:1>2", ABC, {"a": "2", "c": "1", "d": "1"}, {"a": "1>2", "b": "1>", "d": ">1"}, (1, 1, 1)
    ),
    "what was taken back is none": Case("a:1>2; a:2>1; +d=1; -d=1", ABC, ABC, {}, (0, 0, 0)),
    "a row that takes another key is a delete and an insert": Case(
        "a:1> d:>1", ABC, {"d": "1", "b": "1", "c": "1"}, {"a": "1>", "d": ">1"}, (1, 0, 1)
    ),
    "a key that a row took and lost again is none": Case(
        "a:1> d:>1; -d=1", ABC, {"b": "1", "c": "1"}, {"a": "1>"}, (0, 0, 1)
    ),
    "of two rows of a key the older one went": Case(
        "+a=2; -a=1", ABC, {"a": "2", "b": "1", "c": "1"}, {"a": "1>2"}, (0, 1, 0)
    ),
    "of two rows of a key the newer one went": Case("+a=2; -a=2", ABC, ABC, {}, (0, 0, 0)),
    "a deleted key that still has a row": Case(
        "-a=2; -b=1", [("a", "1"), ("a", "2"), ("b", "1")], {"a": "1"}, {"a": ">1", "b": "1>"}, (1, 0, 1)
    ),
    "updates without what the rows were": Case(
        "a:>2; -b=1", ABC, {"a": "2", "c": "1"}, {"a": "1>2", "b": "1>"}, (0, 1, 1)
    ),
}


class Table:
    """The frames of a case, and which of them were asked for."""

    def __init__(self, spark: SparkSession, case: Case) -> None:
        self.spark, self.case, self.asked = spark, case, list[str]()

    def reader(self) -> TableReader:
        return TableReader(
            self.feed, self.rows_at, lambda keys, bounds: self.rows_at(1).select("id"), _nothing
        )

    def feed(self) -> DataFrame:
        types = "id string, a string, _change_type string, _commit_version bigint"
        return self.spark.createDataFrame(_events(self.case.feed), types)

    def rows_at(self, version: int) -> DataFrame:
        rows = self.case.before if version == 0 else self.case.after
        self.asked.append("before" if version == 0 else "after")
        listed = list(rows.items()) if isinstance(rows, dict) else rows
        return self.spark.createDataFrame(listed, "id string, a string")


def _nothing(guids: DataFrame, rows: int) -> None:
    return None


def _events(feed: str) -> list[tuple[str | None, str, str, int]]:
    found: list[tuple[str | None, str, str, int]] = []
    for version, commit in enumerate(feed.split(";"), start=1):
        for event in commit.split():
            if event[0] in "+-":
                key, value = event[1:].split("=")
                kind = "insert" if event[0] == "+" else "delete"
                found.append((None if key == "NULL" else key, value, kind, version))
                continue
            key, values = event.split(":")
            old, new = values.split(">")
            images = [(key, old, "update_preimage", version), (key, new, "update_postimage", version)]
            found += [image for image in images if image[1]]
    return found


def window(spark: SparkSession, **stated: object) -> CaptureWindow:
    published = article(spark.createDataFrame([], "id string, a string"))
    whole = CaptureWindow(published, Path("/lake/orders"), 0, 3, segments=(Segment(1, 3),))
    return replace(whole, **stated)  # type: ignore[arg-type]


def outcome(spark: SparkSession, case: Case, **stated: object) -> tuple[dict[str, str], tuple[int, int, int]]:
    """Return what is captured of a case: key -> before>after; inserts, updates and deletes."""
    net = captured_net(window(spark, **stated), Table(spark, case).reader())
    found = {}
    for row in net.rows.collect():
        before = row["before"]["c1"] if row["existed"] else ""
        found[row["after"]["c0"]] = f"{before}>{row['after']['c1'] if row['exists'] else ''}"
    release(net.kept)
    return found, (net.inserts, net.changes - net.inserts - net.deletes, net.deletes)


@pytest.mark.on_spark("one change of each kind", "a deleted key that still has a row")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_inv_24_a_window_comes_to_what_became_of_its_rows(spark: SparkSession, case: Case) -> None:
    assert outcome(spark, case) == (case.changes, case.counts)


def test_whole_versions_come_to_the_same(spark: SparkSession) -> None:
    case = CASES["one change of each kind"]
    assert outcome(spark, case, gap="Change Data Feed was off") == (case.changes, case.counts)


REFUSED: dict[str, tuple[Case, type[MergeReplError], str]] = {
    "a second row of a key": (
        Case("+a=2", ABC, [*ABC.items(), ("a", "2")], {}, (0, 0, 0)),
        DuplicateKeyError,
        "id=a",
    ),
    "two rows of a new key": (
        Case("+d=1 +d=2", ABC, [*ABC.items(), ("d", "1"), ("d", "2")], {}, (0, 0, 0)),
        DuplicateKeyError,
        "id=d",
    ),
    "no key, beside a key in doubt": (
        Case("+NULL=1; +a=2; -a=1", ABC, [("a", "2"), ("b", "1"), ("c", "1"), (None, "1")], {}, (0, 0, 0)),
        NullKeyError,
        "1 new rows",
    ),
    "no key": (Case("+NULL=1", ABC, [*ABC.items(), (None, "1")], {}, (0, 0, 0)), NullKeyError, "1 new rows"),
}


@pytest.mark.on_spark("no key, beside a key in doubt")
@pytest.mark.parametrize(("case", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_inv_24_keys_that_are_none_are_refused_and_in_a_late_window_logged(
    spark: SparkSession, caplog: pytest.LogCaptureFixture, case: Case, error: type[MergeReplError], words: str
) -> None:
    for stated in ({}, {"gap": "Change Data Feed was off"}):
        with pytest.raises(error, match=words):
            outcome(spark, case, **stated)
    with caplog.at_level(logging.WARNING):
        found, counts = outcome(spark, case, is_late=True)
    assert (None in found, sum(counts)) == (False, len(found))
    assert ("NULL in their key" in caplog.text) is (error is NullKeyError)
    assert ("came in during the session" in caplog.text) is (error is DuplicateKeyError)


@pytest.mark.on_spark
def test_only_keys_in_doubt_are_asked_of_the_version_before(spark: SparkSession) -> None:
    for name, is_asked in {
        "one change of each kind": False,
        "a key that a row took and lost again is none": False,
        "of two rows of a key the older one went": True,
        "a deleted key that still has a row": True,
    }.items():
        table = Table(spark, CASES[name])
        release(captured_net(window(spark), table.reader()).kept)
        assert ("before" in table.asked) is is_asked, name


@pytest.mark.on_spark
def test_inv_24_a_version_that_is_gone_is_a_gap(spark: SparkSession) -> None:
    def gone(version: int) -> DataFrame:
        raise RuntimeError(f"[DELTA_VERSION_NOT_FOUND] Cannot time travel to version {version}")

    case = CASES["of two rows of a key the older one went"]
    for stated in ({}, {"gap": "Change Data Feed was off"}):
        reader = replace(Table(spark, case).reader(), rows_at=gone)
        with pytest.raises(FeedGapError, match="since version 0 cannot be computed any more"):
            captured_net(window(spark, **stated), reader)
