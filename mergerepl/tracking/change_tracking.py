"""`ChangeTracking`: SQL Server Compact's change tracking over a folder of Delta tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession

from mergerepl.delta.tables import count_rows, tables_kept_open
from mergerepl.model.folders import TableTracking
from mergerepl.model.later import answers_later
from mergerepl.model.listing import Listing
from mergerepl.model.renamed import missing
from mergerepl.model.tracking import (
    CommittedTransaction,
    ConsumerState,
    EnumerationQueries,
    Purged,
    TrackedTable,
    TrackingStatus,
    TransactionResult,
)
from mergerepl.model.tracking_options import Foreign, PurgeType, TrackingKeyType, TrackingOptions
from mergerepl.model.words import parse_duration
from mergerepl.rows.rowguid import KeyValue, key_value
from mergerepl.rows.sql import literal, quote
from mergerepl.spark.callers import methods_keep_callers_session
from mergerepl.spark.plain import plain_errors
from mergerepl.systables.tracking import COMMIT_SEQUENCE, COMMITS
from mergerepl.tracking import consumers, counters, database, tracked_tables, windows
from mergerepl.tracking.commit import adopt_or_refuse, catch_up
from mergerepl.tracking.consumers import Consumer, Start, of_token, register
from mergerepl.tracking.database import (
    Session,
    commit_before,
    context_guid,
    database_at,
    facts_of,
    last_commit,
    require_database,
    snapshot_version,
    tracked_table,
    versions_of,
)
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.foreign import look_at_all
from mergerepl.tracking.register_numbers import live_bsn
from mergerepl.tracking.row_keys import GUID, pack, unpack
from mergerepl.tracking.staged_rows import snapshot_rows
from mergerepl.tracking.sweep import sweep
from mergerepl.tracking.transactions import Rows, Transaction, Where


@methods_keep_callers_session
class ChangeTracking:
    """Change tracking of the tables of one folder."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        foreign: Literal["adopt", "refuse"] = "adopt",
        retention: str = "14 days",
        lock_wait_s: float = 60.0,
        spark: SparkSession | None = None,
    ) -> None:
        """Open a folder of Delta tables without reading or writing.

        Args:
            path: The folder.
            foreign: How commits outside of transactions are handled, for tables that are enabled from now on.
            retention: How long the log and removed files of a tracked table are kept at least.
            lock_wait_s: Seconds to wait for another holder of the folder.
            spark: The Spark session; without one, the running one or an embedded one is used.

        Raises: ConfigurationError if the folder does not exist; TrackingError if another argument is wrong.
        """
        try:
            self._foreign = Foreign(foreign)
        except ValueError as error:
            raise TrackingError.reserved("choice for `foreign` (adopt or refuse)", foreign) from error
        kept = parse_duration(retention)
        if kept is None or kept <= timedelta():
            raise TrackingError.reserved("retention (an interval, such as '14 days')", retention)
        self._retention = kept
        self.session = Session(database_at(path), lock_wait_s, spark)
        """The database, the Spark session and the lease that all parts of tracking use."""

    def enable(
        self,
        table: str,
        *,
        key: str | Sequence[str] = (),
        rowguid: str | None = None,
        track: TrackingOptions | str = TrackingOptions.ALL,
    ) -> TrackedTable:
        """Track a table: it gets three columns. Enabled again, `track` and `foreign` are changed.

        Args:
            table: Name of the table's folder.
            key: The columns that identify a row: Delta declares no keys.
            rowguid: A string column of GUIDs, in place of `key`; case is ignored.
            track: The tracked operations; a text has comma-separated names, such as `insert,delete`.

        Raises: TrackingError, with nothing changed, if the table or its rows cannot be tracked, or its key is another one.
        """
        try:
            operations = TrackingOptions.of(track)
        except ValueError as error:
            raise TrackingError.reserved("`track` (insert, update, delete, all)", track) from error
        columns = [key] if isinstance(key, str) else list(key)
        if bool(columns) == (rowguid is not None):
            raise TrackingError.reserved("key (either `key` or `rowguid`)", rowguid or columns)
        stated = TableTracking(table, tuple(columns) or (rowguid or "",), rowguid is not None, operations)
        with plain_errors(f"enabling tracking of '{table}'"):
            tracked_tables.enable(self.session, stated, foreign=self._foreign, retention=self._retention)
        return self.tracked_tables()[table]

    def disable(self, table: str, *, keep_columns: bool = False) -> None:
        """End the tracking of a table, and drop its three columns or keep them.

        Raises: TrackingError if it is not tracked, a transaction that touched it is open, or dropping the columns would
            rewrite the table.
        """
        self._require()
        with plain_errors(f"disabling tracking of '{table}'"):
            tracked_tables.disable(self.session, table, keep_columns=keep_columns)

    def options(self, table: str) -> TrackingOptions | None:
        """Return the tracked operations of a table, None if it is not tracked."""
        tables = self.tracked_tables()
        return tables[table].options if table in tables else None

    def tracked_tables(self) -> Mapping[str, TrackedTable]:
        """Return the tracked tables by name."""
        return database.tracked_tables(self.session.database)

    def last_csn(self) -> int:
        """Return the CSN of the last committed transaction (aborts do not count), or 0."""
        self._require()
        last = last_commit(self.session.database)
        return last.csn if last else 0

    def pack_key(self, table: str, values: Sequence[KeyValue]) -> bytes:
        """Return key values as tombstones hold them; a text is read as a value of its column's type.

        Raises: TrackingError if the table is not tracked, or the values do not fit its key.
        """
        try:
            types = self._tracked(table).key_types
            read = [
                key_value(value, type_) if isinstance(value, str) and type_ != GUID else value
                for value, type_ in zip(values, types, strict=False)
            ]
            return pack([*read, *values[len(types) :]], types)
        except ValueError as error:
            raise TrackingError.bad_key(table, str(error)) from error

    def unpack_key(self, table: str, packed: bytes) -> tuple[KeyValue, ...]:
        """Return the key values of a tombstone.

        Raises: TrackingError if the table is not tracked, or the bytes are not a packed key of it.
        """
        try:
            return unpack(packed, self._tracked(table).key_types)
        except ValueError as error:
            raise TrackingError.bad_key(table, str(error)) from error

    def begin(self, tracking_context: str | None = None) -> Transaction:
        """Begin a transaction; several may be open at once and end in any order.

        In a bucket one holds the root until it ends, and others wait for it.

        Raises: TrackingError if no table is tracked, or the context is not a GUID; LeaseError if
            a bucket's root stays in use.
        """
        self._require()
        context = context_guid(tracking_context)
        return Transaction(self, self.session.begin(), context)

    def transaction(self, tracking_context: str | None = None) -> Transaction:
        """Begin a transaction as a context manager: leaving it commits, an exception aborts.

        Raises: TrackingError if no table is tracked.
        """
        return self.begin(tracking_context)

    def insert(self, table: str, rows: Rows, *, tracking_context: str | None = None) -> TransactionResult:
        """Insert rows in a transaction of their own.

        Raises: As `Transaction.insert` and `Transaction.commit`.
        """
        return self._implicit(table, tracking_context, lambda tx: tx.insert(table, rows))

    def upsert(self, table: str, rows: Rows, *, tracking_context: str | None = None) -> TransactionResult:
        """Insert or update rows by their keys in a transaction of their own.

        Raises: As `Transaction.upsert` and `Transaction.commit`.
        """
        return self._implicit(table, tracking_context, lambda tx: tx.upsert(table, rows))

    def update(
        self,
        table: str,
        set: Mapping[str, str | Column],
        where: Where = None,
        *,
        tracking_context: str | None = None,
    ) -> TransactionResult:
        """Update rows in a transaction of their own.

        Raises: As `Transaction.update` and `Transaction.commit`.
        """
        return self._implicit(table, tracking_context, lambda tx: tx.update(table, set, where))

    def delete(
        self,
        table: str,
        where: Where = None,
        *,
        rows: Rows | None = None,
        tracking_context: str | None = None,
    ) -> TransactionResult:
        """Delete rows in a transaction of their own.

        Raises: As `Transaction.delete` and `Transaction.commit`.
        """
        return self._implicit(table, tracking_context, lambda tx: tx.delete(table, where, rows=rows))

    def read(self, table: str, csn: int | None = None) -> DataFrame:
        """Return a table's rows in the last published snapshot, or in that after the transaction `csn`.

        Tables read with one `csn` are consistent: each has whole transactions.

        Raises: TrackingError if the table is not tracked, or the snapshot was purged or is older than its tracking.
        """
        self._require()
        database = self.session.database
        tracked = tracked_table(database, table)
        published = last_commit(database) if csn is None else commit_before(database, csn + 1)
        if csn is not None:
            purged = counters.read_counters(database.root).purged_through.get(COMMIT_SEQUENCE.name, 0)
            if (published is None and purged) or csn < (tracked.enabled_csn or 0):
                raise TrackingError(
                    f"Table '{table}' has no snapshot of CSN {csn}: it was purged, or is older than the tracking of "
                    "the table. Read a later one: `mergerepl history` lists them.",
                    table=table,
                    csn=csn,
                )
        facts = facts_of(database, tracked)
        with plain_errors(f"reading table '{table}'"):
            version = snapshot_version(tracked, versions_of(published))
            return snapshot_rows(self.session.spark, facts.path, version)

    def consumer(
        self,
        name: str | None = None,
        *,
        start: Start = "beginning",
        again: bool = False,
        token: str | None = None,
    ) -> Consumer:
        """Return a consumer of changes: a named one, registered at its first use, or one that keeps a window's token.

        Args:
            name: Its name.
            start: Where a new one begins: before the first transaction, or after the last. With `now`, take `read(table,
                csn=consumer.state.lcsn - 1)` as the initial copy.
            again: Put a known one to `start`.
            token: `Window.token()` in place of a name.

        Raises: TrackingError if no table is tracked, or the token is invalid.
        """
        self._require()
        if token is not None:
            return of_token(self.session, token)
        return register(self.session, name or "", start=start, again=again)

    def consumers(self) -> Listing[ConsumerState]:
        """Return the registered consumers with their positions."""
        self._require()
        return Listing(consumers.consumer_states(self.session.database))

    def forget(self, name: str) -> None:
        """Forget a named consumer: purges no longer wait for it.

        Raises: TrackingError if no consumer of this name is registered.
        """
        self._require()
        consumers.forget(self.session, name)

    @staticmethod
    def sql(table: str) -> EnumerationQueries:
        """Return the queries of an enumeration of a table: exact ones, and the printed ones."""
        names = {"table": table if table.isidentifier() else quote(table), "name": literal(table)}
        return EnumerationQueries(*(text.format(**names) for text in astuple(windows.QUERIES)))

    @answers_later("tracking", TrackingError.later)
    def recover(self) -> None:
        """Finish the transactions of dead processes: decided ones are carried out, open ones end.

        Raises: LeaseError if the folder stays in use.
        """
        self._require()
        with plain_errors("finishing transactions"), self.session.held("tracking recover"):
            sweep(self.session)

    def adopt(self, *, dry_run: bool = False) -> int:
        """Make transactions of the foreign commits of all tables, also of those that refuse them; return their number.

        Args:
            dry_run: Only count them.

        Raises: ForeignCommitError if they cannot be adopted.
        """
        self._require()
        if dry_run:
            return len(self.status().foreign_commits)
        with plain_errors("adopting foreign commits"), self.session.held("tracking adopt"):
            sweep(self.session)
            return adopt_or_refuse(self.session, also_refused=True)[0]

    @answers_later("tracking", TrackingError.later)
    def purge(
        self,
        table: str | None = None,
        *,
        older_than: timedelta | str | None = None,
        to: int | None = None,
        dry_run: bool = False,
    ) -> Purged:
        """Remove tombstones of a table, or rows of the commit sequence, that no registered consumer needs.

        An application that keeps its own anchors names the last CSN that it does not need (`to`).

        Args:
            table: The table; None for the commit sequence and `tracking_commits`.
            older_than: The age of rows to remove, such as `90 days`.
            to: The CSN through which rows are removed, in place of an age.
            dry_run: Only count.

        Raises: TrackingError if the table is not tracked or the arguments are wrong.
        """
        self._require()
        return consumers.purge(self.session, table, older_than=older_than, to=to, dry_run=dry_run)

    def status(self) -> TrackingStatus:
        """Return tables, numbers, open transactions, consumers and foreign commits.

        Raises: TrackingError if no table is tracked.
        """
        self._require()
        found = self.session.database
        looked, numbers, last = look_at_all(found), counters.read_counters(found.root), last_commit(found)
        return TrackingStatus(
            str(found.root),
            numbers.database_id,
            numbers.last_bsn,
            numbers.last_csn,
            last.csn if last else 0,
            tuple(self.tracked_tables().values()),
            tuple(counters.open_transactions(found.root)),
            tuple(consumers.consumer_states(found)),
            tuple(commit for each in looked for commit in each.named),
            dict(numbers.purged_through),
            {each.table.name: each.problem.message for each in looked if each.problem is not None},
        )

    def transactions(self, limit: int = 20) -> Listing[CommittedTransaction]:
        """Return committed transactions, newest first.

        Raises: TrackingError if no table is tracked.
        """
        self._require()
        newest = f"order by csn desc limit {limit}"
        return Listing(self.session.database.control.rows(COMMITS, order_limit=newest))

    def count_transactions(self) -> int:
        """Return the number of committed transactions that are listed."""
        self._require()
        return count_rows(self.session.database.control.path(COMMITS.name))

    def abort(self, bsn: int) -> None:
        """End an open transaction, also one of another process, which finds out at its next call.

        Raises: TrackingError if it is not open, or decided already.
        """
        self._require()
        root = self.session.database.root
        if not root.is_local and live_bsn(root) == bsn:
            why = "in a bucket its owner alone ends it. End that process (`mergerepl status` names it), then run `recover`"
            raise TrackingError.cannot_abort(bsn, why)
        folder = counters.transaction_folder(root, bsn)
        if not counters.is_begun(folder):
            raise TrackingError.cannot_abort(bsn, "it has ended, or never began")
        if not counters.mark_aborted(folder):
            raise TrackingError.cannot_abort(bsn, "its commit was decided, and is carried out")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing("mergerepl.tracking.ChangeTracking", "'ChangeTracking' object", name)

    def _require(self) -> None:
        require_database(self.session.database)

    def _tracked(self, table: str) -> TrackedTable:
        self._require()
        return tracked_table(self.session.database, table)

    def _implicit(
        self, table: str, context: str | None, operation: Callable[[Transaction], None]
    ) -> TransactionResult:
        """Run a transaction of one operation; it sees earlier foreign commits."""
        with tables_kept_open(self.session.database.root):
            self._require()
            with plain_errors("adopting foreign commits"):
                catch_up(self.session, "tracking adopt", [table])
            with self.begin(context) as one:
                operation(one)
        assert one.result is not None
        return one.result


class SqlCeChangeTracking:
    """`SqlCeChangeTracking` of SQL Server Compact. Each member calls one of `ChangeTracking`."""

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.tracking = ChangeTracking(path, **options)

    def EnableTracking(
        self,
        tableName: str,
        trackingKeyType: TrackingKeyType,
        trackingOptions: TrackingOptions,
        *,
        key: str | Sequence[str],
    ) -> None:
        """Track a table. `key`: the primary key, or the ROWGUID column; Delta declares neither."""
        is_guid = TrackingKeyType(trackingKeyType) is TrackingKeyType.GUID
        keys: dict[str, Any] = {"rowguid" if is_guid else "key": key}
        self.tracking.enable(tableName, track=trackingOptions, **keys)

    def DisableTracking(self, tableName: str) -> None:
        """End the tracking of a table and drop its three columns."""
        self.tracking.disable(tableName)

    def GetTrackingOptions(self, tableName: str) -> TrackingOptions | None:
        """Return the tracked operations of a table, None if it is not tracked."""
        return self.tracking.options(tableName)

    def GetLastCommittedCsn(self) -> int:
        """Return the CSN of the last committed transaction."""
        return self.tracking.last_csn()

    def PackTombstoneKey(self, tableName: str, columns: Sequence[KeyValue]) -> bytes:
        """Return key values as `__sysRK` holds them."""
        return self.tracking.pack_key(tableName, columns)

    def UnpackTombstoneKey(self, tableName: str, tombstoneKey: bytes) -> tuple[KeyValue, ...]:
        """Return the key values in a `__sysRK`."""
        return self.tracking.unpack_key(tableName, tombstoneKey)

    def PurgeTombstoneTableData(self, tableName: str, pType: PurgeType, retentionValue: int) -> Purged:
        """Remove tombstones older than `retentionValue` days, or of transactions with a CSN below it."""
        return self.tracking.purge(tableName, **_range(pType, retentionValue))

    def PurgeTransactionSequenceData(self, pType: PurgeType, retentionValue: int) -> Purged:
        """Remove rows of the commit sequence older than `retentionValue` days, or with a CSN below it."""
        return self.tracking.purge(**_range(pType, retentionValue))

    def UpgradePublicTracking(self) -> bool:
        """Check that the tracking data are of this version, the only one so far; False if a transaction is open.

        Raises: TrackingError if they are of a version that is not known.
        """
        root = self.tracking.session.database.root
        if not counters.is_database(root):
            return True
        counters.read_counters(root)
        return not any(each.state in ("open", "committing") for each in counters.open_transactions(root))


def _range(purge_type: PurgeType, value: int) -> dict[str, Any]:
    is_time = PurgeType(purge_type) is PurgeType.TIME_BASED
    return {"older_than": f"{value} days"} if is_time else {"to": value - 1}
