"""Results of the public functions: frozen, plain, JSON-able by `dataclasses.asdict`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mergerepl.model.listing import HtmlResult
from mergerepl.model.words import conflict_name

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
    """Row counts (and, for levels `touched` and `checksum`, order-independent row hashes) of one article at both sides.

    A merge article is compared as of the captured versions of its tables (`…_version`), without the rows of changes that
    a sync has still to send (`unsent_at_…`). `uncaptured_at_…` counts the commits after these versions.
    `missing_at` is the side without the article: publisher or subscriber. `publication` distinguishes articles of one
    name, `subscriber` is its root. `partition_id` is the partition of the publisher's rows that a filtered article was
    compared with; `publisher_rows` are its rows and those that every subscriber has. An article that `may_differ`
    (`upload_only`) is counted and not compared. `not_compared` names columns and kinds of rows that cannot be compared.
    `examples` are the first differing rows. `error`: why it was not compared (all numbers are 0), or why every sync
    refuses it.
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
    also_in_json: ClassVar = ("ok", "result")

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
    also_in_json: ClassVar = ("conflict_name",)

    @property
    def conflict_name(self) -> str:
        """The type in words."""
        return conflict_name(self.conflict_type)

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

    A dry run plans each subscription against the publisher as it is now; some of the planned changes may turn out to be
    there already.

    Attributes:
        status: `planned` by a dry run, `given_up` by `abort`.
        upload: Rows changed at the publisher, and conflicts met; of a dry run those to come.
        recovered: Interrupted sessions that were finished first.
        late_changes: User changes that landed during the session and travel next time.
        conflicts: Of a dry run, the first 100 conflicts to come of each article; `articles` counts all.
        error: Why it failed. A session that succeeded has one if articles were `refused` or it could not be validated;
            `articles` in it has an object for each of several refused articles.
        refused: Articles that could not go on while the others did.
        waiting: Changes that stay at their source because the other side's table refuses them.
        fallbacks: Sentences, one for each table or row filter: why Spark read or wrote it, though its rows were few and
            `engine` is `auto`.
        uncaptured_commits: Commits that a run would read first, in a dry run of a transactional subscription.
        schema: Schema changes of the publisher that the session brought before rows, as `table: change`.
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
    def ok(self) -> bool:
        """True if it did not fail, and a requested validation passed."""
        return not self.is_failed and all(item.ok for item in self.validation or ())

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
        return all(session.ok for session in self.sessions)

    @property
    def is_transient(self) -> bool:
        """True if sessions failed, all for a reason that may pass, and no validation found a difference."""
        failed = [session for session in self.sessions if session.is_failed]
        is_different = any(not item.ok for session in self.sessions for item in session.validation or ())
        return bool(failed) and not is_different and all(session.is_transient for session in failed)


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
class PlannedMoves:
    """The rows of an article that enter and leave one subscription because filters change."""

    article: str
    enter: int
    leave: int


@dataclass(frozen=True)
class PlannedSubscription:
    """The outcome of a planned `apply` for one subscription of a merge publication.

    `outcome`: `followed` (it goes on with its rows), `diff` (its rows are compared with the publisher's), `stops` (it is
    not synchronized), `new` or `ends`. `why` is the reason; '' where there is none. `unsent` describes its changes that
    never reached the publisher, as far as they are known without reading its tables. `moves` are the rows that enter and
    leave because filters change, as the publisher's tables are; empty if none do or only Spark can count them.
    """

    subscriber: str
    outcome: str
    why: str = ""
    unsent: str = ""
    moves: tuple[PlannedMoves, ...] = ()


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
