"""Reading a table's change feed: one frame per segment of versions."""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.change_feed import feed_as_stored, feed_through_delta


def read_feed(
    spark: SparkSession,
    table: Path,
    *,
    from_version_exclusive: int,
    through_version_inclusive: int,
    own_versions: Sequence[int] = (),
    by_files: Sequence[int] = (),
    is_one_metadata: bool = False,
) -> DataFrame | None:
    """Return the change feed of a version range without the agent's own commits.

    Args:
        spark: Session that reads.
        table: The user's table.
        from_version_exclusive: The version before the first.
        through_version_inclusive: The last version.
        own_versions: Versions that are left out.
        by_files: Versions that are told by the rows of the files that came and went, whatever changes their writer tells
            of; None where Delta is another one (Databricks), which does not tell these.
        is_one_metadata: The table's metadata is the same from the first version to the last.
    """
    bounds = from_version_exclusive + 1, through_version_inclusive
    feed = feed_as_stored(spark, table, *bounds, is_one_metadata=is_one_metadata)
    if feed is None and by_files:
        return None
    if feed is None:
        feed = feed_through_delta(spark, table, *bounds)
    version = F.col("_commit_version")
    others = [*own_versions, *by_files]
    told = feed.where(~version.isin(others)) if others else feed
    if not by_files:
        return told
    # The version is a partition column of what Delta reads here: of the other versions no file is opened.
    of_files = feed_as_stored(spark, table, *bounds, by_files=True, is_one_metadata=is_one_metadata)
    return None if of_files is None else told.unionByName(of_files.where(version.isin(list(by_files))))
