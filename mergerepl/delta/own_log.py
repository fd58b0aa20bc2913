"""Logs of system tables, read by this process and kept.

To open a table in a store, delta-rs reads each commit since the last checkpoint twice, and once more for each question
about a transaction. Only the holder of a root's register commits there. So it reads such a log once, and its own commits
move it on without a request. In a folder, a log that is kept is read on from there while its last commit is the same file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mergerepl.delta.known_heads import line_of
from mergerepl.delta.log import (
    LOG_FOLDER,
    actions_of,
    as_seen,
    has_commit,
    is_without_checkpoint,
    last_version,
    log_actions,
)
from mergerepl.delta.parquet_files import may_hold, parquet_source
from mergerepl.roots import SYSTEM_FOLDERS
from mergerepl.store.location import Location
from mergerepl.store.register import registers_above
from mergerepl.store.rehearsal import worker_threads
from mergerepl.store.storage import is_local, put_text, read_text, scratch_files, source_of, storage

if TYPE_CHECKING:
    import pyarrow as pa

    from mergerepl.store.register import Line

PLAIN_WRITER = 2
"""The writer version of a table that this process commits to by itself, if it lists no features."""

_AT_ONCE = 8
_KINDS = ("protocol", "metaData", "txn", "add")
"""The actions of a checkpoint that describe the table. Ours has no removed files: no VACUUM of ours asks for them."""

_RESTRICTIONS = ("delta.invariants", '"nullable":false')
"""Words in the columns of a table whose writer has to check rows."""

_MOST_BYTES = 8 << 20

_MOST_COPIED_BYTES = 8 << 20
"""The largest table that is copied for a query: delta-rs reads only the columns and files that a query needs."""


@dataclass(frozen=True)
class OwnLog:
    """The contents of a log at a version: its actions protocol and metaData, the last `txn` of each application, and the
    files that it has (`add`), by path.
    """

    version: int = -1
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    transactions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_plain(self) -> bool:
        """True if a writer that fulfils the first two protocols may append to the table, and replace its rows.

        Its files hold exactly its rows, in all columns.
        """
        if not self.protocol or not self.metadata or self.metadata.get("partitionColumns"):
            return False
        stated = self.protocol
        is_old = stated["minReaderVersion"] <= 1 and stated["minWriterVersion"] <= PLAIN_WRITER
        is_append_only = (self.metadata.get("configuration") or {}).get("delta.appendOnly", "") == "true"
        restricted = any(each in self.metadata["schemaString"] for each in _RESTRICTIONS)
        return is_old and not is_append_only and not restricted

    def moved(self, version: int, actions: Iterable[Mapping[str, Any]]) -> OwnLog:
        """Return the log after a commit."""
        protocol, metadata = self.protocol, self.metadata
        transactions, files = dict(self.transactions), dict(self.files)
        for action in actions:
            protocol = action.get("protocol") or protocol
            metadata = action.get("metaData") or metadata
            if done := action.get("txn"):
                transactions[done["appId"]] = done
            if gone := action.get("remove"):
                files.pop(gone["path"], None)
            if added := action.get("add"):
                files[added["path"]] = added
        return OwnLog(version, protocol, metadata, transactions, files)

    def file_table(self) -> pa.Table:
        """Return the files as delta-rs does: path, size_bytes, num_records, min.<column> and max.<column>."""
        import pyarrow as pa

        rows = [_file_row(path, added) for path, added in self.files.items()]
        names = dict.fromkeys(["path", "size_bytes", "num_records", *(name for row in rows for name in row)])
        columns = {}
        for name in names:
            try:
                columns[name] = pa.array([row.get(name) for row in rows])
            except (pa.ArrowException, OverflowError):
                # Spark states long decimals as numbers, and NaN as a text: such a column has no bounds here.
                continue
        return pa.table(columns)


def _file_row(path: str, added: Mapping[str, Any]) -> dict[str, Any]:
    stated = json.loads(added.get("stats") or "{}")
    row = {"path": path, "size_bytes": added["size"], "num_records": stated.get("numRecords")}
    for end in ("min", "max"):
        bounds = stated.get(f"{end}Values") or {}
        row |= {f"{end}.{n}": each for n, each in bounds.items() if not isinstance(each, dict | list)}
    return row


_logs: dict[Location, tuple[Line, OwnLog]] = {}

_MOST_LOGS = 1000
_logs_in_folders: dict[Location, tuple[list[Any], OwnLog]] = {}
"""A system table in a folder -> the value of `as_seen` at a version, and the log. The last one used comes last."""

_transactions: dict[Location, tuple[list[Any] | None, OwnLog]] = {}
"""A user's table -> the value of `as_seen` at a version, and the transactions until then. The last one used comes last."""


def log_of(table: Location, version: int) -> OwnLog | None:
    """Return the log of a system table at a version; None if delta-rs has to read it.

    In a store that is if this process is not the one that writes.
    """
    if is_local(table):
        return _log_in_folder(table, version)
    if (line := line_of(table)) is None:
        return None
    kept = _logs.get(table)
    try:
        if kept is not None and kept[0] is line and kept[1].version <= version:
            found = kept[1]
        else:
            found = _last_checkpoint(table)
        found = _moved_to(table, version, found)
    except (FileNotFoundError, ValueError, KeyError):
        # delta-rs names what is wrong with it.
        return None
    if not found.protocol or not found.metadata:
        return None
    _logs[table] = line, found
    return found


def _log_in_folder(table: Location, version: int) -> OwnLog | None:
    """Return the log of a system table in a folder, as `log_of` does.

    Without Arrow, delta-rs reads it: to load Arrow takes longer than the few tables that such a command looks at.
    """
    if table.parent.name not in SYSTEM_FOLDERS or "pyarrow" not in sys.modules:
        return None
    try:
        seen, found = _logs_in_folders.pop(table, (None, OwnLog()))
        # A commit before the last checkpoint may have expired.
        is_there = 0 <= found.version <= version and has_commit(table, found.version)
        if not is_there or as_seen(table, found.version) != seen:
            found = _last_checkpoint(table)
        # Taken before the log is read: a file that is replaced at that moment is noticed next time.
        seen = as_seen(table, version)
        found = _moved_to(table, version, found)
    except (OSError, ValueError, KeyError):
        # delta-rs names what is wrong with it.
        return None
    if not found.is_plain:
        return None
    _logs_in_folders[table] = seen, found
    while len(_logs_in_folders) > _MOST_LOGS:
        _logs_in_folders.pop(next(iter(_logs_in_folders)), None)
    return found


def transactions_of(table: Location, version: int) -> Mapping[str, Any] | None:
    """Return the last `txn` of each application in a table at a version; None if delta-rs has to read them.

    While a root in a store is held, the log of a user's table is read for it once, and then only new commits. The next
    session of this process goes on from there, if that commit is still the same.
    """
    if line_of(table) is not None:
        return None if (own := log_of(table, version)) is None else own.transactions
    return None if (found := users_log(table, version)) is None else found.transactions


def users_log(table: Location, version: int) -> OwnLog | None:
    """Return the log of a user's table in a store at a version, without its files; None if delta-rs has to read it.

    Its root is held. The log is read once, and then only its new commits, also by the next session of this process.
    """
    if not registers_above(table):
        return None
    try:
        seen, found = _transactions.pop(table, (None, OwnLog()))
        if seen is None or found.version > version or as_seen(table, found.version) != seen:
            found = _last_checkpoint(table, ("protocol", "metaData", "txn"))
        found = _moved_to(table, version, found)
        found = OwnLog(version, found.protocol, found.metadata, found.transactions)
        _transactions[table] = as_seen(table, version), found
    except (FileNotFoundError, ValueError, KeyError):
        return None
    while len(_transactions) > _MOST_LOGS:
        del _transactions[next(iter(_transactions))]
    return found


def _moved_to(table: Location, version: int, log: OwnLog) -> OwnLog:
    """Return a log after the commits up to a version.

    Raises: ValueError if it is beyond; FileNotFoundError if a commit is gone.
    """
    if log.version > version:
        raise ValueError(f"version {version} is before the one that is known")
    wanted = range(log.version + 1, version + 1)
    if len(wanted) <= 1 or is_local(table):
        for at in wanted:
            log = log.moved(at, log_actions(table, at))
        return log
    with worker_threads(_AT_ONCE) as pool:
        for at, read in [(each, pool.submit(log_actions, table, each)) for each in wanted]:
            log = log.moved(at, read.result())
    return log


def checkpoint_version(table: Location) -> int:
    """Return the version of a table's last checkpoint, -1 without one that `_last_checkpoint` names."""
    try:
        (about,) = actions_of(read_text(table / LOG_FOLDER / "_last_checkpoint") or "")
        return int(about["version"])
    except (OSError, ValueError, KeyError):
        return -1


def log_read_here(table: Location, version: int) -> OwnLog | None:
    """Return the log of a plain table at a version; None if only delta-rs can read it, or write its checkpoint."""
    try:
        found = _moved_to(table, version, _last_checkpoint(table))
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return found if found.is_plain else None


@contextmanager
def own_copy(
    table: Location, bounds: Mapping[str, tuple[int | None, int | None]] = MappingProxyType({})
) -> Iterator[tuple[int, Location] | None]:
    """Give the version of a system table, and a copy of it on this machine; None if delta-rs has to read it in the store.

    Files that hold no row within the bounds are left out. This process keeps the files that it wrote or read. From the
    store, delta-rs reads the log, then two parts of each file.
    """
    found = None
    if line_of(table) is not None and (version := last_version(table)) is not None:
        found = log_of(table, version)
    known = {} if found is None else found.files
    adds = {path: each for path, each in known.items() if may_hold(_file_row(path, each), bounds)}
    is_large = sum(each["size"] for each in adds.values()) > _MOST_COPIED_BYTES
    if found is None or is_large or any(each.get("deletionVector") for each in adds.values()):
        yield None
        return
    with worker_threads(_AT_ONCE) as pool:
        files = {path: pool.submit(source_of, table / unquote(path)) for path in adds}
        contents = {unquote(path): read.result() for path, read in files.items()}
    actions = [{"protocol": found.protocol}, {"metaData": found.metadata}]
    actions += [{"add": each} for each in adds.values()]
    first = "\n".join(json.dumps(each) for each in actions)
    with scratch_files({**contents, f"{LOG_FOLDER}/{0:020}.json": first.encode()}) as folder:
        yield found.version, folder


def last_transaction(transactions: Mapping[str, Any], app_id: str) -> int:
    """Return the version of the last transaction of an application, or -1."""
    return int(transactions[app_id]["version"]) if app_id in transactions else -1


def note_commit(table: Location, version: int, actions: Iterable[Mapping[str, Any]]) -> None:
    """Note a commit of this process to a table in a store. In a folder, Spark could overwrite it: its file is read."""
    kept = _logs.get(table)
    if kept is not None and kept[0] is line_of(table) and kept[1].version == version - 1:
        _logs[table] = kept[0], kept[1].moved(version, actions)


def known_log(table: Location) -> OwnLog | None:
    """Return the log of a system table as far as this process knows it; None if it does not hold the table's root."""
    kept = _logs.get(table)
    return kept[1] if kept is not None and kept[0] is line_of(table) else None


def adopt_log(table: Location, own: OwnLog) -> None:
    """Note a log that is known without reading it."""
    if (line := line_of(table)) is not None:
        _logs[table] = line, own


def known_transactions(root: Location) -> dict[Location, tuple[list[Any] | None, OwnLog]]:
    """Return what this process knows of the logs of users' tables below a root, as `adopt_transactions` takes it."""
    return {table: known for table, known in _transactions.items() if table.is_below(root)}


def adopt_transactions(table: Location, seen: list[Any], own: OwnLog) -> None:
    """Note the log of a user's table, without its files, at the version of an `as_seen`, which is compared at its use."""
    _transactions.setdefault(table, (seen, own))


def forget_log(table: Location) -> None:
    """Forget a log: another table comes in its place."""
    _logs.pop(table, None)


def _last_checkpoint(table: Location, kinds: Sequence[str] = _KINDS) -> OwnLog:
    """Return the log at its last checkpoint; an empty one before the first.

    Raises: FileNotFoundError, ValueError, KeyError if only delta-rs can read it.
    """
    folder = table / LOG_FOLDER
    if is_without_checkpoint(table) or (stated := read_text(folder / "_last_checkpoint")) is None:
        return OwnLog()
    (about,) = actions_of(stated)
    if about.get("parts") or about.get("v2Checkpoint") or about.get("sizeInBytes", 0) > _MOST_BYTES:
        raise ValueError("a checkpoint that is large, or of several files")
    import pyarrow.parquet as pq

    version = int(about["version"])
    file = pq.ParquetFile(parquet_source(folder / f"{version:020}.checkpoint.parquet"))
    types = {each.name: each.type for each in file.schema_arrow}
    names = [name for name in kinds if name in types]
    actions = [
        {kind: _plain(value, types[kind]) for kind, value in row.items() if value is not None}
        for row in file.read(names).to_pylist()
    ]
    return OwnLog().moved(version, actions)


def write_checkpoint(table: Location, log: OwnLog) -> None:
    """Write a checkpoint of a table of protocol 1 and 2, without partitions, by two PUTs; delta-rs reads the log for it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    actions = [{"protocol": log.protocol}, {"metaData": log.metadata}]
    actions += [{"txn": each} for each in log.transactions.values()]
    actions += [{"add": each} for each in log.files.values()]
    schema = _checkpoint_schema()
    rows = [
        {kind: _of_type(value, schema.field(kind).type) for kind, value in each.items()} for each in actions
    ]
    written = BytesIO()
    # Some rows of many columns: all else that Arrow would write of them is twice as large as they are.
    found = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(found, written, write_statistics=False, use_dictionary=False, store_schema=False)
    folder = table / LOG_FOLDER
    storage(folder).put(folder / f"{log.version:020}.checkpoint.parquet", written.getvalue())
    about = {
        "version": log.version,
        "size": len(rows),
        "sizeInBytes": written.tell(),
        "numOfAddFiles": len(log.files),
    }
    put_text(folder / "_last_checkpoint", json.dumps(about))


def _checkpoint_schema() -> pa.Schema:
    import pyarrow as pa

    texts, long, text = pa.map_(pa.string(), pa.string()), pa.int64(), pa.string()
    file = [("path", text), ("partitionValues", texts), ("size", long), ("dataChange", pa.bool_())]
    metadata = [("id", text), ("name", text), ("description", text)]
    metadata += [("format", pa.struct([("provider", text), ("options", texts)])), ("schemaString", text)]
    metadata += [("partitionColumns", pa.list_(text)), ("configuration", texts), ("createdTime", long)]
    kinds = {
        "txn": [("appId", text), ("version", long), ("lastUpdated", long)],
        "add": [*file, ("modificationTime", long), ("stats", text), ("tags", texts)],
        "metaData": metadata,
        "protocol": [("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())],
    }
    return pa.schema([(kind, pa.struct(fields)) for kind, fields in kinds.items()])


def _of_type(value: Any, type_: pa.DataType) -> Any:
    """Return a value of an action as Arrow takes it: maps as lists of pairs."""
    import pyarrow as pa

    if pa.types.is_map(type_):
        return None if value is None else list(value.items())
    if pa.types.is_struct(type_) and value is not None:
        return {each.name: _of_type(value.get(each.name), each.type) for each in type_}
    return value


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Return a value of an action as a commit writes it: Arrow gives maps as lists of pairs, and absent fields as NULL."""
    import pyarrow as pa

    if pa.types.is_map(type_):
        return dict(value)
    if pa.types.is_struct(type_):
        fields = {each.name: each.type for each in type_}
        return {name: _plain(each, fields[name]) for name, each in value.items() if each is not None}
    return value
