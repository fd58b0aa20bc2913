"""What a system table is: a name, a plane, columns that are only ever appended to, and the type of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RowT = TypeVar("RowT", bound="DataclassInstance")

FOLDER = "_mergerepl"
"""The folder below a replica root that holds the system tables."""


_NOT_NULL = " not null"


class Plane(StrEnum):
    """Who writes a table's rows. Sessions commit them through `deltalake` in every plane (docs/decisions/0006)."""

    CONTROL = "control"
    """`deltalake`: small, rewritten whole by each commit."""
    HISTORY = "history"
    """`deltalake`: small, only appended to."""
    DATA = "data"
    """Arrow or Spark: grows with users' data, only appended to."""


@dataclass(frozen=True)
class Column:
    """One column: its name, its type as Spark DDL and one line of meaning; a required one is never NULL."""

    name: str
    type: str
    doc: str
    is_required: bool = False


@dataclass(frozen=True)
class SystemTable:
    """A system table of every replica.

    NOTE: add new columns at the end, with a migration. WARNING: do not reorder or retype columns.
    """

    name: str
    plane: Plane
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Return the column names in schema order."""
        return [column.name for column in self.columns]

    @property
    def required(self) -> list[str]:
        """Return the columns that every row needs: a row where one of them is NULL is refused."""
        return [column.name for column in self.columns if column.is_required]


@dataclass(frozen=True)
class TypedTable(SystemTable, Generic[RowT]):
    """A system table whose rows are values of one type: a frozen dataclass, a field for each column.

    The field of a column that may be NULL has a default, and NULL is read as that value.
    """

    row: type[RowT]

    def read(self, stored: Mapping[str, Any]) -> RowT:
        """Return the row of these stored values: lists become tuples, maps lose entries that are NULL."""
        given = [column for column in self.columns if stored.get(column.name) is not None]
        return self.row(**{column.name: _typed(column.type, stored[column.name]) for column in given})

    def values(self, row: RowT) -> dict[str, Any]:
        """Return a row's values by column, as they are stored."""
        return {name: getattr(row, name) for name in self.names}


def _typed(type_: str, value: Any) -> Any:
    if type_.startswith("map<"):
        return {key: each for key, each in dict(value).items() if each is not None}
    return tuple(value) if type_.startswith("array<") else value


def columns(text: str) -> tuple[Column, ...]:
    """Read `name | type | doc` lines, the form the schema modules are written in; a line without bars goes on.

    A type may be followed by `not null`.
    """
    rows: list[list[str]] = []
    for line in text.strip().splitlines():
        if "|" in line:
            rows.append([part.strip() for part in line.split("|", 2)])
        else:
            rows[-1][2] += f" {line.strip()}"
    return tuple(
        Column(name, type_.removesuffix(_NOT_NULL), doc, type_.endswith(_NOT_NULL))
        for name, type_, doc in rows
    )
