"""The numbers and the open transaction of a tracked database in a bucket: a part of the root's register (decision 0170).

Only the holder of the root changes them. A transaction is open as long as the agent that began it holds the register: the
next holder has a higher fence. `tests/properties/tracking_register_model.py` is the protocol in plain Python.
"""

import logging
import threading
from collections.abc import Mapping
from typing import Any

from mergerepl.errors import LeaseError, StoreError
from mergerepl.store.location import Location
from mergerepl.store.register import ROOT_LOCK, held_register, register_of, state_of
from mergerepl.store.rehearsal import before_write
from mergerepl.store.storage import is_folder
from mergerepl.systables.tracking import FOLDER
from mergerepl.tracking.errors import TrackingError

log = logging.getLogger(__name__)

_COUNTERS, _OPEN = "counters", "open"


def are_there(root: Location) -> bool:
    """True if tables of a root are, or were, tracked."""
    return state_of(root).numbers is not None


def counters_of(root: Location) -> Mapping[str, Any]:
    """Return the counters of a root. Raises: TrackingError if no table was ever tracked there, or they are gone."""
    numbers = state_of(root).numbers
    if numbers is None and is_folder(root / FOLDER):
        raise TrackingError.counters(root / ROOT_LOCK, "it has no numbers of the tracked tables")
    if numbers is None:
        raise TrackingError.no_database(root)
    counters: Mapping[str, Any] = numbers[_COUNTERS]
    return counters


def write(root: Location, counters: Mapping[str, Any]) -> None:
    """Write the counters. Raises: LeaseError if another agent has taken the root over."""
    _write(root, counters, (state_of(root).numbers or {}).get(_OPEN))


def begin(root: Location, counters: Mapping[str, Any], bsn: int) -> None:
    """Write the counters with a transaction that is open from now on, or is made under the one that is open.

    Raises: as `write`.
    """
    before_write()
    fence = register_of(root).fence
    is_under = live_bsn(root) is not None
    _write(root, counters, (state_of(root).numbers or {})[_OPEN] if is_under else [bsn, fence])


def end(root: Location, bsn: int) -> None:
    """Write that a transaction is not open any more. Afterwards the content of the register is known.

    Raises: as `write`.
    """
    counters, opened = counters_of(root), (state_of(root).numbers or {})[_OPEN]
    _write(root, counters, None if opened is not None and opened[0] == bsn else opened)


def live_bsn(root: Location) -> int | None:
    """Return the BSN of the open transaction; None if its owner has let the root go, or lost it."""
    state = state_of(root)
    opened = (state.numbers or {}).get(_OPEN)
    if opened is None or state.holder is None or opened[1] != state.fence:
        return None
    return int(opened[0])


def is_held(root: Location, bsn: int, *, asks: bool = False) -> bool:
    """True if this process has a transaction open, and no other agent is known to have taken the root over.

    The calling thread goes on with it. `asks`: the store is asked, by a write of the register.
    """
    register = held_register(root / ROOT_LOCK)
    if register is None or live_bsn(root) != bsn:
        return False
    register.thread = threading.get_ident()
    try:
        register.check()
        if asks:
            register.settle()
    except LeaseError:
        return False
    except (StoreError, OSError) as error:
        log.warning("whether '%s' is still held is not known: %s", root, error)
    return True


def _write(root: Location, counters: Mapping[str, Any], opened: Any) -> None:
    before_write()
    register_of(root).change_numbers({_COUNTERS: counters, _OPEN: opened})
