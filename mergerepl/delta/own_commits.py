"""Commits to system tables in a store, by two PUTs: the rows, and the commit under a condition.

delta-rs needs 7 to 11 requests for the same append (measured). Only plain tables of ours are committed to in this way:
protocol 1 and 2, no partitions. A commit becomes version n + 1 of the version n that it was made for, or nothing.
"""

import json
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mergerepl.delta.fences import version_at
from mergerepl.delta.log import log_path
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import TableState
from mergerepl.errors import CommitConflictError
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local, storage

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_WRITER = 2


def is_committed_here(state: TableState) -> bool:
    """Whether this module commits to a table: a plain one in a store."""
    is_plain = state.writer_version <= _MOST_WRITER and not state.features
    return not is_local(state.path) and is_plain and not state.metadata.partition_columns


def put_rows(table: Location, rows: "pa.Table") -> tuple[Location, int]:
    """Write rows to a new file of a table; return its place and its size. It belongs to the table once it is committed."""
    import pyarrow.parquet as pq

    at, written = table / f"part-00000-{uuid4()}-c000.snappy.parquet", BytesIO()
    pq.write_table(rows, written)
    storage(at).put(at, written.getvalue())
    return at, written.tell()


def commit_files(
    state: TableState,
    files: Mapping[Location, tuple[int, Mapping[str, Any]]],
    *,
    mark: CommitMark | None = None,
    once: tuple[str, int] | None = None,
    is_overwrite: bool = False,
) -> int:
    """Commit files, each with its size and statistics, as the next version; return it.

    `once` is a Delta transaction: its application and number. `is_overwrite`: all files of the table are removed.

    Raises: CommitConflictError if the table has that version already.
    """
    now = int(time.time() * 1000)
    info: dict[str, Any] = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Overwrite" if is_overwrite else "Append", "partitionBy": "[]"},
        "readVersion": state.version,
        "isBlindAppend": not is_overwrite,
        "engineInfo": "mergerepl",
        # No two commits have the same bytes.
        "txnId": str(uuid4()),
    }
    if mark is not None:
        info["userMetadata"] = mark.to_user_metadata()
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    if once is not None:
        version = version_at(once[1], state.path)
        actions.append({"txn": {"appId": once[0], "version": version, "lastUpdated": now}})
    if is_overwrite:
        for each in state.files(with_bounds=False).select(["path", "size_bytes"]).to_pylist():
            removed = {"path": each["path"], "deletionTimestamp": now, "dataChange": True}
            actions.append({"remove": {**removed, "extendedFileMetadata": True, "size": each["size_bytes"]}})
            actions[-1]["remove"]["partitionValues"] = {}
    for file, (size, statistics) in files.items():
        added = {"path": file.name, "partitionValues": {}, "size": size, "modificationTime": now}
        actions.append({"add": {**added, "dataChange": True, "stats": json.dumps(statistics)}})
    _put(state, actions)
    return state.version + 1


def _put(state: TableState, actions: Sequence[Mapping[str, Any]]) -> None:
    at = log_path(state.path, state.version + 1)
    text = "\n".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    with state.writing():
        try:
            storage(at).put_if_absent(at, f"{text}\n".encode())
        except FileExistsError as error:
            raise CommitConflictError(
                f"Another agent wrote to '{state.path}' at the same time. Nothing was committed. Run again: what was "
                "staged is finished first.",
                table=str(state.path),
            ) from error
