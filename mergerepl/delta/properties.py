"""Table properties that replication needs: the change feed on, and files kept long enough."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from mergerepl.delta.commits import Commit, find_own_commit
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY, FEED_COLUMNS, TableMetadata
from mergerepl.delta.table import RANDOM_PREFIXES, TableState, open_table, reason_of
from mergerepl.delta.transactions import commit_properties, session_with_mark
from mergerepl.errors import PublicationError
from mergerepl.rows.sql import literal, quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LOG_RETENTION = "delta.logRetentionDuration"
FILE_RETENTION = "delta.deletedFileRetentionDuration"

KEPT_A_DAY = {LOG_RETENTION: "interval 1 days", FILE_RETENTION: "interval 1 days"}
"""For system tables with a commit every few seconds: readers pin a version and do not need older ones."""

_NUMBERED_PROTOCOL = 6
"""Up to this writer version a protocol is numbers; later, table features."""

RETENTION_DEFAULTS = {LOG_RETENTION: timedelta(days=30), FILE_RETENTION: timedelta(days=7)}
"""Delta's defaults for a table without these properties."""

_NEEDED = (CDF_PROPERTY, LOG_RETENTION, FILE_RETENTION, RANDOM_PREFIXES)

_UNIT_SECONDS = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_PART = re.compile(r"(-?\d+)\s*([a-z]+?)s?(?=[\s\d-]|\Z)", re.IGNORECASE)


def interval_of(text: str) -> timedelta | None:
    """Return the length of a Delta interval ("interval 30 days"), None if it has months or is not an interval."""
    body = text.strip().lower().removeprefix("interval").strip()
    parts = _PART.findall(body)
    if not parts or _PART.sub("", body).strip() or any(unit not in _UNIT_SECONDS for _, unit in parts):
        return None
    return timedelta(seconds=sum(int(number) * _UNIT_SECONDS[unit] for number, unit in parts))


def retention_properties(properties: Mapping[str, str], retention: timedelta) -> dict[str, str]:
    """Return the retention properties to set so that files live at least `retention`; longer settings stay."""
    lengths = {
        name: default if name not in properties else interval_of(properties[name])
        for name, default in RETENTION_DEFAULTS.items()
    }
    wanted = {
        name: f"interval {interval_text(retention)}"
        for name, length in lengths.items()
        if length is not None and length < retention
    }
    if (
        FILE_RETENTION in wanted
        and retention > RETENTION_DEFAULTS[LOG_RETENTION]
        and LOG_RETENTION not in wanted
    ):
        # Delta compares it with the file retention, and assumes its default if a command does not state it.
        wanted[LOG_RETENTION] = properties[LOG_RETENTION]
    return wanted


def interval_text(length: timedelta) -> str:
    """Return a length of time in whole days or hours, rounded up: `14 days`."""
    hours = -(-int(length.total_seconds()) // 3600)
    return f"{hours // 24} days" if hours % 24 == 0 else f"{hours} hours"


def missing_properties(table: TableState, retention: timedelta) -> dict[str, str]:
    """Return the properties a published table still needs."""
    feed = {} if table.metadata.change_data_feed else {CDF_PROPERTY: "true"}
    folders = folder_properties(table) if table.names_folders_after_values else {}
    return {**feed, **retention_properties(table.properties, retention), **folders}


def lost_properties(
    before: TableMetadata, commits: Iterable[Commit], *, lost: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the properties that replication needs and a replacement of the table took away, with their former values.

    Properties that ALTER or the replacement itself states are not among them.

    Args:
        before: The metadata before the commits.
        commits: The commits after it, in order.
        lost: The properties that earlier commits took away.
    """
    found, known = dict(lost or {}), before
    for commit in commits:
        if commit.metadata is None:
            continue
        if commit.replaces_table:
            found |= {name: known.configuration[name] for name in _NEEDED if name in known.configuration}
        known = commit.metadata
        found = {name: value for name, value in found.items() if name not in known.configuration}
    return found


def folder_properties(table: TableState) -> dict[str, str]:
    """Return the property that stops Delta from naming folders after values that are not ASCII.

    Spark writes such a path unencoded, deltalake and others encode it (%C3%8E), and then remove another file.
    """
    return {RANDOM_PREFIXES: "true"} if table.may_name_folders_in_unicode else {}


def set_properties(
    spark_of: "Callable[[], SparkSession]", table: TableState, properties: Mapping[str, str], mark: CommitMark
) -> int:
    """Set table properties in one marked commit and return its version; the head if `properties` is empty.

    Raises: PublicationError if Delta refuses.
    """
    if not properties:
        return head_version(table.path)
    if not _set_in_log(table, properties, mark):
        _set_by_spark(spark_of(), table, properties, mark)
    commit = find_own_commit(table.path, mark, from_version_exclusive=table.version)
    if commit is None:
        raise PublicationError(
            f"Table '{table.path}': the commit that set {', '.join(properties)} is not in its log; another "
            "process overwrote it. Stop other writers, or let them hold `mergerepl.lock(path)`, and run "
            "the command again.",
            table=str(table.path),
        )
    return commit.version


def _set_in_log(table: TableState, properties: Mapping[str, str], mark: CommitMark) -> bool:
    """Set properties by delta-rs, which takes milliseconds; False if Spark has to do it, and report failures.

    delta-rs raises a protocol of numbers as Spark does. To a protocol of named features it adds unused ones.
    """
    if table.features or table.writer_version > _NUMBERED_PROTOCOL:
        return False
    if any(field["name"].lower() in FEED_COLUMNS for field in table.fields):
        # Spark refuses the feed of such a table.
        return False
    from deltalake.exceptions import DeltaError

    try:
        with open_table(table.path).writing() as opened:
            opened.alter.set_table_properties(
                dict(properties),
                raise_if_not_exists=False,
                commit_properties=commit_properties(table.path, mark),
            )
    except DeltaError as error:
        log.info("the properties of %s are set by Spark: %s", table.path, reason_of(error))
        return False
    return True


def _set_by_spark(
    spark: "SparkSession", table: TableState, properties: Mapping[str, str], mark: CommitMark
) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from mergerepl.spark.errors import cause_of, engine_answers

    marked = session_with_mark(spark, mark)
    pairs = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in properties.items())
    try:
        marked.sql(f"ALTER TABLE delta.{quote(str(table.path))} SET TBLPROPERTIES ({pairs})")
    except (PySparkException, Py4JError) as error:
        if not engine_answers():
            # The error that ended the engine is not about the table.
            raise
        raise PublicationError(
            f"Table '{table.path}' cannot be given the properties {', '.join(properties)}: {cause_of(error)}. Fix the "
            "cause, then run the command again.",
            table=str(table.path),
        ) from error


def describe(properties: Mapping[str, str]) -> str:
    """Return properties as one line of text."""
    words = {
        CDF_PROPERTY: "turn Change Data Feed on",
        LOG_RETENTION: "keep the log for {}",
        FILE_RETENTION: "keep removed files for {}",
        RANDOM_PREFIXES: "let Spark name folders at random, not after values",
    }
    return ", ".join(
        words[name].format(value.removeprefix("interval ")) for name, value in properties.items()
    )
