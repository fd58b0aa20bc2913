"""A table's rules for its rows, checked before a transaction is decided, since it must be carried out afterwards.

Delta checks the same when it writes; a transaction that it refused then would block all others.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.delta.contract.problems import Code, Problem, TableContract, Texts
from mergerepl.delta.contract.rules import partition_rules, value_rules
from mergerepl.delta.metadata import DEFAULT_EXPRESSION
from mergerepl.delta.tables import TableState
from mergerepl.delta.types import Field, ddl_of
from mergerepl.tracking.row_keys import LONGEST

_NO_RULES = "Lift these, or track another table."

_UNWRITABLE: Texts = {
    Code.APPEND_ONLY: ("it takes no updates and deletes (delta.appendOnly)", "Unset the property first."),
    Code.BACKTICK: (
        "Delta's MERGE cannot write column '{column}': its name has a backtick",
        "Rename the column.",
    ),
    **dict.fromkeys(
        (Code.GENERATED, Code.IDENTITY),
        ("Delta computes column '{column}' itself", "Make it an ordinary column."),
    ),
    Code.INNER_RULE: ("column '{column}' has NOT NULL parts or an invariant", _NO_RULES),
    Code.INNER_LENGTH: ("column '{column}' has char or varchar inside", _NO_RULES),
}


def broken_rules(facts: TableState, key: Sequence[str], is_there: Column) -> dict[str, Column]:
    """Return the broken rules of a table: text to condition, on columns by their own names, for rows that exist."""
    names = [field["name"] for field in facts.fields]
    # A value of another partition column that Delta stores as NULL is NULL from then on.
    rules = value_rules(facts, names) | partition_rules(facts, key)
    return {f"rows break the {name}": is_there & ~rule for name, rule in rules.items()}


def unwritable(facts: TableState) -> Problem | None:
    """Return why transactions cannot write a table and the remedy, None if they can."""
    return TableContract(facts).explain(_UNWRITABLE)


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
