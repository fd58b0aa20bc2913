"""What a commit did to the columns of a table, by the columns before and after it (cdc.md 7). Pure.

Delta keeps no SQL text: statements are rebuilt from the difference.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mergerepl.delta.types import ddl_of
from mergerepl.logreader.plan import ColumnChange
from mergerepl.rows.sql import quote

ADD, DROP, RENAME, TYPE, NULLABILITY, REPLACE = "add", "drop", "rename", "type", "nullability", "replace"

_COLUMN_ID = "delta.columnMapping.id"

Fields = Sequence[Mapping[str, Any]]


def column_id(fields: Fields, name: str) -> int:
    """Return the id that the column mapping gives a column, else its position from 1."""
    for place, each in enumerate(fields, 1):
        if each["name"] == name:
            return int(each.get("metadata", {}).get(_COLUMN_ID, place))
    raise KeyError(name)


def is_mapped(fields: Fields) -> bool:
    """Return whether columns are mapped: then one keeps its id when it is renamed."""
    return all(_COLUMN_ID in each.get("metadata", {}) for each in fields)


def column_changes(version: int, before: Fields, after: Fields) -> list[ColumnChange]:
    """Return what became of each column: drops and renames first, in the order of the columns before, then what is new."""
    by_id = is_mapped(before) and is_mapped(after)

    def identity(field: Mapping[str, Any]) -> Any:
        return field["metadata"][_COLUMN_ID] if by_id else field["name"]

    now = {identity(each): each for each in after}
    found = []
    for place, old in enumerate(before, 1):
        new = now.pop(identity(old), None)
        number = int(old.get("metadata", {}).get(_COLUMN_ID, place))
        name, type_ = old["name"], ddl_of(old["type"])
        if new is None:
            found.append(ColumnChange(version, DROP, name, old_type=type_, column_id=number))
            continue
        if new["name"] != name:
            found.append(ColumnChange(version, RENAME, name, new["name"], type_, type_, column_id=number))
        if (new_type := ddl_of(new["type"])) != type_:
            found.append(ColumnChange(version, TYPE, name, new["name"], type_, new_type, column_id=number))
        if new["nullable"] != old["nullable"]:
            found.append(
                ColumnChange(
                    version, NULLABILITY, name, new["name"], type_, new_type, new["nullable"], number
                )
            )
    for new in now.values():
        type_ = ddl_of(new["type"])
        number = column_id(after, new["name"])
        found.append(
            ColumnChange(version, ADD, "", new["name"], "", type_, new["nullable"], column_id=number)
        )
    return found


def is_additive(changes: Sequence[ColumnChange]) -> bool:
    """Return whether columns were only added, or may be NULL now: older rows are read with NULLs."""
    return all(change.kind in (ADD, NULLABILITY) for change in changes)


def statement(change: ColumnChange, table: str) -> str:
    """Return the SQL statement that makes a change."""
    alter = f"ALTER TABLE delta.{quote(table)}"
    name, new = quote(change.column), quote(change.new_name)
    return {
        ADD: f"{alter} ADD COLUMNS ({new} {change.new_type.upper()})",
        DROP: f"{alter} DROP COLUMN {name}",
        RENAME: f"{alter} RENAME COLUMN {name} TO {new}",
        TYPE: f"{alter} ALTER COLUMN {new} TYPE {change.new_type.upper()}",
        NULLABILITY: f"{alter} ALTER COLUMN {new} {'DROP' if change.is_nullable else 'SET'} NOT NULL",
        REPLACE: f"REPLACE TABLE delta.{quote(table)}",
    }[change.kind]
