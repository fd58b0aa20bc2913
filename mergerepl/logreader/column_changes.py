"""The column changes of a commit, from the table's columns before and after it (cdc.md 7). Pure.

Delta keeps no SQL text: statements are rebuilt from the difference.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mergerepl.delta.types import Json, ddl_of
from mergerepl.logreader.plan import ColumnChange
from mergerepl.rows.sql import quote

ADD, DROP, RENAME, TYPE, NULLABILITY, REPLACE = "add", "drop", "rename", "type", "nullability", "replace"

FIELDS = "fields"
"""A type with added or reordered fields: each value keeps its parts, by the names of the fields."""

_PARTS = {"elementType": "element", "valueType": "value"}

_COLUMN_ID = "delta.columnMapping.id"

Fields = Sequence[Mapping[str, Any]]


def column_id(fields: Fields, name: str) -> int:
    """Return the id that the column mapping gives a column, else its position from 1."""
    for place, each in enumerate(fields, 1):
        if each["name"] == name:
            return int(each.get("metadata", {}).get(_COLUMN_ID, place))
    raise KeyError(name)


def is_mapped(fields: Fields) -> bool:
    """True if columns are mapped: then a column keeps its id when it is renamed."""
    return all(_COLUMN_ID in each.get("metadata", {}) for each in fields)


def column_changes(version: int, before: Fields, after: Fields) -> list[ColumnChange]:
    """Return the change of each column: drops and renames first, in the order of the columns before, then new columns."""
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
            fields = added_fields(old["type"], new["type"], quote(new["name"]))
            kind = TYPE if fields is None else FIELDS
            found.append(
                ColumnChange(
                    *(version, kind, name, new["name"], type_, new_type),
                    column_id=number,
                    added_fields=tuple(fields or ()),
                )
            )
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


def added_fields(old: Json, new: Json, path: str) -> list[str] | None:
    """Return the fields, with their types as SQL, added inside a type; None if it differs in another way.

    `path` is the column's name in SQL. The order of fields does not count.
    """
    if ddl_of(old) == ddl_of(new):
        return []
    if isinstance(old, str) or isinstance(new, str) or old["type"] != new["type"]:
        return None
    if "keyType" in old and ddl_of(old["keyType"]) != ddl_of(new["keyType"]):
        return None
    pairs = [(old[part], new[part], f"{path}.{name}") for part, name in _PARTS.items() if part in old]
    found = []
    if "fields" in old:
        known = {each["name"]: each["type"] for each in old["fields"]}
        given = {each["name"]: each["type"] for each in new["fields"]}
        if known.keys() - given.keys():
            return None
        pairs = [(known[name], given[name], f"{path}.{quote(name)}") for name in known]
        found = [f"{path}.{quote(name)} {ddl_of(given[name]).upper()}" for name in given if name not in known]
    for pair in pairs:
        inner = added_fields(*pair)
        if inner is None:
            return None
        found += inner
    return found


def is_additive(changes: Sequence[ColumnChange]) -> bool:
    """True if columns and fields were only added, or made nullable: older rows are read with NULLs."""
    return all(change.kind in (ADD, FIELDS, NULLABILITY) for change in changes)


def statement(change: ColumnChange, table: str) -> str:
    """Return the SQL statement that makes a change."""
    alter = f"ALTER TABLE delta.{quote(table)}"
    retyped = f"{alter} ALTER COLUMN {quote(change.new_name)} TYPE {change.new_type.upper()}"
    added = ", ".join(change.added_fields)
    name, new = quote(change.column), quote(change.new_name)
    return {
        ADD: f"{alter} ADD COLUMNS ({new} {change.new_type.upper()})",
        DROP: f"{alter} DROP COLUMN {name}",
        RENAME: f"{alter} RENAME COLUMN {name} TO {new}",
        TYPE: retyped,
        FIELDS: f"{alter} ADD COLUMNS ({added})" if added else retyped,
        NULLABILITY: f"{alter} ALTER COLUMN {new} {'DROP' if change.is_nullable else 'SET'} NOT NULL",
        REPLACE: f"REPLACE TABLE delta.{quote(table)}",
    }[change.kind]
