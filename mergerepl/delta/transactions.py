"""Writes through Spark that are marked and happen once.

They carry a `CommitMark` and a Delta transaction (txnAppId, txnVersion): a repeated one is skipped, and the log says whose
each commit is. The confs that say so must never outlive the write, for a later write they still applied to would be skipped
silently (reliability.md 0.3): such a write runs in a session of its own.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergerepl.delta.log import Commit, find_own_commit
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import TableState, open_table
from mergerepl.errors import CommitConflictError

if TYPE_CHECKING:
    from deltalake import CommitProperties
    from pyspark.sql import DataFrameWriter, SparkSession

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""The conf with the metadata that a session's commits carry. Only in a session of its own: it stays set."""

_ANALYSIS = "mergerepl-analysis"
"""Delta application id of a MERGE that is analysed only. Nothing is ever written under it."""


@dataclass(frozen=True)
class Transaction:
    """A write that happens once: Delta skips it where the table already holds this or a later version of `app_id`."""

    app_id: str
    version: int
    mark: CommitMark


def marked_session(spark: "SparkSession", transaction: Transaction) -> "SparkSession":
    """Return a new session whose one write is marked and happens once. Use it for one write only."""
    # What deltalake commits is stated without Spark being loaded.
    from mergerepl.spark.session import new_session

    session = new_session(spark)
    confs = {
        USER_METADATA: transaction.mark.to_user_metadata(),
        "spark.databricks.delta.write.txnAppId": transaction.app_id,
        "spark.databricks.delta.write.txnVersion": str(transaction.version),
        # The staged source never changes, so Delta need not copy it before reading it twice.
        "spark.databricks.delta.merge.materializeSource": "none",
        # A source may never add columns to a user's table.
        "spark.databricks.delta.schema.autoMerge.enabled": "false",
    }
    for key, value in confs.items():
        session.conf.set(key, value)
    # What generated columns and constraints come to; a new session has what the JVM was started with.
    for key in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled"):
        session.conf.set(key, str(spark.conf.get(key)))
    return session


def analysis_session(spark: "SparkSession") -> "SparkSession":
    """Return a new session in which a MERGE is analysed only: nothing is ever committed in it.

    Delta analyses a MERGE whose transaction it has seen, and then skips it. For an application that has never written to
    a table, Delta takes -1 as the last version. It reads the table's log first, where it does not know it yet; a MERGE
    that follows finds it read.
    """
    from mergerepl.spark.confs import ADAPTIVE

    session = marked_session(spark, Transaction(_ANALYSIS, -1, CommitMark("", _ANALYSIS)))
    # A log is read in one job then, instead of three.
    session.conf.set(ADAPTIVE, "false")
    return session


def commit_properties(
    mark: CommitMark, transaction: Transaction | None = None, **terms: Any
) -> "CommitProperties":
    """Return what deltalake states in a commit: the mark, a transaction, and further terms of `CommitProperties`."""
    from deltalake import CommitProperties
    from deltalake import Transaction as LogTransaction

    done = [LogTransaction(transaction.app_id, transaction.version)] if transaction is not None else None
    return CommitProperties(
        custom_metadata={"userMetadata": mark.to_user_metadata()}, app_transactions=done, **terms
    )


def write_once(writer: "DataFrameWriter", table: Path, transaction: Transaction, *, head: int) -> Commit:
    """Write rows to a table at version `head`, in one marked commit, and return it.

    Raises: CommitConflictError if the commit is not in the log afterwards (another process overwrote it).
    """
    (
        writer.option("txnAppId", transaction.app_id)
        .option("txnVersion", transaction.version)
        .option("userMetadata", transaction.mark.to_user_metadata())
        .save(str(table))
    )
    return read_back(table, transaction, from_version_exclusive=head)


def read_back(table: Path, transaction: Transaction, *, from_version_exclusive: int) -> Commit:
    """Return our commit, looked for in the log itself. A write with a transaction always commits, even if empty.

    Raises: CommitConflictError if it is not there: on a local path another process can overwrite a commit
    (reliability.md 0.1).
    """
    commit = find_own_commit(table, transaction.mark, from_version_exclusive=from_version_exclusive)
    if commit is None:
        raise CommitConflictError(
            f"The commit '{transaction.mark.step}' on '{table}' was reported done and is not in the log: "
            "another process overwrote it. Run again, and let other writers of this folder hold "
            "`mergerepl.lock(path)` while they write.",
            table=str(table),
        )
    return commit


def transaction_version(table: Path, app_id: str) -> int:
    """Return the last transaction version of an application in a table, -1 if there is none."""
    return _last_version(open_table(table), app_id)


def is_done(table: TableState, transaction: Transaction) -> bool:
    """Return whether a table holds a transaction, or a later one of its application."""
    return _last_version(table, transaction.app_id) >= transaction.version


def _last_version(table: TableState, app_id: str) -> int:
    version = table.log.transaction_version(app_id)
    return -1 if version is None else int(version)
