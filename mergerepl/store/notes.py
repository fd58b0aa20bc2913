"""Notes of a replica that only save time: JSON files below `_mergerepl/quiet`. Deleting them is harmless.

This module loads no library.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

_SYSTEM_FOLDER = "_mergerepl"
_STAGING = "staging"
_NOTES = "quiet"


def read_note(root: Path, name: str) -> dict[str, Any] | None:
    """Return a note of a replica; None if there is none, or it is damaged."""
    try:
        stated = json.loads(_path(root, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stated if isinstance(stated, dict) else None


def write_note(root: Path, name: str, stated: dict[str, Any]) -> None:
    """Write a note of a replica. One that cannot be written only costs time."""
    path = _path(root, name)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(stated), encoding="utf-8")
        temporary.replace(path)


def has_staged_session(root: Path) -> bool:
    """Return whether a session waits to be finished (a folder at the publisher, a pointer elsewhere)."""
    try:
        return bool(os.listdir(root / _SYSTEM_FOLDER / _STAGING))
    except FileNotFoundError:
        return False


def _path(root: Path, name: str) -> Path:
    return root.resolve() / _SYSTEM_FOLDER / _NOTES / f"{name}.json"
