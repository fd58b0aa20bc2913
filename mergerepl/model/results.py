"""Results of the public functions: frozen, plain, JSON-able by `dataclasses.asdict`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mergerepl.model.listing import HtmlResult
from mergerepl.model.relation import Relation

SessionStatus = Literal["succeeded", "nothing_to_do", "planned", "failed", "given_up"]


def _is_transient(error: Mapping[str, Any] | None) -> bool:
    """Whether an error's facts (`MergeReplError.details`) mark it as transient; False without an error."""
    return bool((error or {}).get("transient", False))


@dataclass(frozen=True)
class PhaseCounts:
    """Changes that one direction of a session made at its destination (rows), and its conflicts."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    conflicts: int = 0

    def __add__(self, other: "PhaseCounts") -> "PhaseCounts":
        """Add up the counts of two articles or two sessions."""
        return PhaseCounts(
            self.inserts + other.inserts,
            self.updates + other.updates,
            self.deletes + other.deletes,
            self.conflicts + other.conflicts,
        )

    @property
    def total(self) -> int:
        """Rows changed at the destination."""
        return self.inserts + self.updates + self.deletes


@dataclass(frozen=True)
class ArticleCounts:
    """One article of one session, both directions."""

    article: str
    upload: PhaseCounts
    download: PhaseCounts


@dataclass(frozen=True)
class KeyDifference:
    """One row that differs: `kind` is missing_at_subscriber, missing_at_publisher, different, or twice (there).

    `key`: identifying column -> its value as Spark's text.
    """

    key: dict[str, str]
    kind: str


@dataclass(frozen=True)
class ArticleValidation:
    """Row counts (and, for level `checksum`, order-independent row hashes) of one article at both sides.

    A merge article is compared as of the captured versions of its tables (`…_version`), without the rows of changes that
    a sync has still to send (`unsent_at_…`). `uncaptured_at_…` counts the commits after these versions.
    `missing_at` is the side without the article: publisher or subscriber. `publication` distinguishes articles of one
    name, `subscriber` is its root. `partition_id` is the partition of the publisher's rows that a filtered article was
    compared with; `publisher_rows` are its rows and those that every subscriber has. An article that `may_differ`
    (`upload_only`) is counted and not compared. `not_compared` names columns and kinds of rows that cannot be compared.
    """

    article: str
    level: str
    publisher_rows: int
    subscriber_rows: int
    differing_rows: int
    examples: tuple[KeyDifference, ...] = ()
    missing_at: str | None = None
    publication: str = ""
    may_differ: bool = False
    error: dict[str, Any] | None = None
    partition_id: int | None = None
    subscriber: str = ""
    not_compared: tuple[str, ...] = ()
    publisher_version: int | None = None
    subscriber_version: int | None = None
    unsent_at_publisher: int = 0
    unsent_at_subscriber: int = 0
    uncaptured_at_publisher: int = 0
    uncaptured_at_subscriber: int = 0

    @property
    def is_certain(self) -> bool:
        """True if nothing was left out: no change is unsent or uncaptured."""
        return not (
            self.unsent_at_publisher
            or self.unsent_at_subscriber
            or self.uncaptured_at_publisher
            or self.uncaptured_at_subscriber
        )

    @property
    def result(self) -> str:
        """The outcome: equal (nothing was left out), uncertain (equal but for waiting changes), different, not_compared."""
        if self.error is not None:
            return "not_compared"
        if not self.ok:
            return "different"
        return "equal" if self.is_certain and not self.may_differ else "uncertain"

    @property
    def ok(self) -> bool:
        """True if both sides hold the same rows as far as the level compares, or may differ."""
        is_there = self.missing_at is None and self.error is None
        if self.may_differ:
            return is_there
        are_as_many = self.publisher_rows == self.subscriber_rows or bool(self.not_compared)
        return is_there and self.differing_rows == 0 and are_as_many

    @property
    def is_transient(self) -> bool:
        """True if the comparison failed for a reason that an unchanged second run may not meet."""
        return _is_transient(self.error)


@dataclass(frozen=True)
class ConflictPreview:
    """One conflict as `sync --dry-run` shows it: its winner and reason code; rows as text by column.

    `resolver` decides it, and makes the values of `made_columns` in the winning row; `note` is its remark on them, or
    the rule by which a table refuses the row. `winning_row` is the row after the session. `conflict_columns` are in
    conflict; empty if one side deleted the row.
    """

    article: str
    key: dict[str, str]
    conflict_type: int
    winner: str
    winning_row: dict[str, str | None] | None
    losing_row: dict[str, str | None] | None
    resolver: str | None = None
    note: str | None = None
    conflict_columns: tuple[str, ...] = ()
    made_columns: tuple[str, ...] = ()

    @property
    def loser(self) -> str:
        """The side that loses."""
        return "subscriber" if self.winner == "publisher" else "publisher"


@dataclass(frozen=True)
class GivenUp:
    """A staged session that was given up: its id, the folder that keeps its rows, the reason, and the next step."""

    session: str
    kept: str
    reason: str
    next_step: str


@dataclass(frozen=True)
class SessionResult(HtmlResult):
    """One merge session (one subscription).

    A successful session whose validation failed to run keeps its status and counts, and has an `error`. So has one in
    which some articles were `refused` while the others went on. `waiting` changes stay at their source because the
    other side's table refuses them. `fallbacks`: table -> why Spark read or wrote it, though its rows were few.
    `uncaptured_commits`: those that a run would read first, in a dry run of a transactional subscription. `schema`: the
    schema changes of the publisher that the session brought to the subscriber before rows.
    """

    publication: str
    subscriber: str
    status: SessionStatus
    upload: PhaseCounts = PhaseCounts()
    download: PhaseCounts = PhaseCounts()
    articles: tuple[ArticleCounts, ...] = ()
    duration_s: float = 0.0
    recovered: int = 0
    late_changes: int = 0
    validation: tuple[ArticleValidation, ...] | None = None
    conflicts: tuple[ConflictPreview, ...] = ()
    error: dict[str, Any] | None = None
    refused: tuple[str, ...] = ()
    waiting: int = 0
    given_up: GivenUp | None = None
    fallbacks: tuple[str, ...] = ()
    uncaptured_commits: int = 0
    schema: tuple[str, ...] = ()

    @property
    def is_failed(self) -> bool:
        """True if the session, an article of it or the validation after it ended in an error."""
        return self.status == "failed" or self.error is not None

    @property
    def is_transient(self) -> bool:
        """True if its error is worth an unchanged second run."""
        return _is_transient(self.error)

    @property
    def reason(self) -> str:
        """Why a failed session failed."""
        return str((self.error or {}).get("message", "The session failed; the reason was not kept."))


@dataclass(frozen=True)
class SyncResult(HtmlResult):
    """All sessions of one `sync`."""

    publication: str
    sessions: tuple[SessionResult, ...]

    @property
    def ok(self) -> bool:
        """True if no session failed and every requested validation passed."""
        return all(
            not session.is_failed and all(item.ok for item in session.validation or ())
            for session in self.sessions
        )


@dataclass(frozen=True)
class PlanStep:
    """One thing `apply` does (or, dry, would do), such as `publish`, `orders`, `turn Change Data Feed on`.

    `removes_rows`: it removes rows that cannot be brought back, such as those of a change table.
    """

    action: str
    object: str
    detail: str
    removes_rows: bool = False


@dataclass(frozen=True)
class PlannedSubscription:
    """The outcome of a planned `apply` for one subscription of a merge publication.

    `outcome`: `followed` (it goes on with its rows), `diff` (its rows are compared with the publisher's), `stops` (it is
    not synchronized), `new` or `ends`. `why` is the reason, '' for `followed`. `unsent` describes its changes that never
    reached the publisher, as far as they are known without reading its tables.
    """

    subscriber: str
    outcome: str
    why: str = ""
    unsent: str = ""


@dataclass(frozen=True)
class ApplyResult(HtmlResult):
    """The steps of `apply`, in order; empty `steps` mean that the replicas already matched the file.

    `subscriptions`: their outcome, of a dry run with steps.
    """

    publication: str
    steps: tuple[PlanStep, ...]
    dry_run: bool = False
    duration_s: float = 0.0
    subscriptions: tuple[PlannedSubscription, ...] = ()


@dataclass(frozen=True)
class InitTable:
    """A table that `init` found: the key that the file states, or the reason why it is a comment."""

    root: str
    table: str
    key: tuple[str, ...] | None
    reason: str | None = None


@dataclass(frozen=True)
class InitResult:
    """The project file that `init` wrote, or (dry) would write."""

    file: str
    text: str
    tables: tuple[InitTable, ...]
    dry_run: bool = False


@dataclass(frozen=True)
class ArticleCapture:
    """Changes captured for one article; `status` shows its triggers' names."""

    article: str
    inserts: int
    updates: int
    deletes: int
    from_version_exclusive: int
    through_version_inclusive: int


@dataclass(frozen=True)
class CaptureResult(HtmlResult):
    """The changes that `capture` wrote to MSmerge_contents and MSmerge_tombstone of one replica."""

    replica: str
    articles: tuple[ArticleCapture, ...]


@dataclass(frozen=True)
class ArticleTuning:
    """One article's table in `tune`: the problem of its files, and the outcome.

    `status` is fine (left alone), planned (by a dry run), tuned or unchanged (Delta found nothing to rewrite).
    `properties` are set so that new files state bounds of the key. `version` is that of the commit with the new files.
    """

    publication: str
    article: str
    table: str
    status: str
    reasons: tuple[str, ...]
    properties: dict[str, str]
    files_before: int
    largest_bytes_before: int
    files_after: int
    largest_bytes_after: int
    version: int | None = None


@dataclass(frozen=True)
class TuneResult(HtmlResult):
    """The outcome of `tune` for the tables of one replica."""

    replica: str
    articles: tuple[ArticleTuning, ...]
    dry_run: bool
    duration_s: float


@dataclass(frozen=True)
class TouchResult(HtmlResult):
    """The rows of an article that `touch` gave a new version at a replica: the next syncs send them."""

    replica: str
    article: str
    rows: int


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
    `subscriber_type` is server or client; `priority` is 0.00 to 99.99. `partition_id` is the partition of the subscriber
    in a publication with row filters, at the publisher. `through` and `knows` are the versions up to which the subscriber's
    changes have arrived, and up to which it knows all changes: the lowest ones hold metadata back. `last_sync_error` is the
    class of the error with which the last session failed, None after another. `schema_pending` are the schema changes of
    the publisher that the next sync brings, `schema_stop` is why the subscriber's table cannot take one, with what to run.
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

    Of one that failed, `error_class` is the class of the error and `phase` the step: recover, capture, stage, apply.
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
    row there; `reason` is why it left: deleted, own_columns, parent or host_name; None while it is in. `subscriber` is set
    if the row came or left for that subscriber alone, because its host_name or suser_sname changed.
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

    @property
    def is_known(self) -> bool:
        """False if no replica in reach has the row or knows that it was deleted; `current` is then meaningless."""
        return any(each.row is not None or each.source != "none" for each in self.replicas)
