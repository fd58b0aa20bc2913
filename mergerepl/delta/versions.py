"""The rows of a table at one of its versions."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from mergerepl.spark.session import copy_if_possible, in_session

_ONLY_RETAINED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"


def read_version(spark: SparkSession, table: Path, version: int) -> DataFrame:
    """Return the rows of a table at one version, however old its commit is.

    Delta refuses a version older than `delta.deletedFileRetentionDuration` as soon as a newer one is there, with all its
    files in place. Files that are gone fail when they are read.
    """
    reading = copy_if_possible(spark, {_ONLY_RETAINED: "false"})
    rows = reading.read.format("delta").option("versionAsOf", version).load(str(table))
    return rows if reading is spark else in_session(rows, spark)
