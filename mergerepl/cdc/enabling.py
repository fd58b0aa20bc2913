"""Databases: enable, disable, and adopt after a move or a copy (cdc.md 1 and 4)."""

import os
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mergerepl.cdc.capture import held, log_reader
from mergerepl.cdc.consumer import NAME
from mergerepl.cdc.database import database_at
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.delta.properties import interval_of
from mergerepl.failpoints import failpoint
from mergerepl.logreader.log_reader import make_log_reader
from mergerepl.logreader.lsn import epoch_of
from mergerepl.logreader.plan import redo_log
from mergerepl.logreader.positions import has_log_reader, read_state, save_state
from mergerepl.logreader.recover import recover
from mergerepl.logreader.scan import leave
from mergerepl.store.location import Location
from mergerepl.store.storage import is_there, remove_leftover, remove_table
from mergerepl.systables import logreader
from mergerepl.systables.cdc import CHANGE_TABLES, FOLDER

DEFAULT_LOG_RETENTION = "7 days"


def enable_db(database: str | os.PathLike[str], *, log_retention: str = DEFAULT_LOG_RETENTION) -> bool:
    """Enable a folder of Delta tables for Change Data Capture. Returns False, without changes, if it was enabled already.

    `log_retention` is the minimum time that removed files of captured tables are kept (`enable_table` sets it).

    Raises: ConfigurationError if the folder does not exist; CdcUsageError; ScanInProgressError.
    """
    found = database_at(database)
    retention = _retention(log_retention)
    reader = log_reader(found)
    with held(reader, "cdc enable-db"):
        if found.is_enabled:
            return False
        make_log_reader(reader, retention)
        failpoint("cdc.after_log_reader")
        found.create()
        failpoint("cdc.after_enable_db")
    return True


def _retention(text: str) -> timedelta:
    found = interval_of(text)
    if found is None or found < timedelta(hours=1):
        raise CdcUsageError.bad_parameter(22994, "log_retention", text, "write it as `7 days` or `36 hours`")
    return found


def disable_db(database: str | os.PathLike[str]) -> bool:
    """Disable a database: all capture instances with their rows, and the jobs. Returns False if it was not enabled.

    The log reader's table stays: if the database is enabled again, its LSNs are higher.

    Raises: ScanInProgressError.
    """
    found = database_at(database)
    reader = log_reader(found)
    with held(reader, "cdc disable-db"):
        if not found.is_enabled and not is_there(found.root / FOLDER):
            return False
        if found.is_enabled and redo_log(found.root).is_pending:
            recover(reader)
        # Not enabled any more, from here on; the rest can be repeated.
        remove_table(found.control.path(CHANGE_TABLES.name))
        failpoint("cdc.after_disable")
        if has_log_reader(reader.control):
            leave(reader, NAME)
        remove_leftover(found.root / FOLDER)
    return True


def is_cdc_enabled(database: str | os.PathLike[str]) -> bool:
    """True if a database is enabled."""
    return database_at(database).is_enabled


def adopt(database: str | os.PathLike[str]) -> bool:
    """Take over a database whose folder was moved or copied. Returns True if it was a copy, so that a new epoch began.

    Raises: LogReaderError if the log reader's table is missing; ScanInProgressError.
    """
    found = database_at(database)
    reader = log_reader(found)
    with held(reader, "cdc adopt"):
        state = read_state(reader.control)
        stored = Location.of(state.database.root)
        if stored == found.root:
            return False
        is_copy = is_there(stored / logreader.FOLDER)
        row = replace(state.database, root=str(found.root))
        if is_copy:
            epoch = max(epoch_of(datetime.now(UTC)), row.epoch + 1)
            row = replace(row, epoch=epoch, database_id=str(uuid.uuid4()))
        save_state(reader.control, replace(state, database=row))
    return is_copy
