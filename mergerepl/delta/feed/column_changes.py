"""The change of a column by one commit, as a value; its statement in SQL. Pure.

`feed.schema_walk` finds the changes. Delta keeps no SQL text: statements are rebuilt from the difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mergerepl.delta.types import Json, ddl_of
from mergerepl.rows.sql import quote

ADD, DROP, RENAME, TYPE, NULLABILITY = "add", "drop", "rename", "type", "nullability"

FIELDS = "fields"
"""A type with added or reordered fields: each value keeps its parts, by the names of the fields."""

DEFAULT, COMMENT, COMPUTED = "default", "comment", "computed"
"""Changed properties of a column. COMPUTED: it became generated or an identity column, or is not any more."""

STATEMENTS = (COMMENT, DEFAULT)
"""Changes of what a table says of a column: they concern no row."""

REPLACE, RESTORE, MAPPING = "replace", "restore", "mapping"
"""Changes of the whole table: columns and rows were replaced, it was restored, column mapping was switched on or off."""

TRACKING = "tracking"
"""A change of the article itself, whose columns stay: the new text is `column` or `row`."""

FILTER = "filter"
"""Another row filter or other joins of the article, whose columns stay: the new text has them."""

LEAVE, COLUMNS = "leave", "columns"
"""Changes of the article itself: a column is published no more; the new text says which columns are: `all` or `listed`."""

_PARTS = {"elementType": "element", "valueType": "value"}

_COLUMN_ID = "delta.columnMapping.id"

Fields = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ColumnChange:
    """The change of a table's columns by one commit.

    `kind` is one of the constants of this module. `column` is the name before, `new_name` the one after; types are Spark
    DDL. `added_fields` are fields added inside the type, as SQL. `new_text` is the new default or comment, empty if it was
    removed. `field` is the number of a published column, if the reader gave one or the commit's mark names it.
    """

    version: int
    kind: str
    column: str = ""
    new_name: str = ""
    old_type: str = ""
    new_type: str = ""
    is_nullable: bool = True
    column_id: int = 0
    added_fields: tuple[str, ...] = ()
    new_text: str = ""
    field: int | None = None


def column_id(fields: Fields, name: str) -> int:
    """Return the id that the column mapping gives a column, else its position from 1."""
    for place, each in enumerate(fields, 1):
        if each["name"] == name:
            return int(each.get("metadata", {}).get(_COLUMN_ID, place))
    raise KeyError(name)


def is_mapped(fields: Fields) -> bool:
    """True if columns are mapped: then a column keeps its id when it is renamed."""
    return all(_COLUMN_ID in each.get("metadata", {}) for each in fields)


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
    """True if older rows are read with NULLs: columns and fields were only added, or their properties changed."""
    return not any(change.kind in (DROP, RENAME, TYPE, REPLACE, RESTORE) for change in changes)


def statement(change: ColumnChange, table: str) -> str:
    """Return the SQL statement that makes a change."""
    of_table = {REPLACE: "REPLACE TABLE", RESTORE: "RESTORE TABLE"}.get(change.kind, "ALTER TABLE")
    return f"{of_table} delta.{quote(table)} {clause(change)}".rstrip()


def clause(change: ColumnChange) -> str:
    """Return what follows the table's name in the statement that makes a change."""
    retyped = f"ALTER COLUMN {quote(change.new_name)} TYPE {change.new_type.upper()}"
    added = ", ".join(change.added_fields)
    name, new = quote(change.column), quote(change.new_name)
    return {
        ADD: f"ADD COLUMNS ({new} {change.new_type.upper()})",
        DROP: f"DROP COLUMN {name}",
        RENAME: f"RENAME COLUMN {name} TO {new}",
        TYPE: retyped,
        FIELDS: f"ADD COLUMNS ({added})" if added else retyped,
        NULLABILITY: f"ALTER COLUMN {new} {'DROP' if change.is_nullable else 'SET'} NOT NULL",
        REPLACE: "",
        RESTORE: f"TO VERSION AS OF {change.new_text}" if change.new_text else "",
    }[change.kind]
