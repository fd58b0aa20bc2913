"""`scan`: scan cycles, as the capture job runs them; the log reader of a database, held for one cycle or command."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from mergerepl.cdc.consumer import NAME, is_shared
from mergerepl.cdc.database import Database, database_at
from mergerepl.cdc.job_rows import check_parameters
from mergerepl.cdc.refusals import CdcError, ScanInProgressError
from mergerepl.delta.tables import compact
from mergerepl.errors import LeaseError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.positions import LogState, read_state
from mergerepl.logreader.scan import checked_state, leave
from mergerepl.logreader.scan import scan as one_cycle
from mergerepl.model.cdc import ScanResult
from mergerepl.spark.errors import plain_errors
from mergerepl.store.storage import folders_in, remove_table
from mergerepl.systables.cdc import (
    CAPTURED_COLUMNS,
    CHANGE_TABLE_SUFFIX,
    DDL_HISTORY,
    FOLDER,
    INDEX_COLUMNS,
    LSN_TIME_MAPPING,
)

log = logging.getLogger(__name__)

JOIN_EVERY = 32
"""The small files are counted after this number of cycles."""

SMALL_FILES = 64
JOINED_BYTES = 4 << 20


def scan(
    database: str | os.PathLike[str],
    *,
    maxtrans: int = 1000,
    maxscans: int = 10,
    continuous: bool = False,
    pollinginterval: int = 0,
    spark: SparkSession | None = None,
    lock_wait_s: float = 0.0,
) -> ScanResult:
    """Capture new changes: up to `maxscans` cycles of up to `maxtrans` transactions.

    `continuous`: go on after `pollinginterval` seconds, until this process is interrupted.

    Raises: CdcUsageError if the database is not enabled or a parameter is wrong; CdcError 22911 if the log is read for
        publications, too; ScanInProgressError (22903) if another scan or command holds the log; LogReaderError if the
        folder is a copy, or a part of the bookkeeping was restored.
    """
    check_parameters(maxtrans=maxtrans, maxscans=maxscans, pollinginterval=pollinginterval)
    found = database_at(database)
    found.require_enabled()
    reader = log_reader(found, spark=spark, wait_s=lock_wait_s)
    while True:
        if is_shared(read_state(found.log)):
            raise CdcError.log_is_shared(found.root)
        done = run_cycles(reader, maxtrans=maxtrans, maxscans=maxscans)
        if not continuous:
            return done
        time.sleep(pollinginterval)


def run_cycles(
    reader: LogReader, *, maxtrans: int, maxscans: int, is_asked_to_stop: Callable[[], bool] = lambda: False
) -> ScanResult:
    """Run up to `maxscans` cycles, until everything is read or a stop is requested. A cycle is never cut short.

    New publications are served, too.

    Raises: as `scan`.
    """
    cycles = transactions = rows = 0
    last = None
    paused: dict[str, str] = {}
    for _ in range(maxscans):
        with plain_errors("changes were captured"), held(reader, "cdc capture"):
            done = one_cycle(reader, maxtrans=maxtrans)
            database = Database(reader.root)
            if done.scan_cycle is not None and done.scan_cycle % JOIN_EVERY == 0 and database.is_enabled:
                join_small_files(database)
        if done.scan_cycle is not None or done.paused:
            cycles += 1
        transactions, rows = transactions + done.transactions, rows + done.rows
        last = done.last_lsn or last
        paused |= done.paused
        if not done.has_more or is_asked_to_stop():
            break
    return ScanResult(cycles, transactions, rows, last, paused)


def join_small_files(database: Database, *, most: int = SMALL_FILES) -> None:
    """Join the small files of change tables and of the gate: a cycle appends one to each. The caller holds the log."""
    tables = [database.change_table(each) for each in database.instances()]
    for table in (*tables, *(database.control.path(each.name) for each in (LSN_TIME_MAPPING, DDL_HISTORY))):
        try:
            compact(table, most_files=most, target_bytes=JOINED_BYTES)
        except Exception as error:
            # The cycle is done; many small files only make reading slower.
            log.warning("%s: its small files were not joined: %s", table, error)


def log_reader(
    database: Database,
    *,
    spark: SparkSession | None = None,
    wait_s: float = 0.0,
    is_long_running: bool = False,
) -> LogReader:
    """Return the log reader of a database. It serves publications of the same folder, too."""
    return LogReader(database.root, spark, wait_s, is_long_running)


@contextmanager
def held(reader: LogReader, purpose: str) -> Iterator[None]:
    """Hold the log for a command.

    Raises: ScanInProgressError (22903) if another process holds it.
    """
    try:
        with reader.held(purpose):
            yield
    except LeaseError as error:
        raise ScanInProgressError(22903, error.message, database=str(reader.root)) from error


def tidied(reader: LogReader, database: Database) -> LogState:
    """Finish a cycle or command that died: its plan, and instances that were being disabled."""
    state = checked_state(reader)
    instances = database.instances()
    numbers = {each.object_id for each in instances}
    control = database.control
    for stored in (CAPTURED_COLUMNS, INDEX_COLUMNS):
        _keep_of(control, stored, numbers)
    known = {each.folder for each in instances}
    for name in folders_in(database.root / FOLDER):
        if name.endswith(CHANGE_TABLE_SUFFIX) and name not in known:
            remove_table(database.root / FOLDER / name)
    sources = {each.source_object_id for each in instances}
    return leave(reader, NAME, frozenset(state.sources.keys() - sources))


def _keep_of(control: Any, stored: Any, numbers: set[int]) -> None:
    rows = control.rows(stored)
    kept = [row for row in rows if row.object_id in numbers]
    if kept != rows:
        control.replace(stored, kept)
