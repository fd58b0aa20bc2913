"""Notes of a replica that only save time: JSON files below `_mergerepl/quiet`. Deleting them is harmless.

This module loads no library.
"""

import contextlib
import json
from typing import Any

from mergerepl.roots import MERGE_FOLDER, resolved
from mergerepl.store.location import Location
from mergerepl.store.register import ROOT_LOCK, held_register, state_of
from mergerepl.store.storage import is_local, read_text, storage

_STAGING = "staging"
_NOTES = "quiet"


def read_note(root: Location, name: str) -> dict[str, Any] | None:
    """Return a note of a replica; None if it is missing or damaged.

    While a root in a store is held, only its holder writes notes. So each is read once until another agent takes the root.
    """
    at = _path(root, name)
    memory = _memory(root)
    if ("note", at) not in memory:
        memory["note", at] = _stated(at)
    found: dict[str, Any] | None = memory["note", at]
    return found


def _stated(at: Location) -> dict[str, Any] | None:
    try:
        stated = json.loads(read_text(at) or "")
    except (OSError, ValueError):
        return None
    return stated if isinstance(stated, dict) else None


def _memory(root: Location) -> dict[object, Any]:
    held = held_register(Location.of(root) / ROOT_LOCK)
    return {} if held is None else held.line.memory


def write_note(root: Location, name: str, stated: dict[str, Any]) -> None:
    """Write a note of a replica. A failure only costs time."""
    at = _path(root, name)
    _memory(root).pop(("note", at), None)
    with contextlib.suppress(OSError):
        storage(at).put(at, json.dumps(stated).encode("utf-8"), is_durable=False)
        _memory(root)["note", at] = stated


def has_staged_session(root: Location) -> bool:
    """True if a session waits to be finished: a folder at the publisher, a pointer elsewhere; on a store, its register
    names one.
    """
    if not is_local(root):
        state = state_of(root)
        return bool(state.sessions or state.pointers)
    folder = Location.of(root).join(MERGE_FOLDER, _STAGING)
    return bool(storage(folder).list_from(folder))


def _path(root: Location, name: str) -> Location:
    return Location.of(resolved(root)).join(MERGE_FOLDER, _NOTES, f"{name}.json")
