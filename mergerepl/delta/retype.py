"""Rewriting a table of ours with other column types."""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.overwrite import overwrite
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.types import ddl_of
from mergerepl.delta.versions import read_version
from mergerepl.rows.sql import quote
from mergerepl.spark.session import new_session


def with_types(spark: SparkSession, table: Path, types: Mapping[str, str], transaction: Transaction) -> None:
    """Give columns of a table other types (Spark DDL), in one marked commit that rewrites its rows; once.

    Not by Delta's type widening: that feature would lock delta-rs out. The caller knows that no value is lost.
    """
    state = open_table(table)
    present = {each["name"]: ddl_of(each["type"]) for each in state.fields}
    if all(present.get(name) == type_ for name, type_ in types.items()):
        return
    rows = read_version(new_session(spark), table, state.version)

    def column(name: str) -> Column:
        value = F.col(quote(name))
        return value.cast(types[name]).alias(name) if name in types else value

    rows = rows.select(*(column(name) for name in rows.columns))
    overwrite(rows, table, transaction, partition_columns=state.metadata.partition_columns)
