"""What `apply` asks of the agent that runs sessions: captures, sessions, and changes of what articles state."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mergerepl.model.progress import Progress
from mergerepl.model.publication import Publication
from mergerepl.publish.filters import FilterChange
from mergerepl.store.location import Location


@dataclass(frozen=True)
class TrackingChange:
    """An article that is tracked by row, or by column, from now on."""

    tablenick: int
    by_column: bool


@dataclass(frozen=True)
class ColumnsChange:
    """An article whose published columns are others from now on. `is_listed`: the file lists them."""

    tablenick: int
    names: tuple[str, ...]
    is_listed: bool


DefinitionChange = TrackingChange | ColumnsChange | FilterChange


class Agent:
    """The agent's functions, at replicas whose leases `apply` holds."""

    def capture(self, root: Location, pubid: str) -> None:
        """Capture the changes of the publisher at a root in a publication."""
        raise NotImplementedError

    def change(self, root: Location, pubid: str, change: DefinitionChange, *, is_subscribed: bool) -> None:
        """Change what a publication states, after a capture under what it stated before if it has subscribers."""
        raise NotImplementedError

    def check_columns(self, root: Location, tablenick: int, columns: tuple[str, ...]) -> None:
        """Check that subscribers of an article of the publisher at a root can get columns that it did not publish."""
        raise NotImplementedError

    def stops_at(self, publisher: Location, subscriber: Location, change: ColumnsChange) -> str | None:
        """Return why a subscriber's table could not take the columns of an article; None if it could."""
        raise NotImplementedError

    def planned_moves(
        self, root: Location, pubid: str, change: FilterChange, partitions: Collection[int]
    ) -> Mapping[str, Mapping[int, tuple[int, int]]] | None:
        """Return by article how many rows enter and leave each of these partitions; None if only Spark can count them."""
        raise NotImplementedError

    def synchronise(self, publication: Publication, subscriber: Location, progress: Progress) -> None:
        """Run a session with a subscriber."""
        raise NotImplementedError

    def finish(self, publisher: Location, subscriber: Location | None, session: str) -> None:
        """Finish a staged session; a subscriber out of reach is None."""
        raise NotImplementedError

    def reinitialise(
        self, publication: Publication, subscriber: Location, tables: Sequence[str], progress: Progress
    ) -> None:
        """Give a subscriber the publisher's rows of these articles by difference; what it did not send goes up first."""
        raise NotImplementedError

    def sweep(self, root: Location) -> None:
        """Finish the decided work in a tracked folder; by default no folder is tracked."""
