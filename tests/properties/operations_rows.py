"""What the model of operations keeps: versions of rows with their metadata, replicas, staged sessions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.properties.ruled_worlds import Broken, Ruled

KEYS = ("x", "y")
LATE = 1000  # nickname of late writers: own nickname + LATE
NEVER = 1 << 60


# ---- rows and their metadata ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    row: tuple | None
    lineage: dict
    colv: dict
    prio: int
    of: tuple
    recorded: bool = True
    """Whether there is metadata of it."""


@dataclass(frozen=True)
class Meta:
    gen: int
    lineage: dict
    colv: dict
    prio: int
    born: int = 0
    """Own generation of an insert of a key without any record."""


def knows(lineage, floor, entry):
    return entry[1] <= max(lineage.get(entry[0], 0), floor)


def covers(lineage, other, floor):
    return all(knows(lineage, floor, entry) for entry in other.items())


def merged(one, other):
    return {nick: max(one.get(nick, 0), other.get(nick, 0)) for nick in {**one, **other}}


def entry_of(version, column):
    """A column without an entry, of a row that has writer 0, was last changed by (0, 1)."""
    return version.colv.get(column, (0, 1) if 0 in version.lineage else (0, 0))


def joined(one, other):
    return tuple(a | b for a, b in zip(one, other, strict=True))


# ---- replicas ---------------------------------------------------------------------------------------------------------


@dataclass
class Replica:
    name: str
    nick: int
    prio: int
    up: str | None
    part: int | None = None
    """The value of the third column that its filter asks for."""
    rows: dict = field(default_factory=dict)
    captured: dict = field(default_factory=dict)
    meta: dict = field(default_factory=dict)
    of: dict = field(default_factory=dict)
    gens: dict = field(default_factory=dict)  # number -> (guid, highest version, replica it came from)
    last: int = 0
    sent: dict = field(default_factory=dict)  # peer -> own generation it has acknowledged
    recv: dict = field(default_factory=dict)  # peer -> its generation received last
    clock: int = 1
    settled: int = 1  # it knows every change, made anywhere in the tree, at or below it
    known: int = 1  # so does every live replica of the tree
    cleaned: int = 0
    through: dict = field(
        default_factory=dict
    )  # subscriber -> every change made there or below, at or below it, is here
    knows: dict = field(
        default_factory=dict
    )  # subscriber -> it and all below know every change at or below it
    told: tuple = (0, 0)  # through and knows as told to the publisher
    dead: set = field(default_factory=set)  # subscribers that have expired or must be reinitialised
    failed: dict = field(default_factory=dict)  # destination -> refused keys
    refuses: set = field(default_factory=set)  # keys of which its table takes nothing at present
    there: dict = field(default_factory=dict)  # filtered subscriber -> keys it has from here
    parts: dict = field(default_factory=dict)  # filtered: own generation -> partitions with changes in it

    def version(self, key):
        meta, row = self.meta.get(key), self.captured.get(key)
        if meta is None:
            return Version(row, {} if row is None else {0: 1}, {}, 100, self.of[key], recorded=False)
        return Version(row, meta.lineage, meta.colv, meta.prio, self.of[key])

    def put(self, key, version, gen, born=0):
        self.meta[key] = Meta(gen, version.lineage, version.colv, version.prio, born)
        self.of[key] = version.of
        top = max(version.lineage.values())
        self.clock = max(self.clock, top)
        guid, highest, origin = self.gens[gen]
        self.gens[gen] = guid, max(highest, top), origin

    def set_row(self, table, key, row):
        if row is None:
            table.pop(key, None)
        else:
            table[key] = row

    def add(self, guid, highest=0, origin=None):
        self.last += 1
        self.gens[self.last] = guid, highest, origin or self.name
        return self.last

    def number(self, guid):
        return next((n for n, gen in self.gens.items() if gen[0] == guid), None)

    def guid_of(self, key):
        """The guid of the generation that a row was changed in last; None if genhistory no longer has it."""
        meta = self.meta.get(key)
        return self.gens.get(meta.gen, (None,))[0] if meta else None

    def note_parts(self, gen, *rows):
        if self.up is None:
            self.parts.setdefault(gen, set()).update(row[2] for row in rows if row and len(row) > 2)

    def sees(self, row):
        return row is not None and (self.part is None or row[2] == self.part)

    def live(self):
        return [k for k in self.through if k not in self.dead]

    def relations(self):
        """The relations that hold cleanup back: the one above counts even where it has expired."""
        return [*self.live(), *([self.up] if self.up else ())]


@dataclass
class Changeset:
    pub: str
    sub: str
    up: bool
    down: bool
    guid: str
    to_pub: dict = field(default_factory=dict)  # key -> (version, guid)
    to_sub: dict = field(default_factory=dict)  # key -> (version, guid); version None: LEAVE
    up_gens: list = field(default_factory=list)
    down_gens: list = field(default_factory=list)
    up_mark: int = 0
    down_mark: int = 0
    failed_up: dict = field(default_factory=dict)
    failed_down: dict = field(default_factory=dict)
    there: set = field(default_factory=set)
    new: set = field(default_factory=set)  # rows of the subscriber that stay new although they were sent
    through: int = 0
    settled: int = 0
    known: int = 0
    floor: int = 0
    clock: int = 0
    wipe: bool = False
    resolves: bool = False  # it has a generation for what both sides resolved, also without such rows
    done: set = field(default_factory=set)

    @property
    def again(self):
        """The generation of refused rows that are sent again: both sides hold it."""
        return self.guid + " again"


TREES = {
    "pair": {"R": None, "A": "R"},
    "star": {"R": None, "A": "R", "B": "R"},
    "chain": {"R": None, "N": "R", "D": "N"},
    "tree": {"R": None, "A": "R", "N": "R", "D": "N", "E": "N"},
}
STOPS = {
    None: ("pub", "sub", "subwm", "pubwm"),
    "staged": (),
    "pub": ("pub",),
    "sub": ("sub",),
    "both": ("pub", "sub"),
    "subwm": ("pub", "sub", "subwm"),
}


# ---- ghosts: what no rule reads ---------------------------------------------------------------


class Ghosts(Ruled):
    """Every edit and resolution has a number. One is lost if a version without it takes the place of one with it."""

    def __init__(self):
        self.edits = []  # (key, columns)
        self.version = {}  # edit -> its version; NEVER while it can no longer be merged by lineage
        self.writer, self.past = {}, {}  # edit -> nickname, `of` before
        self.twins = {}  # edit -> edits that came to the same value of a column: who knows one knows the value
        self.logged, self.gone = (
            set(),
            set(),
        )  # in a conflict table / exported, equal, or of an ended subscription
        self.suspect = set()  # subscribers that have expired since they were last initialised
        self.checks_settled = True

    def is_suspect(self, name):
        return name is not None and (name in self.suspect or self.is_suspect(self.r[name].up))

    def event(self, key, version, cols, writer, name):
        """Return a resolved version with a ghost edit of its own in the columns that it stamped."""
        if not cols:
            return version
        number, stamp = len(self.edits), version.lineage[writer]
        self.edits.append((key, list(cols)))
        self.writer[number], self.past[number] = writer, version.of
        self.version[number] = NEVER if self.is_suspect(name) else stamp
        return replace(
            version, of=tuple(known | {number} if c in cols else known for c, known in enumerate(version.of))
        )

    def replaced(self, replica, key, of):
        for c, known in enumerate(replica.of[key]):
            lost = [e for e in known - of[c] - self.logged - self.gone if not self.has(of[c], e)]
            if lost:
                raise Broken(f"lost: {key} column {c} at {replica.name}: edits {sorted(lost)}")

    def has(self, known, edit):
        """Whether an edit, or one that came to the same value of the column, is known."""
        return edit in known or bool(self.twins.get(edit, set()) & known)
