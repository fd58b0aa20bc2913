"""How a field of a system table's row declares its column: `name: Annotated[type, text]`.

The type gives the column's type in Spark DDL. A field without a default, or with `NOT_NULL`, is a column without NULLs.
"""

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias


@dataclass(frozen=True)
class Ddl:
    """The type of a column, where the field's type does not give it."""

    text: str


@dataclass(frozen=True)
class Named:
    """The name of a column, where no field can have it."""

    name: str


NOT_NULL: Final = object()
"""Marks a column without NULLs whose field has a default."""

Bigint: TypeAlias = Annotated[int, Ddl("bigint")]
