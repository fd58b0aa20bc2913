"""Change Data Capture over a folder of Delta tables, with the names of SQL Server's procedures and functions.

Public names are loaded on first use: what needs no Spark starts none.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    **dict.fromkeys(
        ("CdcError", "CdcUsageError", "LsnRangeError", "ScanInProgressError"), "mergerepl.cdc.errors"
    ),
    "Lsn": "mergerepl.logreader.lsn",
    "is_bit_set": "mergerepl.cdc.mask",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mergerepl.cdc' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
