"""The change feed of a tracked table."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from mergerepl.compact.errors import ForeignCommitError
from mergerepl.delta.appended import union_all
from mergerepl.delta.log import Commit
from mergerepl.feed.read import read_segment
from mergerepl.feed.window import FeedWindow
from mergerepl.model.tracking import TrackedTable


def rows_of_feed(
    spark: SparkSession, table: TrackedTable, window: FeedWindow, changes: Sequence[Commit]
) -> DataFrame:
    """Return the rows that some commits changed: the table's columns, `_change_type`, `_commit_version`, and more.

    Raises: ForeignCommitError if the feed does not have them.
    """
    removals = window.unmatched_removals
    gap = window.gap(changes) or removals.gap
    if gap is None and removals.standing:
        gap = "files were removed from it by names that its log does not know"
    frames = (
        [] if gap else [read_segment(spark, window.path, segment) for segment in window.segments(changes)]
    )
    if any(frame is None for frame in frames):
        gap = "this Spark cannot read the changes of an UPDATE by delta-rs"
    if gap is not None:
        raise ForeignCommitError.unreadable(table.name, changes[0].version, gap)
    return union_all([frame for frame in frames if frame is not None])
