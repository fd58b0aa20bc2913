"""Users' tables through Delta on Spark: their feed, their versions, the rows of a new subscriber, the MERGE.

Writes carry a `CommitMark` and a Delta transaction (txnAppId, txnVersion), so that a repeated one is skipped
and an own commit is told from a user's. The MERGE runs in a session of its own: the confs that say so must never
outlive the write, for a later write they still applied to would be skipped silently (reliability.md 0.3).
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from delta.tables import DeltaTable
from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NullType

from mergerepl.changes import (
    ROW,
    Action,
)
from mergerepl.delta.log import Commit, CommitMark, find_own_commit, head_version
from mergerepl.engine.errors import COMMIT_CONFLICTS, gone_reason
from mergerepl.engine.in_memory import keep_in_memory, let_go
from mergerepl.engine.session import new_session, with_write_confs
from mergerepl.errors import CommitConflictError
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import all_true, identity_value, same_value
from mergerepl.rows.key_bounds import KeyBounds, within_bounds
from mergerepl.rows.not_null import as_declared
from mergerepl.rows.sql import quote
from mergerepl.store.staged_rows import read_staged

log = logging.getLogger(__name__)

_ONLY_RETAINED = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
_loading = Lock()
"""Held while that conf is off: another thread would take "false" for what to put back."""

USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""The conf of what a session's commits tell of themselves. Only in a session of its own: it stays set."""

_OF_VECTORS = "deletionvectorid"
"""A column that a MERGE adds to a table's own where it writes deletion vectors; where it rewrites files it does not."""

_ANALYSIS = "mergerepl-analysis"
"""Delta application id of a MERGE that is analysed only. Nothing is ever written under it."""

COMMIT_ATTEMPTS = 8
RETRY_WAIT_S = 0.2


@dataclass(frozen=True)
class Transaction:
    """A write that happens once: Delta skips it where the table already holds this or a later version of `app_id`."""

    app_id: str
    version: int
    mark: CommitMark


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


def read_feed(
    spark: SparkSession,
    table: Path,
    *,
    from_version_exclusive: int,
    through_version_inclusive: int,
    own_versions: Sequence[int] = (),
    by_files: Sequence[int] = (),
    is_one_metadata: bool = False,
) -> DataFrame | None:
    """Return the change feed of a version range without the agent's own commits.

    Args:
        spark: Session that reads.
        table: The user's table.
        from_version_exclusive: The version before the first.
        through_version_inclusive: The last version.
        own_versions: Versions that are left out.
        by_files: Versions that are told by the rows of the files that came and went, whatever changes their writer tells
            of; None where Delta is another one (Databricks), which does not tell these.
        is_one_metadata: The table's metadata is the same from the first version to the last.
    """
    bounds = from_version_exclusive + 1, through_version_inclusive
    feed = _feed_as_stored(spark, table, *bounds, is_one_metadata=is_one_metadata)
    if feed is None and by_files:
        return None
    if feed is None:
        reader = spark.read.format("delta").option("readChangeFeed", "true")
        feed = reader.options(startingVersion=bounds[0], endingVersion=bounds[1]).load(str(table))
    version = F.col("_commit_version")
    others = [*own_versions, *by_files]
    told = feed.where(~version.isin(others)) if others else feed
    if not by_files:
        return told
    # The version is a partition column of what Delta reads here: of the other versions no file is opened.
    of_files = _feed_as_stored(spark, table, *bounds, by_files=True, is_one_metadata=is_one_metadata)
    return None if of_files is None else told.unionByName(of_files.where(version.isin(list(by_files))))


def _feed_as_stored(
    spark: SparkSession,
    table: Path,
    from_version_inclusive: int,
    through_version_inclusive: int,
    *,
    by_files: bool = False,
    is_one_metadata: bool,
) -> DataFrame | None:
    """Return the feed without Delta's reader in between, None where Delta is another one (Databricks).

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
        # Of the first version Delta wants the metadata alone. Its whole state may be gone from the log, whose cleanup by
        # older writers leaves versions that no checkpoint lies before.
        at_start = snapshot if is_one_metadata else nothing
        versions = from_version_inclusive, through_version_inclusive
        with active_session(jvm, session):
            feed = reader.changesToBatchDF(
                delta_log, *versions, session, nothing, snapshot, by_files, at_start
            )
    except Py4JJavaError:
        raise
    except Py4JError as error:
        log.info("%s: the feed is read by Delta's own reader: %s", table, error)
        return None
    return DataFrame(feed, spark)


@contextmanager
def active_session(jvm: Any, session: Any) -> Iterator[None]:
    """Make a session the active one of this thread: Delta's own readers do, and tables mapped by id want it."""
    sessions = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(session)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def append(rows: DataFrame, table: Path, transaction: Transaction) -> None:
    """Append rows once; without effect if the table holds the transaction already.

    Raises: CommitConflictError if the commit is not in the log afterwards (another process overwrote it).
    """
    if transaction_version(table, transaction.app_id) >= transaction.version:
        return
    head = head_version(table)
    (
        with_write_confs(rows)
        .write.format("delta")
        .mode("append")
        .option("txnAppId", transaction.app_id)
        .option("txnVersion", transaction.version)
        .option("userMetadata", transaction.mark.to_user_metadata())
        .save(str(table))
    )
    read_back(table, transaction, from_version_exclusive=head)


def merge_rows(
    spark: SparkSession,
    staged: Path,
    table: Path,
    article: PublishedArticle,
    *,
    action: str,
    actions: Mapping[str, int],
    bounds: KeyBounds,
    transaction: Transaction,
    from_version_exclusive: int,
    generated_columns: Collection[str] = (),
    left_out_columns: Sequence[str] = (),
) -> Commit:
    """Bring a table to the staged final state of the rows whose `action` column says so, in one MERGE.

    Args:
        spark: Session whose JVM is used; the MERGE gets a session of its own.
        staged: Parquet folder of the staged changeset (RESOLVED columns).
        table: The user's table.
        article: The article at this side.
        action: Name of the action column.
        actions: Rows by action, to leave out clauses without rows.
        bounds: Image field -> (lowest, highest) key, as literal texts: prunes files of the table.
        transaction: Mark and transaction of the commit.
        from_version_exclusive: Where to look for our own commit from.
        generated_columns: Columns that Delta computes. Two merged halves of a row may come to a value that
            neither side told, and Delta refuses any other.
        left_out_columns: Columns of the table, not of the article, that a row which is inserted now had before
            `from_version_exclusive` deleted it; they come back with it.

    Returns: Our commit; it changes no data if the table already was in the final state.

    Raises: CommitConflictError if other writers won the commit too often, or ours is not in the log.
    """
    done = find_own_commit(table, transaction.mark, from_version_exclusive=from_version_exclusive)
    if done is not None:
        return done
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            session = marked_session(spark, transaction)
            chosen = _chosen(actions)
            source = _source(session, staged, action, chosen)
            wanted = left_out_columns if Action.INSERT in chosen else ()
            with _with_left_out(source, table, article, bounds, from_version_exclusive - 1, wanted) as (
                source,
                left_out,
            ):
                _merge(session, source, table, article, chosen, bounds, generated_columns, left_out)
            break
        except COMMIT_CONFLICTS as error:
            # Another writer changed rows we read. Everything is read and decided anew; its rows are captured late.
            if attempt == COMMIT_ATTEMPTS:
                raise CommitConflictError(
                    f"Article '{article.name}' at '{table}' is being changed by other writers: the merge "
                    f"lost {COMMIT_ATTEMPTS} commits in a row. Its changeset stays staged; run again.",
                    article=article.name,
                    table=str(table),
                ) from error
            log.info("commit conflict on %s, attempt %s", table, attempt)
            time.sleep(RETRY_WAIT_S * attempt)
    return read_back(table, transaction, from_version_exclusive=from_version_exclusive)


def analyse_merge(
    spark: SparkSession,
    staged: Path,
    table: Path,
    article: PublishedArticle,
    *,
    action: str,
    actions: Mapping[str, int],
    bounds: KeyBounds,
    generated_columns: Collection[str] = (),
) -> None:
    """Let Spark and Delta analyse the MERGE that `merge_rows` will execute with these arguments; no job, no commit.

    Delta analyses a MERGE whose transaction it has seen, and then skips it. Of an application that has never written to a
    table the last version is -1, for Delta.

    Raises: PySparkException or Py4JJavaError if the MERGE cannot be done, whatever its rows are.
    """
    nothing = Transaction(_ANALYSIS, -1, CommitMark("", _ANALYSIS))
    session = marked_session(spark, nothing)
    chosen = _chosen(actions)
    source = _source(session, staged, action, chosen)
    _merge(session, source, table, article, chosen, bounds, generated_columns, {})


def _chosen(actions: Mapping[str, int]) -> list[Action]:
    return [name for name in (Action.INSERT, Action.UPDATE, Action.DELETE) if actions.get(name)]


def _source(session: SparkSession, staged: Path, action: str, chosen: Collection[Action]) -> DataFrame:
    return (
        read_staged(session, staged)
        .where(F.col(action).isin([name.value for name in chosen]))
        .select(F.col(action).alias("action"), f"{ROW}.*")
    )


def _merge(
    session: SparkSession,
    source: DataFrame,
    table: Path,
    article: PublishedArticle,
    chosen: Collection[Action],
    bounds: KeyBounds,
    generated_columns: Collection[str],
    left_out: Mapping[str, str],
) -> None:
    source = source.alias("s")
    target = DeltaTable.forPath(session, str(table)).alias("t")
    # A column that is gone Delta names itself.
    types = {field.name: field.dataType for field in target.toDF().schema}
    if _OF_VECTORS in map(str.lower, types):
        session.conf.set("spark.databricks.delta.merge.deletionVectors.persistent.enabled", "false")
    merge = target.merge(source, _same_key(article, bounds))
    columns = {
        name: field
        for name, field in zip(article.columns, article.fields, strict=True)
        if name not in generated_columns
    }
    inserted = {**columns, **left_out}
    values: dict[str, str | Column] = {
        quote(name): as_declared(session, F.col(f"s.{field}"), types.get(name, NullType()))
        for name, field in inserted.items()
    }
    if Action.DELETE in chosen:
        merge = merge.whenMatchedDelete(condition=F.col("s.action") == Action.DELETE.value)
    if Action.UPDATE in chosen or Action.INSERT in chosen:
        # An insert that finds its row (sent again, or inserted meanwhile by a user and captured late) updates it.
        # A GUID in another case is the same row, and its text must be the same everywhere too.
        is_guid = article.rowguid_column is not None
        kept_equal = [name for name in columns if is_guid or name not in article.identity]
        if kept_equal:
            changed = {quote(name): values[quote(name)] for name in kept_equal}
            # A row that is the same already (only its lineage is news) is neither rewritten nor counted.
            same = [
                same_value(F.col(f"t.{quote(name)}"), F.col(f"s.{field}"), source.schema[field].dataType)
                for name, field in columns.items()
                if name in kept_equal
            ]
            differs = ~all_true(same)
            merge = merge.whenMatchedUpdate(condition=differs, set=changed)
        not_deleted = F.col("s.action") != Action.DELETE.value
        merge = (
            merge.whenNotMatchedInsert(condition=not_deleted, values=values)
            if Action.DELETE in chosen
            else merge.whenNotMatchedInsert(values=values)
        )
    merge.execute()


@contextmanager
def _with_left_out(
    source: DataFrame,
    table: Path,
    article: PublishedArticle,
    bounds: KeyBounds,
    version: int,
    wanted: Sequence[str],
) -> Iterator[tuple[DataFrame, dict[str, str]]]:
    """Yield the source with columns that the article leaves out, as the table had them at a version; name -> field.

    Where that version cannot be read any more, the source alone: the session must come to its end.
    """
    held = None
    left_out: dict[str, str] = {}
    if wanted:
        try:
            before = read_version(source.sparkSession, table, version)
            left_out = {name: f"left_out_{i}" for i, name in enumerate(wanted) if name in before.columns}
            if left_out:
                held = keep_in_memory(_held_then(before, source, article, bounds, left_out), now=True)
        except (PySparkException, Py4JJavaError) as error:
            if gone_reason(error) is None:
                # A full disk or memory, say: the version is there, and the next run may read it.
                raise
            log.warning(
                "%s: rows come back from a delete without the columns %s: version %s cannot be read: %s",
                *(table, ", ".join(wanted), version, error),
            )
    if held is None:
        yield source, {}
        return
    try:
        yield source.join(held, on=list(article.identity_fields), how="left"), left_out
    finally:
        let_go(held)


def _held_then(
    before: DataFrame,
    source: DataFrame,
    article: PublishedArticle,
    bounds: KeyBounds,
    left_out: Mapping[str, str],
) -> DataFrame:
    """Return what rows to be inserted had in columns that the article leaves out: identity fields, fields of `left_out`.

    One for each key: a user may have added a second row of it, and of two in the source Delta would insert both.
    """
    inserted = source.where(F.col("action") == Action.INSERT.value)
    then = before.alias("t").join(inserted.alias("s"), on=_same_key(article, bounds))
    return then.select(
        *(F.col(f"s.{field}") for field in article.identity_fields),
        *(F.col(f"t.{quote(name)}").alias(field) for name, field in left_out.items()),
    ).dropDuplicates(list(article.identity_fields))


def _same_key(article: PublishedArticle, bounds: KeyBounds) -> Column:
    condition = within_bounds(article, bounds, of="t.")
    is_guid = article.rowguid_column is not None
    for name, field in zip(article.identity, article.identity_fields, strict=True):
        target, source = (
            identity_value(F.col(name), existing=is_guid) for name in (f"t.{quote(name)}", f"s.{field}")
        )
        condition = condition & (target == source)
    return condition


def marked_session(spark: SparkSession, transaction: Transaction) -> SparkSession:
    """Return a new session whose one write is marked and happens once. Use it for one write only."""
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
    from deltalake import DeltaTable as LogTable

    version = LogTable(str(table)).transaction_version(app_id)
    return -1 if version is None else int(version)
