"""Rules of a table's columns beyond types and lengths, which Delta enforces whenever Spark writes a row.

These are NOT NULL inside of a column, and the older kind of constraint in a column's metadata (`delta.invariants`).
Other engines do not check them.
"""

from collections.abc import Collection

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from mergerepl.delta.table import TableState
from mergerepl.rows.not_null import holds_inside
from mergerepl.rows.sql import quote


def declared_rules(table: TableState, columns: Collection[str]) -> dict[str, Column]:
    """Return name -> condition: the rules of these columns of a table and all its invariants, on columns by their names."""
    rules: dict[str, Column] = {}
    for field in table.fields:
        if field["name"] not in columns:
            continue
        data_type = T.StructField.fromJson({**field, "metadata": {}}).dataType
        inside = holds_inside(F.col(quote(field["name"])), data_type)
        if inside is not None:
            rules[f"NOT NULL inside of column '{field['name']}'"] = inside
    for name, text in table.invariants.items():
        # Delta takes a row only if the condition is true. In SQL NULL passes, here it breaks the rule.
        rules[f"invariant of column '{name}' ({text})"] = F.coalesce(F.expr(text), F.lit(False))
    return rules
