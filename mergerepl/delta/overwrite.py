"""Replace all rows of a user's table through Spark, in one commit: readers never see it empty."""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame

from mergerepl.delta.add_columns import state_features
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction, write_once
from mergerepl.delta.types import ddl_of
from mergerepl.spark.session import with_write_confs


def overwrite(
    rows: DataFrame,
    table: Path,
    transaction: Transaction,
    *,
    partition_columns: Sequence[str],
    keeps_columns: bool = False,
) -> int:
    """Make `rows` the content of a table, once. Its columns and partitions become those of the rows where they are others.

    `keeps_columns`: a table that can take the rows keeps its other columns and its partitions.

    Returns: The version of the commit.

    Raises: CommitConflictError if the commit is not in the log afterwards (another process overwrote it).
    """
    state = open_table(table)
    present = {each["name"]: ddl_of(each["type"]) for each in state.fields}
    wanted = {each.name: ddl_of(each.jsonValue()["type"]) for each in rows.schema}
    writer = with_write_confs(rows).write.format("delta").mode("overwrite")
    is_taken = (
        keeps_columns and wanted.items() <= present.items() and wanted.keys() <= {*state.written_columns}
    )
    is_same = present == wanted and list(state.metadata.partition_columns) == list(partition_columns)
    if not is_taken and not is_same:
        # Delta refuses an overwrite with a column type whose table feature is missing.
        state_features(lambda: rows.sparkSession, state, wanted.values())
        writer = writer.option("overwriteSchema", "true").partitionBy(*partition_columns)
    return write_once(writer, table, transaction, head=state.version).version
