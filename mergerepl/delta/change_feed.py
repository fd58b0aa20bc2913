"""A table's change feed as Delta on Spark gives it."""

import logging
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from mergerepl.spark.callers import active_session

log = logging.getLogger(__name__)


def feed_through_delta(
    spark: SparkSession, table: Path, from_version_inclusive: int, through_version_inclusive: int
) -> DataFrame:
    """Return the change feed of a version range through Delta's own reader."""
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    bounds = {"startingVersion": from_version_inclusive, "endingVersion": through_version_inclusive}
    return reader.options(**bounds).load(str(table))


def feed_as_stored(
    spark: SparkSession,
    table: Path,
    from_version_inclusive: int,
    through_version_inclusive: int,
    *,
    by_files: bool = False,
    is_one_metadata: bool,
) -> DataFrame | None:
    """Return the feed without Delta's reader in between, None with another Delta (Databricks).

    That reader turns every row into Java objects and back, which takes longer than reading it, and bytes of a string
    that are no UTF-8 do not come back as they were.
    """
    jvm: Any = spark._jvm
    session = spark._jsparkSession
    try:
        reader = getattr(jvm, "org.apache.spark.sql.delta.commands.cdc.CDCReader")
        if not isinstance(reader, JavaClass):
            return None
        nothing = getattr(jvm, "scala.Option").empty()
        delta_log = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(session, str(table))
        at_end = delta_log.getSnapshotAt(through_version_inclusive, nothing, nothing, False)
        snapshot = getattr(jvm, "scala.Option").apply(at_end)
        # Delta needs only the metadata of the first version. Its whole state may be gone from the log: the cleanup of older
        # writers leaves versions without a checkpoint before them.
        at_start = snapshot if is_one_metadata else nothing
        versions = from_version_inclusive, through_version_inclusive
        with active_session(spark):
            feed = reader.changesToBatchDF(
                delta_log, *versions, session, nothing, snapshot, by_files, at_start
            )
    except Py4JJavaError:
        raise
    except Py4JError as error:
        log.info("%s: the feed is read by Delta's own reader: %s", table, error)
        return None
    return DataFrame(feed, spark)
