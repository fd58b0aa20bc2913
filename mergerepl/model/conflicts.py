"""The choice of conflicts, and their resolutions. Values only, no storage, no Spark."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ConflictStatus(StrEnum):
    """Whether a user has resolved a conflict."""

    OPEN = "open"
    """Not yet: its outcome is the resolver's."""
    SETTLED = "settled"
    """A user resolved it."""


class Choice(StrEnum):
    """MSmerge_conflict_resolutions.choice."""

    WINNER = "winner"
    """The outcome stands."""
    LOSER = "loser"
    """The losing row was written."""
    EDITED = "edited"
    """Other values were written."""


@dataclass(frozen=True)
class ConflictFilter:
    """A filter on a replica's conflicts: those that meet all given conditions.

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
        """Return those of `ids` that are not the beginning of any of these conflicts' ids."""
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
    """A conflict left alone because its row has changed since: in `columns`, or deleted or inserted (empty)."""

    conflict_id: str
    article: str
    key: dict[str, str | None]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class PlannedWrite:
    """A write planned by a dry run of `resolve`: the action (insert, update, delete), an update's columns."""

    conflict_id: str
    article: str
    key: dict[str, str | None]
    action: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class ResolveResult:
    """The outcome of `resolve`: conflicts it settled, rows it wrote, and conflicts it left alone.

    A dry run counts the planned writes, and has the first 100 rows of them in `planned`.
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
    """The number of refused changes that the next sessions resend: in all, and by the replica at which they wait."""

    changes: int
    waiting_at: dict[str, int]


@dataclass(frozen=True)
class PurgeResult:
    """The numbers of conflicts, losing rows and resolutions that `drop` removed from the log."""

    conflicts: int
    rows: int
    resolutions: int
    dry_run: bool = False


@dataclass(frozen=True)
class ExportedFile:
    """A file that `export` wrote, and the number of conflicts in it."""

    file: str
    conflicts: int


@dataclass(frozen=True)
class ConflictCount:
    """Conflicts of one article, type, resolver and day (UTC), and the columns in conflict with their numbers.

    A field that the conflicts were not counted by is None.
    """

    article: str | None
    conflict_type: int | None
    resolver: str | None
    day: str | None
    conflicts: int
    columns: dict[str, int]
