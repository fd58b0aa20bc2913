"""Replicas that were published once, copied for tests that begin with them: publishing takes seconds, a copy does not."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mergerepl.store.control import ControlPlane
from mergerepl.systables import registry
from mergerepl.systables.table import FOLDER


def moved(text: Any, folder: Path, to: Path) -> Any:
    """Return a path below one folder as one below another; anything else stays."""
    return text.replace(str(folder), str(to)) if isinstance(text, str) else text


def copy_replicas(folder: Path, to: Path) -> None:
    """Copy all replicas of a folder to another, as if they had been published there.

    They have the identities of those that they are copied from: no session may meet both.
    """
    shutil.copytree(folder, to, dirs_exist_ok=True)
    for root in (system_tables.parent for system_tables in to.glob(f"*/{FOLDER}")):
        control = ControlPlane(root)
        for table in registry.CONTROL_PLANE:
            rows = control.rows(table)
            there = [{name: moved(value, folder, to) for name, value in row.items()} for row in rows]
            if there != rows:
                assert str(folder) not in str(there), f"{table.name} names the folder that was copied"
                control.replace(table, there)


class Published:
    """What one process published, by what it was published from."""

    def __init__(self) -> None:
        self._folders: dict[object, Path] = {}

    def copy(self, of: object, to: Path, publish: Callable[[Path], None]) -> None:
        """Copy what `publish` makes in an empty folder; the first time, let it do so beside `to`."""
        if of not in self._folders:
            folder = to.with_name(f"published-{len(self._folders)}-{to.name}")
            folder.mkdir()
            publish(folder)
            self._folders[of] = folder
        copy_replicas(self._folders[of], to)
