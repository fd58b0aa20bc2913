"""Copy one version of a table into a new, empty one: the rows a subscriber begins with."""

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.append import append
from mergerepl.delta.log import find_own_commit
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
) -> int:
    """Append columns of a version to a table, in one job and one marked commit; return its version.

    Raises: StoreError if the commit is not in the log afterwards.
    """
    rows = read_version(spark, source, version).select(*(F.col(quote(name)) for name in columns))
    if partition_columns:
        # Each task would write a file for each partition it meets. An unpartitioned table keeps its order of
        # rows, and with it the ranges that prune its files.
        rows = rows.hint("rebalance", *(F.col(quote(name)) for name in partition_columns))
    append(rows, target, transaction)
    commit = find_own_commit(target, transaction.mark, from_version_exclusive=0)
    assert commit is not None
    return commit.version
