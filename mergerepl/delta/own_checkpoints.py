"""Checkpoints of system tables in a folder, written by this process: they list no removed files.

delta-rs lists each file that was removed within `delta.deletedFileRetentionDuration`, so that VACUUM keeps it. A table that
each commit replaces has one more with every commit, and each checkpoint was larger than the one before. System tables have
their own cleanup (`unused_files`), which needs no such list.
"""

import logging
from typing import TYPE_CHECKING

from mergerepl.delta.log import last_version
from mergerepl.delta.own_log import checkpoint_version, log_read_here, write_checkpoint
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = logging.getLogger(__name__)

INTERVAL_PROPERTY = "delta.checkpointInterval"

OWN_INTERVAL = "1000000"
"""The interval of a table whose checkpoints are written here: Delta's writers write none."""

COMMITS_BETWEEN = 10
"""Commits of a system table between checkpoints. Every reading by delta-rs reads the commits since the last checkpoint.
With its default of 100, readings took six times as long after 24 sessions as at first, now three times (measured)."""


def is_checkpoint_due(path: Location, opened: "DeltaTable") -> bool:
    """True if this process writes the checkpoints of a table, and the last one is ten commits old."""
    if not is_local(path) or opened.metadata().configuration.get(INTERVAL_PROPERTY) != OWN_INTERVAL:
        return False
    version = last_version(path)
    return version is not None and version - checkpoint_version(path) >= COMMITS_BETWEEN


def write_own_checkpoint(path: Location, opened: "DeltaTable") -> None:
    """Write a checkpoint of a system table in a folder at its head; `opened` is the table there.

    A failure only costs time: it is logged.
    """
    from deltalake.exceptions import DeltaError
    from pyarrow import ArrowException

    try:
        own = log_read_here(path, opened.version())
        if own is None:
            opened.create_checkpoint()
        else:
            write_checkpoint(path, own)
    except (OSError, DeltaError, ArrowException) as error:
        log.info("no checkpoint of '%s': %s", path, error)
