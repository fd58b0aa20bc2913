"""What a process knows of a root in a store, kept there for the next process: one object that only saves requests.

A new process would read the logs of some fifteen system tables, and their files. It lists the folder of these tables, and
uses what was kept only for a table whose log and files are still, by that listing, those that it was kept for.
"""

import contextlib
import json
import logging
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from mergerepl.delta.known_heads import known_head, memory_of, note_seen, seen_before
from mergerepl.delta.log import LOG_FOLDER, list_logs_below, log_path
from mergerepl.delta.own_log import OwnLog, adopt_log, adopt_transactions, known_log, known_transactions
from mergerepl.errors import StoreError
from mergerepl.roots import MERGE_FOLDER
from mergerepl.store.location import Location
from mergerepl.store.objects import FileFacts, keep_content, kept_content
from mergerepl.store.register import line_under
from mergerepl.store.storage import is_local, storage

log = logging.getLogger(__name__)

_FORMAT = 2
_AT = ("quiet", "known")
_COMMITS_BETWEEN = 24
"""How many commits to system tables come before a process keeps its knowledge again. Its first session always does."""

_MOST_BYTES = 1 << 20
_LARGEST_FILE = 64 << 10
_FIELDS = ("version", "protocol", "metadata", "transactions", "files")


def keep_knowledge(root: Location, tables: Sequence[Location]) -> None:
    """Keep what this process knows of some system tables, and of the logs of users' tables, of a root that it holds."""
    line = None if is_local(root) else line_under(root)
    if line is None:
        return
    commits = sum(known_head(table) or 0 for table in tables)
    before = line.memory.get(_AT)
    if before is not None and commits - before < _COMMITS_BETWEEN:
        return
    left = _MOST_BYTES
    kept: dict[str, Any] = {}
    for table in tables:
        own = known_log(table)
        if own is None or (seen := seen_before(table, own.version)) is None:
            continue
        files = {}
        for path, added in own.files.items():
            data = kept_content(table / unquote(path))
            if data is not None and added["size"] <= min(left, _LARGEST_FILE):
                files[path] = b64encode(data).decode("ascii")
                left -= len(data)
        commit = memory_of(table).get(log_path(table, own.version))
        text = None if commit is None else bytes(commit).decode("utf-8")
        kept[table.name] = {"log": _stated(own), "seen": seen[2:], "contents": files, "commit": text}
    users = {
        table.relative_to(root): {"log": _stated(own), "seen": seen}
        for table, (seen, own) in known_transactions(root).items()
    }
    stated = {"format": _FORMAT, "tables": kept, "users": users}
    at = root.join(MERGE_FOLDER, *_AT)
    try:
        storage(at).put(at, zlib.compress(json.dumps(stated).encode("utf-8")), is_durable=False)
        line.memory[_AT] = commits
    except (OSError, StoreError) as error:
        log.info("what is known of '%s' was not kept: %s", root, error)


def adopt_knowledge(*roots: Location) -> None:
    """Take over what an earlier process kept of roots that are looked at, as far as it is still true."""
    for root in roots:
        folder = root / MERGE_FOLDER
        if is_local(root) or line_under(root) is None or known_head(folder / "MSmerge_replinfo") is not None:
            continue
        if (below := list_logs_below(folder)) is None:
            continue
        stated = _kept_of(root.join(MERGE_FOLDER, *_AT), below)
        with contextlib.suppress(KeyError, TypeError, ValueError):
            for name, each in stated.get("tables", {}).items():
                _adopt(folder / name, each, below)
            for name, each in stated.get("users", {}).items():
                adopt_transactions(root.join(*name.split("/")), each["seen"], OwnLog(**each["log"]))


def _kept_of(at: Location, below: Mapping[str, FileFacts]) -> dict[str, Any]:
    if "/".join(_AT) not in below or (found := storage(at).read(at)) is None:
        return {}
    try:
        stated = json.loads(zlib.decompress(found[0]))
    except (ValueError, zlib.error):
        return {}
    return stated if isinstance(stated, dict) and stated.get("format") == _FORMAT else {}


def _adopt(table: Location, kept: Mapping[str, Any], below: Mapping[str, FileFacts]) -> None:
    """Take over the log of a table if its last commit and all its files are there as they were."""
    own = OwnLog(**kept["log"])
    facts = below.get(f"{table.name}/{LOG_FOLDER}/{own.version:020}.json")
    if facts is None or [facts.size, 0, facts.tag] != kept["seen"]:
        return
    for path, added in own.files.items():
        found = below.get(f"{table.name}/{unquote(path)}")
        if found is None or found.size != added["size"]:
            return
    adopt_log(table, own)
    note_seen(table, own.version, [str(table), own.version, *kept["seen"]])
    if kept["commit"] is not None:
        memory_of(table)[log_path(table, own.version)] = kept["commit"].encode("utf-8")
    for path, text in kept["contents"].items():
        data = b64decode(text)
        if path in own.files and len(data) == own.files[path]["size"]:
            keep_content(table / unquote(path), data)


def _stated(own: OwnLog) -> dict[str, Any]:
    return {name: getattr(own, name) for name in _FIELDS}
