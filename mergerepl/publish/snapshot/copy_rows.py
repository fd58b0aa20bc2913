"""Copy one version of a table into a new, empty one: a subscriber's first rows."""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import ROW
from mergerepl.delta.append import append
from mergerepl.delta.copy_files import copy_files
from mergerepl.delta.log import find_own_commit
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.versions import read_version
from mergerepl.rows.sql import quote


def copy_rows(
    spark: SparkSession,
    source: Path,
    version: int,
    target: Path,
    *,
    columns: Sequence[str],
    partition_columns: Sequence[str],
    transaction: Transaction,
    only: DataFrame | None = None,
) -> int:
    """Append columns of a version to an empty table, in one marked commit and at most one job; return its version.

    `only` (row images of these columns) are the rows of the version that are copied; None: all of them. A small table whose
    rows and columns are all copied is copied file by file.

    Raises: StoreError if the commit is not in the log afterwards.
    """
    if only is not None or not copy_files(open_table(source, version), target, transaction):
        if only is None:
            rows = read_version(spark, source, version).select(*(F.col(quote(name)) for name in columns))
        else:
            rows = only.select(*(F.col(f"{ROW}.c{i}").alias(name) for i, name in enumerate(columns)))
        append(by_partition(rows, partition_columns), target, transaction)
    commit = find_own_commit(target, transaction.mark, from_version_exclusive=0)
    assert commit is not None
    return commit.version


def by_partition(rows: DataFrame, partition_columns: Sequence[str]) -> DataFrame:
    """Return rows spread for a write to a table with these partitions: a task would write a file for each that it meets.

    Rows of an unpartitioned table keep their order, and with it the ranges that prune its files.
    """
    if not partition_columns:
        return rows
    return rows.hint("rebalance", *(F.col(quote(name)) for name in partition_columns))
