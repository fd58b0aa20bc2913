"""Carry an intent out: the steps after the commit point. Each step can be repeated (compact.md 5).

1. the counters: the CSN is taken; 2. each table's write, marked; 3. tombstones; 4. `__sysTxCommitSequence`; 5. the rows of
`tracking_commits`, which publish the transactions; 6. the folder is dropped. The caller holds the root's lease.

A table whose tracking has ended since is left out: this ends writes that a table can no longer take.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mergerepl.changes import ROW
from mergerepl.delta import appended
from mergerepl.delta.engine_choice import NeedsSparkError, require_few, require_few_bytes
from mergerepl.delta.small_writer import ACTION, SmallRows, reason_for_spark
from mergerepl.delta.sql_text import quoted, timestamp_literal
from mergerepl.delta.tables import (
    Transaction,
    append,
    commit_once,
    compact,
    find_own_commit,
    head_version,
    lost_commits,
    marked_session,
    merge_into,
    merge_rows,
    open_table,
)
from mergerepl.delta.types import ddl_of
from mergerepl.failpoints import failpoint
from mergerepl.frames import Column, DataFrame, F
from mergerepl.model.article import PublishedArticle
from mergerepl.model.tracking import CommittedTransaction, TrackedTable
from mergerepl.model.tracking_options import TrackingKeyType, TrackingOptions
from mergerepl.replica.staged_rows import are_small
from mergerepl.rows.images import all_true
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
    commits_from,
    facts_of,
    packed,
    store_tracked,
    tracked_table,
    tracked_tables,
    unpacked,
    unpacked_column,
)
from mergerepl.tracking.row_keys import GUID, packed_key
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
    count_bytes,
    count_rows,
    key_names,
    leaves_tombstone,
    read_staged,
    same_key,
    staged_columns,
)

_COMMITS_PER_COMPACTION = 64
"""Each commit adds a file to the history; after this number of commits they are compacted: Arrow reads up to 96."""
_LARGE_BYTES = 16 * 1024 * 1024
_ROWS_READ_TOGETHER = 1024

_PACKED_HERE = frozenset({"tinyint", "smallint", "int", "bigint", "string", "date", GUID})
"""The types of keys that few transactions' rows have: `small_writer.KEY_TYPES` as `row_keys` names them."""


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
    _note_replaced(database, intent, versions)
    first = intent.transactions[0].csn
    range_ = {"from_csn_inclusive": first, "through_csn_exclusive": intent.last_csn + 1}
    done = {each.csn for each in commits_from(database, **range_)}
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


def _note_replaced(database: Database, intent: Intent, versions: Mapping[str, int]) -> None:
    """Store the new ids of tables that a foreign commit replaced."""
    adopted = {
        name for each in intent.transactions if each.foreign_version is not None for name in each.tables
    }
    for name, table in tracked_tables(database).items():
        if name in adopted:
            table_id = open_table(database.path(name), versions[name]).metadata.table_id
            if table_id != table.table_id:
                store_tracked(database, name, replace(table, table_id=table_id))
                failpoint("tracking.after_table_id")


def _append_sequence(database: Database, intent: Intent) -> None:
    late = [each for each in intent.transactions if each.bsn != each.csn and any(each.changes.values())]
    if not late:
        return
    written = f"{quoted(COMMIT_TIME)} = {timestamp_literal(intent.time)}"
    stored = {unpacked(row.bsn) for row in database.control.rows(COMMIT_SEQUENCE, where=written)}
    rows = [
        OutOfSequence(packed(each.bsn), packed(each.csn), intent.time)
        for each in late
        if each.bsn not in stored
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
    since = write.from_version

    def stamp_rows() -> None:
        with marked_session(session.spark, transaction, path) as marked:
            _stamp(_staged(marked, folder, write), table, path)

    write_rows = stamp_rows if write.adopts else _writer(session, folder, write, table, path, transaction)
    lost = lost_commits(
        f"Table '{table.name}'",
        f"transaction {write.csn}",
        "It is decided and stays staged: run again.",
        table=table.name,
    )
    commit = commit_once(write_rows, path, transaction, from_version_exclusive=since, lost=lost)
    failpoint("tracking.after_write")
    return commit.version


def _writer(
    session: Session,
    folder: Location,
    write: Write,
    table: TrackedTable,
    path: Location,
    transaction: Transaction,
) -> Callable[[], None]:
    """Return the function that writes the net changes of a transaction: few rows by delta-rs, else by Spark."""
    article, counts, staged = _article(table, write), write.counts, folder / write.folder
    actions = {"insert": counts.inserts, "update": counts.updates, "delete": counts.deletes}
    keys = key_names(table)
    fields = dict(zip(keys, article.identity_fields, strict=True))
    bounds = {fields[name]: ends for name, ends in write.bounds.items()}
    is_small = are_small(staged) and reason_for_spark(open_table(path), article, actions, bounds) is None

    def write_rows() -> None:
        # A commit in between may have added a key: an append would duplicate it.
        is_append = counts.inserts == counts.changes and head_version(path) == write.from_version
        if is_append and not is_small:
            rows = _staged(session.spark, folder, write)
            append(rows.select(*map(quote, article.columns)), path, transaction)
            return
        merge_rows(
            lambda: session.spark,
            lambda spark: _as_actions(_staged(spark, folder, write), article, keys),
            *(path, article),
            action=ACTION,
            actions=actions,
            bounds=bounds,
            transaction=transaction,
            from_version_exclusive=write.from_version,
            small_rows=partial(small_rows, staged, article, keys) if is_small else None,
        )

    return write_rows


def _article(table: TrackedTable, write: Write) -> PublishedArticle:
    """Return the table as the writers of rows take it."""
    own = {*key_names(table), *STATE, CHANGE_CONTEXT, PROBLEM}
    columns = {
        each["name"]: ddl_of(each["type"]) for each in write.schema["fields"] if each["name"] not in own
    }
    rowguid = table.key[0] if table.key_type is TrackingKeyType.GUID else None
    return PublishedArticle.of_table(table.name, table.key, columns, rowguid)


def _as_actions(rows: DataFrame, article: PublishedArticle, keys: Sequence[str]) -> DataFrame:
    """Return staged rows with their actions; of a deleted row only the staged key is known."""
    action = F.when(~F.col(PRESENT), "delete").when(F.col(EXISTED), "update").otherwise("insert")
    known = {name: F.col(key) for name, key in zip(article.identity, keys, strict=True)}
    columns = {name: F.col(quote(name)) for name in article.columns}
    values = [F.coalesce(each, known[name]) if name in known else each for name, each in columns.items()]
    image = (value.alias(field) for value, field in zip(values, article.fields, strict=True))
    return rows.select(action.alias(ACTION), F.struct(*image).alias(ROW))


def small_rows(folder: Location, article: PublishedArticle, keys: Sequence[str]) -> SmallRows:
    """Return staged rows as `_as_actions` does, in memory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = staged_columns(folder, [*article.columns, *keys, EXISTED, PRESENT])
    rows = rows.filter(pc.or_(rows[EXISTED], rows[PRESENT]))
    action = pc.if_else(rows[PRESENT], pc.if_else(rows[EXISTED], "update", "insert"), "delete")
    known = dict(zip(article.identity, keys, strict=True))
    values = [pc.coalesce(rows[n], rows[known[n]]) if n in known else rows[n] for n in article.columns]
    types = dict(zip(article.fields, article.types, strict=True))
    return SmallRows(pa.table([*values, action], names=[*article.fields, ACTION]), types)


def _stamp(rows: DataFrame, table: TrackedTable, path: Location) -> None:
    """Give rows that foreign commits wrote their stamps."""
    on = same_key(table, target="t.", source="s.")
    merge, _ = merge_into(rows.sparkSession, rows, path, on)
    stamps = [(F.col(f"t.{name}"), F.col(f"s.{name}")) for name, _ in ROW_COLUMNS]
    values: dict[str, str | Column] = {name: F.col(f"s.{name}") for name, _ in ROW_COLUMNS}
    differs = ~all_true([stored.eqNullSafe(stamp) for stored, stamp in stamps])
    merge.whenMatchedUpdate(condition=differs, set=values).execute()


def _staged(spark: SparkSession, folder: Location, write: Write) -> DataFrame:
    """Return the staged rows, without keys that were inserted and deleted within the transaction."""
    rows = read_staged(spark, folder / write.folder, StructType.fromJson(write.schema))
    if write.adopts:
        # A row that a commit of ours wrote last has its stamps.
        return rows.where(F.col(foreign.IS_THERE) & ~F.col(foreign.LAST_IS_OWN))
    return rows.where(F.col(EXISTED) | F.col(PRESENT))


def _append_tombstones(session: Session, folder: Location, intent: Intent) -> None:
    """Append the tombstones of all writes, in one commit."""
    known = tracked_tables(session.database)
    tables = [
        (write, known[write.table])
        for write in intent.writes
        if write.table in known and _may_leave_tombstones(write)
    ]
    if not tables:
        return

    def require() -> None:
        for write, table in tables:
            if write.adopts:
                raise NeedsSparkError("foreign commits are adopted", session.database.path(table.name))
            if others := {*table.key_types} - _PACKED_HERE:
                raise NeedsSparkError(
                    f"a key of type {', '.join(sorted(others))}", session.database.path(table.name)
                )
        staged = [(count_rows(folder / write.folder), write) for write, _ in tables]
        require_few(
            sum(rows for rows, _ in staged), sum(rows * len(w.schema["fields"]) for rows, w in staged)
        )
        require_few_bytes(sum(count_bytes(folder / write.folder) for write, _ in tables))

    def append_all() -> None:
        frames = [_tombstones(session, folder, intent, write, table) for write, table in tables]
        rows = _with_insert_csn(session, intent, appended.union_all(frames))
        transaction = session.database.transaction(intent.last_csn, ())
        appended.append(rows, session.database.deleted_rows, transaction)

    session.few_in_process(require, append_all)


def _may_leave_tombstones(write: Write) -> bool:
    is_tracked = TrackingOptions.DELETE in TrackingOptions(write.options)
    return write.adopts or (is_tracked and bool(write.counts.deletes or write.counts.reborn))


def _tombstones(
    session: Session, folder: Location, intent: Intent, write: Write, table: TrackedTable
) -> DataFrame:
    if write.adopts:
        return _adopted_tombstones(session, folder, write, table)
    leaves = leaves_tombstone(
        TrackingOptions(write.options), existed=F.col(EXISTED), present=F.col(PRESENT), reborn=F.col(REBORN)
    )
    assert leaves is not None
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
    rows = read_staged(session.spark, folder / write.folder, StructType.fromJson(write.schema))
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
    numbers = (F.lit(number).cast("bigint") for pair in pairs for number in pair)
    known = [F.try_element_at(F.create_map(*numbers), bsn)] if pairs else []
    path = session.database.control.path(COMMIT_SEQUENCE.name)
    if appended.file_count(path):
        sequence = appended.read(session.spark, path, columns=(TX_BSN, TX_CSN)).select(TX_BSN, TX_CSN)
        is_its = F.col(INSERT_BSN) == F.col(TX_BSN)
        tombstones = tombstones.join(F.broadcast(sequence), on=is_its, how="left")
        known.append(unpacked_column(F.col(TX_CSN)))
    csn = F.coalesce(*known, bsn).cast("bigint")
    return tombstones.withColumn(INSERT_CSN, csn).drop(TX_BSN, TX_CSN)
