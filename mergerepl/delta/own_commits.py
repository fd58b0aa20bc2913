"""Commits to system tables, in a store by two PUTs: the rows, and the commit under a condition.

delta-rs needs 7 to 11 requests for the same append, and in a folder several times as long (measured). Only plain tables of
ours are committed to in this way: protocol 1 and 2, no partitions. A commit becomes version n + 1 of the version n that it
was made for, or nothing.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from mergerepl.delta.fences import version_at
from mergerepl.delta.footers import commit_statistics
from mergerepl.delta.known_heads import note_head, note_seen
from mergerepl.delta.log import head_version, last_version, log_actions, log_path, note_log_file
from mergerepl.delta.marks import BOOKKEEPING, CommitMark
from mergerepl.delta.own_log import PLAIN_WRITER, note_commit
from mergerepl.delta.own_state import OwnState
from mergerepl.delta.parquet_files import parquet_source
from mergerepl.delta.table import TableState, open_table
from mergerepl.errors import CommitConflictError, StoreError
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local, put_commit, put_once_written

if TYPE_CHECKING:
    import pyarrow as pa

_ENGINE = "mergerepl"
_PLAIN_ACTIONS = {"commitInfo", "protocol", "metaData", "txn", "add", "remove"}
_COMMITS_OF_DELTA_RS = 10
"""The checkpoint interval of system tables is a multiple of it."""

_COMMITS_OF_CHECKPOINT = 4
"""A new process reads each commit since the last checkpoint of some ten tables; two PUTs write one."""


def last_overwrite(table: Location) -> "tuple[int, list[pa.Table]] | None":
    """Return the head of a system table, and the rows of its files, if its last commit alone states them.

    These are commits that replaced all rows, or that made the table. None for another table, which delta-rs reads: it
    takes 8 ms to open and query a table of one file, ten times as long (measured).
    """
    if is_local(table):
        return _last_local_overwrite(table)
    version = last_version(table)
    if version is None:
        return None
    changed = version
    actions = log_actions(table, changed)
    while changed > 0 and not any({"add", "remove"} & action.keys() for action in actions):
        # A fence.
        changed -= 1
        actions = log_actions(table, changed)
    info = _info_of(actions)
    replaces = info.get("operationParameters", {}).get("mode") == "Overwrite" or changed == 0
    if not replaces or info.get("engineInfo") != _ENGINE:
        return None
    return version, _added_rows(table, actions)


def _last_local_overwrite(table: Location) -> "tuple[int, list[pa.Table]] | None":
    """Return the head of a system table in a folder and its rows, if we replaced them all in its last commit, or the table
    was made without rows.

    None for any other table, and for a damaged one: delta-rs names the damage. Loading Arrow takes longer than delta-rs
    for the few tables that a command looks at, so delta-rs reads them where Arrow is not loaded.
    """
    if "pyarrow" not in sys.modules:
        return None
    import pyarrow as pa

    try:
        version = head_version(table)
        actions = log_actions(table, version)
        info = _info_of(actions)
        is_ours = CommitMark.of_user_metadata(info.get("userMetadata")) == BOOKKEEPING
        is_overwrite = info.get("operationParameters", {}).get("mode") == "Overwrite"
        is_plain = is_ours and is_overwrite and all(action.keys() <= _PLAIN_ACTIONS for action in actions)
        is_created = version == 0 and info.get("engineInfo") == _ENGINE
        if not (is_created or is_plain):
            return None
        return version, _added_rows(table, actions)
    except (StoreError, OSError, ValueError, pa.ArrowException):
        return None


def _info_of(actions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _added_rows(table: Location, actions: Sequence[Mapping[str, Any]]) -> "list[pa.Table]":
    import pyarrow.parquet as pq

    found = []
    for file in [action["add"]["path"] for action in actions if "add" in action]:
        with pq.ParquetFile(parquet_source(table / file)) as opened:
            found.append(opened.read())
    return found


def is_committed_here(state: TableState) -> bool:
    """Whether this module makes the next commit to a table: a plain one in a store, or a plain system table in a folder.

    In a folder delta-rs makes each tenth commit, and removes expired log files. The checkpoint is due then.
    """
    if is_local(state.path):
        return isinstance(state, OwnState) and (state.version + 2) % _COMMITS_OF_DELTA_RS != 0
    is_plain = state.writer_version <= PLAIN_WRITER and not state.features
    return is_plain and not state.metadata.partition_columns


def put_rows(table: Location, rows: "pa.Table") -> dict[Location, tuple[int, dict[str, Any]]]:
    """Write rows to a new file of a table; return it with its size and statistics, for `commit_files`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    at, written = table / f"part-00000-{uuid4()}-c000.snappy.parquet", BytesIO()
    footers: list[pq.FileMetaData] = []
    pq.write_table(rows, written, metadata_collector=footers)
    put_once_written(at, written.getvalue(), is_durable=False)
    bounded = [
        each.name for each in rows.schema if pa.types.is_int64(each.type) or pa.types.is_string(each.type)
    ]
    return {at: (written.tell(), commit_statistics(footers[0], bounded))}


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
        "engineInfo": _ENGINE,
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
        for path, size in _files_of(state):
            removed = {"path": path, "deletionTimestamp": now, "dataChange": True}
            removed |= {"extendedFileMetadata": True, "size": size, "partitionValues": {}}
            actions.append({"remove": removed})
    for file, (size, statistics) in files.items():
        added = {"path": file.name, "partitionValues": {}, "size": size, "modificationTime": now}
        actions.append({"add": {**added, "dataChange": True, "stats": json.dumps(statistics)}})
    _put(state, actions)
    return state.version + 1


def other_commit(table: Location) -> CommitConflictError:
    """Return the error of a commit that another one came before."""
    return CommitConflictError(
        f"Another agent wrote to '{table}' at the same time. Nothing was committed. Run again: what was staged is finished "
        "first.",
        table=str(table),
    )


def _files_of(state: TableState) -> list[tuple[str, int]]:
    if isinstance(state, OwnState):
        return [(path, added["size"]) for path, added in state.own.files.items()]
    files = state.files(with_bounds=False).select(["path", "size_bytes"]).to_pylist()
    return [(each["path"], each["size_bytes"]) for each in files]


def _put(state: TableState, actions: Sequence[Mapping[str, Any]]) -> None:
    at = log_path(state.path, state.version + 1)
    text = "\n".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions)
    data = f"{text}\n".encode()
    with state.committing():
        try:
            tag = put_commit(at, data)
        except FileExistsError as error:
            raise other_commit(state.path) from error
    version = state.version + 1
    note_head(state.path, version)
    note_seen(state.path, version, [str(state.path), version, len(data), 0, tag])
    note_commit(state.path, version, actions)
    if is_local(state.path):
        return
    note_log_file(state.path, version, data)
    # Tables take turns, by the lengths of their names: a session commits to some ten.
    if (version + len(state.path.prefix)) % _COMMITS_OF_CHECKPOINT == 0:
        open_table(state.path, version).checkpoint()
