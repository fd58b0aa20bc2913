"""The plan of a scan cycle, staged as `_logreader/plan.json`. Versions are fixed: a repeated run reads the same rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mergerepl.delta.feed.column_changes import RENAME, ColumnChange
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import LogState
from mergerepl.store.location import Location
from mergerepl.store.redo import NamedRedoLog, RedoLog
from mergerepl.store.register import ROOT_LOCK
from mergerepl.store.storage import is_local
from mergerepl.systables.logreader import FOLDER, LogReaderRow

TRANSACTION = "transaction"
DDL = "ddl"
NET = "net"
BEGIN = "begin"
DUMMY = "dummy"


_NO_TRANSACTION = bytes(10)


@dataclass(frozen=True)
class EntryCommit:
    """A commit of a source, or several that are compared."""

    source_object_id: int
    from_version: int
    version: int
    operation: str = ""
    origin: str = ""


@dataclass(frozen=True)
class Entry:
    """One LSN of the cycle. It has no commit, one, or those of a unit over several sources, by their times.

    `gone` is the number of a source whose table is gone, else 0: such an entry has no commit.
    """

    slot: int
    kind: str
    begin_time: datetime
    end_time: datetime
    members: tuple[EntryCommit, ...] = ()
    gone: int = 0

    @property
    def commits(self) -> tuple[dict[str, Any], ...]:
        """The commits as the products' tables of transactions state them."""
        return tuple(map(asdict, self.members))

    @property
    def transaction_id(self) -> bytes:
        """The id of its transaction: zeros without a commit, and for a unit."""
        if self.kind == BEGIN or len(self.members) != 1:
            return _NO_TRANSACTION
        return transaction_id(self.members[0].source_object_id, self.members[0].version)

    def of(self, object_id: int) -> EntryCommit | None:
        """Return the commit of a source; a source has one at most."""
        return next((each for each in self.members if each.source_object_id == object_id), None)


def transaction_id(object_id: int, version: int) -> bytes:
    """Return the id of the transaction of a commit: source_object_id (4 bytes), version (6)."""
    return object_id.to_bytes(4, "big") + version.to_bytes(6, "big")


REPLACED = "its columns were replaced together with its rows"
"""Why a single commit is compared although its feed was on: it cannot be read under its own columns."""


@dataclass(frozen=True)
class Reading:
    """Versions of a source that are read together, under the columns of the last of them.

    `versions` are those with changes. `compared` is why the versions `from_version_inclusive - 1` and
    `through_version_inclusive` are compared, None where the feed is read. `by_files` are versions whose change files
    cannot be used: they are read from added and removed files. `by_keys` are such versions too, but only rows with a
    changed key are read. `fields` are the columns at the end, as in the log; `former` are their names before the first
    version, None for new columns. `most_rows` is the maximum of changed rows,
    by the writers' counts; None without counts.
    """

    from_version_inclusive: int
    through_version_inclusive: int
    versions: tuple[int, ...]
    fields: tuple[Mapping[str, Any], ...]
    left_out: tuple[int, ...] = ()
    by_files: tuple[int, ...] = ()
    is_one_metadata: bool = True
    compared: str | None = None
    most_rows: int | None = None
    timestamp_partitions: tuple[str, ...] = ()
    by_keys: tuple[int, ...] = ()
    former: tuple[str | None, ...] = ()

    @property
    def is_gap(self) -> bool:
        """True if these versions have no feed: intermediate states are lost."""
        return self.compared is not None and self.compared != REPLACED

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns at the end: field i of an image is the i-th."""
        return tuple(each["name"] for each in self.fields)


def name_at(changes: Iterable[ColumnChange], column: str, version: int) -> str:
    """Return the name that a column has at a version, after some changes."""
    moved = -1
    for change in changes:
        # One commit may exchange names.
        if change.kind == RENAME and change.column == column and moved < change.version <= version:
            column, moved = change.new_name, change.version
    return column


@dataclass(frozen=True)
class SourcePlan:
    """The commits of one source that a cycle reads: after its position, through a version. `key` is as at the position."""

    object_id: int
    path: str
    from_version_exclusive: int
    through_version_inclusive: int
    key: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    columns: tuple[ColumnChange, ...] = ()

    def name_at(self, column: str, version: int) -> str:
        """Return the name that a column of the position has at a later version."""
        return name_at(self.columns, column, version)


@dataclass(frozen=True)
class Paused:
    """A source that leaves the cycle: its changes cannot be determined."""

    object_id: int
    number: int
    reason: str
    is_gone: bool = False


@dataclass(frozen=True)
class Plan:
    """A scan cycle.

    `after` is the log reader's state when the cycle is done. `previous_lsn` is the highest LSN before the cycle. `steps`
    has the decision of each consumer, as JSON, by its name. `notices` say where changes are served with a loss.
    """

    scan_cycle: int
    serve: tuple[str, ...]
    entries: tuple[Entry, ...]
    sources: tuple[SourcePlan, ...]
    after: LogState
    paused: tuple[Paused, ...] = ()
    notices: tuple[str, ...] = ()
    previous_lsn: bytes | None = None
    previous_cycle: int = 0
    steps: Mapping[str, Any] = field(default_factory=dict)

    def lsn(self, entry: Entry) -> Lsn:
        """Return the LSN of an entry."""
        return Lsn.of(self.scan_cycle, entry.slot)

    def lsns_of(self, object_id: int) -> dict[int, Lsn]:
        """Return the LSN of each version of a source that has one."""
        found = ((each, each.of(object_id)) for each in self.entries)
        return {commit.version: self.lsn(each) for each, commit in found if commit is not None}

    def places_of(self, object_id: int) -> dict[int, int]:
        """Return, of each version of a source that is not the first commit of its unit, its place in the unit."""
        places = (
            (commit.version, place)
            for each in self.entries
            for place, commit in enumerate(each.members)
            if place and commit.source_object_id == object_id
        )
        return dict(places)

    def without(self, paused: Paused, row: LogReaderRow) -> "Plan":
        """Return the plan without a source that cannot be read any more; `row` is its row before the cycle.

        The LSNs of its commits stay unused.
        """
        left = (
            (each, tuple(m for m in each.members if m.source_object_id != paused.object_id))
            for each in self.entries
        )
        entries = tuple(replace(each, members=rest) for each, rest in left if rest or not each.members)
        after = self.after.with_source(paused_row(row, paused))
        if not entries:
            after = replace(after, database=replace(after.database, cycle=self.previous_cycle))
        return replace(
            self,
            entries=entries,
            sources=tuple(each for each in self.sources if each.object_id != paused.object_id),
            after=after,
            paused=(*self.paused, paused),
        )

    @property
    def last_lsn(self) -> Lsn | None:
        """The highest LSN of the cycle."""
        return self.lsn(self.entries[-1]) if self.entries else None


def paused_row(row: LogReaderRow, paused: Paused) -> LogReaderRow:
    """Return the row of a source that is paused at its position."""
    status = "gone" if paused.is_gone else "paused"
    return replace(row, status=status, error_number=paused.number, reason=paused.reason)


def redo_log(root: Location) -> RedoLog[Plan]:
    """Return the redo log of the scan cycles of a database."""
    if not is_local(root):
        return NamedRedoLog(root / FOLDER, Plan, "logreader", what="The scan cycle", lock=root / ROOT_LOCK)
    return RedoLog(
        root / FOLDER,
        Plan,
        "logreader",
        what="The scan cycle",
        otherwise="Or remove it: what its cycle wrote is removed then, and the commits are read again under higher LSNs.",
    )


TICK = timedelta(microseconds=1)
"""The least time between the last LSN of a cycle and the first one of the next."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Placed:
    """A commit with the time of its log file; in the cut at most `began_ns`, and never below the version before it.

    `unit` is the id of the commits of several tables to which it belongs.
    """

    at_ns: int
    object_id: int
    version: int
    unit: str = ""


def cut(commits: Iterable[Placed], *, began_ns: int, seen: int) -> Iterator[Placed]:
    """Yield the commits of one source that are in the cut: a prefix of those after its position, which are given in order.

    A commit is in the cut if its log file was written before the cycle began (`began_ns`, by the clock of the file
    system), or if the listing of an earlier cycle has seen it (`seen`, the highest version). A writer that commits b after
    it saw a writes b's file after a appeared: so if b is in the cut, a is in it, too, with a lower LSN (cdc.md 3).
    """
    at_ns = 0
    for commit in commits:
        if commit.at_ns >= began_ns and commit.version > seen:
            return
        at_ns = max(at_ns, min(commit.at_ns, began_ns))
        yield replace(commit, at_ns=at_ns)


def in_order(sources: Iterable[Sequence[Placed]]) -> list[Placed]:
    """Return the commits of all sources in order: by effective time, then source, then version."""
    placed = [each for source in sources for each in source]
    return sorted(placed, key=lambda each: (each.at_ns, each.object_id, each.version))


def end_times(times: Iterable[datetime], *, last: datetime | None) -> list[datetime]:
    """Return the tran_end_time of each commit of a cycle, in order: they never fall, and begin later than the last cycle's.

    `last` is the highest time of the cycles before: a consumer that reads by time may have passed it.
    """
    floor = _EPOCH if last is None else last + TICK
    found = []
    for time in times:
        floor = max(floor, time)
        found.append(floor)
    return found


def moment_of_ms(milliseconds: int) -> datetime:
    """Return a time given in milliseconds since 1970."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
