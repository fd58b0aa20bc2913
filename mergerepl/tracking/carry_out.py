"""Carry an intent out: the steps after the commit point. Each step can be repeated (compact.md 5).

1. the counters: the CSN is taken; 2. each table's write, marked; 3. tombstones; 4. `__sysTxCommitSequence`; 5. the rows of
`tracking_commits`, which publish the transactions; 6. the folder is dropped. The caller holds the root's lease.

A table whose tracking has ended since is left out: this ends writes that a table can no longer take.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mergerepl.delta import appended
from mergerepl.delta.sql_text import quoted, timestamp_literal
from mergerepl.delta.tables import (
    append,
    commit_once,
    compact,
    find_own_commit,
    head_version,
    lost_commits,
    marked_session,
    merge_into,
)
from mergerepl.failpoints import failpoint
from mergerepl.model.tracking import CommittedTransaction, TrackedTable, TrackingOptions
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.systables.tracking import (
    COMMIT_SEQUENCE,
    COMMIT_TIME,
    COMMITS,
    CONTEXT,
    DELETE_BSN,
    DELETE_CSN,
    DELETED_TIME,
    INSERT_BSN,
    INSERT_CSN,
    ROW_COLUMNS,
    ROW_KEY,
    TABLE_NAME,
    TX_BSN,
    TX_CSN,
    OutOfSequence,
)
from mergerepl.tracking import foreign
from mergerepl.tracking.adoption import adopt_between
from mergerepl.tracking.counters import Intent, Write, drop, raise_last_csn, read_intent
from mergerepl.tracking.database import (
    Database,
    Session,
    facts_of,
    read_commits,
    tracked_table,
    tracked_tables,
)
from mergerepl.tracking.predicates import packed, unpacked, unpacked_column
from mergerepl.tracking.row_keys import packed_key
from mergerepl.tracking.staged_rows import (
    CHANGE_CONTEXT,
    DELETE_CONTEXT,
    DELETED_AT,
    EXISTED,
    PRESENT,
    PROBLEM,
    REBORN,
    STATE,
    WAS_INSERT,
    key_names,
    leaves_tombstone,
    same_key,
    within_keys,
)

_COMMITS_PER_COMPACTION = 100
"""Each commit adds a file to the history; after this number of commits they are compacted."""
_LARGE_BYTES = 16 * 1024 * 1024
_ROWS_READ_TOGETHER = 1024


def carry_out(session: Session, folder: Location) -> Intent:
    """Carry out the decision in a transaction's folder; return it as it was published.

    Raises: CommitConflictError (run again) if other writers keep winning a table's commit.
    """
    database, intent = session.database, read_intent(folder)
    failpoint("tracking.before_counters")
    raise_last_csn(database.root, intent.last_csn)
    failpoint("tracking.after_counters")
    versions = dict(intent.versions)
    at = 0
    while at < len(intent.writes):
        write = intent.writes[at]
        if write.table in tracked_tables(database):
            versions[write.table] = _write(session, folder, intent, write)
            intent = adopt_between(session, folder, intent, write, versions[write.table])
        at += 1
    # An extension took more numbers.
    raise_last_csn(database.root, intent.last_csn)
    failpoint("tracking.before_tombstones")
    _append_tombstones(session, folder, intent)
    failpoint("tracking.after_tombstones")
    _append_sequence(database, intent)
    failpoint("tracking.after_sequence")
    publish(database, intent, versions)
    failpoint("tracking.after_publish")
    if any(each.csn % _COMMITS_PER_COMPACTION == 0 for each in intent.transactions):
        for path in (
            *map(database.control.path, (COMMITS.name, COMMIT_SEQUENCE.name)),
            database.deleted_rows,
        ):
            compact(path, target_bytes=_LARGE_BYTES, rows_of_group=_ROWS_READ_TOGETHER)
    drop(folder)
    return intent


def publish(database: Database, intent: Intent, versions: dict[str, int]) -> None:
    """Append the missing rows of `tracking_commits`: readers see the transactions from here on."""
    first = intent.transactions[0].csn
    done = {each.csn for each in read_commits(database, where=f"csn >= {first} and csn <= {intent.last_csn}")}
    rows = [
        CommittedTransaction(
            each.csn,
            each.bsn,
            intent.time,
            each.nonce,
            each.context,
            versions,
            each.foreign_version,
            each.changes,
        )
        for each in intent.transactions
        if each.csn not in done
    ]
    database.control.append(COMMITS, rows)


def _append_sequence(database: Database, intent: Intent) -> None:
    written = f"{quoted(COMMIT_TIME)} = {timestamp_literal(intent.time)}"
    stored = {unpacked(row.bsn) for row in database.control.rows(COMMIT_SEQUENCE, where=written)}
    rows = [
        OutOfSequence(packed(each.bsn), packed(each.csn), intent.time)
        for each in intent.transactions
        if each.bsn != each.csn and any(each.changes.values()) and each.bsn not in stored
    ]
    database.control.append(COMMIT_SEQUENCE, rows)


def _write(session: Session, folder: Location, intent: Intent, write: Write) -> int:
    """Write the staged rows to a table in one marked commit; return its version."""
    database = session.database
    table = tracked_table(database, write.table)
    path = facts_of(database, table).path
    transaction = database.transaction(write.csn, intent.tables_of(write.csn))
    done = find_own_commit(path, transaction.mark, from_version_exclusive=write.from_version)
    if done is not None:
        return done.version
    if write.adopts and not write.counts.changes:
        return write.from_version
    failpoint("tracking.before_write")
    counts = write.counts
    only_inserts = counts.inserts and not counts.updates and not counts.deletes

    def write_rows() -> None:
        # A commit in between may have added a key: an append would duplicate it.
        if only_inserts and head_version(path) == write.from_version:
            rows = _staged(session.spark, folder, write)
            columns = [name for name in rows.columns if name not in _state_names(table)]
            append(rows.select(*(quote(name) for name in columns)), path, transaction)
            return
        with marked_session(session.spark, transaction) as marked:
            _merge(marked, session, folder, write, table)

    lost = lost_commits(
        f"Table '{table.name}'",
        f"transaction {write.csn}",
        "It is decided and stays staged: run again.",
        table=table.name,
    )
    commit = commit_once(write_rows, path, transaction, from_version_exclusive=write.from_version, lost=lost)
    failpoint("tracking.after_write")
    return commit.version


def _merge(
    spark: SparkSession, session: Session, folder: Location, write: Write, table: TrackedTable
) -> None:
    source = _staged(spark, folder, write)
    columns = [name for name in source.columns if name not in _state_names(table)]
    bounded = within_keys(table, write.bounds, of="t.")
    on = same_key(table, target="t.", source="s.")
    path = session.database.path(table.name)
    merge, _ = merge_into(spark, source, path, on if bounded is None else bounded & on)
    values: dict[str, str | Column] = {quote(name): F.col(f"s.{quote(name)}") for name in columns}
    if write.adopts:
        differs = [~F.col(f"t.{name}").eqNullSafe(F.col(f"s.{name}")) for name, _ in ROW_COLUMNS]
        merge.whenMatchedUpdate(condition=differs[0] | differs[1] | differs[2], set=values).execute()
        return
    counts = write.counts
    if counts.deletes:
        merge = merge.whenMatchedDelete(condition=~F.col(f"s.{PRESENT}"))
    if counts.inserts or counts.updates:
        # Updating a row that a concurrent foreign commit deleted inserts it again: the later change wins.
        merge = merge.whenMatchedUpdate(set=values)
        merge = merge.whenNotMatchedInsert(condition=F.col(f"s.{PRESENT}"), values=values)
    merge.execute()


def _staged(spark: SparkSession, folder: Location, write: Write) -> DataFrame:
    """Return the staged rows, without keys that were inserted and deleted within the transaction."""
    rows = spark.read.schema(StructType.fromJson(write.schema)).parquet(str(folder / write.folder))
    if write.adopts:
        # A row that a commit of ours wrote last has its stamps.
        stamped = rows.where(F.col(foreign.IS_THERE) & ~F.col(foreign.LAST_IS_OWN))
        return stamped.select(*(name for name in rows.columns if name.startswith("__sys")))
    return rows.where(F.col(EXISTED) | F.col(PRESENT))


def _state_names(table: TrackedTable) -> set[str]:
    return {*key_names(table), *STATE, CHANGE_CONTEXT, PROBLEM}


def _append_tombstones(session: Session, folder: Location, intent: Intent) -> None:
    """Append the tombstones of all writes, in one commit."""
    frames = []
    known = tracked_tables(session.database)
    for write in intent.writes:
        tombstones = _tombstones(session, folder, intent, write) if write.table in known else None
        if tombstones is not None:
            frames.append(tombstones)
    if not frames:
        return
    rows = appended.union_all(frames)
    rows = _with_insert_csn(session, intent, rows)
    appended.append(rows, session.database.deleted_rows, session.database.transaction(intent.last_csn, ()))


def _tombstones(session: Session, folder: Location, intent: Intent, write: Write) -> DataFrame | None:
    table = tracked_table(session.database, write.table)
    if write.adopts:
        return _adopted_tombstones(session, folder, write, table)
    leaves = leaves_tombstone(
        TrackingOptions(write.options), existed=F.col(EXISTED), present=F.col(PRESENT), reborn=F.col(REBORN)
    )
    if leaves is None or not (write.counts.deletes or write.counts.reborn):
        return None
    bsn = next(each.bsn for each in intent.transactions if each.csn == write.csn)
    return (
        _staged(session.spark, folder, write)
        .where(leaves)
        .select(
            F.lit(table.name).alias(TABLE_NAME),
            F.lit(packed(bsn)).alias(DELETE_BSN),
            F.col(WAS_INSERT).alias(INSERT_BSN),
            packed_key([F.col(name) for name in key_names(table)], table.key_types).alias(ROW_KEY),
            F.col(DELETED_AT).alias(DELETED_TIME),
            F.col(DELETE_CONTEXT).alias(CONTEXT),
            F.lit(write.csn).cast("bigint").alias(DELETE_CSN),
        )
    )


def _adopted_tombstones(session: Session, folder: Location, write: Write, table: TrackedTable) -> DataFrame:
    schema = StructType.fromJson(write.schema)
    rows = session.spark.read.schema(schema).parquet(str(folder / write.folder))
    each = rows.select(*key_names(table), F.explode(foreign.TOMBSTONES).alias("left"))
    return each.select(
        F.lit(table.name).alias(TABLE_NAME),
        F.col("left.bsn").alias(DELETE_BSN),
        F.col("left.insert_bsn").alias(INSERT_BSN),
        packed_key([F.col(name) for name in key_names(table)], table.key_types).alias(ROW_KEY),
        F.col("left.time").alias(DELETED_TIME),
        F.col("left.by").alias(CONTEXT),
        F.col("left.csn").alias(DELETE_CSN),
    )


def _with_insert_csn(session: Session, intent: Intent, tombstones: DataFrame) -> DataFrame:
    """Add the CSN of a tombstone's insert BSN: from the intent, the commit sequence, or else the BSN itself."""
    bsn = unpacked_column(F.col(INSERT_BSN))
    pairs = [pair for each in intent.transactions if (pair := (each.bsn, each.csn))[0] != pair[1]]
    known = [F.create_map(*(F.lit(number) for pair in pairs for number in pair))[bsn]] if pairs else []
    path = session.database.control.path(COMMIT_SEQUENCE.name)
    if appended.file_count(path):
        sequence = appended.read(session.spark, path).select(TX_BSN, TX_CSN)
        is_its = F.col(INSERT_BSN) == F.col(TX_BSN)
        tombstones = tombstones.join(F.broadcast(sequence), on=is_its, how="left")
        known.append(unpacked_column(F.col(TX_CSN)))
    csn = F.coalesce(*known, bsn).cast("bigint")
    return tombstones.withColumn(INSERT_CSN, csn).drop(TX_BSN, TX_CSN)
