"""The tables of Change Data Capture of one folder as values, and how this process reaches them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl import roots
from mergerepl.cdc.refusals import CdcUsageError, ScanInProgressError
from mergerepl.delta.tables import transaction_version
from mergerepl.errors import LeaseError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import LogState, control_of
from mergerepl.model.cdc import CapturedColumn
from mergerepl.replica.control import ControlDatabase, ControlPlane
from mergerepl.roots import uses
from mergerepl.store.location import Location
from mergerepl.systables.cdc import (
    APP_ID,
    CAPTURED_COLUMNS,
    CHANGE_TABLES,
    CREATED,
    FOLDER,
    INDEX_COLUMNS,
    LSN_TIME_MAPPING,
    ChangeTable,
    IndexColumn,
    LsnTime,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "cdc"
"""The name of this consumer of the log."""


def is_shared(state: LogState) -> bool:
    """True if another product reads the log too: then its log reader reads it, and no capture job."""
    return any(set(row.consumers) - {NAME} for row in state.sources.values())


@dataclass(frozen=True)
class CdcTables(ControlDatabase):
    """The tables of a folder that is, or shall be, enabled for Change Data Capture."""

    given: SparkSession | None = None
    """The caller's Spark session; without one, the running one or an embedded one is used."""
    lock_wait_s: float = 0.0
    """Seconds to wait for another holder of the log or of a folder."""

    folder = FOLDER
    tables = CREATED

    @cached_property
    def log(self) -> ControlPlane:
        """The tables of the log reader."""
        return control_of(self.root)

    @property
    def spark(self) -> SparkSession:
        """The session to read in.

        Raises: EngineError if it cannot be used.
        """
        from mergerepl.spark import session as engine

        return engine.session() if self.given is None else engine.usable(self.given)

    def in_session(self, session: SparkSession) -> CdcTables:
        """Return the same tables, read in another session."""
        other = replace(self, given=session)
        vars(other).update(control=self.control, log=self.log)
        return other

    @contextmanager
    def held(self, purpose: str) -> Iterator[LogReader]:
        """Hold the log for a command.

        Raises: ScanInProgressError (22903) if another process holds it.
        """
        reader = LogReader(self.root, self.given, self.lock_wait_s)
        with held(reader, purpose):
            yield reader

    @property
    def is_enabled(self) -> bool:
        """Whether the database is enabled."""
        return self.is_there

    def require_enabled(self) -> None:
        """Check that the database is enabled.

        Raises: CdcUsageError 22901.
        """
        if not self.is_enabled:
            raise CdcUsageError(
                22901,
                f"'{self.root}' is not enabled for Change Data Capture: no table is captured. Capture the first one: "
                f"`mergerepl cdc enable TABLE -f {self.root}`.{uses(self.root, but='_cdc')}",
                database=str(self.root),
            )

    def change_table(self, instance: ChangeTable) -> Location:
        """Return the folder of an instance's change table."""
        return self.root / FOLDER / instance.folder

    def instances(self) -> list[ChangeTable]:
        """Return the capture instances, by object_id.

        Raises: CdcUsageError 22901 if the database is not enabled.
        """
        self.require_enabled()
        return sorted(self.control.rows(CHANGE_TABLES), key=lambda row: row.object_id)

    def instance(self, name: str) -> ChangeTable:
        """Return a capture instance by its name; case is ignored.

        Raises: CdcUsageError 22985 if it does not exist.
        """
        known = self.instances()
        found = next((row for row in known if row.capture_instance.lower() == name.strip().lower()), None)
        if found is None:
            raise CdcUsageError.no_such_instance(name, [row.capture_instance for row in known])
        return found

    def captured(self, object_id: int) -> list[CapturedColumn]:
        """Return the captured columns of an instance, by ordinal."""
        rows = (row for row in self.control.rows(CAPTURED_COLUMNS) if row.object_id == object_id)
        return sorted(rows, key=lambda row: row.column_ordinal)

    def key(self, object_id: int) -> list[IndexColumn]:
        """Return the key columns of an instance, in order; empty without a key."""
        rows = (row for row in self.control.rows(INDEX_COLUMNS) if row.object_id == object_id)
        return sorted(rows, key=lambda row: row.index_ordinal)

    @property
    def gate_cycle(self) -> int:
        """The scan cycle that readers may see; -1 before the first one."""
        return transaction_version(self.control.path(LSN_TIME_MAPPING.name), APP_ID)

    def newest_entry(self) -> LsnTime | None:
        """Return the entry of the highest LSN that readers may see; None before the first one."""
        cycle = self.gate_cycle
        if cycle < 0:
            return None
        newest = "order by start_lsn desc limit 1"
        # Only the files of the last cycle are opened.
        found = self.control.rows(LSN_TIME_MAPPING, where=f"scan_cycle >= {cycle}", order_limit=newest)
        return found[0] if found else None

    def max_lsn(self) -> Lsn | None:
        """Return the highest LSN that readers may see; None before the first one."""
        entry = self.newest_entry()
        return None if entry is None else Lsn(entry.start_lsn)


def tables_at(
    path: str | os.PathLike[str], spark: SparkSession | None = None, lock_wait_s: float = 0.0
) -> CdcTables:
    """Return the tables of a folder.

    Raises: ConfigurationError if the folder does not exist.
    """
    return CdcTables(Location.of(roots.existing(os.fspath(path))), spark, lock_wait_s)


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
