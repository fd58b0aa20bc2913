"""The rows of system tables are values whose fields are the tables' columns."""

import dataclasses
from typing import Any

import pytest

from mergerepl.systables.registry import ALL
from mergerepl.systables.table import TypedTable


@pytest.mark.parametrize(
    "table", [each for each in ALL if isinstance(each, TypedTable)], ids=lambda table: table.name
)
def test_a_row_has_a_field_for_each_column_and_a_default_where_it_may_be_null(table: TypedTable[Any]) -> None:
    fields = dataclasses.fields(table.row)
    assert [field.name for field in fields] == table.names
    needed = [field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING]
    assert set(needed) <= set(table.required)
