"""Reading a table's change feed: one frame per segment of a window."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.change_feed import feed_as_stored, feed_through_delta
from mergerepl.feed.net_changes import COMMIT_VERSION
from mergerepl.feed.window import Segment


def read_segment(spark: SparkSession, table: Path, segment: Segment) -> DataFrame | None:
    """Return the rows that changed in a segment, without the versions that are left out.

    Returns: The table's columns at the segment's end, `_change_type`, `_commit_version`, `_commit_timestamp`. None with
        another Delta (Databricks) that cannot read versions by their files.
    """
    bounds = segment.from_version_inclusive, segment.through_version_inclusive
    is_one_metadata = segment.is_one_metadata
    feed = feed_as_stored(spark, table, *bounds, is_one_metadata=is_one_metadata)
    if feed is None and segment.by_files:
        return None
    if feed is None:
        feed = feed_through_delta(spark, table, *bounds)
    version = F.col(COMMIT_VERSION)
    others = [*segment.left_out, *segment.by_files]
    stored = feed.where(~version.isin(others)) if others else feed
    if not segment.by_files:
        return stored
    # The version is a partition column of what Delta reads here: files of the other versions are not opened.
    of_files = feed_as_stored(spark, table, *bounds, by_files=True, is_one_metadata=is_one_metadata)
    return (
        None if of_files is None else stored.unionByName(of_files.where(version.isin(list(segment.by_files))))
    )
