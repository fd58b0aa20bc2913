"""Commits that happen once: each carries a `CommitMark` and a Delta transaction (txnAppId, txnVersion).

The mark identifies a commit's author, and shows a repeated run that a step is done. Delta skips a write whose
transaction the table already holds.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from mergerepl.delta.commits import Commit, find_own_commit
from mergerepl.delta.fences import FENCE_APP_ID, commit_terms, version_at, with_fence
from mergerepl.delta.known_heads import forget_head
from mergerepl.delta.log import forget_recent_head, recent_head
from mergerepl.delta.marks import FENCE, CommitMark
from mergerepl.delta.table import TableState, open_table
from mergerepl.errors import CommitConflictError, StoreError
from mergerepl.store.location import Location
from mergerepl.store.register import noting_unknown
from mergerepl.store.rehearsal import before_write

if TYPE_CHECKING:
    from deltalake import CommitProperties
    from pyspark.sql import DataFrameWriter, SparkSession

log = logging.getLogger(__name__)

T = TypeVar("T")

COMMIT_ATTEMPTS = 8
RETRY_WAIT_S = 0.1
"""The wait after the first lost commit; each further one adds as much."""

_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""The conf with the userMetadata of a session's commits."""

_TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"

_ANALYSIS = "mergerepl-analysis"
"""Delta application id of a MERGE that is only analysed. Nothing is ever written under it."""


@dataclass(frozen=True)
class Transaction:
    """A write that happens once: Delta skips it if the table already holds this or a later version of `app_id`."""

    app_id: str
    version: int
    mark: CommitMark


def commit_once(
    write: Callable[[], None],
    table: Location,
    transaction: Transaction,
    *,
    from_version_exclusive: int,
    lost: CommitConflictError,
) -> Commit:
    """Make a commit once, and return it as recorded in the table's log.

    The log is searched for the mark first: a Delta transaction may expire (delta.setTransactionRetentionDuration). A
    write whose reply was lost is found there too, or skipped by Delta in the next attempt.

    `write` reads the table and writes one commit with the mark and the transaction; it is called again each time
    another writer's commit came first. The log is searched after `from_version_exclusive`.

    Raises: `lost` (`lost_commits`) if other writers win every commit; CommitConflictError if the commit was reported
    done but is not in the log; errors of `write`.
    """
    done = _find_recent(table, transaction.mark, from_version_exclusive)
    if done is not None:
        return done
    retry_conflicts(write, table, lost)
    return read_back(table, transaction, from_version_exclusive=from_version_exclusive)


def retry_conflicts(write: Callable[[], T], table: Location, lost: CommitConflictError) -> T:
    """Call a function that writes one commit, and again each time another writer's commit came first.

    Raises: `lost` after COMMIT_ATTEMPTS attempts.
    """
    from deltalake.exceptions import CommitFailedError

    from mergerepl.spark.errors import COMMIT_CONFLICTS

    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            return write()
        except (CommitFailedError, *COMMIT_CONFLICTS) as error:
            log.info("commit conflict on %s, attempt %s", table, attempt)
            forget_recent_head(table)
            if attempt == COMMIT_ATTEMPTS:
                raise lost from error
            time.sleep(RETRY_WAIT_S * attempt)
    raise AssertionError


def lost_commits(target: str, writer: str, again: str, **facts: str) -> CommitConflictError:
    """Return the error of a writer that lost every commit to other writers."""
    return CommitConflictError(
        f"{target} is being changed by other writers: {writer} lost {COMMIT_ATTEMPTS} commits in a row. {again}",
        **facts,
    )


def session_with_mark(spark: "SparkSession", mark: CommitMark) -> "SparkSession":
    """Return a new session whose commits carry a mark, for statements that Delta does not count as transactions."""
    if mark.step != _ANALYSIS:
        before_write()
    # The terms of a deltalake commit must not load Spark.
    from mergerepl.spark.session import new_session

    session = new_session(spark)
    session.conf.set(_USER_METADATA, mark.to_user_metadata())
    return session


@contextmanager
def marked_session(
    spark: "SparkSession", transaction: Transaction, table: Location
) -> Iterator["SparkSession"]:
    """Give a new session whose one write, to `table`, is marked and happens once. Use it for one write only.

    A later write to which its confs still applied would be skipped silently (reliability.md 0.3): they end with the block.
    """
    session = session_with_mark(spark, transaction.mark)
    confs = {
        _TXN_APP_ID: transaction.app_id,
        _TXN_VERSION: str(version_at(transaction.version, table)),
        # The staged source never changes, so Delta need not copy it before reading it twice.
        "spark.databricks.delta.merge.materializeSource": "none",
        # A source may never add columns to a user's table.
        "spark.databricks.delta.schema.autoMerge.enabled": "false",
    }
    for key, value in confs.items():
        session.conf.set(key, value)
    # They affect the results of generated columns and constraints; a new session has the JVM's initial values.
    for key in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled"):
        session.conf.set(key, str(spark.conf.get(key)))
    from mergerepl.spark.errors import COMMIT_CONFLICTS

    try:
        with noting_unknown(Location.of(table), *COMMIT_CONFLICTS):
            yield session
    finally:
        for key in (_USER_METADATA, _TXN_APP_ID, _TXN_VERSION):
            session.conf.unset(key)


@contextmanager
def analysis_session(spark: "SparkSession", table: Location) -> Iterator["SparkSession"]:
    """Give a new session in which a MERGE is only analysed: nothing is ever committed in it.

    Delta analyses a MERGE even if its transaction is known, and then skips it. For an application that has never
    written to a table, Delta takes -1 as the last version. It first reads the table's log unless cached; a later MERGE
    finds it read.
    """
    from mergerepl.spark.confs import ADAPTIVE

    with marked_session(spark, Transaction(_ANALYSIS, -1, CommitMark("", _ANALYSIS)), table) as session:
        # A log is then read in one job instead of three.
        session.conf.set(ADAPTIVE, "false")
        yield session


def commit_properties(
    table: Location, mark: CommitMark | None = None, transaction: Transaction | None = None, **terms: Any
) -> "CommitProperties":
    """Return a commit's terms for deltalake: the mark, a transaction, and further terms of `CommitProperties`.

    On a store delta-rs commits at the next version or not at all: it may not pass a fence.
    """
    from deltalake import CommitProperties
    from deltalake import Transaction as LogTransaction

    done = None
    if transaction is not None:
        done = [LogTransaction(transaction.app_id, version_at(transaction.version, table))]
    metadata = None if mark is None else {"userMetadata": mark.to_user_metadata()}
    terms = {**commit_terms(table), **terms}
    return CommitProperties(custom_metadata=metadata, app_transactions=done, **terms)


def write_once(writer: "DataFrameWriter", table: Location, transaction: Transaction, *, head: int) -> Commit:
    """Write rows to a table at version `head`, in one marked commit, and return it.

    Raises: CommitConflictError if the commit is not in the log afterwards (another process overwrote it).
    """
    before_write()
    with noting_unknown(Location.of(table)):
        (
            writer.option("txnAppId", transaction.app_id)
            .option("txnVersion", version_at(transaction.version, table))
            .option("userMetadata", transaction.mark.to_user_metadata())
            .save(Location.of(table).spark_uri)
        )
    return read_back(table, transaction, from_version_exclusive=head)


def read_back(table: Location, transaction: Transaction, *, from_version_exclusive: int) -> Commit:
    """Find our commit in the log itself. A write with a transaction always commits, even if empty.

    Raises: CommitConflictError if it is missing: on a local path another process can overwrite a commit (reliability.md
    0.1).
    """
    # In a store, `OpenedTable.writing` has read the commit itself.
    commit = _find_recent(table, transaction.mark, from_version_exclusive) or find_own_commit(
        table, transaction.mark, from_version_exclusive=from_version_exclusive
    )
    if commit is None:
        raise CommitConflictError(
            f"The commit '{transaction.mark.step}' on '{table}' was reported done and is not in the log: "
            "another process overwrote it. Run again, and let other writers of this folder hold "
            "`mergerepl.lock(path)` while they write.",
            table=str(table),
        )
    return commit


def _find_recent(table: Location, mark: CommitMark, version: int) -> Commit | None:
    """Return the commit after a version, up to the head that was seen last, that carries a mark."""
    return find_own_commit(table, mark, from_version_exclusive=version, through=recent_head(table))


def transaction_version(table: Location, app_id: str) -> int:
    """Return the number of the last transaction of an application of ours in a table, or -1.

    In a store, only the holder of the table's root commits such transactions.
    """
    return open_table(table, recent_head(table)).transaction_version(app_id)


def next_transaction(table: Location, app_id: str, mark: CommitMark) -> Transaction:
    """Return the next transaction of an application that counts its writes to a table."""
    return Transaction(app_id, transaction_version(table, app_id) + 1, mark)


def is_done(table: TableState, transaction: Transaction) -> bool:
    """Whether a table holds a transaction, or a later one of its application."""
    return table.transaction_version(transaction.app_id) >= transaction.version


def commit_fence(table: Location, fence: int, app_ids: Iterable[str]) -> None:
    """Commit the fence of a root's new holder to a table, without rows, unless the table holds it.

    The commit names all applications under which an earlier holder may still write, with their last numbers.

    Raises: CommitConflictError if other writers win every commit; StoreError if delta-rs cannot commit to the table;
    LeaseError if the root was taken over since.
    """
    from deltalake import CommitProperties
    from deltalake import Transaction as LogTransaction
    from deltalake.exceptions import CommitFailedError

    mark = CommitMark(FENCE, f"{FENCE}:{fence}")

    def write() -> None:
        # Until it is committed, an earlier holder may write system tables, too.
        forget_head(table)
        state = open_table(table)
        with state.writing() as log:
            if (log.transaction_version(FENCE_APP_ID) or 0) >= fence:
                return
            numbers = {app_id: max(0, state.transaction_version(app_id)) for app_id in app_ids}
            versions = {FENCE_APP_ID: fence} | {a: with_fence(n, fence) for a, n in numbers.items()}
            properties = CommitProperties(
                custom_metadata={"userMetadata": mark.to_user_metadata()},
                app_transactions=[LogTransaction(*each) for each in versions.items()],
                max_commit_retries=0,
            )
            try:
                log.create_write_transaction(
                    [], mode="append", schema=log.schema(), commit_properties=properties
                )
            except CommitFailedError as error:
                if "table features" not in str(error):
                    raise
                raise StoreError(
                    f"A process that was killed may still write to '{table}', and delta-rs cannot commit the fence that "
                    f"stops it ({error}). Nothing was changed. Drop the feature with ALTER TABLE … DROP FEATURE, then run "
                    "again.",
                    table=str(table),
                ) from error
        # delta-rs does not move to such a commit.
        forget_head(table)

    retry_conflicts(
        write, table, lost_commits(f"'{table}'", "a fence", "Run again: the fences are written first.")
    )
