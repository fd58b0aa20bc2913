"""`Database`, `Instance`: Change Data Capture over a folder of Delta tables, as objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, overload

from pyspark.sql import Column, DataFrame

from mergerepl.cdc import cleaning, instances, monitoring, queries, sources, tables
from mergerepl.cdc.apply_net_changes import load
from mergerepl.cdc.change_rows import ALL
from mergerepl.cdc.instances import FILES_KEPT
from mergerepl.cdc.jobs import THRESHOLD, Jobs
from mergerepl.cdc.new_instance import names_in
from mergerepl.cdc.queries import Snapshot, to_debezium
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.cdc.tables import (
    CdcTables,
    Switch,
    checked_lsn,
    high_of,
    lsn_of_text,
    tables_at,
    version_through,
)
from mergerepl.logreader.consumer import COMPARE
from mergerepl.logreader.lsn import Lsn
from mergerepl.model.cdc import (
    AppliedChanges,
    CapturedColumn,
    CaptureInstance,
    DatabaseStatus,
    DdlEntry,
    InstanceDescription,
    RemovedChanges,
    ScanError,
    ScanResult,
    ScanSession,
    Vacuumed,
)
from mergerepl.model.folders import TableCapture
from mergerepl.model.later import answers_later
from mergerepl.model.listing import Listing
from mergerepl.spark.callers import methods_keep_callers_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOT_ABOVE = "largest less than or equal"
NOT_BELOW = "smallest greater than or equal"


@methods_keep_callers_session
class Database:
    """A folder of Delta tables whose changes are captured: the first captured table enables it, the last disables it."""

    def __init__(
        self, path: str | os.PathLike[str], *, spark: SparkSession | None = None, lock_wait_s: float = 0.0
    ) -> None:
        """Open a folder without reading or writing.

        Args:
            path: The folder.
            spark: The Spark session; by default the running one, or an embedded one.
            lock_wait_s: Seconds to wait for another holder of the log or of a folder.

        Raises: ConfigurationError if the folder does not exist.
        """
        self._tables = tables_at(path, spark, lock_wait_s)

    def __repr__(self) -> str:
        return f"Database({str(self._tables.root)!r})"

    def _repr_html_(self) -> str:
        return (self.instances() if self.is_enabled() else Listing[CaptureInstance]())._repr_html_()

    @property
    def jobs(self) -> Jobs:
        """The jobs that an agent runs."""
        return Jobs(self._tables)

    @answers_later("cdc", CdcUsageError.later)
    def enable(
        self,
        table: str,
        *,
        key: Sequence[str] | str | None = None,
        columns: Sequence[str] | str | None = None,
        name: str | None = None,
        net: bool | None = None,
        on_gap: str = COMPARE,
        role_name: str | None = None,
        index_name: str | None = None,
        log_retention: timedelta | str = FILES_KEPT,
    ) -> Instance:
        """Capture a table: an instance begins. A table has two at most.

        Args:
            table: The table's path below the folder, such as `orders` or `bronze/eu/orders`.
            key: The columns that identify a row: without NULLs and duplicates. A list, or comma-separated names; by default
                the key of the article that publishes the table.
            columns: The columns to capture; by default all whose names do not begin with `__sys`.
            name: The instance's name; by default `<schema>_<table>`, where the schema is the folder above or `dbo`.
            net: Whether net changes can be queried; by default True if the table has a key.
            on_gap: How versions without a feed are handled: `compare` or `stop`.
            role_name: Stored and shown only.
            index_name: A name for the key; stored and shown only.
            log_retention: The minimum time that removed files of captured tables are kept, such as `7 days`; the first
                table states it for all.

        Raises: CdcUsageError, with nothing changed; CdcError 22838 for a key with NULLs or duplicates, 22832 if the table's
            properties cannot be set; ScanInProgressError; LeaseError.
        """
        stated = TableCapture(table, names_in(key), names_in(columns), name, net, on_gap)
        texts = {"role_name": role_name, "index_name": index_name}
        begun = instances.enable(self._tables, stated, **texts, log_retention=log_retention)
        return Instance(self._tables, begun)

    def disable(
        self, table: str | None = None, *, name: str | None = None, dry_run: bool = False
    ) -> tuple[str, ...]:
        """End the capture of a table, or of one of its instances; of all tables without one. The change rows are removed.

        Returns: The names of the instances that ended, or would end if it is a `dry_run`.

        Raises: CdcUsageError if the table has no such instance; ScanInProgressError.
        """
        if dry_run:
            if table is None and name is None and self._tables.is_interrupted:
                return ()
            chosen = instances.chosen_instances(self._tables, table, name)
            return tuple(each.capture_instance for each in chosen)
        return tuple(instances.disable(self._tables, table, name))

    def is_enabled(self) -> bool:
        """True if a table is captured."""
        return self._tables.is_enabled

    def is_captured(self, table: str) -> bool:
        """True if a table has a capture instance."""
        return self.is_enabled() and bool(self.instances(table))

    def instances(self, table: str | None = None) -> Listing[CaptureInstance]:
        """Return the capture instances of all tables, or of one.

        Raises: CdcUsageError 22901 if the folder is not enabled.
        """
        return instances.instances_of(self._tables, table=table)

    def instance(self, name: str) -> Instance:
        """Return an instance by its name, or the only one of a table by its folder; case of names is ignored.

        Nothing is read: its methods raise 22985 if it is unknown, or the table has two.
        """
        return Instance(self._tables, name)

    def capture(self, *, maxtrans: int = 1000, maxscans: int = 10) -> ScanResult:
        """Capture new changes: up to `maxscans` cycles of up to `maxtrans` transactions.

        Raises: CdcUsageError if the folder is not enabled or a parameter is wrong; CdcError 22911 if the log is read for
            publications, too; ScanInProgressError (22903) if another scan or command holds the log; LogReaderError if the
            folder is a copy, or a part of the bookkeeping was restored.
        """
        return sources.capture(self._tables, maxtrans=maxtrans, maxscans=maxscans)

    def relocate(self) -> bool:
        """Take over a folder that was moved or copied. Returns True if it was a copy, so that a new epoch began.

        Raises: LogReaderError if the log reader's table is missing; ScanInProgressError.
        """
        return instances.relocate(self._tables)

    def max_lsn(self) -> Lsn | None:
        """Return the highest LSN that readers may see; None before the first instance.

        Raises: CdcUsageError 22901 if the folder is not enabled.
        """
        self._tables.require_enabled()
        return self._tables.max_lsn()

    def lsn_at(self, time: datetime, operator: str = NOT_ABOVE) -> Lsn | None:
        """Return the LSN that an operator finds for a time, or None.

        Args:
            time: A time; one without a zone is local.
            operator: The relation of the LSN's tran_end_time to `time`: `largest less than`, `largest less than or equal`,
                `smallest greater than` or `smallest greater than or equal`.

        Raises: CdcUsageError 22901; 22990 for another operator.
        """
        return tables.lsn_at(self._tables, time, operator)

    def time_of(self, lsn: bytes | str) -> datetime | None:
        """Return the tran_end_time of exactly this LSN, with its zone; None if it was not given to a transaction.

        Raises: CdcUsageError 22901.
        """
        self._tables.require_enabled()
        entry = tables.entry_of(self._tables, lsn_of_text(lsn))
        return None if entry is None else entry.tran_end_time

    @overload
    def history(self, *, failed: Literal[False] = False, limit: int = 20) -> Listing[ScanSession]: ...
    @overload
    def history(self, *, failed: Literal[True], limit: int = 20) -> Listing[ScanError]: ...
    def history(self, *, failed: bool = False, limit: int = 20) -> Listing[ScanSession] | Listing[ScanError]:
        """Return the newest scan sessions; with `failed` the newest errors and notices of scans.

        Raises: CdcUsageError 22901 if the folder is not enabled.
        """
        if failed:
            return Listing(monitoring.errors(self._tables, limit=limit))
        return Listing(monitoring.scan_sessions(self._tables, limit=limit))

    def status(self) -> DatabaseStatus:
        """Return the position of each source, the latest safe time for VACUUM, the validity interval, and the problems.

        Raises: CdcUsageError 22901 if the folder is not enabled.
        """
        return monitoring.status(self._tables)

    def cleanup(
        self, *, retention: int | None = None, threshold: int | None = None, dry_run: bool = False
    ) -> RemovedChanges:
        """Remove change rows that are older than the retention, counted back from the newest LSN, from all instances.

        Args:
            retention: Minutes; by default those of the cleanup job (4,320: three days).
            threshold: Rows that one statement removes at most, except where a file has more; by default the job's (5,000).
            dry_run: Only count.

        Raises: CdcUsageError if the folder is not enabled or a parameter is wrong; CdcError 22852 if the newest LSN is more
            than a day ahead of this machine's clock; ScanInProgressError (22903).
        """
        return cleaning.cleanup(self._tables, retention=retention, threshold=threshold, dry_run=dry_run)

    def vacuum(self, table: str) -> Vacuumed:
        """Run VACUUM on a source. Files are kept for its retention, and until all readers have read them.

        Raises: CdcUsageError 22931 if it is not a source, or change tracking tracks it; CdcError 22859 if it is gone;
            LeaseError.
        """
        return sources.vacuum(self._tables, table)

    def resume(self, instance: str, *, compare: bool = False, restart: bool = False) -> bool:
        """Resume a paused source: its unread commits get new LSNs. Returns False if it was not paused and not restarted.

        Args:
            instance: A capture instance of the source, or its folder.
            compare: Bridge gaps by comparing versions from now on.
            restart: Begin all instances of the source again at its head; consumers get 313 and take a snapshot.

        Raises: CdcUsageError if the instance does not exist; CdcError if the next cycle would pause the source again
            (nothing was changed then); ScanInProgressError.
        """
        return sources.resume(self._tables, instance, compare=compare, restart=restart)


@methods_keep_callers_session
class Instance:
    """A capture instance: the change rows of one table. Its methods raise CdcUsageError 22985 if it does not exist."""

    def __init__(self, tables: CdcTables, name: str) -> None:
        self._tables, self.name = tables, name

    def __repr__(self) -> str:
        return f"Instance({self.name!r} of {str(self._tables.root)!r})"

    def changes(
        self,
        from_: bytes | str | datetime | None = None,
        to: bytes | str | datetime | None = None,
        row_filter: str = ALL,
        *,
        ordered: bool = True,
    ) -> DataFrame:
        """Return all changes of a range, both ends included.

        Args:
            from_: An LSN or a time; by default the low end of the instance's interval.
            to: An LSN or a time; by default the high end.
            row_filter: `all`; or `all update old`, which also has the rows before updates (operation 3).
            ordered: Sort by __$start_lsn, __$seqval and __$operation.

        Returns: __$start_lsn, __$seqval, __$operation (1 delete, 2 insert, 3 and 4 update), __$update_mask, the captured
        columns.

        Raises: CdcUsageError 22990 for an unknown row filter; LsnRangeError 313 if the range is not in the interval.
        """
        first, last = self.ends(from_, to)
        return queries.all_changes(self._tables, self.name, first, last, row_filter, ordered=ordered)

    def net_changes(
        self,
        from_: bytes | str | datetime | None = None,
        to: bytes | str | datetime | None = None,
        row_filter: str = ALL,
        *,
        ordered: bool = True,
    ) -> DataFrame:
        """Return the net change of each key of a range, both ends included: one row, with its last values.

        Args:
            from_: An LSN or a time; by default the low end of the instance's interval.
            to: An LSN or a time; by default the high end.
            row_filter: `all`; `all with mask`, which has the changed columns of updates; or `all with merge`, which has
                operation 5 (insert or update) in place of 2 and 4.
            ordered: Sort by __$start_lsn.

        Returns: __$start_lsn (of the last change), __$operation (1 delete, 2 insert, 4 update, 5 insert or update),
        __$update_mask, the captured columns.

        Raises: as `changes`; LsnRangeError if the instance does not support net changes; CdcError 22838 if a key had two
            rows at once.
        """
        first, last = self.ends(from_, to)
        return queries.net_changes(self._tables, self.name, first, last, row_filter, ordered=ordered)

    def ends(
        self, from_: bytes | str | datetime | None = None, to: bytes | str | datetime | None = None
    ) -> tuple[bytes | str | None, bytes | str | None]:
        """Return the LSNs of a range, both included; None where no transaction is in it."""
        if isinstance(from_, datetime):
            from_ = tables.lsn_at(self._tables, from_, NOT_BELOW)
        elif from_ is None:
            from_ = self.min_lsn()
        if isinstance(to, datetime):
            return from_, tables.lsn_at(self._tables, to, NOT_ABOVE)
        return from_, self.max_lsn() if to is None else to

    def min_lsn(self) -> Lsn:
        """Return the low end of the instance's validity interval, which cleanup moves."""
        return Lsn(self._tables.instance(self.name).start_lsn)

    def max_lsn(self) -> Lsn | None:
        """Return the high end of the instance's interval: the highest LSN, or the end of a paused one."""
        gate = self._tables.max_lsn()
        return high_of(self._tables.instance(self.name), gate)

    def columns(self) -> Listing[CapturedColumn]:
        """Return the captured columns, by ordinal."""
        return Listing(self._tables.captured(self._tables.instance(self.name).object_id))

    def ddl_history(self) -> Listing[DdlEntry]:
        """Return the column changes of the table since the instance began, in order of LSNs."""
        return Listing(monitoring.ddl_history(self._tables, self._tables.instance(self.name)))

    def describe(self) -> InstanceDescription:
        """Return the instance with its interval, its columns and their changes."""
        (found,) = instances.instances_of(self._tables, name=self.name)
        return InstanceDescription(found, self.min_lsn(), self.max_lsn(), self.columns(), self.ddl_history())

    def ordinal(self, column: str) -> int:
        """Return the place of a captured column, from 1: its bit in the mask.

        Raises: CdcUsageError 22930 if the instance does not capture the column.
        """
        return queries.mark_of(self._tables, self.name, column)

    @overload
    def has_changed(self, column: str, mask: bytes | None) -> bool: ...
    @overload
    def has_changed(self, column: str, mask: Column) -> Column: ...
    def has_changed(self, column: str, mask: bytes | Column | None) -> bool | Column:
        """True if a mask marks a captured column as changed: bytes give bool, a Column gives a Column.

        Raises: CdcUsageError 22930 if the instance does not capture the column.
        """
        return queries.is_bit_set(self.ordinal(column), mask)

    def snapshot(self, lsn: bytes | str | None = None) -> Snapshot:
        """Return the rows of the table at exactly an LSN, and that LSN; by default the highest one.

        The rows are read lazily: reading fails if VACUUM removed their files by then.

        Raises: LsnRangeError if the LSN is not in the interval; CdcError 22859 if the table cannot be read at that version
            any more.
        """
        return queries.snapshot(self._tables, self._tables.instance(self.name), lsn)

    @answers_later("cdc", CdcUsageError.later)
    def load(
        self,
        target: str | os.PathLike[str],
        *,
        consumer: str,
        key: Sequence[str] | str | None = None,
        initial: bool = True,
        restart: bool = False,
    ) -> AppliedChanges:
        """Bring a Delta table to the newest state of the instance: one MERGE of its net changes, exactly once.

        The consumer's position lies in the target's folder. Repeating a run that died changes nothing twice. The first run
        fills the target, new or empty, from a snapshot.

        Args:
            target: The table to keep; created if missing. It has the captured columns, and may have more.
            consumer: Name of this consumer: each has its own position.
            key: The columns that identify a row, for an instance without a key; by default the instance's.
            initial: Fill a target without a position from a snapshot. Else its rows are kept, and changes are applied from
                start_lsn on.
            restart: Replace the rows of the target by those of a snapshot, in one commit, and go on from there.

        Returns: What was applied; `paused` and `unread_commits` describe changes that are not captured yet.

        Raises: CdcUsageError for a wrong parameter or a target that cannot be used or hold every value; LsnRangeError 313
            if cleanup passed the position; CdcError 22838 if a key has two rows, 22859 if the target or the database was
            replaced; CommitConflictError if another writer won the commit: run again.
        """
        columns = names_in(key)
        return load(
            self._tables, self.name, target, consumer=consumer, key=columns, initial=initial, restart=restart
        )

    def cleanup(self, to: bytes | str | None = None, *, threshold: int = THRESHOLD) -> RemovedChanges:
        """Raise the low end of the instance's interval, and remove the change rows below it.

        Args:
            to: The new low end: the LSN of a transaction. It is lowered to the smallest LSN of its time. None removes only
                the rows below the present one.
            threshold: Rows that one statement removes at most, except where a file has more.

        Raises: CdcUsageError 22964 if no transaction has this LSN, 22957 if it lies outside the interval;
            ScanInProgressError (22903).
        """
        return cleaning.cleanup_instance(self._tables, self.name, to, threshold)

    def to_debezium(self, changes: DataFrame) -> DataFrame:
        """Return changes as envelopes: `to_json(struct(*), map('ignoreNullFields', 'false'))` of a row is a payload.

        `changes` is the result of `changes`, with `all update old`. Without operation 3, updates have no `before`.

        Returns: before and after (structs of the captured columns, or NULL), op (c, u, d), source (schema, table,
        commit_lsn, change_lsn, ts_ms: the commit time), ts_ms (the same). LSNs are written as epoch:cycle:slot, in
        hexadecimal. Rows of one LSN are in the order of `change_lsn`.
        """
        return to_debezium(self._tables, self.name, changes)

    def version_of(self, lsn: bytes | str) -> int:
        """Return the version of the table that has exactly the changes up to an LSN.

        Raises: LsnRangeError if the LSN is not in the interval.
        """
        chosen = self._tables.instance(self.name)
        return version_through(self._tables, chosen, checked_lsn(self._tables, chosen, lsn_of_text(lsn)))

    def lsn_of(self, version: int) -> Lsn | None:
        """Return the highest LSN whose changes are in a version of the table: the inverse of `version_of`.

        None if the version is unread, lies before the instance's interval, or inside a gap that was compared as a whole.
        """
        return tables.lsn_of(self._tables, self._tables.instance(self.name), version)

    def switch_lsn(self, new: str) -> Switch:
        """Return how a consumer moves to a later instance of the table: this one below the LSN, `new` from it on.

        Earlier values of the new columns are in neither instance: take them once from `snapshot(lsn)` of the new one.

        Raises: CdcUsageError 22990 if they are of two tables, or `new` began first.
        """
        return tables.switch_lsn(self._tables, self.name, new)
