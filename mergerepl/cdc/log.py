"""The log reader of a database, held for one cycle or one command; a command that died is finished first."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from mergerepl.cdc.consumer import NAME
from mergerepl.cdc.database import Database
from mergerepl.cdc.refusals import ScanInProgressError
from mergerepl.errors import LeaseError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.positions import LogState
from mergerepl.logreader.scan import checked_state, leave
from mergerepl.store.folders import folders_in, remove_table
from mergerepl.systables.cdc import CAPTURED_COLUMNS, CHANGE_TABLE_SUFFIX, FOLDER, INDEX_COLUMNS


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

    Raises: ScanInProgressError (22903) if somebody else holds it.
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
