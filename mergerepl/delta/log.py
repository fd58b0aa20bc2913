"""Read a Delta log without an engine: heads, files, and whether they are unchanged."""

import errno
import json
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from mergerepl.delta.known_heads import (
    ABSENT,
    known_head,
    line_of,
    memory_of,
    note_head,
    note_seen,
    seen_before,
)
from mergerepl.errors import StoreError
from mergerepl.store.location import Location
from mergerepl.store.objects import FileFacts
from mergerepl.store.storage import (
    exists,
    facts_below,
    facts_in,
    facts_of,
    files_in,
    is_folder,
    is_local,
    names_in,
    storage,
)

LOG_FOLDER = "_delta_log"
_COMMIT = re.compile(r"\d{20}\.json\Z")

_WHOLE = "whole"

_MOST_PAGES, _OBJECTS_OF_PAGE = 3, 1000
"""The longest listing of a folder of system tables: it takes the place of one for each of some fifteen tables."""

_MOST_KEPT_BYTES = 64 * 1024
"""The largest log file that is kept in memory while its root is held."""

_MOST_CONTENTS = 256
_contents: dict[tuple[Location, str], bytes] = {}
"""Log file and tag -> its content, for the next session: a listing shows whether the file still has that tag."""

CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.[^.]+)*\.(?:parquet|json)\Z")
"""The name of a checkpoint file, of any kind; its group is the version."""


def log_path(table: Location, version: int) -> Location:
    """Return the log file of one version."""
    return table / LOG_FOLDER / f"{version:020d}.json"


def is_delta_table(table: Location) -> bool:
    """Whether the folder has a Delta log with at least one commit.

    Raises: StoreError if it cannot be read: no permission, or a mount that does not answer.
    """
    folder = table / LOG_FOLDER
    if (known := known_head(table)) is not None:
        return known != ABSENT
    memory = memory_of(table)
    if folder in memory:
        return True
    try:
        # A loop of links is an error here, as a folder without permission is.
        names = _names_in_log(table)
        is_there = any(name.endswith((".json", ".parquet")) for name in names)
        if not is_local(table) and (found := [int(name[:20]) for name in names if _COMMIT.match(name)]):
            note_head(table, max(found))
    except (FileNotFoundError, NotADirectoryError):
        is_there = False
    except OSError as error:
        raise StoreError(
            f"The log of table '{table}' cannot be read: {error.strerror}. Nothing was changed. Check where it leads, "
            "its permissions and its mount, then run again.",
            table=str(table),
        ) from error
    if is_there:
        memory[folder] = True
    else:
        note_head(table, ABSENT)
    return is_there


def _names_in_log(table: Location) -> list[str]:
    """Return the names in a log folder. While a root in a store is held, those before the last known head are left out.

    A listing also says what `as_seen` would ask of each commit.

    Raises: OSError if it is absent or cannot be read.
    """
    folder = table / LOG_FOLDER
    if is_local(table):
        return names_in(folder)
    memory, key = memory_of(table), ("listed", table)
    known = memory.get(key)
    found = {} if known is None else facts_in(folder, after=log_path(table, known - 1).name)
    if known is None or log_path(table, known).name not in found:
        found = facts_in(folder)
        _note_whole(table, found)
    if not found:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    _note_commits(table, found)
    return [*found]


def _note_whole(table: Location, found: Mapping[str, FileFacts]) -> None:
    """Note whether the listing of a log in a store has all commits and no checkpoint."""
    is_whole = log_path(table, 0).name in found and not any(map(CHECKPOINT.match, found))
    memory_of(table)[_WHOLE, table] = is_whole


def _note_commits(table: Location, found: Mapping[str, FileFacts]) -> None:
    """Note the commits in the listing of a log in a store."""
    memory = memory_of(table)
    versions = [int(name[:20]) for name in found if _COMMIT.match(name)]
    if versions:
        memory["listed", table] = max(versions)
        memory.update(
            {("facts", log_path(table, each)): found[log_path(table, each).name] for each in versions}
        )


def list_logs(tables: Sequence[Location]) -> None:
    """Read the heads of system tables in one folder of a store by one listing, if this process alone writes them.

    A page of a listing has 1,000 objects. A folder with many of them is not listed as a whole.
    """
    unknown = [table for table in tables if line_of(table) is not None and known_head(table) is None]
    if len(unknown) <= _MOST_PAGES:
        return
    if (below := list_logs_below(unknown[0].parent)) is not None:
        there = {path.partition("/")[0] for path in below}
        for table in unknown:
            if table.name not in there:
                note_head(table, ABSENT)


def list_logs_below(folder: Location) -> dict[str, FileFacts] | None:
    """Note the heads of the system tables in a folder of a store; return its objects by their path from there.

    None if they are too many to be listed at once: nothing is noted then.
    """
    below = facts_below(folder, most=_MOST_PAGES * _OBJECTS_OF_PAGE)
    logs: dict[str, dict[str, FileFacts]] = {}
    for path, facts in (below or {}).items():
        name, _, in_log = path.partition(f"/{LOG_FOLDER}/")
        if in_log and "/" not in name and "/" not in in_log:
            logs.setdefault(name, {})[in_log] = facts
    for name, found in logs.items():
        table = folder / name
        versions = [int(name[:20]) for name in found if _COMMIT.match(name)]
        if versions and known_head(table) is None:
            _note_whole(table, found)
            _note_commits(table, found)
            note_head(table, max(versions))
    return below


def is_without_checkpoint(table: Location) -> bool:
    """True if a table in a store is known to have all its commits, and no checkpoint that a reader could begin with."""
    return bool(memory_of(table).get((_WHOLE, table)))


def note_checkpoint(table: Location) -> None:
    """Note that a table got a checkpoint."""
    memory_of(table).pop((_WHOLE, table), None)


def table_place_problem(path: Location) -> str | None:
    """Describe, as a clause, a path that is not a Delta table; None for a Delta table.

    Raises: StoreError if the log cannot be read.
    """
    try:
        if not is_folder(path):
            return "is a file, not a Delta table" if exists(path) else "does not exist"
        if is_delta_table(path):
            return None
        has_log = is_folder(path / LOG_FOLDER)
        has_parquet = bool(files_in(path, ".parquet"))
    except OSError as error:
        return f"cannot be looked at ({error.strerror})"
    if has_log:
        return "has an empty Delta log"
    if has_parquet:
        return "holds Parquet files without a Delta log: convert it with CONVERT TO DELTA"
    return "is no Delta table"


def head_version(table: Location) -> int:
    """Return the latest version of a table.

    Raises: StoreError if the Delta log is missing, or lacks a commit before the latest one.
    """
    if (known := known_head(table)) not in (None, ABSENT):
        return known
    try:
        names = _names_in_log(table)
    except OSError as error:
        raise StoreError(
            f"'{table}' is not a Delta table: its log folder cannot be read ({error.strerror}). Check the "
            "path.",
            table=str(table),
        ) from error
    versions = {int(name[:20]) for name in names if _COMMIT.match(name)}
    if not versions:
        raise StoreError(
            f"'{table}' is not a Delta table: its log holds no commit. Check the path.", table=str(table)
        )
    checkpoints = [int(name[:20]) for name in names if CHECKPOINT.match(name)]
    _refuse_gap(table, versions, after=max([min(versions) - 1, *checkpoints]))
    note_head(table, max(versions))
    return max(versions)


def recent_head(table: Location) -> int:
    """Return the latest version of a table; of a user's table in a store that is held, the one that was seen last.

    For questions that a commit of another writer does not change, and for writes that such a commit refuses.

    Raises: as `head_version`.
    """
    known = memory_of(table).get(("listed", table)) if line_of(table) is None else None
    return head_version(table) if known is None else int(known)


def forget_recent_head(table: Location) -> None:
    """Forget the head that was seen last: another writer committed after it."""
    memory_of(table).pop(("listed", table), None)


def note_written(table: Location, version: int) -> None:
    """Note that a library committed a version of a user's table in a store. The commit itself is read, for `read_back`."""
    if not is_local(table) and line_of(table) is None and _read_log_file(table, version) is not None:
        memory_of(table)["listed", table] = version


def head_if_any(table: Location) -> int | None:
    """Return the latest version of a table, None if it is none. In a store, one listing shows both.

    Raises: StoreError if the log cannot be listed, or has a gap before its head.
    """
    if not is_local(table) and known_head(table) is None:
        try:
            return head_version(table)
        except StoreError:
            # It is absent, or its problem is named below.
            pass
    return head_version(table) if is_delta_table(table) else None


def last_version(table: Location) -> int | None:
    """Return the highest version in a table's log folder, despite gaps; None without a commit."""
    if (known := known_head(table)) is not None:
        return None if known == ABSENT else known
    try:
        head = max(int(name[:20]) for name in _names_in_log(table) if _COMMIT.match(name))
        note_head(table, head)
        return head
    except (OSError, ValueError):
        return None


def _refuse_gap(table: Location, versions: set[int], *, after: int) -> None:
    """Check that the log has every commit after a version: with a gap the table's head is unknown.

    Raises: StoreError naming the first one.
    """
    head = max(versions)
    # A listing may miss a file made while it ran, and hold the next one.
    absent = (version for version in range(after + 1, head) if version not in versions)
    missing = next((version for version in absent if not exists(log_path(table, version))), None)
    if missing is None:
        return
    raise StoreError(
        f"'{table}' cannot be read: its log has a gap. There is a commit {head}, but {log_path(table, missing).name} "
        "is missing. Restore the missing files, or the table, from a copy; or move away files that are no "
        "commits of this table.",
        table=str(table),
        version=missing,
    )


def written_ns(table: Location, version: int) -> int:
    """Return the time at which a version's log file was written, in nanoseconds since 1970, by the file system's clock.

    Raises: FileNotFoundError if the file is gone.
    """
    return _facts_of_commit(table, version).written_ns


def _facts_of_commit(table: Location, version: int) -> FileFacts:
    """Return the facts of a log file. While a root in a store is held, they are read once."""
    at = log_path(table, version)
    memory, key = memory_of(table), ("facts", at)
    if key not in memory:
        memory[key] = facts_of(at)
    found: FileFacts = memory[key]
    return found


def as_seen(table: Location, version: int) -> list[Any]:
    """Return a JSON-able value that distinguishes a table at a version from the same table after any other commit.

    Raises: FileNotFoundError if the version's log file is gone.
    """
    if (known := seen_before(table, version)) is not None:
        return known
    facts = memory_of(table).get(("read", log_path(table, version))) or _facts_of_commit(table, version)
    written_ns = facts.written_ns if is_local(table) else 0
    seen = [str(table), version, facts.size, written_ns, facts.tag]
    note_seen(table, version, seen)
    return seen


def has_commit(table: Location, version: int) -> bool:
    """Whether a table's log has a commit of a version."""
    known = known_head(table)
    return exists(log_path(table, version)) if known is None else version <= known


def is_as_seen(seen: list[Any]) -> bool:
    """Whether a table is unchanged since `as_seen` returned this value: two look-ups, for a log of any length."""
    table, version = Location.of(seen[0]), seen[1]
    try:
        is_head = as_seen(table, version) == seen and not has_commit(table, version + 1)
    except OSError:
        return False
    if is_head:
        note_head(table, version)
        note_seen(table, version, seen)
    return is_head


def commit_text(table: Location, version: int) -> str | None:
    """Return `version:hash` of a commit's log file, None if the file is gone."""
    try:
        content = _read_log_file(table, version)
    except OSError:
        return None
    return None if content is None else f"{version}:{sha256(content).hexdigest()[:32]}"


def is_another_commit(table: Location, version: int, known: str | None) -> bool:
    """Whether a table's version is another commit than the known `commit_text`; False if either is gone."""
    return known is not None and commit_text(table, version) not in (None, known)


def actions_of(text: str) -> list[dict[str, Any]]:
    """Return the actions of a log file, one a line. Their texts may hold characters that Python treats as line ends.

    Raises: ValueError if it is not JSON.
    """
    return [json.loads(line, object_pairs_hook=_first_named) for line in text.split("\n") if line.strip()]


def _first_named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object with the first of repeated keys: delta-rs before 1.6 writes its caller's keys after its own."""
    found = dict(pairs)
    if len(found) < len(pairs):
        found.update(reversed(pairs))
    return found


def log_actions(table: Location, version: int) -> list[dict[str, Any]]:
    """Return the actions of a version's log file.

    Raises: FileNotFoundError if the file is gone; OSError; ValueError if it is not JSON.
    """
    found = _read_log_file(table, version)
    if found is None:
        raise FileNotFoundError(log_path(table, version).name)
    return actions_of(found.decode("utf-8"))


def _read_log_file(table: Location, version: int) -> bytes | None:
    """Return the bytes of a log file, None if it is gone. While a root in a store is held, each is read once."""
    at = log_path(table, version)
    memory = memory_of(table)
    if (known := memory.get(at)) is not None:
        return bytes(known)
    listed = memory.get(("facts", at))
    if listed is not None and (same := _contents.get((at, listed.tag))) is not None:
        memory[at] = same
        return same
    if (found := storage(table).read(at)) is None:
        return None
    if len(found[0]) <= _MOST_KEPT_BYTES and not is_local(table):
        memory[at] = found[0]
        memory["read", at] = FileFacts(len(found[0]), 0, found[1])
        _contents[at, found[1]] = found[0]
        while len(_contents) > _MOST_CONTENTS:
            _contents.pop(next(iter(_contents)), None)
    return found[0]


def note_new_table(table: Location, data: bytes, tag: str) -> None:
    """Note the first log file of a system table in a store, which this process has just put there."""
    if line_of(table) is None:
        return
    note_head(table, 0)
    note_seen(table, 0, [str(table), 0, len(data), 0, tag])
    memory_of(table)[_WHOLE, table] = True
    note_log_file(table, 0, data)


def note_log_file(table: Location, version: int, data: bytes) -> None:
    """Note the log file that this process wrote as the next version of a table which it alone writes."""
    memory = memory_of(table)
    memory.pop(log_path(table, version - 1), None)
    if len(data) <= _MOST_KEPT_BYTES:
        memory[log_path(table, version)] = data
