"""Add columns to a system table, and the table features that types of columns need."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mergerepl.delta.create import NewTable, features_of
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.types import Field, ddl_of, field, json_of
from mergerepl.rows.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_columns(spark_of: "Callable[[], SparkSession]", path: Path, columns: Sequence[Field]) -> None:
    """Add columns at a table's end: by delta-rs, in milliseconds, unless they need a table feature that is not there."""
    if not columns:
        return
    state = open_table(path)
    if not _missing_features(state, columns):
        from deltalake import Field as LogField

        with state.writing() as opened:
            opened.alter.add_columns([LogField.from_json(json.dumps(column)) for column in columns])
        return
    named = ", ".join(f"{quote(column['name'])} {ddl_of(column['type'])}" for column in columns)
    from mergerepl.spark.session import new_session

    # A commit changes a conf of its session.
    session = new_session(spark_of())
    state_features(lambda: session, state, (ddl_of(column["type"]) for column in columns))
    session.sql(f"ALTER TABLE delta.{quote(str(path))} ADD COLUMNS ({named})")


def state_features(spark_of: "Callable[[], SparkSession]", table: TableState, types: Iterable[str]) -> None:
    """State the features that a table lacks for columns of some types (Spark DDL): Delta adds them on request only."""
    missing = _missing_features(table, [field("c", json_of(type_)) for type_ in types])
    if missing:
        pairs = ", ".join(f"'delta.feature.{name}' = 'supported'" for name in missing)
        spark_of().sql(f"ALTER TABLE delta.{quote(str(table.path))} SET TBLPROPERTIES ({pairs})")


def _missing_features(table: TableState, columns: Sequence[Field]) -> list[str]:
    return sorted({*features_of(NewTable(columns))} - table.features)
