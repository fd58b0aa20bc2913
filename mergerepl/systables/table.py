"""A system table: a name, a plane, columns that are only ever appended, and the type of its rows."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from mergerepl.model.columns import NOT_NULL, Ddl, Named
from mergerepl.roots import MERGE_FOLDER

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RowT = TypeVar("RowT", bound="DataclassInstance")

FOLDER = MERGE_FOLDER
"""The folder below a replica root that holds the system tables."""

_DDL = {str: "string", int: "int", bool: "boolean", float: "double", bytes: "binary", datetime: "timestamp"}


class Plane(StrEnum):
    """The writer of a table's rows. Sessions commit them through `deltalake` in every plane (docs/decisions/0006)."""

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
    field: str = ""
    """The field of a row with its value."""


class SystemTable:
    """A system table of every replica.

    NOTE: add new columns at the end, with a migration. WARNING: do not reorder or retype columns.
    """

    def __init__(self, name: str, plane: Plane, columns: tuple[Column, ...] = ()) -> None:
        self.name = name
        self.plane = plane
        self._columns = columns

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in schema order."""
        return self._columns

    @property
    def names(self) -> list[str]:
        """The column names in schema order."""
        return [column.name for column in self.columns]

    @property
    def required(self) -> list[str]:
        """The columns that every row needs: a row with NULL in one of them is refused."""
        return [column.name for column in self.columns if column.is_required]


class TypedTable(SystemTable, Generic[RowT]):
    """A system table whose rows are values of one type: a frozen dataclass whose fields declare the columns.

    The field of a column that may be NULL has a default, and NULL is read as that value.
    """

    def __init__(self, name: str, plane: Plane, row: type[RowT]) -> None:
        super().__init__(name, plane)
        self.row = row

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns in schema order, as the fields of a row declare them (`model.columns`)."""
        return tuple(_declared_columns(self.row))

    def read(self, stored: Mapping[str, Any]) -> RowT:
        """Return the row with these stored values: lists become tuples, maps lose NULL entries."""
        given = [column for column in self.columns if stored.get(column.name) is not None]
        return self.row(**{column.field: _typed(column.type, stored[column.name]) for column in given})

    def values(self, row: RowT) -> dict[str, Any]:
        """Return a row's stored values by column."""
        return {column.name: getattr(row, column.field) for column in self.columns}


def _typed(type_: str, value: Any) -> Any:
    if type_.startswith("map<"):
        return {key: each for key, each in dict(value).items() if each is not None}
    return tuple(value) if type_.startswith("array<") else value


def _declared_columns(row: "type[DataclassInstance]") -> Iterator[Column]:
    hints = get_type_hints(row, include_extras=True)
    for field in dataclasses.fields(row):
        _, *said = get_args(hints[field.name])
        name = next((each.name for each in said if isinstance(each, Named)), field.name)
        text = next(each for each in said if isinstance(each, str))
        is_required = NOT_NULL in said or field.default is field.default_factory is MISSING
        yield Column(name, _ddl(hints[field.name]), text, is_required, field.name)


def _ddl(type_: Any) -> str:
    """Return the Spark DDL of a field's type: `int`, `str | None`, `tuple[str, ...]`, `Mapping[int, Bigint]`."""
    origin, parts = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return next((each.text for each in parts if isinstance(each, Ddl)), "") or _ddl(parts[0])
    if origin is tuple:
        return f"array<{_ddl(parts[0])}>"
    if origin is Mapping:
        return f"map<{_ddl(parts[0])},{_ddl(parts[1])}>"
    return _ddl(parts[0]) if parts else _DDL[type_]


def columns(text: str) -> tuple[Column, ...]:
    """Read `name | type | doc` lines: the columns of a table without a type of rows, which a session only appends to."""
    rows = ([part.strip() for part in line.split("|", 2)] for line in text.strip().splitlines())
    return tuple(Column(name, type_, doc) for name, type_, doc in rows)
