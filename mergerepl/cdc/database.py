"""The tables of Change Data Capture of one folder as values. Without Spark."""

import os
from dataclasses import dataclass
from functools import cached_property

from mergerepl import roots
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.delta.tables import transaction_version
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import control_of
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


@dataclass(frozen=True)
class Database(ControlDatabase):
    """A folder of Delta tables that is, or shall be, enabled for Change Data Capture."""

    folder = FOLDER
    tables = CREATED

    @cached_property
    def log(self) -> ControlPlane:
        """The tables of the log reader."""
        return control_of(self.root)

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
                f"'{self.root}' is not enabled for Change Data Capture. Enable it first: `mergerepl cdc enable-db "
                f"{self.root}`.{uses(self.root, but='_cdc')}",
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


def database_at(database: str | os.PathLike[str]) -> Database:
    """Return the database in a folder.

    Raises: ConfigurationError if the folder does not exist.
    """
    return Database(Location.of(roots.existing(os.fspath(database))))
