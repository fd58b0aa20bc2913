"""The reasons for which a column of a table cannot get a wider type, each with its remedy. Pure on the metadata."""

import re

from mergerepl.delta.metadata import CONSTRAINT_PREFIX, WIDENING_PROPERTY
from mergerepl.delta.tables import TableState, missing_features
from mergerepl.delta.types import field, is_widening, json_of
from mergerepl.rows.sql import quote


def fixed_type(
    table: TableState, name: str, has: str, wanted: str, *, again: str = "`mergerepl sync`"
) -> str | None:
    """Return the reason for which a column cannot get a type, with its remedy; None if it can.

    `again` is the command to run after the remedy.
    """
    text_of_table = f"delta.{quote(str(table.path))}"
    if not is_widening(has, wanted):
        return (
            f"it is {has.upper()} in table '{table.path}'. Take that back there with RESTORE TABLE, which takes "
            f"back all later changes of the table, too, then run {again} again"
        )
    properties = {} if table.widens_types else {WIDENING_PROPERTY: "true"}
    for feature in missing_features(table, [field(name, json_of(wanted))]):
        properties[f"delta.feature.{feature}"] = "supported"
    if properties:
        pairs = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        return (
            f"table '{table.path}' keeps its types. Run ALTER TABLE {text_of_table} SET TBLPROPERTIES ({pairs}), after "
            f"which deltalake cannot write it, then run {again} again"
        )
    if name in table.metadata.partition_columns:
        return (
            f"table '{table.path}' is partitioned by it. Replace the table by one with that type (CREATE OR "
            f"REPLACE TABLE … AS SELECT), then run {again} again"
        )
    named = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
    for property_, text in table.properties.items():
        if property_.startswith(CONSTRAINT_PREFIX) and named.search(text):
            constraint = property_.removeprefix(CONSTRAINT_PREFIX)
            return (
                f"constraint {constraint} of table '{table.path}' names it, CHECK ({text}). Run ALTER TABLE "
                f"{text_of_table} DROP CONSTRAINT {quote(constraint)}, then run {again} again, then add it again"
            )
    for computed, text in table.generated_columns.items():
        if named.search(text):
            return (
                f"column '{computed}' of table '{table.path}' is computed from it, as ({text}): Delta gives it no "
                f"other type. Replace the table by one without that column, then run {again} again"
            )
    return None
