"""The column declaration of a field in a system table's row: `name: Annotated[type, text]`.

The type gives the column's type in Spark DDL. A field without a default, or with `NOT_NULL`, is a NOT NULL column.
"""

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias


@dataclass(frozen=True)
class Ddl:
    """The type of a column, if the field's type does not give it."""

    text: str


@dataclass(frozen=True)
class Named:
    """The name of a column, if a field cannot have it."""

    name: str


NOT_NULL: Final = object()
"""Marks a NOT NULL column whose field has a default."""

Bigint: TypeAlias = Annotated[int, Ddl("bigint")]
