"""The rules of a table for its rows beyond their types. Delta refuses the whole commit of a row that breaks one."""

from collections.abc import Collection

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.delta.contract.declared_rules import declared_rules
from mergerepl.delta.contract.partition_texts import text_rules
from mergerepl.delta.contract.text_lengths import length_rules
from mergerepl.delta.metadata import CONSTRAINT_PREFIX
from mergerepl.delta.table import TableState
from mergerepl.rows.sql import quote


def table_rules(table: TableState, columns: Collection[str]) -> dict[str, Column]:
    """Return name -> condition: the rules of a table for rows with these columns, on columns by their own names."""
    rules = {
        # Delta takes a row only if the condition is true. In SQL NULL passes, here it breaks the rule.
        f"CHECK constraint '{key.removeprefix(CONSTRAINT_PREFIX)}' ({text})": F.coalesce(
            F.expr(text), F.lit(False)
        )
        for key, text in table.properties.items()
        if key.startswith(CONSTRAINT_PREFIX)
    }
    for name in columns:
        field = table.field(name)
        if field is not None and not field["nullable"]:
            rules[f"NOT NULL of column '{name}'"] = F.col(quote(name)).isNotNull()
    rules |= declared_rules(table, columns)
    return rules | length_rules(table, columns) | text_rules(table, columns)
