"""The position of a consumer of `cdc load`, a file in the folder of its target: `_cdc_consumers/<consumer>.json`.

The file moves with the table: it is copied, restored from a copy and removed with it. VACUUM skips folders whose names
begin with `_`. This module loads no library.
"""

from mergerepl.store import storage
from mergerepl.store.location import Location
from mergerepl.systables.cdc import CONSUMERS_FOLDER


def read_position(target: Location, name: str) -> str | None:
    """Return the text of a consumer's position, or None."""
    return storage.read_text(_file(target, name))


def write_position(target: Location, name: str, text: str) -> None:
    """Store a position durably, replacing an earlier one."""
    storage.put_text(_file(target, name), text)


def _file(target: Location, name: str) -> Location:
    return Location.of(target) / CONSUMERS_FOLDER / f"{name}.json"
