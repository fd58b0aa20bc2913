"""Conflicts and their resolutions, as calls return them. Values only, no storage, no Spark."""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from mergerepl.model.listing import html_table
from mergerepl.model.words import conflict_name


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

    @property
    def ok(self) -> bool:
        """True if no conflict was left alone."""
        return not self.changed_since


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


@dataclass(frozen=True)
class ConflictResolution:
    """A conflict's resolution by `conflicts resolve`: `choice` is winner, loser or edited; `message` is the reason."""

    choice: str
    by: str | None
    resolved_at: datetime
    message: str | None


@dataclass(frozen=True)
class ConflictRecord:
    """One conflict: a row of MSmerge_conflicts_info with its losing row (absent for a losing delete).

    `origin_datasource` and `winner` are the two ends of the session: the replica with the losing change, and the one
    with the winning change; other replicas may have made the changes. `conflict_columns`: columns with different values
    at the two sides and, if tracked by column, changed at both; empty if one side had deleted the row. `resolver`
    decided, and computed the values of `made_columns` in the winning row; `note` is its remark on them. `status`:
    `open` or `settled`; `resolution` has the details, None if none are known, as of a refused change that no longer
    waits. If the article is no longer published (`is_published`), only the losing row is shown.
    """

    conflict_id: str
    publication: str
    article: str
    rowguid: str
    key: dict[str, object]
    conflict_type: int
    reason_code: int | None
    reason_text: str
    origin_datasource: str
    winner: str
    created: datetime
    losing_row: dict[str, object] | None = None
    winning_row: dict[str, object] | None = None
    is_published: bool = True
    conflict_columns: tuple[str, ...] = ()
    resolver: str | None = None
    made_columns: tuple[str, ...] = ()
    note: str | None = None
    status: str = "open"
    resolution: ConflictResolution | None = None
    also_in_json: ClassVar = ("conflict_name",)

    @property
    def conflict_name(self) -> str:
        """The type in words."""
        return conflict_name(self.conflict_type)

    def _repr_html_(self) -> str:
        """Show the losing beside the winning row, one line a column."""
        names = dict.fromkeys([*(self.losing_row or {}), *(self.winning_row or {})])
        lines = [
            {
                "column": name,
                "losing": (self.losing_row or {}).get(name),
                "winning": (self.winning_row or {}).get(name),
                "in conflict": "*" if name in self.conflict_columns else "",
            }
            for name in names
        ]
        facts = {"article": self.article, "key": self.key, "reason": self.reason_text, "status": self.status}
        return html_table([facts]) + html_table(lines)
