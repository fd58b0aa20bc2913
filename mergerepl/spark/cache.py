"""The cache folder: Delta JARs, class-data archives and engine logs, shared by all projects of a user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mergerepl.errors import EngineError

LOGS_KEPT = 20


def root() -> Path:
    """Return the cache folder: `$MERGEREPL_CACHE`, else `mergerepl` in the XDG cache. It need not exist.

    Raises: EngineError: The home folder is unknown.
    """
    chosen, xdg = os.environ.get("MERGEREPL_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser().absolute()
        base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        stated = f"is {chosen!r}" if chosen else "is not set"
        raise EngineError(
            f"MERGEREPL_CACHE {stated}, and that home folder is not known here: set it to the whole path of a folder "
            "you can write."
        ) from error
    return base / "mergerepl"


def folder(name: str) -> Path:
    """Return the named folder of the cache, created when it is missing."""
    path = root() / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def new_log() -> Path:
    """Return this process's engine log, empty; remove all but the newest logs of earlier processes.

    If the cache is not writable, as on a machine set up for many users, it is a temporary file.
    """
    try:
        logs = folder("logs")
        earlier = sorted(logs.glob("engine-*.log"), key=_modified, reverse=True)
        for stale in earlier[LOGS_KEPT:]:
            stale.unlink(missing_ok=True)
        log = logs / f"engine-{os.getpid()}.log"
        log.write_bytes(b"")
    except OSError:
        descriptor, name = tempfile.mkstemp(prefix="mergerepl-engine-", suffix=".log")
        os.close(descriptor)
        log = Path(name)
    return log


def _modified(path: Path) -> float:
    """Return a file's modification time, 0 if another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
