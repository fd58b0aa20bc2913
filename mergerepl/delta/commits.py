"""The commits of a Delta log: what each changed, who wrote it, whether it is ours. `log` finds and reads their files."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from mergerepl.delta.log import head_version, log_actions, log_path
from mergerepl.delta.marks import CommitMark, CommitUnit
from mergerepl.delta.metadata import TableMetadata
from mergerepl.errors import StoreError
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

_CODED_ALIKE = re.compile(r"[A-Za-z0-9_.=/-]*")
"""A path that is the same percent-encoded or not; a file with another path may have two names in a log."""

_VECTORS = "deletionVectors"

_ABSOLUTE_PATH = "p"
"""storageType of a deletion vector that is named by its full path."""

_DELTA_RS = "delta-rs"

_SPARK = "Apache-Spark"

_CHANGED_ROWS = (
    *("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    *("numUpdatedRows", "numDeletedRows"),
    *("num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted"),
    *("num_updated_rows", "num_deleted_rows", "num_added_rows"),
)

_REMOVED_FILES = ("numRemovedFiles", "num_removed_files")
"""Metrics of commits: the numbers of changed rows and of removed files, by Spark or delta-rs."""


class TruncatedLogError(StoreError):
    """A version's log file is gone: Delta removes old ones in time."""


@dataclass(frozen=True)
class Commit:
    """One version of a table: `data_change` is False for OPTIMIZE, property changes and the like."""

    version: int
    operation: str
    mark: CommitMark | None
    data_change: bool
    metadata: TableMetadata | None
    txns: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    foreign_added: tuple[str, ...] = ()
    """Files outside the table's folder that became part of it (a shallow clone, or a forged log)."""
    foreign_removed: tuple[str, ...] = ()
    has_vectors: bool = False
    """It names deletion vectors."""
    drops_vectors: bool = False
    """It states a protocol without them."""
    engine: str = ""
    restored_version: int | None = None
    """The version that a RESTORE went back to."""
    coded_added: tuple[str, ...] = ()
    """Files added to the table whose names libraries encode in different ways, such as `region=Île/…`."""
    coded_removed: tuple[str, ...] = ()
    made_at_ms: int = 0
    """Time of the commit in milliseconds since 1970, by its writer's clock."""
    in_commit_ms: int | None = None
    """Its in-commit timestamp in milliseconds since 1970: the time that Delta shows for tables with such timestamps."""
    file_bytes: int = 0
    """The size of the data files that it added and removed, as far as the commit states it."""
    replaces_rows: bool = False
    """It is an overwrite, of all rows or of some partitions, or it replaced the table."""
    replaces_table: bool = False
    """It is an overwrite of all rows, or it replaced the table."""
    unit: CommitUnit | None = None
    """The commits of several tables to which it belongs."""
    is_repetition: bool = False
    """It appends the files of an earlier commit again, which changes no row; `feed_window` looks."""

    @property
    def removes_by_own_names(self) -> bool:
        """True if it may name removed files otherwise than their writer did. Spark repeats the names that it read."""
        return bool(self.coded_removed) and not self.engine.startswith(_SPARK)

    @property
    def kind(self) -> str:
        """The kind of the commit's writer, from its mark; empty without a mark."""
        return self.mark.kind if self.mark is not None else ""

    @property
    def changed_rows(self) -> int | None:
        """The number of changed rows by the writer's count; None if the count is missing or incomplete.

        Rows that an overwrite removes are not counted.
        """
        is_write = self.operation == "WRITE"
        if is_write and any(self.metrics.get(name, "0") != "0" for name in _REMOVED_FILES):
            return None
        names = (*_CHANGED_ROWS, *(("numOutputRows",) if is_write else ()))
        counts = [self.metrics[name] for name in names if name in self.metrics]
        return sum(map(int, counts)) if counts and all(text.isdecimal() for text in counts) else None

    @property
    def merged_rows(self) -> tuple[int, int, int]:
        """Rows that a MERGE inserted, updated and deleted, by its writer's count."""
        inserted, updated, deleted = map(self._target_rows, ("inserted", "updated", "deleted"))
        return inserted, updated, deleted

    @property
    def copied_rows(self) -> int:
        """Rows that a MERGE rewrote unchanged because their files held changed rows; 0 if the commit does not state it."""
        return self._target_rows("copied")

    def _target_rows(self, kind: str) -> int:
        names = f"numTargetRows{kind.title()}", f"num_target_rows_{kind}"
        text = next((self.metrics[name] for name in names if name in self.metrics), "")
        return int(text) if text.isdecimal() else 0

    @property
    def has_untrue_feed(self) -> bool:
        """True if its change files may hold values other than the written ones: delta-rs computes an UPDATE twice.

        `random()` and `uuid()` then differ, and a zero that only changed its sign is left out. Before version 0.25
        delta-rs did so for a MERGE, too; an `engineInfo` of `delta-rs.…` (until 1.0) may be as old as that.
        """
        is_update = self.operation == "UPDATE" and self.engine.startswith(_DELTA_RS)
        return is_update or (self.operation == "MERGE" and self.engine.startswith("delta-rs."))


def commits(
    table: Location, *, from_version_exclusive: int, through_version_inclusive: int
) -> Iterator[Commit]:
    """Yield the commits of a version range in order.

    Raises: StoreError if a log file of the range is missing, empty or not JSON: a gap is never skipped.
    """
    for version in range(from_version_exclusive + 1, through_version_inclusive + 1):
        yield read_commit(table, version)


def read_commit(table: Location, version: int) -> Commit:
    """Return one commit.

    Raises: TruncatedLogError if its log file is gone; StoreError if it cannot be read, or is empty or not JSON.
    """
    file, facts = log_path(table, version).name, {"table": str(table), "version": version}
    what = f"Version {version} of '{table}'"
    try:
        actions = log_actions(table, version)
    except FileNotFoundError as error:
        gone = f"{what} is gone from its log ({file}): the log was truncated."
        raise TruncatedLogError(gone, **facts) from error
    except OSError as error:
        advice = "Check its permissions and the disk, then run again."
        raise StoreError(f"{what} cannot be read: {file}: {error.strerror}. {advice}", **facts) from error
    except ValueError as error:
        advice = "Restore the file, or the table, from a copy."
        raise StoreError(f"{what} cannot be read: {file} is damaged ({error}). {advice}", **facts) from error
    if not actions:
        raise StoreError(
            f"{what} is empty: {file} was not written to the end (power loss?). Remove the file if no reader has seen that "
            "version, or restore it from a copy.",
            **facts,
        )
    return _commit_of(table, version, actions)


def _commit_of(table: Location, version: int, actions: list[dict[str, Any]]) -> Commit:
    info: dict[str, Any] = {}
    metadata = None
    data_change = False
    txns: dict[str, int] = {}
    # By whether the file was removed.
    foreign: dict[bool, list[str]] = {False: [], True: []}
    coded: dict[bool, list[str]] = {False: [], True: []}
    has_vectors = drops_vectors = False
    file_bytes = 0
    for action in actions:
        if "commitInfo" in action:
            info = action["commitInfo"]
        elif "protocol" in action:
            drops_vectors = _VECTORS not in (action["protocol"].get("readerFeatures") or ())
        elif "metaData" in action:
            body = action["metaData"]
            metadata = TableMetadata(
                body["id"],
                body["schemaString"],
                body.get("configuration") or {},
                tuple(body.get("partitionColumns") or ()),
            )
        elif "txn" in action:
            txns[action["txn"]["appId"]] = int(action["txn"]["version"])
        else:
            file = action.get("add") or action.get("remove")
            data_change = data_change or "cdc" in action or bool(file and file.get("dataChange"))
            has_vectors = has_vectors or bool(file and file.get("deletionVector"))
            file_bytes += int((file or {}).get("size") or 0)
            if file and is_coded(name := str(file.get("path", ""))):
                coded["remove" in action].append(name)
            foreign["remove" in action] += (name for name in _files_of(action) if is_foreign(table, name))
    restored = str((info.get("operationParameters") or {}).get("version", ""))
    return Commit(
        version,
        str(info.get("operation", "")),
        CommitMark.of_user_metadata(info.get("userMetadata")),
        data_change,
        metadata,
        txns,
        {str(name): str(value) for name, value in (info.get("operationMetrics") or {}).items()},
        tuple(foreign[False]),
        tuple(foreign[True]),
        has_vectors,
        drops_vectors,
        _engine(info),
        int(restored) if info.get("operation") == "RESTORE" and restored.isdecimal() else None,
        tuple(coded[False]),
        tuple(coded[True]),
        int(info.get("timestamp") or 0),
        None if info.get("inCommitTimestamp") is None else int(info["inCommitTimestamp"]),
        file_bytes,
        _replaces_rows(info),
        _replaces_rows(info) and not _is_partial(info),
        CommitUnit.of_user_metadata(info.get("userMetadata")),
    )


def _replaces_rows(info: Mapping[str, Any]) -> bool:
    operation, parameters = str(info.get("operation", "")), info.get("operationParameters") or {}
    modes = {str(parameters.get(name, "")).lower() for name in ("mode", "outputMode")}
    return "REPLACE TABLE" in operation or operation == "CLONE" or bool(modes & {"overwrite", "complete"})


def _is_partial(info: Mapping[str, Any]) -> bool:
    """Whether an overwrite left rows alone: it has a predicate, or replaced the partitions that it wrote to."""
    parameters = info.get("operationParameters") or {}
    is_dynamic = str(parameters.get("isDynamicPartitionOverwrite", "")).lower() == "true"
    return is_dynamic or str(parameters.get("predicate") or "[]") != "[]"


def _engine(info: Mapping[str, Any]) -> str:
    """Return the writer of a commit. If a `clientVersion` of delta-rs is present, `engineInfo` is the caller's text."""
    client = str(info.get("clientVersion") or "")
    stated = str(info.get("engineInfo") or client)
    return client if client.startswith(_DELTA_RS) and not stated.startswith(_DELTA_RS) else stated


def _files_of(action: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths that an action names, as in the log: of a file, and of its deletion vector."""
    for kind in ("add", "remove", "cdc"):
        file = action.get(kind) or {}
        if "path" in file:
            yield str(file["path"])
        vector = file.get("deletionVector") or {}
        if vector.get("storageType") == _ABSOLUTE_PATH:
            yield str(vector["pathOrInlineDv"])


def is_coded(name: str) -> bool:
    """Whether libraries may write this path of a log in different ways."""
    return _CODED_ALIKE.fullmatch(name) is None


def is_foreign(table: Location, name: str) -> bool:
    """Whether a path of the log leads out of the table's folder."""
    if ":/" not in name and ".." not in name and "%" not in name and not name.startswith("/"):
        return False
    path = unquote(name)
    if _SCHEME.match(path) and not path.startswith("file:/"):
        return True
    path = re.sub(r"\Afile:/+", "/", path)
    if not is_local(table):
        return path.startswith("/") or ".." in path.split("/")
    return not os.path.normpath(table / path).startswith(f"{table}{os.sep}")


def find_own_commit(
    table: Location, mark: CommitMark, *, from_version_exclusive: int, through: int | None = None
) -> Commit | None:
    """Return the commit after a version, up to `through` or the head, that carries this very mark, or None.

    It reads back a write: another process may have overwritten the commit on a local path. It also shows a repeated run
    that a step is already done.
    """
    head = head_version(table) if through is None else through
    read = commits(table, from_version_exclusive=from_version_exclusive, through_version_inclusive=head)
    return next((commit for commit in read if commit.mark == mark), None)
