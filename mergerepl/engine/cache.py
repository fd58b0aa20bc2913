"""The cache folder: Delta JARs, class-data archives and engine logs, shared by all projects of a user."""

from __future__ import annotations

import os
from pathlib import Path

LOGS_KEPT = 20


def root() -> Path:
    """Return the cache folder: `$MERGEREPL_CACHE`, else `mergerepl` in the XDG cache. It need not exist."""
    if chosen := os.environ.get("MERGEREPL_CACHE"):
        return Path(chosen).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "mergerepl"


def folder(name: str) -> Path:
    """Return the named folder of the cache, created when it is missing."""
    path = root() / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def new_log() -> Path:
    """Return this process's engine log, after removing all but the newest logs of earlier ones."""
    logs = folder("logs")
    earlier = sorted(logs.glob("engine-*.log"), key=_modified, reverse=True)
    for stale in earlier[LOGS_KEPT:]:
        stale.unlink(missing_ok=True)
    return logs / f"engine-{os.getpid()}.log"


def _modified(path: Path) -> float:
    """Return when a file was last written, 0 for one that another process has just removed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
