"""What both sides do for the rows that a session moves, and for those that it only looks at."""

import pytest
from pyspark.sql import Row, SparkSession

from enumeration.partition_actions import PartitionRows, PartitionTerms, partition_actions

pytestmark = pytest.mark.spark

ROWS = "row struct<c0:string>"
CHANGES = (
    "rowguid string, deleted boolean, tombstone_type int, generation bigint, partchangegen bigint, "
    "born_generation bigint, lineage map<int,bigint>, colv1 map<string,struct<nickname:int,version:bigint>>, "
    f"priority double, unknown array<string>, {ROWS}"
)
MEMBERSHIPS = "rowguid string, before struct<c0:string>, was array<int>, is array<int>, written boolean"
NORTH, SOUTH = 1, 2


def test_a_row_that_was_only_looked_at_and_stays_is_left_alone(spark: SparkSession) -> None:
    """Of such a row, whose parent moved, nothing is read: it is no row that went."""
    entered = ("enters", False, None, 0, None, None, {0: 1}, None, 100.0, None, Row(c0="enters"))
    left = ("leaves", False, None, 0, None, None, {0: 1}, None, 100.0, None, Row(c0="leaves"))
    memberships = [
        ("enters", Row(c0="enters"), [SOUTH], [NORTH], False),
        ("leaves", Row(c0="leaves"), [NORTH], [SOUTH], False),
        ("stays", Row(c0="stays"), [NORTH], [NORTH], False),
        ("stays elsewhere", Row(c0="stays elsewhere"), [SOUTH], [SOUTH], False),
    ]
    frames = PartitionRows(
        spark.createDataFrame([entered, left], CHANGES),
        memberships=spark.createDataFrame(memberships, MEMBERSHIPS),
    )
    terms = PartitionTerms(NORTH, start=0, held=(), received={}, own_at_publisher=7, own_at_subscriber=8)
    found = {each.rowguid: each for each in partition_actions(frames, terms).collect()}
    assert {name: each.subscriber_action for name, each in found.items()} == {
        "enters": "insert",
        "leaves": "leave",
    }
    assert {each.publisher_action for each in found.values()} == {"metadata"}
