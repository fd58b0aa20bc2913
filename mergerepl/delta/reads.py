"""Reading tables through Spark: a version, its change feed, or its files directly, without Delta.

Delta on Spark rebuilds a table's state in jobs of its own, 0.4 s for the smallest table; delta-rs lists the files in 2
ms. If a table's rows are exactly the rows of its files, Spark reads those.
"""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import unquote

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame as SparkFrame
from pyspark.sql import Observation, SparkSession
from pyspark.sql.types import StructType

from mergerepl.delta.commits import is_foreign
from mergerepl.delta.metadata import CHAR_VARCHAR
from mergerepl.delta.parquet_files import Bounds as Bounds
from mergerepl.delta.parquet_files import may_hold as may_hold
from mergerepl.delta.parquet_files import write_parquet
from mergerepl.delta.table import TableState, file_names, open_table
from mergerepl.errors import StoreError
from mergerepl.frames import Column, DataFrame, is_in_process
from mergerepl.rows.sql import quote
from mergerepl.spark.callers import active_session
from mergerepl.spark.in_memory import collected
from mergerepl.spark.session import copy_if_possible, in_session, with_write_confs
from mergerepl.store.location import Location
from mergerepl.store.storage import end_begun_folder, is_folder, make_folder, remove_folder

logger = logging.getLogger(__name__)

_READER_FEATURES = frozenset({"timestampNtz"})
"""Features under which a file's rows are still the table's rows."""

_FILES_AT_MOST = 1000
"""Spark gets every file by name. Delta on Spark lists more files than this faster."""

_ONLY_RETAINED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"

_RELATIVE_NAME = re.compile(r"(?!(.*/)?[._])[^/%:*?\[{\\][^%:*?\[{\\]*")
"""A path below the table that the log holds unencoded, and that Spark takes neither for a pattern nor for hidden."""


def plain_files(table: TableState, *, bounded: Collection[str] = ()) -> list[dict[str, Any]] | None:
    """Return a table's files, or None if its rows differ from theirs.

    Each has path, size_bytes, num_records, min.<bounded> and max.<bounded>. None is returned for column mapping, deletion
    vectors, partition columns (whose values are only in the log), and file names that the log encodes.
    """
    if table.reader_version not in (1, 3) or not table.reader_features <= _READER_FEATURES:
        return None
    if table.metadata.partition_columns:
        return None
    actions = table.files()
    if actions.num_rows > _FILES_AT_MOST:
        return None
    # Bounds of the other columns may be dates and times outside Python's range.
    bounds = [f"{end}.{name}" for name in bounded for end in ("min", "max")]
    names = ["path", "size_bytes", "num_records", *bounds]
    wanted = [name for name in names if name in actions.column_names]
    files: list[dict[str, Any]] = actions.select(wanted).to_pylist()
    return files if all(_RELATIVE_NAME.fullmatch(file["path"]) for file in files) else None


def read_files(
    spark: SparkSession, table: Location, files: Sequence[dict[str, Any]], schema: StructType
) -> DataFrame:
    """Return some columns of some files (at least one)."""
    return spark.read.schema(schema).parquet(*(Location.of(table / each["path"]).spark_uri for each in files))


SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""The key of a Parquet file under which Spark notes the columns that it wrote."""


def _write_here(rows: DataFrame, folder: Location, measures: Sequence[Column]) -> dict[str, Any]:
    """`write_files` in process."""
    stated = collected(rows).replace_schema_metadata({SPARK_SCHEMA: rows.schema.json()})
    write_parquet(stated, folder / "part-00000.snappy.parquet")
    return rows.agg(*measures).collect()[0].asDict() if measures else {}


def write_files(rows: DataFrame, folder: Location, measures: Sequence[Column] = ()) -> dict[str, Any]:
    """Write rows as Parquet files of a folder, replacing its contents; return their measures by name.

    On a local path Spark starts a process (`chmod`, 3 ms) for each file and folder that it makes. So the marker file is
    left out, and the folders that Hadoop's FileOutputCommitter would make before the first row are made beforehand.
    """
    if is_folder(folder):
        remove_folder(folder)
    if is_in_process():
        return _write_here(rows, folder, measures)
    end_begun_folder(folder)
    make_folder(folder / "_temporary" / "0" / "_temporary")
    written = with_write_confs(rows)
    observation = Observation()
    if measures:
        # An observation sees only queries that its own session runs.
        written = written.observe(observation, *measures)
    writer = written.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    writer.mode("append").parquet(Location.of(folder).spark_uri)
    return observation.get if measures else {}


def foreign_file(spark_of: Callable[[], SparkSession], table: Location, version: int) -> str | None:
    """Return a data file of a table that lies outside its folder, or None.

    Its owner may remove it, and a log may name any file.
    """
    from deltalake.exceptions import DeltaError

    try:
        names = file_names(table, version)
    except (StoreError, DeltaError, OSError) as error:
        logger.info("Spark: table '%s': %s", table, error)
        files = read_version(spark_of(), table, version).inputFiles()
        return next((file for file in files if not file.startswith(f"file:{table}/")), None)
    return next((unquote(name) for name in names if is_foreign(table, name)), None)


def read_columns(
    spark: SparkSession,
    table: Location,
    version: int,
    columns: Sequence[str] | None = None,
    *,
    files_at_most: int = _FILES_AT_MOST,
    bounds: Bounds | None = None,
) -> DataFrame:
    """Return some or all columns of a user's table at one version; rows outside the bounds may be missing."""
    from deltalake.exceptions import DeltaError

    try:
        state = open_table(table, version)
        fields = {field.name.lower(): field for field in state.schema}
        names = [name.lower() for name in columns] if columns else [*fields]
        schema = StructType([fields[name] for name in names if name in fields])
        # Delta pads the values of CHAR(n), and reports a missing column better.
        is_plain = len(schema) == len(names) and not any(
            CHAR_VARCHAR in (field.metadata or {}) for field in schema
        )
        files = plain_files(state, bounded=bounds or ()) if is_plain else None
    except (StoreError, DeltaError, OSError) as error:
        # For example a feature that only Delta on Spark knows. Its errors about unreadable tables are better, too.
        logger.info("Spark: table '%s': %s", table, error)
        files = None
    chosen = [each for each in files or () if may_hold(each, bounds or {})]
    if files and len(chosen) <= files_at_most:
        rows = read_files(spark, table, chosen or files[:1], schema)
        return rows if chosen else rows.limit(0)
    rows = read_version(spark, table, version)
    return rows.select(*(quote(name) for name in columns)) if columns else rows


def read_version(spark: SparkSession, table: Location, version: int) -> DataFrame:
    """Return the rows of a table at one version, however old its commit is.

    Delta refuses a version older than `delta.deletedFileRetentionDuration` as soon as a newer one exists, even with all
    its files in place. Missing files fail when they are read.
    """
    reading = copy_if_possible(spark, {_ONLY_RETAINED: "false"})
    rows = reading.read.format("delta").option("versionAsOf", version).load(Location.of(table).spark_uri)
    return rows if reading is spark else in_session(rows, spark)


def feed_through_delta(
    spark: SparkSession, table: Location, from_version_inclusive: int, through_version_inclusive: int
) -> DataFrame:
    """Return the change feed of a version range through Delta's own reader."""
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    bounds = {"startingVersion": from_version_inclusive, "endingVersion": through_version_inclusive}
    return reader.options(**bounds).load(Location.of(table).spark_uri)


def feed_as_stored(
    spark: SparkSession,
    table: Location,
    from_version_inclusive: int,
    through_version_inclusive: int,
    *,
    by_files: bool = False,
    is_one_metadata: bool,
) -> DataFrame | None:
    """Return the feed without Delta's reader, None with another Delta (Databricks).

    That reader turns every row into Java objects and back, which takes longer than reading it, and alters bytes of a
    string that are not UTF-8.
    """
    jvm: Any = spark._jvm
    session = spark._jsparkSession
    try:
        reader = getattr(jvm, "org.apache.spark.sql.delta.commands.cdc.CDCReader")
        if not isinstance(reader, JavaClass):
            return None
        nothing = getattr(jvm, "scala.Option").empty()
        delta_log = getattr(jvm, "org.apache.spark.sql.delta.DeltaLog").forTable(
            session, Location.of(table).spark_uri
        )
        at_end = delta_log.getSnapshotAt(through_version_inclusive, nothing, nothing, False)
        snapshot = getattr(jvm, "scala.Option").apply(at_end)
        # Delta needs only the metadata of the first version. The log may no longer have its whole state: the cleanup of
        # older writers leaves versions without a checkpoint before them.
        at_start = snapshot if is_one_metadata else nothing
        versions = from_version_inclusive, through_version_inclusive
        with active_session(spark):
            feed = reader.changesToBatchDF(
                delta_log, *versions, session, nothing, snapshot, by_files, at_start
            )
    except Py4JJavaError:
        raise
    except Py4JError as error:
        logger.info("%s: the feed is read by Delta's own reader: %s", table, error)
        return None
    return SparkFrame(feed, spark)
