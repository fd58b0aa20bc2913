"""Rows of the tasks that several products have: one form for all types. Values without an engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from mergerepl.model.listing import HtmlResult, Listing
from mergerepl.model.results import ArticleValidation, KeyDifference

WARNING, CRITICAL, UNKNOWN = "warning", "critical", "unknown"
"""Levels of a `StatusWarning`; unknown: the state could not be read."""

_COMMAND = re.compile(r"`(mergerepl [^`]+)`")

_CODES = {CRITICAL: 2, UNKNOWN: 3, WARNING: 1}
"""Exit codes of `status --check` by level, the gravest first; 0 without a warning."""


@dataclass(frozen=True)
class StatusWarning:
    """A present or imminent problem of a table, a subscriber or an agent: `level` is warning, critical or unknown."""

    source: str
    level: str
    text: str

    @property
    def command(self) -> str:
        """The first command that the text names; else the one that examines the replicas."""
        named = _COMMAND.search(self.text)
        return named[1] if named else "mergerepl doctor"

    @property
    def text_of_level(self) -> str:
        """The problem with its level and source."""
        return f"{self.level.capitalize()}: {self.source}: {self.text}"

    @property
    def line(self) -> str:
        """The problem on one line that names a command."""
        text = " ".join(self.text_of_level.split())
        return text if _COMMAND.search(text) else f"{text.rstrip('.')}. See `{self.command}`."


@dataclass(frozen=True)
class Status:
    """The state of one product at one folder.

    `type` is merge, transactional, cdc or tracking; `role` publisher, subscriber or database. `details` is the product's
    own state, None if it cannot be read: a warning says why.
    """

    type: str
    replica: str
    role: str
    warnings: tuple[StatusWarning, ...]
    details: Any = None


def check_code(statuses: Iterable[Status]) -> int:
    """Return the exit code of `status --check`: 0 well, 1 warning, 2 critical, 3 unknown; critical counts most."""
    levels = {warning.level for each in statuses for warning in each.warnings}
    return next((code for level, code in _CODES.items() if level in levels), 0)


@dataclass(frozen=True)
class Pending:
    """Changes of one article that wait for the next sync to one subscriber.

    Attributes:
        direction: upload or download, seen from the subscriber.
        changes: Rows (merge) or commands (transactional); downwards those in the subscriber's partition.
        units: Generations (merge) or transactions (transactional) that hold them.
        uncaptured_commits: Commits of the table that are not captured yet.
        seconds: Estimate from the last deliveries; None if there is none.
        problem: Why the numbers are unknown.
        schema: Schema changes of the publisher's table (merge) that the next sync brings before rows.
    """

    type: str
    publication: str
    subscriber: str
    article: str
    direction: str
    changes: int = 0
    units: int = 0
    uncaptured_commits: int = 0
    seconds: float | None = None
    problem: str | None = None
    schema: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if nothing waits and nothing is unknown."""
        return not (self.changes or self.units or self.uncaptured_commits or self.problem or self.schema)


@dataclass(frozen=True)
class PendingRow:
    """A captured row that waits for the next sync. `generation` has the number of the replica that sends it."""

    publication: str
    subscriber: str
    article: str
    direction: str
    rowguid: str
    key: Mapping[str, str | None]
    is_delete: bool
    generation: int


@dataclass(frozen=True)
class Run:
    """A session, batch, scan or transaction that ran, or an error that stopped one.

    Attributes:
        kind: session (merge), batch or skip (transactional), scan or notice (cdc), transaction (tracking), error.
        id: What names it in its product: session id, LSN, number.
        replica: The folder that recorded it; `subscriber` is the other end, empty for cdc and tracking.
        status: succeeded, failed, in progress and the like.
        changes: Rows or commands, all articles and directions together.
        text: Messages, the newest first.
        details: The product's own row.
    """

    type: str
    kind: str
    id: str
    replica: str
    publication: str
    subscriber: str
    time: datetime | None
    duration_s: float
    status: str
    changes: int
    text: str
    details: Any = None


@dataclass(frozen=True)
class Captured:
    """New changes that `capture` recorded at one folder.

    `changes` are rows (merge, cdc) or commands (transactional). `paused`: path of a table that cannot be read on to the
    reason. `details` is the product's own result. `error`: why nothing could be recorded. The log of a folder that is
    published transactionally and captured is read once: one result for both.
    """

    type: str
    replica: str
    changes: int
    paused: Mapping[str, str] = field(default_factory=dict)
    details: Any = None
    error: str | None = None

    @property
    def ok(self) -> bool:
        """True if all tables could be read."""
        return self.error is None and not self.paused


@dataclass(frozen=True)
class ValidationResult(HtmlResult):
    """Subscribers compared with their publishers, one row for each article and subscriber."""

    articles: Listing[ArticleValidation]
    also_in_json: ClassVar = ("ok",)

    @property
    def ok(self) -> bool:
        """True if all articles are equal, as far as the level compares."""
        return all(each.ok for each in self.articles)

    @property
    def is_transient(self) -> bool:
        """True if every article that is not equal could not be compared for a reason that may pass."""
        bad = [each for each in self.articles if not each.ok]
        return bool(bad) and all(each.is_transient for each in bad)


@dataclass(frozen=True)
class Removed:
    """The rows that `cleanup` removed of one kind: metadata and conflicts (merge), commands (transactional), changes (cdc).

    `kind` is metadata, conflicts, history, commands, transactions, changes, tombstones or files, of which `rows` is the
    number. `what` is the system table, the conflict log, the publication store, the capture instance, the tracked table or
    the folder of system tables; `error` why it could not be cleaned, `note` why nothing of it is.
    """

    type: str
    replica: str
    kind: str
    what: str
    rows: int
    error: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class CleanupResult(HtmlResult):
    """The outcome of `cleanup`; of a dry run the rows that would go.

    `inactive` subscriptions lack commands that are removed: they must be filled again (`reinit`).
    """

    removed: Listing[Removed]
    dry_run: bool = False
    inactive: int = 0

    @property
    def ok(self) -> bool:
        """True if nothing failed."""
        return all(each.error is None for each in self.removed)


@dataclass(frozen=True)
class Reinit:
    """The rows of one article that a reinitialisation wrote (or would write).

    `inserts`, `updates` and `deletes` are at the subscriber, `uploaded` rows at the publisher. `unsent` changes of the
    subscriber differed from the publisher's rows; `conflicts` of them were decided, and what lost was logged. `kept` rows
    that were taken from the subscriber are in the Delta table `kept_at`. `examples` are some keys of unsent changes.
    The session that runs before, with `--upload-first` or for other articles, is counted, too. An article of a dry run that
    `follows_columns` first has no counts: its rows can be compared only after its columns were followed.
    """

    publication: str
    subscriber: str
    article: str
    inserts: int
    updates: int
    deletes: int
    uploaded: int
    conflicts: int
    unsent: int
    kept: int
    kept_at: str | None
    examples: tuple[KeyDifference, ...]
    follows_columns: bool = False


@dataclass(frozen=True)
class ReinitResult(HtmlResult):
    """The subscribers that were filled again; `articles` of merge publications, and chosen ones. A dry run plans."""

    subscribers: tuple[str, ...]
    articles: Listing[Reinit] = field(default_factory=lambda: Listing(()))
    dry_run: bool = False


@dataclass(frozen=True)
class Repair:
    """The rows of one table that a repair wrote (or would write) at the wrong side. `examples` are some of the keys.

    A merge article gets new versions of the rows at `source` (publisher or subscriber), which the next sync carries to the
    other side; its `unsent` changes were left out, and the `uncaptured` commits of both tables were not compared.
    `differing` is the number of keys that still differ then; None for a dry run.
    """

    publication: str
    subscriber: str
    article: str
    inserts: int
    updates: int
    deletes: int
    examples: tuple[KeyDifference, ...]
    differing: int | None = None
    source: str = "publisher"
    unsent: int = 0
    uncaptured: int = 0


@dataclass(frozen=True)
class RepairResult(HtmlResult):
    """The articles of subscribers whose rows were made equal to the other side's; of a dry run those that would be."""

    articles: Listing[Repair]
    dry_run: bool = False


@dataclass(frozen=True)
class Vacuumed(HtmlResult):
    """The outcome of `vacuum`; `retention_hours` is the age up to which files were kept.

    `read_through` is the version through which all consumers have read the table, None if nothing is unread.
    """

    source: str
    retention_hours: int
    read_through: int | None = None
