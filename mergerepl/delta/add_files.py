"""Commit files that stand in a table's folder already, by deltalake: one marked commit that happens once."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mergerepl.delta.table import TableState
from mergerepl.delta.transactions import Transaction, commit_properties, read_back


def add_files(state: TableState, files: Mapping[Path, Mapping[str, Any]], transaction: Transaction) -> None:
    """Add files to a table, each with its statistics; no files are a commit too.

    Raises: deltalake's CommitFailedError if the table does not take the commit; CommitConflictError if the commit is not
        in the log afterwards (another process overwrote it).
    """
    from deltalake.transaction import AddAction

    def added(file: Path, statistics: Mapping[str, Any]) -> AddAction:
        stat = file.stat()
        return AddAction(file.name, stat.st_size, {}, int(stat.st_mtime * 1000), True, json.dumps(statistics))

    with state.writing() as opened:
        opened.create_write_transaction(
            [added(*each) for each in files.items()],
            mode="append",
            schema=opened.schema(),
            commit_properties=commit_properties(transaction.mark, transaction),
        )
    read_back(state.path, transaction, from_version_exclusive=state.version)
