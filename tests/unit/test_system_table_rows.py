"""The fields of a row declare the columns of its system table: type, text, and whether NULL is refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest

from mergerepl.delta.types import json_of
from mergerepl.model.columns import NOT_NULL, Bigint, Ddl, Named
from mergerepl.systables import cdc, logreader, tracking, transactional
from mergerepl.systables.registry import ALL
from mergerepl.systables.table import Column, Plane, TypedTable

TYPED = [
    table
    for table in (*ALL, *tracking.ALL, *logreader.ALL, *cdc.ALL, *transactional.ALL)
    if isinstance(table, TypedTable)
]


@dataclass(frozen=True, kw_only=True)
class Row:
    name: Annotated[str, "a name"]
    place: Annotated[int, Named("__place"), "a place"]
    size: Annotated[Bigint | None, "a size"] = None
    is_new: Annotated[bool, NOT_NULL, "new"] = True
    versions: Annotated[Mapping[str, Bigint], "versions"] = field(default_factory=dict)
    parts: Annotated[tuple[Any, ...], Ddl("array<struct<a:int>>"), "parts"] = ()


TABLE = TypedTable("rows", Plane.CONTROL, Row)


def test_fields_declare_columns():
    assert TABLE.columns == (
        Column("name", "string", "a name", True, "name"),
        Column("__place", "int", "a place", True, "place"),
        Column("size", "bigint", "a size", False, "size"),
        Column("is_new", "boolean", "new", True, "is_new"),
        Column("versions", "map<string,bigint>", "versions", False, "versions"),
        Column("parts", "array<struct<a:int>>", "parts", False, "parts"),
    )


def test_a_row_is_read_as_it_was_stored():
    row = Row(name="a", place=1, versions={"t": 3}, parts=({"a": 1},))
    stored = TABLE.values(row)
    assert stored["__place"] == 1
    assert TABLE.read(stored | {"parts": [{"a": 1}], "versions": [("t", 3), ("u", None)]}) == row


@pytest.mark.parametrize("table", TYPED, ids=lambda table: table.name)
def test_null_is_read_as_the_default_of_a_field(table: TypedTable[Any]) -> None:
    examples = {
        "string": "a",
        "int": 1,
        "bigint": 1,
        "boolean": True,
        "double": 1.0,
        "binary": b"a",
        "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
    }
    stored = {
        column.name: examples.get(column.type, {} if column.type.startswith("map") else ())
        for column in table.columns
        if column.is_required
    }
    assert all(json_of(column.type) and column.doc for column in table.columns)
    assert table.row(**{c.field: stored[c.name] for c in table.columns if c.name in stored}) == table.read(
        stored
    )
