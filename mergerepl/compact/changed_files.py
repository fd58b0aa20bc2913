"""Rows that changed between two versions of a table lie in files that the earlier one does not have: only these are read.

This holds also after OPTIMIZE, and with deletion vectors, which only remove rows. If the earlier version is gone from
the log, the whole table is read.
"""

import logging
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.plain_files import plain_files, read_files
from mergerepl.delta.table import file_names, open_table
from mergerepl.delta.versions import read_version
from mergerepl.errors import StoreError
from mergerepl.spark.in_memory import frame_of_tuples

log = logging.getLogger(__name__)

_NAMED_AT_MOST = 1000
"""At most so many files are selected by name; beyond that, reading all files costs no more."""


def changed_rows(
    spark: SparkSession, path: Path, *, from_version_exclusive: int, through_version_inclusive: int
) -> DataFrame:
    """Return the rows of the later version in files that the earlier one does not have, with some unchanged rows."""
    try:
        later = open_table(path, through_version_inclusive)
        before = file_names(path, from_version_exclusive)
        new = set(file_names(path, through_version_inclusive)) - set(before)
        schema, files = later.schema, plain_files(later)
    except StoreError as error:
        # A version that is gone from the log, say.
        log.info("%s: the whole table is read: %s", path, error)
        return read_version(spark, path, through_version_inclusive)
    is_padded = any(each.metadata for each in schema)
    if files is not None and not is_padded:
        chosen = [file for file in files if file["path"] in new]
        rows = (
            read_files(spark, path, chosen or files[:1], schema)
            if files
            else frame_of_tuples(spark, [], schema)
        )
        return rows if chosen else rows.limit(0)
    whole = read_version(spark, path, through_version_inclusive)
    if not new:
        return whole.limit(0)
    picked = _picked(spark, path, through_version_inclusive, new) if len(new) <= _NAMED_AT_MOST else None
    return whole if picked is None else picked


def _picked(spark: SparkSession, path: Path, version: int, names: set[str]) -> DataFrame | None:
    """Return the rows of some files of a table with deletion vectors, mapped or partition columns; None if that fails."""
    jvm: Any = spark._jvm
    try:
        option = getattr(jvm, "scala.Option")
        delta_log = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(
            spark._jsparkSession, str(path)
        )
        snapshot = delta_log.getSnapshotAt(version, option.empty(), option.empty(), False)
        is_chosen = F.col("path").isin(sorted(names))
        chosen = snapshot.allFiles().filter(is_chosen._jc).collectAsList()
        if chosen.size() != len(names):
            return None
        converters = getattr(jvm, "scala.jdk.javaapi.CollectionConverters")
        files = converters.asScala(chosen).toSeq()
        return DataFrame(delta_log.createDataFrame(snapshot, files, False, option.empty()), spark)
    except Py4JError as error:
        log.info("%s: the whole table is read: %s", path, error)
        return None
