"""Reading a table's change feed: one frame per segment of a window."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.feed.net_changes import COMMIT_VERSION
from mergerepl.delta.feed.window import Segment
from mergerepl.delta.reads import feed_as_stored, feed_through_delta
from mergerepl.delta.update_keys import has_key, update_keys
from mergerepl.store.location import Location


def read_segment(spark: SparkSession, table: Location, segment: Segment) -> DataFrame | None:
    """Return the rows that changed in a segment, without the left-out versions.

    Returns: The table's columns at the segment's end, `_change_type`, `_commit_version`, `_commit_timestamp`. None with
        another Delta (Databricks) that cannot read versions by their files.
    """
    bounds = segment.from_version_inclusive, segment.through_version_inclusive
    is_one_metadata = segment.is_one_metadata
    keys = {version: update_keys(table, version, segment.key) for version in segment.by_keys}
    # A file may be gone since the segment was planned.
    some = [version for version, each in keys.items() if each.doubt is None]
    whole = [*segment.by_files, *(keys.keys() - some)]
    feed = feed_as_stored(spark, table, *bounds, is_one_metadata=is_one_metadata)
    if feed is None and (whole or some):
        return None
    if feed is None:
        feed = feed_through_delta(spark, table, *bounds)
    version = F.col(COMMIT_VERSION)
    others = [*segment.left_out, *whole, *some]
    stored = feed.where(~version.isin(others)) if others else feed
    if not (whole or some):
        return stored
    # Delta reads the version as a partition column here: files of the other versions are not opened.
    of_files = feed_as_stored(spark, table, *bounds, by_files=True, is_one_metadata=is_one_metadata)
    if of_files is None:
        return None
    if whole:
        stored = stored.unionByName(of_files.where(version.isin(whole)))
    if some:
        is_changed = F.expr(has_key([keys[each] for each in some]))
        stored = stored.unionByName(of_files.where(version.isin(some) & is_changed))
    return stored
