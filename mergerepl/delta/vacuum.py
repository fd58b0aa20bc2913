"""VACUUM of users' tables that keeps what readers of their commits have not read, and how close such commits are to it."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from mergerepl.delta.log import head_version, written_ns
from mergerepl.delta.properties import FILE_RETENTION, LOG_RETENTION, RETENTION_DEFAULTS, interval_of
from mergerepl.delta.table import TableState, open_table
from mergerepl.errors import CaptureError
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import before_write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST_COMMIT = timedelta(days=1)
"""Files may be older than the commit that adds or removes them, by the time that it took."""


_IGNORES_HOURS = "spark.databricks.delta.vacuum.retentionWindowIgnore.enabled"
"""Delta 4.4's default is true: VACUUM then keeps files as long as the table says, whatever RETAIN says."""


def moment_of_ns(nanoseconds: int) -> datetime:
    """Return a time in UTC, to microseconds."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=nanoseconds // 1000)


def retention_of(table: TableState, name: str) -> timedelta:
    """Return how long a table keeps removed files (FILE_RETENTION) or its log (LOG_RETENTION)."""
    return interval_of(table.properties.get(name, "")) or RETENTION_DEFAULTS[name]


def vacuum_read(spark: "SparkSession", path: Location, read_through: int) -> tuple[int, int | None]:
    """Remove files that are past the table's retention and that no reader needs; the caller holds the folder.

    `read_through` is the version through which all readers have read it. Returns the hours for which files were kept, and
    that version if later ones are unread.

    Raises: CaptureError if later ones are unread and this Spark's VACUUM cannot be told to keep their files.
    """
    from mergerepl.spark.session import copy_if_possible

    kept, unread = retention_of(open_table(path), FILE_RETENTION), None
    if head_version(path) > read_through:
        unread = read_through
        since = moment_of_ns(written_ns(path, read_through + 1)) - _LONGEST_COMMIT
        kept = max(kept, datetime.now(UTC) - since)
    hours = math.ceil(kept.total_seconds() / 3600)
    # The copy commits, which changes a conf of its session.
    session = copy_if_possible(spark, {_IGNORES_HOURS: "false"})
    if unread is not None and session is spark:
        raise CaptureError(
            f"Table '{path}' is not vacuumed: versions after {unread} are not read yet, and VACUUM in this Spark session "
            "may remove their files. Let `mergerepl sync` or `mergerepl capture` read them first, or run `mergerepl "
            "vacuum` as a command.",
            table=str(path),
        )
    before_write()
    session.sql(f"VACUUM delta.{quote(str(path))} RETAIN {hours} HOURS")
    return hours, unread


@dataclass(frozen=True)
class Lag:
    """The oldest commit of a table that is not captured, and the shorter retention of its files and log."""

    since: datetime
    retention: timedelta

    def used(self, now: datetime) -> float:
        """Return the part of the retention that has passed."""
        return (now - self.since) / self.retention


def lag_of(table: TableState, version: int) -> Lag | None:
    """Return the lag of a table whose first unread commit is a version; None if that commit is gone from the log."""
    try:
        since = moment_of_ns(written_ns(table.path, version))
    except FileNotFoundError:
        return None
    return Lag(since, min(retention_of(table, name) for name in (FILE_RETENTION, LOG_RETENTION)))
