"""What the reference model keeps: plain records of replicas, generations, versions of rows, and a staged session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Value = Any  # texts and NULL, but where a resolver has a column of another type
Row = dict[str, Value]
Lineage = dict[int, int]
Colv = dict[str, tuple[int, int]]
Direction = Literal["both", "upload", "download"]
PUBLISHER_PRIORITY = 100.0
PUBLICATION = 0
"""The writer of every row that was there when the table was published."""
CRASH_POINTS = ("staged", "hub data", "sub data", "hub metadata", "sub metadata", "recgen")


def bump(lineage: Lineage, nickname: int, floor: int = 0) -> Lineage:
    """Add one change by `nickname`: its version passes every known version and the floor."""
    return {**lineage, nickname: max([*lineage.values(), floor]) + 1}


def merge_lineage(one: Lineage, other: Lineage) -> Lineage:
    """Return the component-wise maximum."""
    return {nick: max(one.get(nick, 0), other.get(nick, 0)) for nick in sorted({*one, *other})}


def covers(lineage: Lineage, other: Lineage) -> bool:
    """Say whether a row with this lineage includes every change in `other`."""
    return all(version <= lineage.get(nick, 0) for nick, version in other.items())


@dataclass(frozen=True)
class Subscriber:
    """A subscription: `server` changes carry their priority, `client` changes 0 until at the publisher."""

    name: str
    kind: Literal["server", "client"] = "server"
    priority: float = 0.0


@dataclass
class Generation:
    """One row of MSmerge_genhistory; status 0 open, 1 closed, 2 closed and from elsewhere."""

    guid: str
    status: int
    nicknames: frozenset[int]


@dataclass(frozen=True)
class Meta:
    """One row of MSmerge_contents or MSmerge_tombstone."""

    gen: int
    lineage: Lineage
    colv: Colv
    priority: float


@dataclass(frozen=True)
class Version:
    """A row (None: deleted) with its metadata, as one replica sends it."""

    row: Row | None
    lineage: Lineage
    colv: Colv
    priority: float
    seen: frozenset[int]
    of: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Ghost: the events that the value of each column includes."""

    def events_of(self, column: str) -> frozenset[int]:
        """Return the events that the value of a column includes."""
        return self.of.get(column, frozenset())


@dataclass(frozen=True)
class Event:
    """Ghost: one captured net change (or a resolution), the columns it set and what it had seen."""

    replica: str
    key: str
    kind: Literal["insert", "update", "delete", "resolve"]
    columns: frozenset[str]
    past: frozenset[int]


@dataclass(frozen=True)
class Conflict:
    """One logged loser."""

    key: str
    type: int
    winner: str
    loser: str
    row: Row | None
    winner_lineage: Lineage
    loser_lineage: Lineage
    winner_seen: frozenset[int]
    loser_seen: frozenset[int]


@dataclass
class Replica:
    """One database copy with its system tables; `captured` is what the tables held at the last capture."""

    name: str
    nick: int
    kind: Literal["publisher", "server", "client"]
    priority: float
    rows: dict[str, Row] = field(default_factory=dict)
    captured: dict[str, Row] = field(default_factory=dict)
    contents: dict[str, Meta] = field(default_factory=dict)
    tombstones: dict[str, Meta] = field(default_factory=dict)
    generations: dict[int, Generation] = field(default_factory=dict)
    sent: dict[str, tuple[int, str]] = field(default_factory=dict)
    received: dict[str, tuple[int, str]] = field(default_factory=dict)
    clock: int = 0  # no version known here is higher; a bump goes above it
    seen: dict[str, frozenset[int]] = field(default_factory=dict)
    of: dict[str, Mapping[str, frozenset[int]]] = field(default_factory=dict)
    past: dict[str, list[Version]] = field(default_factory=dict)  # every version that the row had here
    undone: set[str] = field(
        default_factory=set
    )  # rows whose last version is the publisher's, put back: nobody is sent it

    def meta(self, key: str) -> Meta | None:
        """Return the key's contents or tombstone row."""
        return self.contents.get(key) or self.tombstones.get(key)

    def known_lineage(self, key: str) -> Lineage:
        """Return the lineage that a key is compared with: without metadata a row is the publication's."""
        meta = self.meta(key)
        if meta is not None:
            return meta.lineage
        return {PUBLICATION: 1} if key in self.captured else {}

    def version(self, key: str) -> Version:
        """Return the captured state of a row; without metadata it is as it was published."""
        meta = self.meta(key) or Meta(0, self.known_lineage(key), {}, PUBLISHER_PRIORITY)
        row = None if key in self.tombstones else self.captured.get(key)
        seen, of = self.seen.get(key, frozenset()), self.of.get(key, {})
        return Version(row, meta.lineage, meta.colv, meta.priority, seen, of)

    def latest_known(self, key: str, lineage: Lineage) -> Version:
        """Return the last version of a row here that a row with this lineage includes."""
        return next(each for each in reversed(self.past[key]) if covers(lineage, each.lineage))

    def put_row(self, table: dict[str, Row], key: str, row: Row | None) -> None:
        """Set or remove one row of one table."""
        if row is None:
            table.pop(key, None)
        else:
            table[key] = dict(row)

    def put_meta(self, key: str, gen: int, version: Version) -> None:
        """Write the metadata of an applied version: live rows in contents, deletes in tombstones."""
        into, out = (
            (self.tombstones, self.contents) if version.row is None else (self.contents, self.tombstones)
        )
        out.pop(key, None)
        self.undone.discard(key)
        into[key] = Meta(gen, dict(version.lineage), dict(version.colv), version.priority)
        self.seen[key], self.of[key] = version.seen, version.of
        self.past.setdefault(key, [NO_ROW]).append(version)
        self.clock = max([self.clock, *version.lineage.values()])

    def add_generation(self, guid: str, status: int, nicknames: Iterable[int]) -> int:
        """Record a generation under the next local number."""
        number = max(self.generations, default=0) + 1
        self.generations[number] = Generation(guid, status, frozenset(nicknames))
        return number

    def local_number(self, guid: str) -> int | None:
        """Return the local number of a generation, if it is here."""
        return next((n for n, gen in self.generations.items() if gen.guid == guid), None)


@dataclass(frozen=True)
class Step:
    """What a session does with one row; `guid` is the generation it travels in."""

    key: str
    guid: str
    to_hub: Version | None
    to_sub: Version | None
    conflict: Conflict | None = None
    is_undone: bool = False


@dataclass
class Changeset:
    """A staged session: the redo log."""

    sub: str
    direction: Direction
    steps: list[Step]
    up: list[Generation]
    down: list[Generation]
    new_guid: str
    up_mark: tuple[int, str]
    down_mark: tuple[int, str]
    done: int = 0
    skipped: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Result:
    """Rows moved by one session."""

    uploaded: int
    downloaded: int
    conflicts: int
    crashed: bool = False


NO_ROW = Version(None, {}, {}, PUBLISHER_PRIORITY, frozenset())
"""What there is of a key before its first insert."""
