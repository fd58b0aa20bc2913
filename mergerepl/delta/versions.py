"""The rows of a table at one of its versions."""

from pathlib import Path
from threading import Lock

from pyspark.sql import DataFrame, SparkSession

_ONLY_RETAINED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
_loading = Lock()
"""Held while that conf is off: another thread would take "false" for what to put back."""


def read_version(spark: SparkSession, table: Path, version: int) -> DataFrame:
    """Return the rows of a table at one version, however old its commit is.

    Delta refuses a version older than `delta.deletedFileRetentionDuration` as soon as a newer one is there, with all its
    files in place. Files that are gone fail when they are read.
    """
    with _loading:
        before = spark.conf.get(_ONLY_RETAINED, None)
        spark.conf.set(_ONLY_RETAINED, "false")
        try:
            return spark.read.format("delta").option("versionAsOf", version).load(str(table))
        finally:
            if before is None:
                spark.conf.unset(_ONLY_RETAINED)
            else:
                spark.conf.set(_ONLY_RETAINED, before)
