"""Scan cycles, as the capture job and `Database.capture` run them."""

import logging
from collections.abc import Callable

from mergerepl.cdc.jobs import check_parameters
from mergerepl.cdc.refusals import CdcError
from mergerepl.cdc.tables import NAME, CdcTables, held, is_shared
from mergerepl.delta.tables import compact
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


def capture(tables: CdcTables, *, maxtrans: int, maxscans: int) -> ScanResult:
    """Capture new changes, as `Database.capture` says."""
    check_parameters(maxtrans=maxtrans, maxscans=maxscans)
    tables.require_enabled()
    if is_shared(read_state(tables.log)):
        raise CdcError.log_is_shared(tables.root)
    reader = LogReader(tables.root, tables.given, tables.lock_wait_s)
    return run_cycles(reader, maxtrans=maxtrans, maxscans=maxscans)


def run_cycles(
    reader: LogReader, *, maxtrans: int, maxscans: int, is_asked_to_stop: Callable[[], bool] = lambda: False
) -> ScanResult:
    """Run up to `maxscans` cycles, until everything is read or a stop is requested. A cycle is never cut short.

    New publications are served, too.

    Raises: ScanInProgressError (22903); LogReaderError.
    """
    cycles = transactions = rows = 0
    last = None
    paused: dict[str, str] = {}
    for _ in range(maxscans):
        with plain_errors("changes were captured"), held(reader, "cdc capture"):
            done = one_cycle(reader, maxtrans=maxtrans)
            database = CdcTables(reader.root)
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


def join_small_files(database: CdcTables, *, most: int = SMALL_FILES) -> None:
    """Join the small files of change tables and of the gate: a cycle appends one to each. The caller holds the log."""
    tables = [database.change_table(each) for each in database.instances()]
    for table in (*tables, *(database.control.path(each.name) for each in (LSN_TIME_MAPPING, DDL_HISTORY))):
        try:
            compact(table, most_files=most, target_bytes=JOINED_BYTES)
        except Exception as error:
            # The cycle is done; many small files only make reading slower.
            log.warning("%s: its small files were not joined: %s", table, error)


def tidied(reader: LogReader, database: CdcTables) -> LogState:
    """Finish a cycle or command that died: its plan, and instances that were being disabled."""
    state = checked_state(reader)
    instances = database.instances()
    numbers = {each.object_id for each in instances}
    for stored in (CAPTURED_COLUMNS, INDEX_COLUMNS):
        database.control.edit(stored, lambda rows: [row for row in rows if row.object_id in numbers])
    known = {each.folder for each in instances}
    for name in folders_in(database.root / FOLDER):
        if name.endswith(CHANGE_TABLE_SUFFIX) and name not in known:
            remove_table(database.root / FOLDER / name)
    sources = {each.source_object_id for each in instances}
    return leave(reader, NAME, frozenset(state.sources.keys() - sources))
