"""A table's rules for its rows, checked before a transaction is decided, since it must be carried out afterwards.

Delta checks the same when it writes; a transaction that it refused then would block all others.
"""

import re
from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.compact.row_keys import LONGEST
from mergerepl.delta.metadata import CHAR_VARCHAR, CONSTRAINT_PREFIX, DEFAULT_EXPRESSION
from mergerepl.delta.tables import TableState
from mergerepl.delta.types import Field, ddl_of, has_not_null_parts, invariants
from mergerepl.rows.sql import quote

_LENGTH = re.compile(r"(?:var)?char\((\d+)\)\Z")


def broken_rules(facts: TableState, key: Sequence[str], is_there: Column) -> dict[str, Column]:
    """Return the broken rules of a table: text to condition, on columns by their own names, for rows that exist."""
    found: dict[str, Column] = {}
    for field in facts.fields:
        value = F.col(quote(field["name"]))
        if not field["nullable"]:
            found[f"column '{field['name']}' is NOT NULL, and rows have no value"] = value.isNull()
        length = _LENGTH.match(str(field["metadata"].get(CHAR_VARCHAR, "")))
        if length:
            found[f"texts are longer than the {length[0]} of column '{field['name']}'"] = F.char_length(
                value
            ) > int(length[1])
        if field["name"] in key and facts.keeps_empty_as_null(field["name"]):
            found[f"keys are empty in partition column '{field['name']}', where Delta stores NULL"] = (
                F.octet_length(value) == 0
            )
    for name, text in facts.properties.items():
        if name.startswith(CONSTRAINT_PREFIX):
            # Delta takes a row only if the condition is true. In SQL NULL passes, here it breaks the rule.
            found[
                f"rows break the CHECK constraint {name.removeprefix(CONSTRAINT_PREFIX)} ({text})"
            ] = ~F.coalesce(F.expr(text), F.lit(False))
    return {text: is_there & condition for text, condition in found.items()}


def unwritable(facts: TableState) -> tuple[str, str] | None:
    """Return why transactions cannot write a table and what to do about it, None if they can."""
    if facts.properties.get("delta.appendOnly", "").lower() == "true":
        return "it takes no updates and deletes (delta.appendOnly)", "Unset the property first."
    for field in facts.fields:
        name, metadata = field["name"], field["metadata"]
        if "`" in name:
            return (
                f"Delta's MERGE cannot write column '{name}': its name has a backtick",
                "Rename the column.",
            )
        if name in facts.generated_columns or any(key.startswith("delta.identity.") for key in metadata):
            return f"Delta computes column '{name}' itself", "Make it an ordinary column."
        if has_not_null_parts(field["type"]) or invariants([field]):
            return (
                f"column '{name}' has NOT NULL parts or an invariant",
                "Lift these, or track another table.",
            )
        if CHAR_VARCHAR in metadata and not _LENGTH.match(str(metadata[CHAR_VARCHAR])):
            return f"column '{name}' has char or varchar inside", "Lift these, or track another table."
    return None


def default_of(field: Field) -> Column:
    """Return the value of a row in a column that is not given."""
    default = field["metadata"].get(DEFAULT_EXPRESSION)
    value = F.lit(None) if default is None else F.expr(default)
    return value.cast(ddl_of(field["type"]))


def fitted(value: Column, given: str, field: Field) -> tuple[Column, Column | None]:
    """Return a value as a column's type, and where it does not fit; None where any does."""
    wanted = ddl_of(field["type"])
    if given == wanted:
        return value, None
    fitting = value.try_cast(wanted) if given != "void" else value.cast(wanted)
    return fitting, value.isNotNull() & fitting.isNull()


def too_long_key(packed: Column) -> Mapping[str, Column]:
    """Return the rule that a packed key keeps."""
    return {f"row keys take more than {LONGEST} bytes when packed": F.octet_length(packed) > LONGEST}
