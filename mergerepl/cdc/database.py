"""`Database`: Change Data Capture over a folder of Delta tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, overload

from mergerepl.cdc import cleaning, instances, monitoring, sources, tables
from mergerepl.cdc.instance import NOT_ABOVE, Instance
from mergerepl.cdc.instances import FILES_KEPT
from mergerepl.cdc.jobs import Jobs, check_parameters
from mergerepl.cdc.new_instance import names_in
from mergerepl.cdc.refusals import CdcError, CdcUsageError
from mergerepl.cdc.tables import is_shared, lsn_of_text, tables_at
from mergerepl.logreader.consumer import COMPARE
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.model.cdc import (
    CaptureInstance,
    DatabaseStatus,
    RemovedChanges,
    ScanError,
    ScanResult,
    ScanSession,
)
from mergerepl.model.folders import TableCapture
from mergerepl.model.later import answers_later
from mergerepl.model.listing import Listing
from mergerepl.model.tasks import Vacuumed
from mergerepl.spark.callers import methods_keep_callers_session
from mergerepl.systables.logreader import ERRORS, SCAN_SESSIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    def disable(self, *tables: str, name: str | None = None, dry_run: bool = False) -> tuple[str, ...]:
        """End the capture of tables, or of one of a table's instances; of all tables without one. The change rows go.

        A table that is not captured is refused before another one ends.

        Returns: The names of the instances that ended, or would end if it is a `dry_run`.

        Raises: CdcUsageError if a table has no such instance; ScanInProgressError.
        """
        wanted = tables or (None,)
        chosen = []
        is_left = not tables and name is None and self._tables.is_interrupted
        # One table is refused by its own call, which first removes what a process left that died.
        if (dry_run or len(tables) != 1) and not is_left:
            for table in wanted:
                chosen += instances.chosen_instances(self._tables, table, name)
        if dry_run:
            return tuple(each.capture_instance for each in chosen)
        return tuple(each for table in wanted for each in instances.disable(self._tables, table, name))

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
        found = self._tables
        check_parameters(maxtrans=maxtrans, maxscans=maxscans)
        found.require_enabled()
        if is_shared(read_state(found.log)):
            raise CdcError.log_is_shared(found.root)
        reader = LogReader(found.root, found.given, found.lock_wait_s)
        return sources.run_cycles(reader, maxtrans=maxtrans, maxscans=maxscans)

    def register_functions(self, spark: SparkSession) -> tuple[str, ...]:
        """Make the query functions of all instances table functions of SQL in a session: call it again for new instances.

        `fn_cdc_get_all_changes_<instance>(from_lsn, to_lsn, row_filter_option)` and `fn_cdc_get_net_changes_<instance>`
        return rows as `Instance.changes` and `net_changes` do, unordered; LSNs are BINARY, both ends included.
        `fn_cdc_get_min_lsn(capture_instance)` and `fn_cdc_get_max_lsn()` are their ends. Read the ends in a statement of
        its own before the query.

        Returns: The names of the functions.
        """
        from mergerepl.cdc.sql_functions import register
        from mergerepl.spark.session import usable

        return register(self._tables, usable(spark))

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
        self._tables.require_enabled()
        log = self._tables.log
        if failed:
            return Listing(log.rows(ERRORS, order_limit=f"order by entry_time desc limit {limit}"))
        return Listing(log.rows(SCAN_SESSIONS, order_limit=f"order by session_id desc limit {limit}"))

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
        self._tables.require_enabled()
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
