"""Which conflicts a call is about, and what a user may decide of them. Values only, no storage, no Spark."""

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
