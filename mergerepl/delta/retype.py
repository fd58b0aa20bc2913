"""Rewriting a table of ours with other column types."""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.add_columns import state_features
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction, marked_session, read_back
from mergerepl.delta.types import ddl_of
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
    state_features(lambda: new_session(spark), state, types.values())
    session = marked_session(spark, transaction)
    rows = session.read.format("delta").option("versionAsOf", state.version).load(str(table))

    def column(name: str) -> Column:
        value = F.col(quote(name))
        return value.cast(types[name]).alias(name) if name in types else value

    writer = rows.select(*(column(name) for name in rows.columns)).write.format("delta")
    writer.mode("overwrite").option("overwriteSchema", "true").save(str(table))
    read_back(table, transaction, from_version_exclusive=state.version)
