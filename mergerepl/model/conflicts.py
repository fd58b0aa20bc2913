"""Which conflicts are meant, and what was done about them. Values only, no storage, no Spark."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ConflictStatus(StrEnum):
    """What people have said of a conflict."""

    OPEN = "open"
    """Nothing yet: its outcome is the resolver's."""
    SETTLED = "settled"
    """Somebody resolved it."""


class Choice(StrEnum):
    """MSmerge_conflict_resolutions.choice."""

    WINNER = "winner"
    """The outcome stands."""
    LOSER = "loser"
    """What lost was written."""
    EDITED = "edited"
    """Other values were written."""


@dataclass(frozen=True)
class ConflictFilter:
    """Which of a replica's conflicts are meant: those that meet all that is given.

    `ids` are ids or beginnings of them. `since` is inclusive, `until` exclusive. `column` is among the columns in conflict.
    """

    publication: str | None = None
    article: str | None = None
    ids: tuple[str, ...] = ()
    types: tuple[int, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    column: str | None = None
    resolver: str | None = None
    status: ConflictStatus | None = None

    def ids_without(self, conflict_ids: Collection[str]) -> list[str]:
        """Return those of `ids` with which none of these conflicts' ids begins."""
        beginnings = {each: each.strip().lower() for each in self.ids}
        return [
            each
            for each, beginning in beginnings.items()
            if not any(conflict_id.startswith(beginning) for conflict_id in conflict_ids)
        ]


@dataclass(frozen=True)
class Wish:
    """The decision for the chosen conflicts: `values` are texts by column (None: NULL), for Choice.EDITED."""

    choice: Choice
    values: Mapping[str, str | None]
    whole_rows: bool = False
    force: bool = False
    message: str = ""


@dataclass(frozen=True)
class NotResolved:
    """A conflict that was left alone, as its row was changed since: in `columns`, or deleted or inserted (none)."""

    conflict_id: str
    article: str
    key: dict[str, str | None]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class PlannedWrite:
    """What a dry run of `resolve_conflicts` would write: the action (insert, update, delete), an update's columns."""

    conflict_id: str
    article: str
    key: dict[str, str | None]
    action: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class ResolveResult:
    """What `resolve_conflicts` did: conflicts it settled, rows it wrote, and those it left alone.

    A dry run counts what it would do, and has the first 100 rows of it in `planned`.
    """

    resolution_id: str
    choice: str
    settled: int
    written: int
    changed_since: tuple[NotResolved, ...] = ()
    dry_run: bool = False
    planned: tuple[PlannedWrite, ...] = ()


@dataclass(frozen=True)
class RetryResult:
    """How many refused changes the next sessions send again: in all, and by the replica at which they wait."""

    changes: int
    waiting_at: dict[str, int]


@dataclass(frozen=True)
class PurgeResult:
    """How many conflicts `purge_conflicts` removed from the log, with how many losing rows and resolutions."""

    conflicts: int
    rows: int
    resolutions: int
    dry_run: bool = False


@dataclass(frozen=True)
class ConflictCount:
    """Conflicts of one article, type, resolver and day (UTC), and the columns in conflict with their numbers."""

    article: str
    conflict_type: int
    resolver: str | None
    day: str
    conflicts: int
    columns: dict[str, int]
