"""Control planes: small system tables read and written through `deltalake`, without a JVM.

A table of the control plane is read whole and replaced whole by one commit (7 ms), so every change of it is atomic; a
growing table is appended to and read with a condition. The caller holds the lease of the replica or of the folder.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mergerepl.delta.properties import KEPT_A_DAY
from mergerepl.delta.tables import (
    INTERVAL_PROPERTY,
    OWN_INTERVAL,
    Chosen,
    arrow_schema,
    as_seen,
    delete_rows,
    is_as_seen,
    is_delta_table,
    python_rows,
    read_rows,
    transaction_version,
    update_rows,
    version_and_rows,
    write_rows,
)
from mergerepl.errors import CommitConflictError
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables.table import RowT, SystemTable, TypedTable

if TYPE_CHECKING:
    import pyarrow as pa

CHECKPOINT_INTERVAL = "10"
"""Commits between checkpoints of a table of rows that Spark or delta-rs write."""

_TRIES = 20
"""The most times that an edit is made of fresh rows. A commit takes 7 ms."""


class ControlPlane:
    """The system tables in one folder; their rows are values of each table's type.

    A replica keeps its tables in `_mergerepl`, another product in a folder of its own. A table is read again only if
    its last commit differs from the one read or written here: a session reads some tables ten times.
    """

    def __init__(self, folder: Location, properties: Mapping[str, str] | None = None) -> None:
        """Read nothing yet. `properties` are for the tables to create."""
        self.folder = folder
        self.properties = {INTERVAL_PROPERTY: OWN_INTERVAL, **(properties or {})}
        self._read: dict[str, _Known] = {}

    def path(self, name: str) -> Location:
        """Return the folder of a system table."""
        return self.folder / name

    def exists(self, table: SystemTable) -> bool:
        """True if the table was created."""
        return is_delta_table(self.path(table.name))

    def rows(
        self, table: TypedTable[RowT], *, where: str | Chosen | None = None, order_limit: str = ""
    ) -> list[RowT]:
        """Return the rows of a table; `where` and `order_limit` are delta-rs' SQL, for growing tables.

        Raises: StoreError if the table is missing or unreadable, or lacks a value it needs.
        """
        if where is not None or order_limit:
            bounded = read_rows(
                self.path(table.name),
                table.names,
                where=where,
                order_limit=order_limit,
                required=table.required,
            )
            return [table.read(row) for row in bounded]
        return self._version_and_rows(table)[1]

    def rows_if_any(self, table: TypedTable[RowT]) -> list[RowT]:
        """Return the rows of a table, or [] if it was not created."""
        return self.rows(table) if self.exists(table) else []

    def create(self, tables: Iterable[TypedTable[Any]]) -> None:
        """Create the missing tables, empty and in this order."""
        for table in tables:
            if not self.exists(table):
                self.replace(table, ())

    def replace(self, table: TypedTable[RowT], rows: Iterable[RowT]) -> None:
        """Replace the table's content with `rows`, in one commit."""
        self._keep(table, *self._write(table, rows, mode="overwrite"))

    def edit(self, table: TypedTable[RowT], change: Callable[[list[RowT]], list[RowT]]) -> list[RowT]:
        """Replace a table's rows with the result of `change`, in one commit if they differ. Returns the rows.

        If another process, which has no lease, commits in between, `change` is made again of the rows that are there then.

        Raises: CommitConflictError if others commit each time.
        """
        for tries_left in reversed(range(_TRIES)):
            version, before = self._version_and_rows(table)
            after = change(list(before))
            if after == before:
                break
            try:
                self._keep(table, *self._write(table, after, mode="overwrite", read_version=version))
                break
            except CommitConflictError:
                # In a store the register was taken over: nothing is written by its earlier holder.
                if not tries_left or not is_local(self.folder):
                    raise
        return after

    def replace_where(self, table: TypedTable[RowT], rows: Iterable[RowT], /, **where: object) -> None:
        """Replace the rows that have these values with `rows`, as `edit` does. A set is a choice of values."""
        self.edit(table, lambda known: [*(row for row in known if not _has(row, where)), *rows])

    def remove_where(self, table: TypedTable[Any], /, **where: object) -> None:
        """Remove the rows that have these values, as `edit` does."""
        self.replace_where(table, (), **where)

    def change_where(self, table: TypedTable[Any], values: Mapping[str, Any], /, **where: object) -> None:
        """Set fields of the rows that have these values, as `edit` does."""
        self.edit(table, lambda known: [replace(r, **values) if _has(r, where) else r for r in known])

    def append(
        self, table: TypedTable[RowT], rows: Sequence[RowT], *, once: tuple[str, int] | None = None
    ) -> None:
        """Add rows, in one commit; no commit without rows.

        `once` is a Delta transaction (application and version): skips the append if the table has it, or a later one.
        """
        if rows and not (once and transaction_version(self.path(table.name), once[0]) >= once[1]):
            self._write(table, rows, mode="append", once=once)

    def update(self, table: SystemTable, values: Mapping[str, str], *, where: str) -> None:
        """Set columns (to expressions of delta-rs' SQL) in matching rows of a growing table, in at most one commit."""
        update_rows(self.path(table.name), values, where=where)

    def delete(self, table: SystemTable, *, where: str) -> None:
        """Remove matching rows of a growing table, in at most one commit."""
        delete_rows(self.path(table.name), where=where)

    def _version_and_rows(self, table: TypedTable[RowT]) -> tuple[int, list[RowT]]:
        known = self._read.get(table.name)
        if known is None or not is_as_seen(known.seen):
            path = self.path(table.name)
            known = self._keep(table, *version_and_rows(path, table.names, required=table.required))
        if known.rows is None:
            known.rows = [table.read(row) for row in python_rows(known.stored, table.names)]
        return known.version, list(known.rows)

    def _keep(self, table: SystemTable, version: int, stored: "pa.Table") -> "_Known":
        known = _Known(version, stored)
        # Only a checkpoint may remain of an old last commit.
        with suppress(FileNotFoundError):
            known.seen = as_seen(self.path(table.name), version)
            self._read[table.name] = known
        return known

    def _write(
        self,
        table: TypedTable[RowT],
        rows: Iterable[RowT],
        *,
        mode: Literal["append", "overwrite"],
        once: tuple[str, int] | None = None,
        read_version: int | None = None,
    ) -> tuple[int, "pa.Table"]:
        """Write rows in one commit. Returns its version and the written rows."""
        import pyarrow as pa

        path = self.path(table.name)
        # Arrow takes maps as lists of pairs.
        values = [
            {n: list(v.items()) if isinstance(v, Mapping) else v for n, v in table.values(row).items()}
            for row in rows
        ]
        types = {column.name: column.type for column in table.columns}
        written = pa.Table.from_pylist(values, schema=arrow_schema(types))
        version = write_rows(
            path, written, mode=mode, properties=self.properties, once=once, read_version=read_version
        )
        return version, written


@dataclass
class _Known:
    """A table as it was read or written: its version, its rows as stored, as values once asked for, and its `as_seen`."""

    version: int
    stored: "pa.Table"
    rows: list[Any] | None = None
    seen: list[Any] = field(default_factory=list)


def _has(row: object, where: Mapping[str, object]) -> bool:
    return all(
        getattr(row, name) in value if isinstance(value, Set) else getattr(row, name) == value
        for name, value in where.items()
    )


@dataclass(frozen=True)
class ControlDatabase:
    """A root with the control tables that one product keeps in a folder of its own."""

    root: Location

    folder: ClassVar[str]
    tables: ClassVar[tuple[TypedTable[Any], ...]]
    """In the order in which they are created: the last one says that the product is set up here."""
    properties: ClassVar[Mapping[str, str]] = KEPT_A_DAY

    @cached_property
    def control(self) -> ControlPlane:
        """The control tables."""
        return ControlPlane(self.root / self.folder, self.properties)

    @property
    def is_there(self) -> bool:
        """True if the product is set up here."""
        return self.control.exists(self.tables[-1])

    def create(self) -> None:
        """Create the missing tables."""
        self.control.create(self.tables)
