"""The nouns of a configuration: publication, article, subscription. Values only, no storage, no Spark."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from mergerepl.model.alerts import DEFAULT, Alerts
from mergerepl.model.resolvers import NO_RESOLVER_INFO, PRIORITY, ResolverInfo


class Tracking(StrEnum):
    """The definition of a conflict (merge_replication.md 3.2)."""

    ROW = "row"
    """Two changes of one row conflict, whatever the columns."""
    COLUMN = "column"
    """Two changes of one row conflict only if they changed one column to different values."""


class SubscriberType(StrEnum):
    """sysmergesubscriptions.subscriber_type."""

    SERVER = "server"
    """Global: its own priority, which travels with its changes."""
    CLIENT = "client"
    """Local: its changes take the publisher's priority once they reached the publisher."""


class SyncType(StrEnum):
    """How a new subscriber gets its first rows."""

    AUTOMATIC = "automatic"
    """From a snapshot of the publisher."""
    NONE = "none"
    """It already holds the data; `apply` checks that and creates only the system tables."""


class Resolution(StrEnum):
    """The part of a losing row that is lost."""

    ROW = "row"
    """The winner's whole row wins, as in SQL Server."""
    COLUMNS = "columns"
    """Only the conflicting columns are lost (column tracking only); beyond the original."""


class ConflictLogging(StrEnum):
    """The replica that keeps conflict rows."""

    PUBLISHER = "publisher"
    SUBSCRIBER = "subscriber"
    BOTH = "both"


PUBLISHER_PRIORITY = 100.0
"""Priority of the publisher's own changes, above every subscription's."""

DEFAULT_SERVER_PRIORITY = 75.0
DEFAULT_RETENTION = timedelta(days=14)
DEFAULT_CONFLICT_RETENTION = 14
"""Days that conflicts are kept."""


@dataclass(frozen=True)
class Article:
    """A published table. `key` are the identifying columns; `rowguid` names an existing GUID column instead.

    `filter` is a clause on its rows (docs/filters.md); a row is published if it is true or a join brings the row in.
    `compensates`: a subscriber's change that the publisher's table refuses is undone at that subscriber.
    """

    name: str
    table: str
    key: tuple[str, ...]
    rowguid: str | None = None
    tracking: Tracking = Tracking.ROW
    columns: tuple[str, ...] | None = None
    resolver: str = PRIORITY
    resolver_info: ResolverInfo = NO_RESOLVER_INFO
    resolution: Resolution = Resolution.ROW
    filter: str | None = None
    partition_options: int = 0
    compensates: bool = False

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify a row: the key, or the GUID column."""
        return (self.rowguid,) if self.rowguid else self.key


@dataclass(frozen=True)
class Join:
    """A join filter: a row of `article` belongs to the partitions of each row of `parent` that it matches by `on`.

    `unique`: the parent's columns in `on` contain its key, so that a row matches at most one parent.
    """

    article: str
    parent: str
    on: str
    unique: bool = False


@dataclass(frozen=True)
class Subscription:
    """A subscriber's right to the publication. `subscriber` is the absolute replica root.

    `host_name` and `suser_sname` are its HOST_NAME() and SUSER_SNAME() in filters, which make its partition. `name` is
    what commands call it; None: the last part of its folder. `catalog` is the schema of a catalog that names its tables.
    """

    subscriber: str
    type: SubscriberType = SubscriberType.SERVER
    priority: float = DEFAULT_SERVER_PRIORITY
    sync_type: SyncType = SyncType.AUTOMATIC
    host_name: str | None = None
    suser_sname: str | None = None
    name: str | None = None
    catalog: str | None = None


@dataclass(frozen=True)
class Publication:
    """A publication as the file states it; roots are absolute paths."""

    name: str
    publisher: str
    articles: tuple[Article, ...]
    subscriptions: tuple[Subscription, ...] = ()
    retention: timedelta = DEFAULT_RETENTION
    conflict_logging: ConflictLogging = ConflictLogging.PUBLISHER
    conflict_retention: int = DEFAULT_CONFLICT_RETENTION
    """Days that conflicts are kept; 0: for ever."""
    joins: tuple[Join, ...] = ()
    allow_partition_realignment: bool = True
    engine: str = "auto"
    """The engine that writes users' tables in a session: `spark` alone, or `auto` (few rows by delta-rs)."""
    alerts: Alerts = DEFAULT
    catalog: str | None = None
    """The schema of a catalog that names the publisher's tables."""
