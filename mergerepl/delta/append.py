"""Append rows to a user's table through Spark, once."""

from pathlib import Path

from pyspark.sql import DataFrame

from mergerepl.delta.add_files import add_files
from mergerepl.delta.log import head_version
from mergerepl.delta.table import open_table
from mergerepl.delta.transactions import Transaction, is_done, transaction_version, write_once
from mergerepl.spark.session import with_write_confs


def append(rows: DataFrame, table: Path, transaction: Transaction) -> None:
    """Append rows once; without effect if the table holds the transaction already.

    Raises: CommitConflictError if the commit is not in the log afterwards (another process overwrote it).
    """
    if transaction_version(table, transaction.app_id) >= transaction.version:
        return
    head = head_version(table)
    write_once(with_write_confs(rows).write.format("delta").mode("append"), table, transaction, head=head)


def commit_transaction(table: Path, transaction: Transaction) -> None:
    """Commit a transaction that changes no row; without effect if the table holds it already.

    Raises: CommitConflictError if the commit is not in the log afterwards (another process overwrote it).
    """
    state = open_table(table)
    if not is_done(state, transaction):
        add_files(state, {}, transaction)
