"""What a system table is: a name, a plane and columns that are only ever appended to."""

from dataclasses import dataclass
from enum import StrEnum

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
    """Spark: grows with users' data, only appended to."""


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
        """Return the columns without whose values a replica cannot be told: rows are refused where one is NULL."""
        return [column.name for column in self.columns if column.is_required]


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
