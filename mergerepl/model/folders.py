"""Folders whose tables are captured or tracked, as a project file states them. None: the file does not state it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.publication import Publication
from mergerepl.model.tracking_options import Foreign, TrackingKeyType, TrackingOptions
from mergerepl.model.transactional import Publication as TransactionalPublication


@dataclass(frozen=True)
class TableCapture:
    """A capture instance of a table. `name` None: `<schema>_<table>`; `columns` None: all of the table."""

    table: str
    key: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    name: str | None = None
    net: bool | None = None
    on_gap: str = "compare"

    @property
    def instance(self) -> str:
        """The name of the capture instance."""
        return self.name or f"{'' if '/' in self.table else 'dbo_'}{self.table.replace('/', '_')}"


@dataclass(frozen=True)
class Capture:
    """A folder whose tables are captured. `jobs`: job type to its parameters, as `cdc_jobs` holds them."""

    root: str
    tables: tuple[TableCapture, ...]
    log_retention: timedelta | None = None
    jobs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    alerts: Alerts = DEFAULT


@dataclass(frozen=True)
class TableTracking:
    """A tracked table: `key` names the columns that identify a row, or with `is_guid` the GUID column."""

    table: str
    key: tuple[str, ...]
    is_guid: bool = False
    options: TrackingOptions = TrackingOptions.ALL

    @property
    def key_type(self) -> TrackingKeyType:
        """The kind of the key."""
        return TrackingKeyType.GUID if self.is_guid else TrackingKeyType.PRIMARY_KEY


@dataclass(frozen=True)
class FolderTracking:
    """A folder whose tables are tracked."""

    root: str
    tables: tuple[TableTracking, ...]
    foreign: Foreign = Foreign.ADOPT
    retention: timedelta = timedelta(days=14)


Document = Publication | TransactionalPublication | Capture | FolderTracking
"""One document of a project file."""
