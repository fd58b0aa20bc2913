"""Add columns to a system table."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mergerepl.delta.create import NewTable, features_of
from mergerepl.delta.table import open_table
from mergerepl.delta.types import Field, ddl_of
from mergerepl.rows.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_columns(spark_of: "Callable[[], SparkSession]", path: Path, columns: Sequence[Field]) -> None:
    """Add columns at a table's end: by delta-rs, in milliseconds, unless they need a table feature that is not there."""
    if not columns:
        return
    state = open_table(path)
    features = set(features_of(NewTable(columns))) - state.features
    if not features:
        from deltalake import Field as LogField

        state.log.alter.add_columns([LogField.from_json(json.dumps(column)) for column in columns])
        return
    # Delta adds a type that needs a table feature only where the feature was asked for.
    pairs = ", ".join(f"'delta.feature.{name}' = 'supported'" for name in sorted(features))
    named = ", ".join(f"{quote(column['name'])} {ddl_of(column['type'])}" for column in columns)
    spark_of().sql(f"ALTER TABLE delta.{quote(str(path))} SET TBLPROPERTIES ({pairs})")
    spark_of().sql(f"ALTER TABLE delta.{quote(str(path))} ADD COLUMNS ({named})")
