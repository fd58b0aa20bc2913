"""Files of system tables that no version needs any more: files that commits removed, and log files before a checkpoint.

A cleanup notes which files are unused. A later one removes those that are still unused. So a file stays for a while after
its removal, whatever the clocks of stores say: commands that read without the lease may have opened such a version.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

from mergerepl.delta.log import CHECKPOINT, LOG_FOLDER, head_version
from mergerepl.delta.own_log import log_of
from mergerepl.delta.parquet_files import parquet_source
from mergerepl.delta.table import open_table
from mergerepl.errors import StoreError
from mergerepl.failpoints import failpoint
from mergerepl.store.location import Location
from mergerepl.store.storage import HALF_WRITTEN, files_below, read_text, storage

log = logging.getLogger(__name__)

_NOTE = ("quiet", "unused-files.json")
_DIGITS = 20
"""The length of the version at the start of a log file's name."""

FEW: Final = 24
"""A session leaves a table alone that has at most 24 files with those of its log: looking at it costs more than they do."""

KEPT: Final = timedelta(hours=1)
"""How long a file of a table that is read at once stays at least."""

KEPT_ROWS: Final = timedelta(days=1)
"""The same for tables of rows, which a DataFrame may read later."""


@dataclass(frozen=True)
class _Unused:
    """The unused files of a table when it was looked at: their names, and the checkpoint before which its log is unused."""

    at: datetime
    files: Sequence[str]
    checkpoint: int | None

    def stated(self) -> dict[str, Any]:
        return {"at": self.at.isoformat(), "files": [*self.files], "checkpoint": self.checkpoint}

    @classmethod
    def of(cls, stated: Mapping[str, Any]) -> "_Unused":
        return cls(datetime.fromisoformat(stated["at"]), stated["files"], stated["checkpoint"])


def remove_unused(
    folder: Location,
    kept: Callable[[str], timedelta] = lambda _: KEPT_ROWS,
    *,
    few: int = 0,
    now: datetime | None = None,
    dry_run: bool = False,
) -> int:
    """Remove the files of the tables in a folder that were unused when an earlier call looked, and still are.

    The caller holds the folder. `kept` returns how long ago that must be, by the name of a table; by default a day.
    Tables of at most `few` files, with those of the log, are left alone. Failures are logged. Returns the number of
    removed files; `dry_run` only counts them.
    """
    now, before = now or datetime.now(UTC), _noted(folder)
    noted, removed = dict(before), 0
    files = _files_by_table(folder, few)
    for name, names in files.items():
        known = before.get(name)
        if known is not None and known.at > now:
            # A clock that was wrong noted a time to come.
            known = None
        if known is not None and now < known.at + kept(name):
            continue
        try:
            unused = _unused(folder / name, names, now)
            gone = [] if known is None else _gone(folder / name, names, known, unused)
            removed += len(gone)
            if not dry_run:
                failpoint("files.before_removed")
                storage(folder).delete(*(folder.join(name, *path.split("/")) for path in gone))
                failpoint("files.after_removed")
            noted[name] = unused
        except (StoreError, OSError) as error:
            # The next cleanup tries again.
            log.warning("unused files of %s were not removed: %s", folder / name, error)
    if not dry_run and noted != before:
        at = folder.join(*_NOTE)
        stated = {name: each.stated() for name, each in noted.items() if name in files}
        with suppress(OSError):
            storage(at).put(at, json.dumps(stated).encode("utf-8"), is_durable=False)
    return removed


def _noted(folder: Location) -> dict[str, _Unused]:
    try:
        stated = json.loads(read_text(folder.join(*_NOTE)) or "{}")
        return {name: _Unused.of(each) for name, each in stated.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _files_by_table(folder: Location, few: int) -> dict[str, set[str]]:
    """Return the files of each table of more than a few files, by their path from the table.

    These are Parquet files, whole or left half-written by a killed process, and the files of the log.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for each in files_below(folder):
        name, _, path = each.relative_to(folder).partition("/")
        if path.startswith(f"{LOG_FOLDER}/") or (
            "/" not in path and path.endswith((".parquet", HALF_WRITTEN))
        ):
            found[name].add(path)
    return {name: files for name, files in found.items() if len(files) > few and _has_log(files)}


def _has_log(files: set[str]) -> bool:
    return any(path.startswith(LOG_FOLDER) for path in files)


def _unused(table: Location, files: set[str], now: datetime) -> _Unused:
    """Return what is unused at the head; files that were made since the listing are not among its files.

    Raises: StoreError if the table cannot be read.
    """
    version = head_version(table)
    own = log_of(table, version)
    paths = (
        open_table(table).files(with_bounds=False)["path"].to_pylist() if own is None else own.files.keys()
    )
    used = {unquote(path) for path in paths} | {*paths}
    in_log = [path.removeprefix(f"{LOG_FOLDER}/") for path in files if path.startswith(f"{LOG_FOLDER}/")]
    checkpoints = [int(found[1]) for found in map(CHECKPOINT.fullmatch, in_log) if found]
    rows = sorted(path for path in files - used if not path.startswith(LOG_FOLDER))
    return _Unused(now, rows, max((each for each in checkpoints if each <= version), default=None))


def _log_before(files: set[str], checkpoint: int | None) -> list[str]:
    """Return the log files of versions before a checkpoint."""
    versions = {path: path.removeprefix(f"{LOG_FOLDER}/")[:_DIGITS] for path in files}
    return sorted(
        path
        for path, digits in versions.items()
        if checkpoint is not None and digits.isdigit() and int(digits) < checkpoint
    )


def _gone(table: Location, files: set[str], before: _Unused, unused: _Unused) -> list[str]:
    """Return the files that were unused before and are now."""
    gone = sorted({*before.files} & {*unused.files})
    if before.checkpoint is not None and _is_whole(table, files, before.checkpoint):
        gone += _log_before(files, before.checkpoint)
    return gone


def _is_whole(table: Location, files: set[str], checkpoint: int) -> bool:
    """True if a checkpoint is one file that can be read: without the log before it, nothing else states those versions."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    name = f"{checkpoint:0{_DIGITS}}.checkpoint.parquet"
    if f"{LOG_FOLDER}/{name}" not in files:
        return False
    try:
        with pq.ParquetFile(parquet_source(table / LOG_FOLDER / name)) as opened:
            return bool(opened.metadata.num_rows)
    except (OSError, ArrowException):
        return False
