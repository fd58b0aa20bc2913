"""What a change feed comes to, row by row: a case table of histories of one key each, all in one feed."""

import pytest
from pyspark.sql import SparkSession

from mergerepl.delta.feed.net_changes import RowShape, compared_versions, net_changes
from tests.executors import spark as spark

pytestmark = pytest.mark.spark

ROW = "id string, a string"
SHAPE = RowShape(("id", "a"), ("id",))

# Events as (commit, what, value): `u` is an update's pre-image and post-image in one commit, "old>new"; a side left out is
# not recorded, as where the key was changed or a writer leaves pre-images out.
# Then: what the row was before and is after (None: it is not there), or "doubtful": the versions decide.
HISTORIES = {
    "inserted": ([(1, "i", "x")], (None, "x")),
    "updated": ([(1, "u", "x>y")], ("x", "y")),
    "updated twice": ([(1, "u", "x>y"), (2, "u", "y>z")], ("x", "z")),
    "updated and put back": ([(1, "u", "x>y"), (2, "u", "y>x")], None),
    "deleted": ([(1, "d", "x")], ("x", None)),
    "updated, then deleted": ([(1, "u", "x>y"), (2, "d", "y")], ("x", None)),
    "inserted, then updated": ([(1, "i", "x"), (2, "u", "x>y")], (None, "y")),
    "inserted, then deleted": ([(1, "i", "x"), (2, "d", "x")], None),
    "inserted, updated, then deleted": ([(1, "i", "x"), (2, "u", "x>y"), (3, "d", "y")], None),
    "deleted, then inserted": ([(1, "d", "x"), (2, "i", "y")], ("x", "y")),
    "deleted, then inserted as it was": ([(1, "d", "x"), (2, "i", "x")], None),
    "overwritten in one commit": ([(1, "d", "x"), (1, "i", "y")], ("x", "y")),
    "deleted, inserted, deleted": ([(1, "d", "x"), (2, "i", "y"), (3, "d", "y")], ("x", None)),
    "a version of two digits is the later one": ([(9, "u", "x>y"), (10, "u", "y>z")], ("x", "z")),
    "two inserted": ([(1, "i", "x"), (1, "i", "y")], "doubtful"),
    "two deleted": ([(1, "d", "x"), (2, "d", "y")], "doubtful"),
    "one came, another one went": ([(1, "i", "x"), (2, "d", "y")], "doubtful"),
    "one of two was updated, the other deleted": ([(1, "u", "x>y"), (2, "d", "z")], "doubtful"),
    "one of two was updated": ([(1, "i", "z"), (2, "u", "x>y")], "doubtful"),
    "two were updated, each in its commit": ([(1, "u", "x>y"), (2, "u", "z>x")], "doubtful"),
    "given the key": ([(1, "u", ">y")], (None, "y")),
    "the key was taken": ([(1, "u", "x>")], ("x", None)),
    "given the key, then deleted": ([(1, "u", ">y"), (2, "d", "y")], None),
    "updated twice without pre-images": ([(1, "u", ">y"), (2, "u", ">z")], "doubtful"),
    "updated, then without a pre-image": ([(1, "u", "x>y"), (2, "u", ">z")], "doubtful"),
}


def feed_rows() -> list[tuple[str, str | None, str, int]]:
    rows = []
    for key, (events, _) in HISTORIES.items():
        for commit, what, value in events:
            if what == "u":
                old, new = value.split(">")
                # The post-image first: within a commit a feed has no order.
                images = [(key, new, "update_postimage", commit), (key, old, "update_preimage", commit)]
                rows += [image for image in images if image[1]]
            else:
                rows.append((key, value, {"i": "insert", "d": "delete"}[what], commit))
    return rows


def test_every_history_comes_to_what_its_row_was_and_is(spark: SparkSession) -> None:
    feed = spark.createDataFrame(feed_rows(), f"{ROW}, _change_type string, _commit_version bigint")
    computed: dict[str, object] = dict.fromkeys(HISTORIES)
    half = {}
    for row in net_changes(feed, SHAPE).collect():
        before = row["before"]["c1"] if row["existed"] else None
        after = row["after"]["c1"] if row["exists"] else None
        is_changed = row["doubtful"] or before != after
        computed[row["after"]["c0"]] = (
            ("doubtful" if row["doubtful"] else (before, after)) if is_changed else None
        )
        assert not row["duplicated"]
        half[row["after"]["c0"]] = row["half_updates"]
    assert computed == {key: expected for key, (_, expected) in HISTORIES.items()}
    assert {key: number for key, number in half.items() if number} == {
        "given the key": 1,
        "the key was taken": -1,
        "given the key, then deleted": 1,
        "updated twice without pre-images": 2,
        "updated, then without a pre-image": 1,
    }


def test_rows_of_one_key_that_come_again_are_no_change(spark: SparkSession) -> None:
    events = [(value, what) for value in "xyz" for what in ("delete", "insert")]
    orders = [events, events[::-1], sorted(events), sorted(events, reverse=True)]
    rows = [(str(key), *event, 1) for key, order in enumerate(orders) for event in order]
    feed = spark.createDataFrame(rows, f"{ROW}, _change_type string, _commit_version bigint")
    assert [row for row in net_changes(feed, SHAPE).collect() if not row["doubtful"]] == []


def test_two_versions_give_the_same_and_count_the_rows_of_a_key(spark: SparkSession) -> None:
    before = [
        ("same", "x"),
        ("changed", "x"),
        ("gone", "x"),
        ("twice", "x"),
        ("one of two", "x"),
        ("one of two", "y"),
    ]
    after = [
        ("same", "x"),
        ("changed", "y"),
        ("new", "x"),
        ("twice", "x"),
        ("twice", "y"),
        ("one of two", "x"),
    ]
    versions = [spark.createDataFrame(rows, ROW) for rows in (before, after)]
    compared = {
        row["after"]["c0"]: (row["existed"], row["exists"], row["duplicated"])
        for row in compared_versions(*versions, SHAPE).collect()
    }
    assert compared == {
        "changed": (True, True, False),
        "gone": (True, False, False),
        "new": (False, True, False),
        "twice": (True, True, True),
        # Nobody knows which of the two the other replicas have: it starts as a new row, with all its columns.
        "one of two": (False, True, False),
    }
