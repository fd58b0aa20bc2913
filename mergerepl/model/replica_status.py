"""A replica as `status`, `history`, `partitions list` and `row` show it: frozen, plain, JSON-able by `asdict`."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from mergerepl.model.listing import HtmlResult
from mergerepl.model.relation import Relation
from mergerepl.model.results import ArticleCounts, PhaseCounts


@dataclass(frozen=True)
class PartitionInfo:
    """A partition of a publication with row filters.

    `host_name` and `suser_sname` are its values of HOST_NAME() and SUSER_SNAME(); None if its filters do not use them.
    `added_at_generation` is the publisher's last generation when it was added. `is_explicit`: added by `partitions add`,
    not by a subscription.
    """

    publication: str
    partition_id: int
    host_name: str | None
    suser_sname: str | None
    subscribers: tuple[str, ...]
    added_at_generation: int
    is_explicit: bool


@dataclass(frozen=True)
class ArticleStatus:
    """One article at one replica.

    `uncaptured_commits` counts user commits that are not captured yet, the first of `uncaptured_since`. `retention_used` is
    the part of the shorter of file and log retention that has passed since then. `rows`, `files` and `bytes` are those of
    its table by its log; None if the log does not state them or cannot be read. `follows`: the articles whose rows bring
    its rows into a partition, by join filters.
    """

    publication: str
    article: str
    article_id: str
    nickname: int
    tracking: str
    table: str
    version: int
    captured_version: int
    uncaptured_commits: int
    triggers: tuple[str, str, str]
    cost: str = ""
    """Why small changes of its table take long, and the remedy; empty if they do not."""
    uncaptured_since: datetime | None = None
    retention_used: float | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    follows: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SubscriptionStatus(Relation):
    """One merge subscription as the replica that was read knows it.

    `sentgen` and `recgen` are the last generations sent to the other end (numbers of this replica) and received
    from it (numbers of the other end); `unsent_generations` counts those with changes that have not been sent.
    `last_sync_summary` has the reason of a failure. After a failure a session with nothing to do is the last one, too.
    `subscriber_type` is server or client; `priority` is 0.00 to 99.99. `partition_id` is the partition of the subscriber
    in a publication with row filters, at the publisher. `through` and `knows` are the versions up to which the subscriber's
    changes have arrived, and up to which it knows all changes: the lowest ones hold metadata back. `last_sync_error` is the
    class of the error with which the last session failed, None after another. `schema_pending` are the schema changes of
    the publisher that the next sync brings, `schema_stop` is why the subscriber's table cannot take one, with what to run,
    `schema_skipped` are the numbers of those that it leaves out.
    """

    subscriber_type: str
    priority: float
    sentgen: int
    recgen: int
    unsent_generations: int
    last_sync_summary: str
    partition_id: int | None = None
    through: int = 0
    knows: int = 0
    last_sync_error: str | None = None
    schema_pending: tuple[str, ...] = ()
    schema_stop: str | None = None
    schema_skipped: tuple[int, ...] = ()


@dataclass(frozen=True)
class MetadataStatus:
    """The versions of one publication below which metadata of rows may be forgotten, as one replica knows them.

    `settled`: all replicas know all changes up to it; `known`: all replicas know that. `clock` is the highest version
    there is. `holders` are the subscribers whose sessions move them on.
    """

    publication: str
    clock: int
    settled: int
    known: int
    holders: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplicaStatus:
    """The state of a replica of merge publications: its identity, articles, subscriptions with their progress.

    `metadata_rows` are the rows of contents and tombstone; `conflicts` the logged ones. None if they cannot be read.
    """

    replid: str
    nickname: int
    articles: tuple[ArticleStatus, ...]
    subscriptions: tuple[SubscriptionStatus, ...]
    conflicts: int | None
    open_sessions: tuple[str, ...] = ()
    metadata_rows: int | None = None
    metadata: tuple[MetadataStatus, ...] = ()


@dataclass(frozen=True)
class SessionRecord:
    """One row of MSmerge_sessions with its articles and messages, newest first in lists.

    A failure that repeats with the same reason has one record. A copy of a replica, and a replica whose system tables were
    edited, record nothing.

    Attributes:
        runstatus: `succeeded`; `idle` (an agent's rounds with nothing to do, one record an hour); `failed` (it failed, the
            other end was out of reach, or articles were left out: `messages` has the reason).
        error_class: Class of the error of a failed session.
        phase: Step in which it failed: recover, capture, stage, apply.
    """

    session_id: str
    publication: str
    subscriber: str
    start_time: datetime
    end_time: datetime | None
    duration_s: float
    runstatus: str
    upload: PhaseCounts
    download: PhaseCounts
    articles: tuple[ArticleCounts, ...] = ()
    messages: tuple[str, ...] = ()
    error_class: str = ""
    phase: str = ""


def conflicts_of(details: object) -> int:
    """Return the conflicts that a session met; what else ran meets none."""
    return details.upload.conflicts + details.download.conflicts if isinstance(details, SessionRecord) else 0


@dataclass(frozen=True)
class ColumnVersion:
    """colv1 of one column: the replica (nickname) of its last change, and its version."""

    column: str
    nickname: int
    version: int


@dataclass(frozen=True)
class RowReplicaInfo:
    """One row at one replica, as sp_showrowreplicainfo shows it; `source` is contents, tombstone or none.

    `current`: its lineage includes every change that the replicas in reach know of; a row unchanged since it was
    published is current everywhere. `outside`: the row is outside this subscriber's partitions and rightly missing
    there, so it counts as current. `problem` is the reason why the row cannot be looked up in the table.
    """

    replica: str
    nickname: int
    source: str
    generation: int | None
    lineage: dict[int, int]
    columns: tuple[ColumnVersion, ...]
    row: dict[str, str | None] | None
    current: bool
    problem: str | None = None
    outside: bool = False


@dataclass(frozen=True)
class RowPartition:
    """A current or past partition of a filtered article's row, by the publisher's mappings.

    `partition_id` -1 is for rows that every subscriber has. `generation` is the publisher's, of the last change of the
    row there; `reason` is why it left: deleted, own_columns, parent, host_name or filter; None while it is in. `subscriber`
    is set if the row came or left for that subscriber alone, because its host_name or suser_sname changed.
    """

    partition_id: int
    host_name: str | None
    suser_sname: str | None
    generation: int
    reason: str | None = None
    subscriber: str = ""


@dataclass(frozen=True)
class RowInfo(HtmlResult):
    """`row`: lineage and colv of one row at every replica of the publication; `out_of_reach` are roots.

    `partitions` has the mappings of a row of a filtered article, if the publisher is in reach; a row that neither
    changed nor moved since it was published has no mapping.
    """

    publication: str
    article: str
    key: dict[str, str]
    rowguid: str
    replicas: tuple[RowReplicaInfo, ...] = ()
    out_of_reach: tuple[str, ...] = ()
    partitions: tuple[RowPartition, ...] = ()
    also_in_json: ClassVar = ("is_known",)

    @property
    def is_known(self) -> bool:
        """False if no replica in reach has the row or knows that it was deleted; `current` is then meaningless."""
        return any(each.row is not None or each.source != "none" for each in self.replicas)
