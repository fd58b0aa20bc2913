"""A tracked folder: its system tables as values (tracked tables, published transactions, the commit sequence), its session.

Reads: `__sysOCSTrackedObjects`, `tracking_commits`, `__sysTxCommitSequence`. Only a `Session` starts Spark. BSN and CSN are
stored as 8 bytes, unsigned, big-endian: the order of bytes is the order of numbers.
"""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from operator import attrgetter
from typing import ClassVar, TypeVar

from pyspark.sql import SparkSession

from mergerepl import roots
from mergerepl.delta.engine_choice import NO_SESSION, EngineChoice, NeedsSparkError
from mergerepl.delta.marks import CommitMark, CommitUnit
from mergerepl.delta.metadata import STATS_PROPERTY
from mergerepl.delta.properties import retention_properties
from mergerepl.delta.tables import (
    Chosen,
    NewTable,
    TableState,
    Transaction,
    create_table,
    is_delta_table,
    open_table,
    tables_kept_open,
)
from mergerepl.delta.types import Field, ddl_of, field, json_of
from mergerepl.errors import StoreError
from mergerepl.frames import Column, F, is_in_process
from mergerepl.model.tracking import CommittedTransaction, TrackedTable
from mergerepl.model.tracking_options import Foreign, TrackingKeyType, TrackingOptions
from mergerepl.replica.control import CHECKPOINT_INTERVAL, ControlDatabase
from mergerepl.replica.damage import refuse_edited
from mergerepl.spark import session as engine
from mergerepl.store.lease import TRANSACTION_LOCK, lease, record_jvm
from mergerepl.store.location import Location
from mergerepl.store.storage import remove_leftover
from mergerepl.systables.tracking import (
    COMMIT_SEQUENCE,
    COMMITS,
    CONSUMERS,
    DELETE_CSN,
    DELETED_ROWS,
    FOLDER,
    INSERT_CSN,
    ROW_COLUMNS,
    TRACKED_OBJECTS,
    KeyColumn,
    app_id,
)
from mergerepl.tracking import counters
from mergerepl.tracking.counters import Begun, is_database, read_counters
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.register_numbers import live_bsn
from mergerepl.tracking.row_keys import GUID
from mergerepl.tracking.sweep import sweep

_NEWEST = 8
"""The range of CSNs below a bound that is searched first for the last published transaction: more can only be aborts."""


T = TypeVar("T")

KIND = "track"
"""The kind of the commits of tracked transactions."""


@dataclass(frozen=True)
class Database(ControlDatabase):
    """A folder with tracked tables, or that shall have some."""

    folder = FOLDER
    tables = (COMMIT_SEQUENCE, COMMITS, CONSUMERS, TRACKED_OBJECTS)
    properties: ClassVar[Mapping[str, str]] = {}

    @cached_property
    def database_id(self) -> str:
        """The identity of this database, in the marks of its commits."""
        return read_counters(self.root).database_id

    @property
    def app_id(self) -> str:
        """The application of its Delta transactions; their versions are CSNs."""
        return app_id(self.database_id)

    @property
    def deleted_rows(self) -> Location:
        """The folder of the tombstones."""
        return self.control.path(DELETED_ROWS.name)

    def path(self, table: str) -> Location:
        """Return the folder of a user's table."""
        return self.root / table

    def transaction(self, csn: int, tables: tuple[str, ...]) -> Transaction:
        """Return the mark and the Delta transaction for a CSN's writes to a table; its commits are one unit."""
        unit = CommitUnit(f"{self.database_id}:{csn}", tables)
        return Transaction(self.app_id, csn, CommitMark(self.database_id, f"{KIND}:{csn}", unit=unit))

    def setup_mark(self, step: str) -> CommitMark:
        """Return the mark of a commit that changes no rows."""
        return CommitMark(self.database_id, f"{KIND}:{step}")

    def is_own(self, mark: CommitMark | None) -> bool:
        """True if a transaction of this database made the commit."""
        return mark is not None and mark.session == self.database_id and mark.kind == KIND


def database_at(path: str | os.PathLike[str]) -> Database:
    """Return the database of a folder or of a place in S3.

    Raises: ConfigurationError if the folder does not exist; StoreError for a store in which Spark does not work.
    """
    text = str(path) if isinstance(path, Location) else os.fspath(path)
    root = Location.of(roots.existing(text, may_be_stored=True))
    root.require_spark()
    return Database(root)


def create_tables(database: Database, *, retention: timedelta) -> None:
    """Create the missing system tables, empty."""
    database.create()
    if not is_delta_table(database.deleted_rows):
        if database.root.is_local:
            # In a bucket an agent that was displaced would remove the table of a later one.
            remove_leftover(database.deleted_rows)
        properties = {
            "delta.checkpointInterval": CHECKPOINT_INTERVAL,
            STATS_PROPERTY: f"{DELETE_CSN},{INSERT_CSN}",
            **retention_properties({}, retention),
        }
        columns = [field(column.name, json_of(column.type)) for column in DELETED_ROWS.columns]
        create_table(database.deleted_rows, NewTable(columns, (), properties), database.setup_mark("setup"))


def require_unedited(database: Database) -> None:
    """Check in the logs of the system tables that mergerepl made the last change of their rows. Raises: StoreError."""
    for path in (*(database.control.path(each.name) for each in database.tables), database.deleted_rows):
        if is_delta_table(path):
            refuse_edited(path)


def require_database(database: Database) -> None:
    """Check that tables of the folder are, or were, tracked. Raises: TrackingError."""
    if not is_database(database.root) or not database.is_there:
        read_counters(database.root)
        raise TrackingError.no_database(database.root)


def tracked_tables(database: Database) -> dict[str, TrackedTable]:
    """Return the tracked tables by name."""
    parts: dict[str, list[KeyColumn]] = {}
    for row in database.control.rows_if_any(TRACKED_OBJECTS):
        parts.setdefault(row.table, []).append(row)
    return {name: _tracked_table(name, rows) for name, rows in sorted(parts.items())}


def _tracked_table(name: str, rows: Sequence[KeyColumn]) -> TrackedTable:
    first, *_ = parts = sorted(rows, key=lambda row: row.place)
    return TrackedTable(
        name,
        TrackingOptions(first.options),
        TrackingKeyType(first.key_type),
        tuple(part.column for part in parts),
        tuple(part.column_type for part in parts),
        first.table_id,
        first.enabled_version,
        Foreign(first.foreign),
        first.enabled_at,
        first.enabled_csn,
    )


def store_tracked(database: Database, name: str, table: TrackedTable | None) -> None:
    """Store the tracking of one table; None: it is not tracked."""
    rows = [] if table is None else _key_columns(table)
    database.control.replace_where(TRACKED_OBJECTS, rows, table=name)


def _key_columns(table: TrackedTable) -> list[KeyColumn]:
    return [
        KeyColumn(
            table.name,
            int(table.options),
            int(table.key_type),
            place,
            column,
            type_,
            table.table_id,
            table.enabled_version,
            table.foreign.value,
            table.enabled_at,
            table.enabled_csn,
        )
        for place, (column, type_) in enumerate(zip(table.key, table.key_types, strict=True), 1)
    ]


def tracked_table(database: Database, name: str) -> TrackedTable:
    """Return a tracked table. Raises: TrackingError if it is not tracked."""
    tables = tracked_tables(database)
    if name not in tables:
        raise TrackingError.not_tracked(name, list(tables))
    return tables[name]


def facts_of(database: Database, table: TrackedTable) -> TableState:
    """Return the facts of a tracked table at its head.

    Raises: TrackingError if it is gone, was replaced by another table, has lost its tracking columns, or has another key;
        StoreError if it cannot be read.
    """
    if not is_delta_table(database.path(table.name)):
        raise TrackingError(
            f"Tracked table '{table.name}' is gone: its folder holds no Delta table. Put it back, or end its "
            f"tracking: `mergerepl tracking disable {table.name} --keep-columns`.",
            table=table.name,
        )
    facts = open_table(database.path(table.name))
    if facts.metadata.table_id != table.table_id and not _goes_on(database, table):
        raise TrackingError(
            f"Table '{table.name}' is another Delta table than the one that was tracked (its id differs): it was "
            "removed and created again. Put the tracked table back, or disable tracking of it and enable it again.",
            table=table.name,
        )
    problem = columns_problem(table, facts.fields)
    if problem is not None:
        raise problem
    return facts


def _goes_on(database: Database, table: TrackedTable) -> bool:
    """Whether the log of a table has its published version: CREATE OR REPLACE gives a table another id in the same log."""
    since = snapshot_version(table, versions_of(last_commit(database)))
    try:
        return open_table(database.path(table.name), since).metadata.table_id == table.table_id
    except StoreError:
        return False


def columns_problem(table: TrackedTable, fields: Sequence[Field]) -> TrackingError | None:
    """Return the error about a tracking column or a key column that a table lacks; None if all exist."""
    present = {each["name"]: each for each in fields}
    for name, type_ in ROW_COLUMNS:
        if name not in present or present[name]["type"] != type_:
            return TrackingError(
                f"Table '{table.name}' has lost the tracking column {name}: a writer replaced the table's schema. "
                "Restore the table to a version that has it (RESTORE TABLE), or disable tracking and enable it "
                "again; consumers then take an initial copy.",
                table=table.name,
            )
    for column, known in zip(table.key, table.key_types, strict=True):
        if column not in present or key_type_of(present[column], table.key_type) != known:
            return TrackingError(
                f"Table '{table.name}' is tracked by column '{column}' of type {known}, which it no longer has: it "
                "was dropped, renamed or has another type, and the keys of deleted rows are stored by it. Change it "
                "back (RESTORE TABLE), or disable tracking and enable it again; consumers then take an initial copy.",
                table=table.name,
            )
    return None


def key_type_of(column: Field, key_type: TrackingKeyType) -> str:
    """Return the type of a key column as `row_keys` names it."""
    type_ = ddl_of(column["type"])
    return GUID if key_type is TrackingKeyType.GUID and type_ == "string" else type_


def context_guid(context: str | None) -> str | None:
    """Return a tracking context in its stored form. Raises: TrackingError if it is a text other than a GUID."""
    try:
        return None if context is None else str(uuid.UUID(context))
    except ValueError as error:
        raise TrackingError.reserved("tracking context (a GUID)", context) from error


_csn = attrgetter("csn")


def last_commit(database: Database) -> CommittedTransaction | None:
    """Return the last published transaction, or None."""
    return commit_before(database, read_counters(database.root).last_csn + 1)


def commits_from(
    database: Database, *, from_csn_inclusive: int, through_csn_exclusive: int
) -> list[CommittedTransaction]:
    """Return the published transactions of a range of CSNs, in order."""
    chosen = Chosen({"csn": (from_csn_inclusive - 1, through_csn_exclusive - 1)})
    return sorted(database.control.rows(COMMITS, where=chosen), key=_csn)


def commit_before(database: Database, csn: int) -> CommittedTransaction | None:
    """Return the last published transaction below a CSN, or None."""
    if found := commits_from(database, from_csn_inclusive=csn - _NEWEST, through_csn_exclusive=csn):
        return found[-1]
    newest = "order by csn desc limit 1"
    return next(iter(database.control.rows(COMMITS, where=f"csn < {csn}", order_limit=newest)), None)


def versions_of(published: CommittedTransaction | None) -> Mapping[str, int]:
    """Return the versions of the tables after a published transaction; empty before the first."""
    return published.versions if published else {}


def snapshot_version(table: TrackedTable, versions: Mapping[str, int]) -> int:
    """Return the version of a table in a published snapshot; before its first transaction the one it was enabled at."""
    return max(versions.get(table.name, -1), table.enabled_version)


def packed(number: int) -> bytes:
    """Return the stored form of a number."""
    return number.to_bytes(8, "big")


def unpacked(stored: bytes) -> int:
    """Return a stored number."""
    return int.from_bytes(stored, "big")


def packed_literal(number: int) -> Column:
    """Return the stored form of a number as a literal that Parquet's bounds are compared with."""
    return F.lit(packed(number))


def packed_column(number: Column) -> Column:
    """Return the stored form of numbers (bigint). A cast to binary is refused in ANSI mode."""
    return F.unhex(F.lpad(F.hex(number), 16, "0"))


def unpacked_column(stored: Column) -> Column:
    """Return stored numbers as bigint."""
    return F.conv(F.hex(stored), 16, 10).cast("decimal(20,0)").cast("bigint")


@dataclass
class Session:
    """A database and how this process reaches it. Spark is started when it is first asked for."""

    database: Database
    lock_wait_s: float = 60.0
    given: SparkSession | None = None
    """The caller's Spark session; without one, the running one or an embedded one is used."""

    @property
    def spark(self) -> SparkSession:
        """The Spark session, where this context does not compute in process.

        Raises: EngineError if it has no Delta, ignores unreadable files, or cannot be started.
        """
        if is_in_process():
            return NO_SESSION
        if self.given is not None:
            return engine.usable(self.given)
        session = engine.session()
        record_jvm(self.database.root, engine.jvm_pid())
        return session

    def few_in_process(self, require: Callable[[], None], step: Callable[[], T]) -> T:
        """Do a step in this process; on Spark if `require`, or the step before it commits, raises NeedsSparkError."""
        choice = EngineChoice(uses_arrow=True, in_process=True)
        try:
            require()
            with choice.rules():
                return step()
        except NeedsSparkError as error:
            choice.left_for_spark(error)
        # Started before the first expression is made.
        _ = self.spark
        return step()

    def begin(self) -> Begun:
        """Take the next number. In a bucket the transaction holds the root from here on, until it ends.

        Raises: TrackingError if this thread has one open there; LeaseError if the root stays in use.
        """
        root = self.database.root
        if root.is_local:
            return counters.begin(root)
        with ExitStack() as held:
            held.enter_context(
                lease(root, purpose="tracking transaction", wait_s=self.lock_wait_s, file=TRANSACTION_LOCK)
            )
            if (bsn := live_bsn(root)) is not None:
                raise TrackingError(
                    f"Transaction {bsn} of '{root}' is open in this thread. In a bucket the transactions of a root take "
                    "turns: commit or abort it first.",
                    bsn=bsn,
                )
            # First carry out what an earlier holder decided.
            sweep(self)
            begun = counters.begin(root)
            return replace(begun, held=held.pop_all())

    @contextmanager
    def held(self, purpose: str) -> Iterator[None]:
        """Hold the root's lease, and keep its tables open: all writes to tables and system tables happen under it.

        Raises: LeaseError if it is still held after the time to wait; StoreError if a system table was edited.
        """
        root = self.database.root
        with lease(root, purpose=purpose, wait_s=self.lock_wait_s), tables_kept_open(root):
            record_jvm(root, engine.jvm_pid())
            require_unedited(self.database)
            yield
