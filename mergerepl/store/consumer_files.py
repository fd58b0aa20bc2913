"""The position of a consumer of `cdc apply`, a file in the folder of its target: `_cdc_consumers/<consumer>.json`.

The file goes where the table goes: it is copied, restored from a copy and removed with it. VACUUM passes over folders whose
names begin with `_`. This module loads no library.
"""

from pathlib import Path

from mergerepl.store.redo import write_durably
from mergerepl.systables.cdc import CONSUMERS_FOLDER


def read_position(target: Path, name: str) -> str | None:
    """Return the text of a consumer's position, None if it has none."""
    try:
        return _file(target, name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def write_position(target: Path, name: str, text: str) -> None:
    """Make a position durable, in place of an earlier one."""
    write_durably(_file(target, name), text)


def _file(target: Path, name: str) -> Path:
    return target / CONSUMERS_FOLDER / f"{name}.json"
