"""Join the small files that sessions append to the system tables, so that sessions do not slow down over a year.

No row changes: all of them still count for the current version of a row.
"""

import logging

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyarrow import ArrowException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from mergerepl.delta import appended
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError, arrow_refusals
from mergerepl.delta.tables import compact
from mergerepl.errors import MergeReplError
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables.table import Plane

log = logging.getLogger(__name__)

SESSIONS_BETWEEN = 16
"""Listing every table's files takes longer than all bookkeeping of a session; so only some sessions do it."""

FILES_AT_MOST = 32

_FAILURES = (
    MergeReplError,
    NeedsSparkError,
    DeltaError,
    ArrowException,
    OSError,
    PySparkException,
    Py4JError,
)
"""What Delta's two writers raise."""

LARGE_BYTES = 16 * 1024 * 1024
"""A file of this size is never written again."""

LARGE_BYTES_OF_HISTORY = 256 * 1024
"""The same for tables that are read without an engine, some thousand rows: every reading reads each file's footer."""

ROWS_READ_TOGETHER = 1024
"""The rows of a row group of such a table: a reading with bounds reads whole groups."""


def compact_when_due(
    spark: SparkSession,
    replicas: tuple[Replica, ...],
    choice: EngineChoice,
    *,
    number: int,
    previous_number: int,
) -> None:
    """When a subscription's session numbers pass a multiple of 16, join the files of appended tables with more than 32.

    A publisher's subscriptions share their numbers, so a subscription may never see such a multiple itself. The caller
    holds the replicas. A failure here is only logged: the session itself is complete.
    """
    if number // SESSIONS_BETWEEN == previous_number // SESSIONS_BETWEEN:
        return
    for replica in replicas:
        for table, plane in replica.appended_tables().items():
            try:
                files = appended.file_count(table)
                if files > FILES_AT_MOST:
                    if plane is Plane.HISTORY:
                        compact(table, target_bytes=LARGE_BYTES_OF_HISTORY, rows_of_group=ROWS_READ_TOGETHER)
                    else:
                        _join(spark, table, choice)
                    log.info("%s: joined %s files", table, files)
            except _FAILURES as error:
                log.warning("%s: its small files could not be joined: %s", table, error)


def _join(spark: SparkSession, table: Location, choice: EngineChoice) -> None:
    """Join the files of a table of rows, without Spark if possible: Spark takes 1 to 3 s a table."""
    if choice.uses_arrow:
        try:
            with arrow_refusals():
                compact(table, target_bytes=LARGE_BYTES, most_files=FILES_AT_MOST)
        except NeedsSparkError as error:
            choice.fall_back(table, error)
        else:
            return
    appended.join_small_files(spark, table, large_bytes=LARGE_BYTES)
