"""`Replica`: one folder of a place, with the tasks on its tables and rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mergerepl import products, roots
from mergerepl.calls import Caller, methods_of_caller
from mergerepl.errors import ConfigurationError
from mergerepl.model.listing import Listing, html_table
from mergerepl.model.products import MERGE, TRANSACTIONAL
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.model.replica_status import PartitionInfo, RowInfo
from mergerepl.model.results import TouchResult, TuneResult
from mergerepl.model.schema_changes import AlterResult, SchemaChange, SkippedChange
from mergerepl.model.tasks import Captured, Pending, Run, Status
from mergerepl.places import types_at
from mergerepl.products import upkeep
from mergerepl.sessions.targets import root_of
from mergerepl.store.lease import lease, replica_root
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mergerepl.conflicts.selection import Conflicts
    from mergerepl.model.tasks import Vacuumed


@methods_of_caller
class Replica(Caller):
    """A folder of tables that are replicated, captured or tracked: a publisher, a subscriber, a database.

    Args:
        path: The folder.
        spark: The session to work in; None: the running one, else an embedded one that starts when it is needed.
        lock_wait_s: Seconds to wait for another process that holds the folder.

    Raises: ConfigurationError if the folder does not exist.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, spark: SparkSession | None = None, lock_wait_s: float = 0.0
    ) -> None:
        super().__init__(spark, lock_wait_s)
        self.root: Location = root_of(path)

    def __repr__(self) -> str:
        return f"Replica({str(self.root)!r})"

    def _repr_html_(self) -> str:
        return html_table([{"root": self.root, "types": ", ".join(types_at(self.root))}])

    @property
    def partitions(self) -> Partitions:
        """The partitions of its publications with row filters.

        Raises: ConfigurationError if its products have none.
        """
        self._require("partitions", MERGE)
        return Partitions(self)

    @property
    def schema(self) -> Schema:
        """The schema changes of its publications.

        Raises: ConfigurationError if its products have none.
        """
        self._require("schema", MERGE)
        return Schema(self)

    @property
    def conflicts(self) -> Conflicts:
        """The conflicts that it has logged.

        Raises: ConfigurationError if its products have none.
        """
        from mergerepl.conflicts.selection import Conflicts

        self._require("conflicts", MERGE, TRANSACTIONAL)
        return Conflicts(self.root, spark=self.spark, lock_wait_s=self.lock_wait_s)

    def _require(self, task: str, *types: str) -> None:
        """Check that one of these types uses the folder, if any does."""
        here = types_at(self.root)
        if here and not set(types) & set(here):
            raise products.lacks(task, (self.root.name, " and ".join(here)))

    def lock(self, *, wait_s: float = 60.0) -> AbstractContextManager[None]:
        """Hold the replica while a job of yours writes its tables; `with replica.lock(): …`.

        Raises: LeaseError naming the holder if it is still held after the wait (run again); StoreError if the folder
            cannot be written.
        """
        return lock(str(self.root), wait_s=wait_s)

    def capture(self, *, progress: Progress | None = None) -> Listing[Captured]:
        """Record new changes here: see `Project.capture`."""
        return products.capture([self.root], progress or NoProgress())

    def status(self) -> Listing[Status]:
        """Return the state of each product here: see `Project.status`."""
        return products.status([self.root])

    def pending(self) -> Listing[Pending]:
        """Return the changes that wait here for the next sync: see `Project.pending`."""
        return products.pending([self.root])

    def history(self, *, failed: bool = False, limit: int = 20) -> Listing[Run]:
        """Return the last sessions, batches, scans and transactions here: see `Project.history`."""
        return products.history([self.root], failed=failed, limit=limit)

    def resume(self, table: str, *, compare: bool = False, restart: bool = False) -> bool:
        """Continue with a paused table. Returns False if it was not paused and `restart` is False.

        Args:
            table: An article, a captured table or a capture instance.
            compare: Bridge gaps of its log by comparing versions from now on. Change Data Capture only.
            restart: Begin all its instances again at its head; consumers take a snapshot. Change Data Capture only.

        Raises: ConfigurationError if no table here can be paused; CdcError, TransactionalError if it would be paused
            again (nothing was changed); LeaseError (run again).
        """
        return upkeep.resume(self.root, table, compare=compare, restart=restart)

    def vacuum(self, *tables: str) -> Listing[Vacuumed]:
        """Remove old files of tables that no reader of changes needs, by Delta's VACUUM; without names of all.

        A merge replica is captured first.

        Args:
            tables: Articles, captured tables, or their paths.

        Raises: ConfigurationError if a name is unknown, or Compact change tracking reads the table; CaptureError,
            SchemaMismatchError if changes cannot be captured (nothing is removed); ConflictError if a session is
            interrupted; CdcError if a table is gone; LeaseError (run again).
        """
        return upkeep.vacuum(self.root, tables)

    def row(self, table: str, *, key: Mapping[str, str], publication: str | None = None) -> RowInfo:
        """Return lineage and colv1 of one row at every replica of the publication, as sp_showrowreplicainfo does.

        Starts a JVM only for tables that delta-rs cannot read, such as those with deletion vectors.

        Args:
            table: Name of the article.
            key: Column to value as text, one for each column that identifies a row.
            publication: Its name, if several publications have the article.

        Returns: The row at each replica in reach; the others are named in `out_of_reach`.

        Raises: ConfigurationError if a name is unknown or the key does not fit; PublicationError, StoreError.
        """
        from mergerepl.monitoring.row import row_info

        return row_info(self.root, article=table, key=key, publication=publication)

    def touch(
        self,
        table: str,
        *,
        key: Mapping[str, str] | None = None,
        where: str | None = None,
        all: bool = False,
        without_metadata: bool = False,
        publication: str | None = None,
    ) -> TouchResult:
        """Give rows a new version as if they had been updated to themselves, as sp_mergedummyupdate does.

        The next syncs send them. No row of the table is written.

        Args:
            table: Name of the article.
            key: Column to value as text: only this row.
            where: Only rows that meet this condition.
            all: All rows of the table.
            without_metadata: Only rows that were never captured, as sp_addtabletocontents does.
            publication: Its name, if several publications have the article.

        Raises: ConfigurationError if no rows are named, or a name, the key or the condition does not fit;
            PublicationError if a key has several rows; ConflictError if a session is interrupted; SchemaMismatchError,
            StoreError, CaptureError; LeaseError (run again).
        """
        from mergerepl.filters.chosen_rows import ChosenRows
        from mergerepl.merge.repair.touch import touch_rows

        chosen = ChosenRows(table, key, where)
        if chosen.is_narrow == all:
            raise ConfigurationError(
                "Name the rows by a key or a condition, or say that all are meant (--all)."
            )
        return touch_rows(
            self.root, table, chosen, publication=publication, without_metadata=without_metadata
        )

    def tune(
        self,
        *tables: str,
        file_size: int = 128 * 1024**2,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> TuneResult:
        """Rewrite tables whose file layout slows small changes; without names all of them. No row changes.

        Args:
            tables: Names of articles.
            file_size: The approximate size of the new files, in bytes; files up to twice as large are kept.
            dry_run: Write nothing; no JVM starts.
            progress: Receives each table.

        Raises: ConfigurationError; ConflictError if a session is staged; StoreError if a table cannot be written;
            PublicationError if Delta refuses a property; EngineError; LeaseError, CommitConflictError (run again: each
            table is written whole or not at all).
        """
        from mergerepl.monitoring.tune import tune_replica

        if file_size < 1:
            raise ConfigurationError("The size of files is out of range: give one above 0.")
        return tune_replica(
            self.root,
            articles=tables,
            file_bytes=file_size,
            dry_run=dry_run,
            progress=progress or NoProgress(),
        )


@methods_of_caller
class Partitions(Caller):
    """The partitions of a publisher's publications with row filters (`sp_addmergepartition`). No method starts Java."""

    def __init__(self, at: Replica) -> None:
        super().__init__(at.spark, at.lock_wait_s)
        self._root = at.root

    def list(self, *, publication: str | None = None) -> tuple[PartitionInfo, ...]:
        """Return the active partitions of all publications with row filters, or of one.

        Raises: ConfigurationError if the folder is not a replica, or publishes nothing of that name with row filters.
        """
        from mergerepl.publish.partitions import list_partitions

        return list_partitions(self._root, publication=publication)

    def add(
        self, *, host_name: str | None = None, suser_sname: str | None = None, publication: str | None = None
    ) -> PartitionInfo:
        """Add a partition before its first subscription, and return it; an existing one is returned unchanged.

        Raises: ConfigurationError; PublicationError if the filters need another value, or cannot use this one;
            LeaseError (run again).
        """
        from mergerepl.filters.clause import SessionFunction
        from mergerepl.publish.partitions import add

        values = {SessionFunction.HOST_NAME: host_name, SessionFunction.SUSER_SNAME: suser_sname}
        return add(self._root, values, publication=publication)

    def drop(self, partition_id: int) -> PartitionInfo:
        """Drop a partition without an active subscription, and return it.

        Raises: ConfigurationError if it does not exist; PublicationError if it is in use; LeaseError (run again).
        """
        from mergerepl.publish.partitions import drop

        return drop(self._root, partition_id)


@methods_of_caller
class Schema(Caller):
    """The schema changes that a replica published or received (`sysmergeschemachange`)."""

    def __init__(self, at: Replica) -> None:
        super().__init__(at.spark, at.lock_wait_s)
        self._root = at.root

    def list(self, *, publication: str | None = None) -> tuple[SchemaChange, ...]:
        """Return the schema changes of all publications, or of one, newest first, with the subscribers that have them.

        Raises: ConfigurationError if the folder is not a replica, or has no publication of that name.
        """
        from mergerepl.merge.schema.listing import schema_changes

        return schema_changes(self._root, publication=publication)

    def alter(
        self, table: str, *, ddl: str, publication: str | None = None, ask: bool = True, dry_run: bool = False
    ) -> AlterResult:
        """Change a column of a published table, after each subscriber in reach was asked if it can follow.

        Args:
            table: Name of the article.
            ddl: ADD COLUMN name type [COMMENT 'text'], DROP COLUMN name, RENAME COLUMN name TO name, or ALTER COLUMN name
                TYPE type.
            publication: Its name, if several publications have articles of that name.
            ask: False: alter the table although a subscriber cannot follow.
            dry_run: Ask only.

        The next sync carries the change.

        Raises: ConfigurationError if the statement cannot be read, or a name does not fit; SchemaMismatchError if the
            change does not travel, or the table cannot take it; SchemaStoppedError if a subscriber's table cannot;
            StoreError, CaptureError, EngineError; LeaseError (run again).
        """
        from mergerepl.merge.schema.alter import alter_published
        from mergerepl.merge.schema.statement import parse_statement

        change = parse_statement(ddl)
        return alter_published(self._root, table, change, publication=publication, asks=ask, dry_run=dry_run)

    def skip(self, version: int, *, publication: str | None = None, undo: bool = False) -> SkippedChange:
        """Let this subscriber leave out a schema change that it does not have yet, as sp_markpendingschemachange does.

        A dropped column stays as the subscriber's own; comments and defaults stay as they are. Other changes are refused.
        Starts no Java.

        Args:
            version: The number of the change, as `list` has it.
            publication: Its name, if several publications have a change of that number.
            undo: Take it again. What sessions have passed meanwhile is in `statements` of the result, to be run here.

        Raises: ConfigurationError if this is no subscriber, or the change is unknown; SchemaMismatchError if it has arrived
            or cannot be skipped (nothing was changed); OutOfReachError, LeaseError (run again).
        """
        from mergerepl.merge.schema.skip import skip_change

        return skip_change(self._root, version, publication=publication, undo=undo)


@contextmanager
def lock(*paths: str | Path, wait_s: float = 60.0) -> Iterator[None]:
    """Hold the replicas of these paths (roots or tables) while writing, so that no agent writes at the same time.

    On a local path Delta's commits are not mutually exclusive between processes; the agent takes this lock too.
    `wait_s`: seconds to wait for another holder.

    Raises: LeaseError naming the holder if a replica is still held after the wait (run again); ConfigurationError if a
        path cannot be a replica; StoreError if a folder cannot be written.
    """
    held = sorted({replica_root(Location.of(roots.parse(os.fspath(path)))) for path in paths})
    with ExitStack() as stack:
        for root in held:
            stack.enter_context(lease(root, purpose="a user job", wait_s=wait_s))
        yield
