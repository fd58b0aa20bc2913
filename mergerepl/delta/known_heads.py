"""Heads of system tables in a store, as far as this process knows them without a request.

Only the agent that holds the register of a root writes the system tables there. So what it has read or committed once
stays true until another agent takes the register (`Line`). For all other tables nothing is known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from mergerepl.roots import SYSTEM_FOLDERS
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local, storage

if TYPE_CHECKING:
    from mergerepl.store.register import Line

ABSENT = -1
"""The head of a table that does not exist: only this process would create it."""


@dataclass
class _Head:
    line: Line
    version: int
    seen: dict[int, list[Any]] = field(default_factory=dict)
    """Version -> what `log.as_seen` returned."""


WRITTEN_LAST = (
    ("_mergerepl", "MSmerge_replinfo"),
    ("_transactional", "MSrepl_transactions"),
    ("_transactional", "MSreplication_subscriptions"),
)
"""The tables that each merge session, scan cycle or batch writes."""

_heads: dict[Location, _Head] = {}
_lock = Lock()


def line_of(table: Location) -> Line | None:
    """Return the line of the register under which this process alone writes a table; None if it does not hold one."""
    if is_local(table) or table.parent.name not in SYSTEM_FOLDERS:
        return None
    from mergerepl.store.register import line_under

    return line_under(table.parent.parent)


_of_block: ContextVar[dict[object, Any] | None] = ContextVar("_of_block", default=None)


@contextmanager
def noting_log_files() -> Iterator[None]:
    """Note what a block reads of log files of roots that are not held: a listing then answers for each of its commits."""
    token = _of_block.set({})
    try:
        yield
    finally:
        _of_block.reset(token)


_MOST_NOTED = 4096
"""The most facts that are noted of the system tables of a root."""


def memory_of(table: Location) -> dict[object, Any]:
    """Return what may be noted of a table's log files: those of a system table as long as its line lasts, those of others
    while their root is held or a block reads them (`noting_log_files`). A new dictionary if nothing may.
    """
    if is_local(table):
        return {}
    if (line := line_of(table)) is not None:
        if len(line.memory) > _MOST_NOTED:
            line.memory.clear()
        return line.memory
    from mergerepl.store.register import registers_above

    of_block = _of_block.get()
    return next((each.memory for each in registers_above(table)), {} if of_block is None else of_block)


def _known(table: Location) -> _Head | None:
    found = _heads.get(table)
    is_known = found is not None and found.line is line_of(table) and not found.line.is_broken
    return found if is_known else None


def known_head(table: Location) -> int | None:
    """Return the head of a table if it is known."""
    found = _known(table)
    return None if found is None else found.version


def note_head(table: Location, version: int) -> None:
    """Note the head that was read, or committed by this process."""
    line = line_of(table)
    with _lock:
        if line is None:
            # Read without the register: a table that was restored from a copy has another head.
            found = _heads.get(table)
            if found is not None and found.version != version:
                found.line.is_broken = True
            return
        found = _known(table)
        if found is None:
            _heads[table] = _Head(line, version)
        else:
            found.version = version


def trust_heads(*roots: Location) -> None:
    """Let the system tables of roots that are looked at be read by what this process knows, if it is still true.

    A root that was restored from a copy has another last commit of a table that each session, cycle or batch writes.
    """
    from mergerepl.store.register import ROOT_LOCK, line_since, look_of

    for root in roots:
        if (look := look_of(root)) is None:
            continue
        line = line_since(look, root / ROOT_LOCK)
        if not all(_is_as_known(root.join(*names), line) for names in WRITTEN_LAST):
            line.is_broken = True
            line_since(look, root / ROOT_LOCK)


def _is_as_known(table: Location, line: Line) -> bool:
    """True if the last commit of a table is the one that is known, or nothing is known."""
    found = _heads.get(table)
    if found is None or found.line is not line or found.version == ABSENT:
        return True
    at = table.join("_delta_log", f"{found.version:020}.json")
    facts, seen = storage(at).facts(at), found.seen.get(found.version)
    return seen is not None and facts is not None and seen[2:] == [facts.size, 0, facts.tag]


def forget_head(table: Location) -> None:
    """Forget the head of a table that Spark is about to write."""
    with _lock:
        _heads.pop(table, None)


def seen_before(table: Location, version: int) -> list[Any] | None:
    """Return what `log.as_seen` returned for a version, if it is known to be still true."""
    found = _known(table)
    return None if found is None else found.seen.get(version)


def note_seen(table: Location, version: int, seen: list[Any]) -> None:
    """Note what `log.as_seen` returns for a version."""
    found = _known(table)
    if found is not None and version <= found.version:
        found.seen[version] = seen
