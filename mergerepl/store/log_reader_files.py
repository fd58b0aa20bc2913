"""What the log reader asks of a file system beside Delta tables: its clock and the file `plan.json`.

This module loads no library.
"""

import os
from pathlib import Path

from mergerepl.systables.logreader import FOLDER

_PLAN = "plan.json"
_CLOCK = "clock"


def file_system_now_ns(root: Path) -> int:
    """Return the time of the file system that holds the log reader's folder: its clock dates the log files."""
    path = root / FOLDER / _CLOCK
    path.touch()
    os.utime(path)
    return path.stat().st_mtime_ns


def read_plan(root: Path) -> str | None:
    """Return the text of the plan that is to be carried out, None if there is none."""
    try:
        return (root / FOLDER / _PLAN).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def write_plan(root: Path, text: str) -> None:
    """Decide: make the plan durable, in place of an earlier one."""
    from mergerepl.store.changeset import write_durably

    write_durably(root / FOLDER / _PLAN, text)


def remove_plan(root: Path) -> None:
    """Note that the plan is carried out."""
    (root / FOLDER / _PLAN).unlink(missing_ok=True)
