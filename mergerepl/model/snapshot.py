"""All that is known of a place at one moment: `status`, the dashboard and the metrics are views of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from mergerepl.model.listing import HtmlResult, Listing
from mergerepl.model.relation import Relation
from mergerepl.model.tasks import CRITICAL, UNKNOWN, WARNING, Run, Status, StatusWarning

if TYPE_CHECKING:
    from mergerepl.model.conflicts import ConflictCount

_WORST_FIRST = (CRITICAL, UNKNOWN, WARNING)


@dataclass(frozen=True)
class ReplicaConflicts:
    """The conflicts that one replica has logged, by article, type, resolver and day."""

    replica: str
    counts: Listing[ConflictCount]


@dataclass(frozen=True)
class HeldMetadata:
    """The changes whose metadata one subscriber holds back at its publisher: it may not know them."""

    publication: str
    subscriber: str
    changes: int


@dataclass(frozen=True)
class Snapshot(HtmlResult):
    """The state of the publications and databases of a place.

    Attributes:
        time: When it was read, in UTC.
        since: From when on `runs` are complete, but for those past `MOST_RUNS`.
        statuses: Each product at each publisher and database, as `status` returns it.
        runs: Sessions, batches and scans since then, the newest first.
        conflicts: The logged conflicts of merge replicas.
        held: The subscribers that hold metadata back.
    """

    time: datetime
    since: datetime
    statuses: Listing[Status]
    runs: Listing[Run] = Listing()  # noqa: RUF009 (it is a tuple)
    conflicts: Listing[ReplicaConflicts] = Listing()  # noqa: RUF009
    held: Listing[HeldMetadata] = Listing()  # noqa: RUF009

    @property
    def relations(self) -> Iterator[tuple[Status, Relation]]:
        """Yield each subscription with the state of its publisher."""
        for status in self.statuses:
            for each in getattr(status.details, "subscriptions", ()):
                yield status, each

    @property
    def problems(self) -> tuple[StatusWarning, ...]:
        """The problems, the worst first; what two products meet is there once."""
        found = dict.fromkeys(warning for each in self.statuses for warning in each.warnings)
        return tuple(sorted(found, key=lambda each: _WORST_FIRST.index(each.level)))


MOST_RUNS = 2000
"""The most runs of one product at one folder that a snapshot has."""
