"""A model of schema changes, in plain Python.

A tree of replicas holds one article with row or column tracking. A *field* is a published column: a number that the root
gives once and never again. Each table has columns of its own, each with a physical identity (column mapping: a number of
that table; without: the name). Capture, lineage, colv1, generations, watermarks, staged sessions and late writers are those
of operations_model.py, without cleanup (floor 0) and without filters. `schema_histories` has steps, properties and histories.

The oracle follows tokens. Each value that a user writes has a token of its own, which travels with the value wherever it is
copied; `parents` says which tokens the writer saw. No rule reads a token. `RULES` names each rule that a World may switch off:
 lost       an agent replaces or drops a value that is in no conflict table and that the new value's writer had not seen
 unknown    NULL of a writer whose table lacked the column replaces a value that somebody wrote
 false      a conflict is declared although one side saw the other's values (row; with column tracking: of each column)
 refused    a session is refused although the change is followed
 cut        a value is written into a column that is too narrow
 back       values of a dropped column come back in a new one of its name
 diverged   quiet passes do not make names, types and rows equal
"""
# ruff: noqa: E501, RUF021, C420, B007 - rules are kept in the form in which they were proven

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.properties.ruled_worlds import Broken, Refused, Ruled

KEYS = ("x", "y")
LATE = 1000  # nickname of late writers: own nickname + LATE
BIG = 1 << 20  # from here on a value needs the wide type

RULES = {
    "identity": "columns are followed by their physical identity, not by name",
    "replacement by name": "a commit that replaces the table gives new identities: its columns are matched by name",
    "restored identity": "... but first by an identity that a field has had since the capture: RESTORE brings it back",
    "unknown": "an image says nothing of a column that its writer's table lacked",
    "unknown at the write": "... at the last write of the row, not at the capture",
    "unknown stays": "an image that was filled from the destination's row still says nothing of that column",
    "claims stay": "... unless the publisher's version below it does",
    "claims of a delete": "... or the tombstone below it does: in a row that is inserted over a delete, what the tombstone's image says is NULL",
    "filled tombstone": "... and the image in a tombstone is filled like any other",
    "revived": "a row that wins over a delete takes columns of which it says nothing from the publisher's tombstone",
    "revived says": "... and says them from then on: an older change of a third replica is compared with them",
    "revived elsewhere": "... and names as unknown what that image has and its own replica lacks: the next publisher takes it from its tombstone",
    "filled": "an image that the publisher stores has all its columns: unknown ones are filled from its row",
    "colv by field": "colv1 is keyed by field, not by name",
    "schema first": "a subscriber's columns are changed before it enumerates and receives rows",
    "widened": "... and its types, too",
    "capture after": "a subscriber is captured again after its ALTERs; what lies before each is read under the old columns",
    "dropped is logged": "a pending value of a dropped column goes to the conflict table",
    "withdrawn": "an unsent row whose only changes were in dropped columns is no change any more",
    "adopted values": "values that a subscriber has in a column of its own become its changes when the column is published",
    "left stays": "a column that a followed DROP left in place (no column mapping) is not adopted: its old values would come back",
    "staged by identity": "a staged row is applied by field under the names that the table has at that moment",
    "staged dropped": "... and its values of a column that a user has dropped since are logged",
    "marks": "an ALTER of the agent names the field in its commit mark: a later capture takes it neither for a user's DROP nor for a column of the subscriber's own",
    "drops first": "DROP before RENAME before ADD: a name that is free again is a new column",
    "temporary names": "renames go through a temporary name where the name is still taken",
    "skipped is unknown": "a field that a subscriber skips is unknown in its rows",
    "row versions": "tracking from row to column: a version without colv1 counts as changed in every column",
    "stamped whole": "... and the next edit on top of it stamps every column",
    "late delete": "a delete that a subscriber makes while a change arrives is concurrent with it, where it skips one of the row's fields",
    "whole loser": "... and its conflict logs the whole row that arrived, skipped fields too",
    "copied rows": "a new publisher's column that has values is captured as row changes",
}


class Cell(NamedTuple):
    token: int
    value: int | None


NULL = Cell(0, None)


class Column(NamedTuple):
    name: str
    is_wide: bool = False


@dataclass(frozen=True)
class Commit:
    """A commit that changed columns. `mark`: (what, field) for one of the agent's own."""

    op: str  # alter, replace
    before: dict  # identity -> Column
    after: dict
    mark: tuple | None = None
    cells: dict = field(
        default_factory=dict
    )  # what the feed still has of dropped columns: identity -> {key: Cell}


@dataclass
class Table:
    has_mapping: bool
    cols: dict = field(default_factory=dict)  # identity -> Column
    rows: dict = field(default_factory=dict)  # key -> {identity: Cell}
    log: list = field(default_factory=list)
    seen: dict = field(
        default_factory=dict
    )  # key -> identities at the last write by a user since the capture
    gone: dict = field(default_factory=dict)  # ghost: key -> token of the delete, of rows that are not there
    last_id: int = 0

    def new_id(self, name):
        self.last_id += 1
        return f"#{self.last_id}" if self.has_mapping else name

    def named(self, name):
        return next((i for i, c in self.cols.items() if c.name == name), None)

    def alter(self, after, mark=None, op="alter"):
        lost = {
            i: {k: row[i] for k, row in self.rows.items() if i in row} for i in self.cols if i not in after
        }
        self.log.append(Commit(op, dict(self.cols), dict(after), mark, lost))
        self.cols = dict(after)
        for row in self.rows.values():
            for i in list(row):
                if i not in after:
                    del row[i]
            for i in after:
                row.setdefault(i, NULL)


@dataclass(frozen=True)
class Version:
    image: dict | None  # field -> Cell; None: deleted
    lineage: dict
    colv: dict | None  # None: made under row tracking
    prio: int
    unknown: frozenset = frozenset()  # fields of the image of which it says nothing
    gone: int = 0  # ghost: token of the delete
    under: frozenset = frozenset()  # ghost: fields that the last writer's table had
    hidden: frozenset = frozenset()  # ghost: (token, field) of columns dropped since
    last: dict = field(default_factory=dict)  # the image in the tombstone
    is_whole: bool = False  # ghost: stamped in every column
    equals: frozenset = frozenset()  # ghost: (token, field) of values that met an equal one, which stayed

    def says(self, f):
        return self.image is not None and f in self.image and f not in self.unknown


@dataclass(frozen=True)
class Meta:
    gen: int
    version: Version
    base: Version | None = None  # before the first change that was not sent yet
    base_gen: int = 0  # its generation; 0: no metadata


@dataclass
class Replica:
    name: str
    nick: int
    prio: int
    up: str | None
    table: Table
    fields: dict = field(default_factory=dict)  # field -> Column, as published here
    ident: dict = field(default_factory=dict)  # field -> identity in this table, at the captured version
    names: dict = field(default_factory=dict)  # field -> name at the captured version
    left: dict = field(
        default_factory=dict
    )  # identity -> field, of columns that a followed DROP left in place
    skips: set = field(default_factory=set)
    is_column: bool = False  # the article's tracking, as known here
    wants_column: bool = False  # ... as the root's file says since the last apply
    captured: dict = field(default_factory=dict)  # key -> {field: Cell}
    position: int = 0
    meta: dict = field(default_factory=dict)
    gens: dict = field(default_factory=dict)  # number -> (guid, origin)
    last: int = 0
    sent: dict = field(default_factory=dict)
    recv: dict = field(default_factory=dict)
    schemaversion: int = 0
    dropping: dict = field(
        default_factory=dict
    )  # ghost: key -> (token, field) of columns dropped since the capture
    unseen: dict = field(
        default_factory=dict
    )  # ghost: (key, skipped field) -> token of the value or delete that it was sent

    def add(self, guid, origin=None):
        self.last += 1
        self.gens[self.last] = guid, origin or self.name
        return self.last

    def number(self, guid):
        return next((n for n, gen in self.gens.items() if gen[0] == guid), None)


@dataclass
class Changeset:
    pub: str
    sub: str
    guid: str
    to_pub: dict = field(default_factory=dict)
    to_sub: dict = field(default_factory=dict)
    up_gens: list = field(default_factory=list)
    down_gens: list = field(default_factory=list)
    up_mark: int = 0
    down_mark: int = 0
    done: set = field(default_factory=set)


def knows(lineage, entry):
    return entry[1] <= lineage.get(entry[0], 0)


def covers(lineage, other):
    return all(knows(lineage, entry) for entry in other.items())


def merged(one, other):
    return {nick: max(one.get(nick, 0), other.get(nick, 0)) for nick in {**one, **other}}


TREES = {"pair": {"R": None, "A": "R"}, "star": {"R": None, "A": "R", "B": "R"}, "chain": {"R": None, "N": "R", "D": "N"},
         "tree": {"R": None, "A": "R", "N": "R", "D": "N"}}  # fmt: skip


class World(Ruled):
    rules = RULES

    def __init__(self, tree="pair", *, column=False, mapping="RABND", prios=(50,), keys=KEYS, off=()):
        self.keys, self.off, self.stats = keys, frozenset(off), Counter()
        self.tokens, self.last_field = 0, 2
        self.parents = {}  # ghost: (token, field) -> tokens that its writer saw there
        self.logged, self.born = set(), {}  # ghost: (token, field); (token, field) -> key
        self.deletes = set()  # ghost: tokens of deletes by users
        self.beaten = {}  # ghost: delete that won a conflict -> (token, field) of the row that it beat
        self.over = {}  # ghost: token of an insert -> the delete that it followed
        self.twins = {}  # ghost: (token, field) -> tokens of the same value that it was merged with
        self.real = set()  # ghost: (token, field) of dropped columns whose versions could not be withdrawn
        self.at_drop = {}  # ghost: field -> {key: token} at the root when it was dropped there
        self.staged, self.r = [], {}
        assert self.off <= RULES.keys()
        for number, (name, up) in enumerate(TREES[tree].items(), 1):
            table = Table(name in mapping)
            new = self.r[name] = Replica(name, number, prios[number % len(prios)], up, table)
            new.is_column = new.wants_column = column
            for f, title in enumerate("ab", 1):
                ident = table.new_id(title)
                table.cols[ident] = new.fields[f] = Column(title)
                new.ident[f], new.names[f] = ident, title
            table.rows["x"] = {i: NULL for i in table.cols}
            new.captured["x"] = {1: NULL, 2: NULL}
            if up:
                new.sent[up] = new.recv[up] = self.r[up].sent[name] = self.r[up].recv[name] = 0

    def is_unsent(self, replica, key):
        """Whether the publisher does not hold the generation of a row."""
        if replica.up is None or key not in replica.meta:
            return False
        gen = replica.meta[key].gen
        return gen > replica.sent[replica.up] and self.r[replica.up].number(replica.gens[gen][0]) is None

    # -- ghosts -----------------------------------------------------------------------------------------------------------

    def token(self):
        self.tokens += 1
        return self.tokens

    def field_of(self, replica, ident):
        """Ghost: the field of a column now, else a name for the column of the replica's own."""
        fields, _ = self.walk(replica)
        return next((f for f, i in fields.items() if i == ident), (replica.name, ident))

    def is_written(self, token, f):
        """Whether a user wrote this value, or one that it took the place of."""
        return any(self.saw(token, f, t) for t, g in self.born if g == f)

    def is_kept(self, token, f, other):
        """Whether a token is seen by the one that takes its place, or by one that was logged."""
        return self.saw(token, f, other, self.twins) or any(
            self.saw(one, f, other, self.twins) for one, g in self.logged if g == f
        )

    def saw(self, token, f, other, twins=()):
        """Whether the writer of a token saw the other one in this field, directly or not; `twins`: or its equal."""
        open_, done = [token], set()
        while open_:
            one = open_.pop()
            if one == other:
                return True
            if one not in done:
                done.add(one)
                open_ += self.parents.get((one, f), ())
                if twins:
                    open_ += twins.get((one, f), ())
        return other == 0

    def was_beaten(self, version, f, old):
        """Whether a value was logged when a delete won over its row, and a version is of a row inserted after that."""
        events = [
            e for e, cells in self.beaten.items() if any(g == f and self.saw(t, f, old) for t, g in cells)
        ]
        return any(self.saw_delete(c.token, g, e) for e in events for g, c in version.image.items())

    def saw_delete(self, token, f, gone):
        """Whether the writer of a token saw a delete: a later delete of the row saw it in each column of that time."""
        open_, done = [(token, f)], set()
        while open_:
            one, f = open_.pop()
            if one == gone:
                return True
            if (one, f) in done:
                continue
            done.add((one, f))
            open_ += [(t, f) for t in (*self.parents.get((one, f), ()), *self.twins.get((one, f), ()))]
            if one in self.deletes or (one, 0) in self.parents:  # a user's, or one that won a conflict
                open_ += [(t, g) for (d, g), seen in self.parents.items() if d == one for t in seen]
        return False

    def log(self, cells):
        self.logged |= {(token, f) for token, f in cells if token}

    def replaced(self, replica, key, version):
        """Check that an agent may put a version in the place of a row."""
        fields, _ = self.walk(replica)
        row, gone = replica.table.rows.get(key), replica.table.gone.get(key, 0)
        if row is None:
            cells = {*version.hidden, *((c.token, f) for f, c in (version.image or {}).items())}
            is_kept = any(
                self.is_kept(t, f, gone) or self.saw_delete(t, f, gone) for t, f in cells
            ) or self.is_kept(0, 0, gone)
            if gone and cells and version.image is not None and not is_kept:
                raise Broken(f"lost: the delete of {key} at {replica.name}")
            return
        for f, ident in fields.items():
            old = row[ident].token
            if version.image is None:
                new = version.gone
            elif f in version.image:
                new = version.image[f].token
            else:
                continue
            if version.image is not None and any(
                self.saw(d, f, old) and any(self.saw(c.token, g, d) for g, c in version.image.items())
                for d in self.deletes
            ):
                continue  # its row was deleted before
            if not self.is_kept(new, f, old):
                raise Broken(f"lost: {key}.{f} at {replica.name}: token {old} replaced by {new}")
            if (
                version.image is not None
                and f not in version.under
                and self.is_written(old, f)
                and not self.is_written(new, f)
                and not self.was_beaten(version, f, old)
            ):
                raise Broken(
                    f"unknown: {key}.{f} at {replica.name}: token {old} replaced by NULL of a writer without the column"
                )

    def equals(self, token, f):
        """The tokens of equal values that a value was merged with, and that these had been merged with before."""
        equal, open_ = set(), [token]
        while open_:
            equal.add(open_.pop())
            open_ += [
                t for e in equal for t in self.twins.get((e, f), ()) if t not in equal and t not in open_
            ]
        return equal

    def check_false(self, pub, s, p):
        def is_new(one, other, f):
            token = one.gone if one.image is None else one.image[f].token if f in one.image else 0
            known = other.gone if other.image is None else other.image[f].token if f in other.image else 0
            return not all(self.saw(known, f, t) for t in self.equals(token, f))

        def is_new_hidden(other, token, f):  # a dropped value that had merged with an equal one
            known = [t for t, g in other.hidden if g == f]
            return (token, f) in self.real and not all(
                any(self.saw(k, f, t) for k in known) for t in self.equals(token, f)
            )

        def new_equals(
            one, other
        ):  # of a change that met an equal one: whoever saw that one only has not seen this
            known = {
                f: other.gone if other.image is None else other.image.get(f, NULL).token
                for _, f in one.equals
            }
            return {(t, f) for t, f in one.equals - other.equals if not self.saw(known[f], f, t)}

        fields = {*(s.image or ()), *(p.image or ())}
        by_s = {f for f in fields if is_new(s, p, f)} | {
            h for h in s.hidden if h not in p.hidden | self.logged - self.real or is_new_hidden(p, *h)
        }
        by_p = {f for f in fields if is_new(p, s, f)} | {
            h for h in p.hidden if h not in s.hidden | self.logged - self.real or is_new_hidden(s, *h)
        }
        by_s, by_p = by_s | new_equals(s, p), by_p | new_equals(p, s)
        is_by_column = (
            pub.is_column
            and s.image is not None
            and p.image is not None
            and None not in (s.colv, p.colv)
            and not (s.is_whole or p.is_whole)
        )
        if not (by_s & by_p if is_by_column else by_s and by_p):
            raise Broken(f"false: {s} against {p}")

    # -- users ------------------------------------------------------------------------------------------------------------

    def write(self, name, key, what):
        """what: the name of a column; NAME! a big value; NAME0 an explicit NULL; '-' deletes the row."""
        replica = self.r[name]
        table, row = replica.table, replica.table.rows.get(key)
        if what == "-":
            if row is not None:
                token = self.token()
                for i, cell in row.items():
                    self.parents[token, self.field_of(replica, i)] = {cell.token}
                above = replica
                while above:  # ghost: who deletes a row deletes what it does not see of it, here or above
                    for f in above.skips:
                        self.parents[token, f] = {above.unseen.get((key, f), 0)}
                    above = self.r.get(above.up)
                table.gone[key] = token
                self.deletes.add(token)
                del table.rows[key]
                table.seen[key] = set(table.cols)
            return
        ident = table.named(what[0])
        if ident is None:
            return
        value = (
            None
            if what.endswith("0")
            else self.tokens + 1 + (BIG if what.endswith("!") and table.cols[ident].is_wide else 0)
        )
        if row is None:
            row, columns = {i: NULL for i in table.cols}, list(table.cols)
        else:
            columns = [ident]
        if row[ident].value == value and columns == [ident]:
            return
        token, row = self.token(), dict(row)
        if key not in table.rows:
            self.over[token] = table.gone.get(key, 0)
        for i in columns:
            f = self.field_of(replica, i)
            before = row[i].token if key in table.rows else table.gone.get(key, 0)
            self.parents[token, f] = {before}
            self.born[token, f] = key
            row[i] = Cell(token, value if i == ident else None)
        table.rows[key] = row
        table.gone.pop(key, None)
        table.seen[key] = set(table.cols)

    def root_token(self, f, key):
        root = self.r["R"]
        fields, _ = self.walk(root)
        if key in root.table.rows:
            return root.table.rows[key][fields[f]].token if f in fields else 0
        return root.table.gone.get(key, 0)

    def ddl(self, name, what, *args):
        """A user's DDL; what cannot be done is passed over."""
        replica = self.r[name]
        table = replica.table
        after = dict(table.cols)
        at = table.named(args[0]) if args else None
        if what in ("drop", "again", "less") and name == "R":  # a subscriber that skips fields keeps one
            left = {f for f, i in self.walk(replica)[0].items() if i != at}
            if any(other.skips and not left & self.walk(other)[0].keys() for other in self.r.values()):
                return
        if what == "add":
            if at is None:
                after[table.new_id(args[0])] = Column(args[0], False)
                table.alter(after)
        elif what == "drop":
            if at is not None and table.has_mapping and len(after) > 1:
                self.note_drop(replica, at)
                del after[at]
                table.alter(after)
        elif what == "tracking":
            replica.wants_column = not replica.wants_column
        elif what == "again":  # DROP and ADD of one name
            if at is not None and table.has_mapping:
                self.ddl(name, "drop", args[0])
                self.ddl(name, "add", args[0])
        elif what == "undone":  # DROP, then RESTORE to the version before
            if at is not None and table.has_mapping:
                rows = {k: dict(row) for k, row in table.rows.items()}
                cols = dict(table.cols)
                table.alter({i: c for i, c in after.items() if i != at})
                table.alter(cols, op="replace")
                table.rows = rows
        elif what == "rename":
            if at is not None and table.has_mapping and table.named(args[1]) is None:
                after[at] = after[at]._replace(name=args[1])
                table.alter(after)
        elif what == "swap":
            other = table.named(args[1])
            if at is not None and other is not None and table.has_mapping:
                for ident, title in ((at, "tmp"), (other, args[0]), (at, args[1])):
                    after[ident] = after[ident]._replace(name=title)
                    table.alter(after)
        elif what == "widen":
            if at is not None and not after[at].is_wide:
                after[at] = after[at]._replace(is_wide=True)
                table.alter(after)
        else:
            self.replace_table(replica, what, *args)

    def note_drop(self, replica, ident):
        """Ghost: what the root had in a column when its user dropped it."""
        f = self.field_of(replica, ident)
        if replica.name == "R":
            table = replica.table
            self.at_drop[f] = {
                k: table.rows[k][ident].token if k in table.rows else table.gone.get(k, 0) for k in self.keys
            }

    def replace_table(self, replica, what, *args):
        """CREATE OR REPLACE: every column gets a new identity, every row is written again, from the rows before.

        what: replace (one value changed), less NAME (a column left out), more NAME (a new one, with values), wider NAME, delete KEY.
        """
        table = replica.table
        olds = dict(table.cols)
        if (
            what == "less"
            and (table.named(args[0]) is None or len(olds) < 2)
            or what == "more"
            and table.named(args[0]) is not None
        ):
            return
        rows, values = (
            {k: dict(row) for k, row in table.rows.items()},
            {k: {c.name: row[i] for i, c in olds.items()} for k, row in table.rows.items()},
        )
        titles = {c.name: c.is_wide for c in olds.values()}
        if what == "less":
            self.note_drop(replica, table.named(args[0]))
            del titles[args[0]]
        elif what == "more":
            titles[args[0]] = False
        elif what == "wider" and args[0] in titles:
            titles[args[0]] = True
        after = {table.new_id(title): Column(title, is_wide) for title, is_wide in titles.items()}
        table.alter(after, op="replace")
        table.rows = {k: {i: values[k].get(c.name, NULL) for i, c in after.items()} for k in rows}
        table.seen |= {k: set(after) for k in rows}
        if what == "replace":
            for key in [k for k in args[:1] if k in table.rows]:
                self.write(replica.name, key, next(iter(titles)))
        elif what == "more":
            for key in list(table.rows):
                self.write(replica.name, key, args[0])
        elif what == "delete":
            self.write(replica.name, args[0], "-")

    # -- the identity of columns ----------------------------------------------------------------------------------------------

    def walk(self, replica):
        """Follow the columns through the commits since the capture: field -> identity now, the commits that dropped
        fields, and fields that the agent's own commits brought."""
        fields, dropped, names = dict(replica.ident), [], dict(replica.names)
        had = {i: f for f, i in fields.items()}  # every identity that a field has had in these commits
        for commit in replica.table.log[replica.position :]:
            kind, f = commit.mark[:2] if commit.mark and self.on("marks") else (None, None)
            if kind == "drop" and f in fields:  # also of a column that was left in place
                ident = fields.pop(f)
                cells = commit.cells.get(ident, commit.mark[2])
                dropped.append((f, cells, True))
            if kind == "add":
                fields[f] = commit.mark[2]
                names[f] = commit.after[fields[f]].name
            for f, ident in list(fields.items()):
                name = commit.before[ident].name if ident in commit.before else names.get(f)
                found = ident if ident in commit.after else None
                if not self.on("identity"):
                    if commit is not replica.table.log[-1]:  # only the head is looked at
                        continue
                    found = next((i for i, c in commit.after.items() if c.name == names.get(f, name)), None)
                elif found is None and commit.op == "replace" and self.on("replacement by name"):
                    found = next(
                        (i for i, c in commit.after.items() if c.name == name and i not in fields.values()),
                        None,
                    )
                if found is None:
                    del fields[f]
                    dropped.append((f, commit.cells.get(ident, {}), False))
                else:
                    fields[f] = found
            if commit.op == "replace" and self.on("restored identity"):
                for ident, f in had.items():
                    is_physical = ident.startswith("#")  # a name that comes back is a new column
                    if (
                        is_physical
                        and f not in fields
                        and ident in commit.after
                        and ident not in fields.values()
                    ):
                        fields[f] = ident
                        dropped = [d for d in dropped if d[0] != f]
            had |= {i: f for f, i in fields.items()}
        return fields, dropped

    # -- capture ------------------------------------------------------------------------------------------------------------

    def version(self, replica, key):
        row, meta = replica.captured.get(key), replica.meta.get(key)
        row = None if row is None else dict(row)
        if meta is None:
            return Version(row, {} if row is None else {0: 1}, {}, 100, under=frozenset(replica.fields))
        if meta.version.image is None or row is None:
            return meta.version
        if not self.on("filled"):
            row = {f: c for f, c in row.items() if f in meta.version.image}
        return replace(meta.version, image=row)

    def colv_key(self, replica, f):
        if self.on("colv by field"):
            return f
        return (replica.fields.get(f) or Column(str(f))).name

    def entry(self, replica, version, f):
        default = (0, 1) if 0 in version.lineage else (0, 0)
        return (version.colv or {}).get(self.colv_key(replica, f), default)

    def unknown_to(self, replica, one, other):
        """Return the fields of a version that the other side does not know."""
        fields = {f for f in one.image if one.says(f)}
        if not replica.is_column or one.colv is None and self.on("row versions"):
            return fields
        return {f for f in fields if not knows(other.lineage, self.entry(replica, one, f))}

    def capture(self, replica):
        """Record what users did; at the root the published columns follow the table."""
        table = replica.table
        fields, dropped = self.walk(replica)
        for f, cells, is_own in dropped:
            if replica.up and not is_own:
                raise Refused(f"field {f} was dropped at {replica.name}")
            self.pass_drop(replica, f, cells)
        if replica.up is None:
            for ident, column in table.cols.items():
                if ident not in fields.values():
                    self.last_field += 1
                    fields[self.last_field] = ident
            shape = {f: table.cols[i] for f, i in fields.items()}
            replica.schemaversion += shape != replica.fields
            replica.fields = shape
        else:
            for f in list(replica.fields):
                if f not in fields:
                    del replica.fields[f]
            for f, ident in fields.items():
                replica.fields[f] = table.cols[ident]
        adopted = [f for f in fields if f not in replica.ident]
        self.adopt(replica, {f: fields[f] for f in adopted})
        replica.ident, replica.position = fields, len(table.log)
        replica.names = {f: table.cols[i].name for f, i in fields.items()}
        changed = [k for k in self.keys if self.is_changed(replica, k, adopted)]
        gen = replica.add(self.guid()) if changed else 0
        for key in self.keys:
            row = self.row_of(replica, key)
            if key in changed:
                meta, old = replica.meta.get(key), self.version(replica, key)
                base = (
                    (meta.base, meta.base_gen)
                    if meta and self.is_unsent(replica, key)
                    else (old, meta.gen if meta else 0)
                )
                replica.meta[key] = Meta(gen, self.edit(replica, key, old, row, replica.nick), *base)
                self.stats["edits"] += 1
            elif row is not None and key in replica.captured and key in replica.meta and adopted:
                old = replica.meta[key].version  # its image gets the new columns, of which it says nothing
                if old.image is not None:
                    news = {f: row[f] for f in adopted}
                    replica.meta[key] = replace(
                        replica.meta[key],
                        version=replace(
                            old,
                            image={**old.image, **news},
                            unknown=old.unknown | (set(news) if self.on("unknown") else set()),
                        ),
                    )
            self.set_captured(replica, key, row)
        table.seen.clear()
        replica.dropping.clear()
        if replica.up is None:  # apply captures first
            replica.is_column = replica.wants_column

    def row_of(self, replica, key):
        row = replica.table.rows.get(key)
        return None if row is None else {f: row[i] for f, i in self.walk(replica)[0].items()}

    def set_captured(self, replica, key, row):
        if row is None:
            replica.captured.pop(key, None)
        else:
            replica.captured[key] = dict(row)

    def adopt(self, replica, news):
        """Ghost: values of a column of one's own count as written to the field from now on."""
        for f, ident in news.items():
            for key, row in replica.table.rows.items():
                token = row[ident].token
                if (
                    row[ident].value is None and token and key in replica.captured
                ):  # NULL is no change of a new column
                    self.log([(token, f)])
                    replica.table.rows[key] = {**row, ident: NULL}
                elif token and (token, f) not in self.born:
                    self.born[token, f] = key
                    self.parents.setdefault(
                        (token, f), {self.over.get(token, 0)}
                    )  # who inserted the row saw its delete

    def is_changed(self, replica, key, adopted=()):
        before, after = replica.captured.get(key), self.row_of(replica, key)
        if before is None and after is None:  # ghost: inserted and deleted again
            meta, token = replica.meta.get(key), replica.table.gone.get(key, 0)
            was = meta.version.gone if meta else 0
            if token != was:
                self.log((token, f) for f in range(self.last_field + 1))
                replica.table.gone[key] = was
        if (
            before is not None and after is not None
        ):  # ghost: values that came back to what they were are no change
            for f, ident in self.walk(replica)[0].items():
                if f in before and before[f] != after[f] and before[f].value == after[f].value:
                    self.log([(after[f].token, f)])
                    replica.table.rows[key] = {**replica.table.rows[key], ident: before[f]}
        if before is None or after is None:
            return (before is None) != (after is None)
        skipped = () if self.on("adopted values" if replica.up else "copied rows") else adopted
        return any(before.get(f, NULL).value != c.value for f, c in after.items() if f not in skipped)

    def edit(self, replica, key, old, row, nick):
        """Return the version that a user made of another one."""
        table = replica.table
        fields = self.walk(replica)[0]
        version = max([0, *old.lineage.values()]) + 1
        lineage = {**old.lineage, nick: version}
        old = replace(old, hidden=old.hidden | replica.dropping.get(key, frozenset()))
        if row is None:
            return Version(
                None,
                lineage,
                {},
                replica.prio,
                old.unknown,
                table.gone[key],
                frozenset(fields),
                old.hidden,
                old.image or old.last,
                equals=old.equals,
            )
        if old.image is None and not any(self.saw_delete(c.token, f, old.gone) for f, c in row.items()):
            self.log(
                (old.gone, f) for f in range(self.last_field + 1)
            )  # ghost: inserted by one who saw the delete, in columns of his own
        before = old.image or {}
        changed = (
            {f for f, c in row.items() if f not in before or before[f].value != c.value}
            if old.image is not None
            else set(row)
        )
        seen = table.seen.get(key, {fields[f] for f in before if f in fields})
        under = frozenset(
            f for f, i in fields.items() if i in seen or (f in changed and row[f].value is not None)
        )
        unknown = frozenset()
        if self.on("unknown"):
            unknown = (
                frozenset(f for f in row if f not in under)
                if self.on("unknown at the write")
                else frozenset()
            )
        if old.image is not None:
            unknown |= old.unknown - under
        changed -= unknown
        colv, is_whole = None, old.is_whole and replica.is_column
        if replica.is_column and old.image is not None and old.colv is None and self.on("stamped whole"):
            colv, is_whole = (
                dict.fromkeys((self.colv_key(replica, f) for f in row if f not in unknown), (nick, version)),
                True,
            )
        elif replica.is_column:
            colv = dict(old.colv or {}) if old.image is not None else {}
            colv |= dict.fromkeys(
                (
                    self.colv_key(replica, f)
                    for f in changed
                    if f not in before or old.image is None or before[f].value != row[f].value
                ),
                (nick, version),
            )
            if old.image is not None:
                for f in changed:
                    if f not in before and row[f].value is None:
                        colv.pop(self.colv_key(replica, f), None)
        return Version(
            dict(row),
            lineage,
            colv,
            replica.prio,
            unknown,
            0,
            under,
            old.hidden,
            is_whole=is_whole,
            equals=old.equals,
        )

    def pass_drop(self, replica, f, cells):
        """A capture passes a DROP: log the values that were not sent, withdraw rows that changed nowhere else."""
        for key in self.keys:
            before = replica.captured.get(key, {}).get(f)
            if key in cells and cells[key].token:
                replica.dropping[key] = replica.dropping.get(key, frozenset()) | {(cells[key].token, f)}
                if key not in replica.captured:  # ghost: a row inserted since stays a change
                    self.real.add((cells[key].token, f))
            if replica.up and self.on("dropped is logged"):
                if key in cells and (before is None or cells[key].value != before.value):
                    self.log([(cells[key].token, f)])
                if before and self.is_unsent(replica, key):
                    self.log([(before.token, f)])
                    self.stats["dropped logged"] += 1
            if key in replica.captured:
                replica.captured[key].pop(f, None)
            if key not in replica.meta:
                continue
            meta = replica.meta[key]
            now, base = (
                self.without(replica, meta.version, f),
                meta.base and self.without(replica, meta.base, f),
            )
            is_nothing = (
                self.is_unsent(replica, key)
                and base
                and base.image is not None
                and now.image is not None
                and self.same(now.image, base.image)
            )
            replica.meta[key] = replace(meta, version=now, base=base)
            if not is_nothing or any(other.up == replica.name for other in self.r.values()):
                self.real |= now.hidden  # ghost: it stays a change; a subscriber below may have it already
            elif self.on("withdrawn"):
                self.stats["withdrawn"] += 1
                self.log(
                    (c.token, g) for g, c in now.image.items() if c.token != base.image.get(g, NULL).token
                )  # the value is as it was
                row = replica.table.rows.get(key)
                for g in base.image if row else ():  # ghost: and so is its token
                    ident = self.walk(replica)[0].get(g)
                    if ident is not None and row[ident] == now.image[g]:
                        row = replica.table.rows[key] = {**row, ident: base.image[g]}
                        replica.captured[key][g] = base.image[g]
                if meta.base_gen:
                    replica.meta[key] = Meta(meta.base_gen, base)
                else:
                    del replica.meta[key]
        replica.names.pop(f, None)

    def same(self, one, other):
        return all(one.get(f, NULL).value == other.get(f, NULL).value for f in {*one, *other})

    def without(self, replica, version, f):
        if version.image is None or f not in version.image:
            return version
        token = version.image[f].token
        image = {g: c for g, c in version.image.items() if g != f}
        colv = (
            {c: e for c, e in version.colv.items() if c != f}
            if version.colv and self.on("colv by field")
            else version.colv
        )
        hidden = version.hidden | ({(token, f)} if token else set())
        return replace(version, image=image, colv=colv, unknown=version.unknown - {f}, hidden=hidden)

    # -- schema changes down ------------------------------------------------------------------------------------------------

    def alters(self, pub, sub):
        """Return the steps that give the subscriber the publisher's columns; raise Refused before the first one."""
        table = sub.table
        fields, _ = self.walk(sub)
        target = {f: c for f, c in pub.fields.items() if f not in sub.skips}
        owner = {i: f for f, i in fields.items()}
        steps = [("drop", f) for f in fields if f not in target]
        free = {table.cols[fields[f]].name for _, f in steps} if table.has_mapping else set()
        renames = [f for f in fields if f in target and table.cols[fields[f]].name != target[f].name]
        if renames and not table.has_mapping:
            raise Refused(f"{sub.name} needs column mapping for a rename")
        moving = {table.cols[fields[f]].name for f in renames}
        for f in [*renames, *(f for f in target if f not in fields)]:
            at = table.named(target[f].name)
            if at is None or target[f].name in free | moving:
                continue
            if f in renames:
                raise Refused(f"{sub.name} has a column {target[f].name} of its own")
            is_left = at in sub.left or (at in owner and owner[at] not in target)
            if is_left and self.on("left stays"):
                raise Refused(f"{sub.name} still has the dropped column {target[f].name}")
            if table.cols[at].is_wide != target[f].is_wide:
                raise Refused(f"{sub.name} has a column {target[f].name} of another type")
        renaming, names = [], {f: table.cols[i].name for f, i in fields.items() if f in target}
        while renames:
            free_ones = [f for f in renames if target[f].name not in names.values()]
            f = (free_ones or renames)[0]
            to = target[f].name if free_ones or not self.on("temporary names") else f"tmp{f}"
            renames = [g for g in renames if g != f or to != target[f].name]
            renaming.append(("rename", f, to))
            names[f] = to
        widening = [
            ("widen", f)
            for f in fields
            if self.on("widened") and f in target and target[f].is_wide and not table.cols[fields[f]].is_wide
        ]
        adding = [("add", f) for f in target if f not in fields]
        if not self.on("drops first"):
            return [*adding, *renaming, *widening, *steps], target
        return [*steps, *renaming, *widening, *adding], target

    def alter(self, sub, target, step):
        """Carry out one ALTER at a subscriber, marked with its field."""
        what, f, *rest = step
        table = sub.table
        fields, _ = self.walk(sub)
        after = dict(table.cols)
        if what == "drop":
            ident = fields[f]
            cells = {k: row[ident] for k, row in table.rows.items()}
            if table.has_mapping:
                del after[ident]
            else:
                sub.left[ident] = f
            table.alter(after, ("drop", f, cells))
        elif what == "rename":
            if table.named(rest[0]) is not None:
                raise Refused(f"{sub.name}: column {rest[0]} exists")
            after[fields[f]] = after[fields[f]]._replace(name=rest[0])
            table.alter(after, ("rename", f))
        elif what == "widen":
            after[fields[f]] = after[fields[f]]._replace(is_wide=True)
            table.alter(after, ("widen", f))
        else:
            ident = table.named(target[f].name)
            if ident is None:
                ident = table.new_id(target[f].name)
                after[ident] = target[f]
            was = sub.left.pop(ident, None)
            if any(self.is_written(row[ident].token, was) for row in table.rows.values() if was):
                raise Broken(f"back: field {f} at {sub.name} has values of the dropped field {was}")
            table.alter(after, ("add", f, ident))

    # -- sessions ---------------------------------------------------------------------------------------------------------

    def session(self, name, stop=None, inject=None):
        """One session. `stop`: die after that step; `inject`: {step: operation of a user at that moment}."""
        try:
            for step in self.steps(name):
                if inject and step in inject:
                    kind, *args = inject[step]
                    getattr(self, kind)(*args)
                if step == stop:
                    return
        except Refused:
            self.stats["refused"] += 1
            raise

    def steps(self, name):
        sub = self.r[name]
        pub = self.r[sub.up]
        self.recover(pub.name)
        self.recover(name)
        self.capture(pub)
        self.capture(sub)
        yield "captured"
        if self.on("schema first"):
            yield from self.schema_down(pub, sub)
        cs = Changeset(pub.name, name, self.guid(), up_mark=sub.last, down_mark=pub.last)
        cs.up_gens, in_up = self.news(sub, pub)
        cs.down_gens, in_down = self.news(pub, sub)
        for key in sorted(in_up | in_down):
            self.decide(cs, pub, sub, key, key in in_up, key in in_down)
        self.staged.append(cs)
        yield "staged"
        for step in ("pub", "sub", "subwm", "pubwm"):
            self.carry_out(cs, step)
            yield step
        if not self.on("schema first"):
            yield from self.schema_down(pub, sub)

    def schema_down(self, pub, sub):
        sub.is_column = pub.is_column
        steps, target = self.alters(pub, sub)
        for number, step in enumerate(steps):
            self.alter(sub, target, step)
            yield f"alter{number}"
        if steps and self.on("capture after"):
            self.capture(sub)
        elif steps:  # the columns are set, nobody reads what was written just before
            fields, _ = self.walk(sub)
            sub.ident, sub.position = fields, len(sub.table.log)
            sub.names = {f: sub.table.cols[i].name for f, i in fields.items()}
            sub.fields = {f: sub.table.cols[i] for f, i in fields.items()}
            for row in sub.captured.values():
                for f in [f for f in row if f not in fields]:
                    del row[f]
                for f in fields:
                    row.setdefault(f, NULL)
            for key, meta in sub.meta.items():
                for f in [f for f in meta.version.image or () if f not in fields]:
                    if self.is_unsent(sub, key):
                        self.log([(meta.version.image[f].token, f)])
                    meta = sub.meta[key] = replace(
                        meta,
                        version=self.without(sub, meta.version, f),
                        base=meta.base and self.without(sub, meta.base, f),
                    )
                if meta.version.image is not None:
                    news = {f: NULL for f in fields if f not in meta.version.image}
                    sub.meta[key] = replace(
                        meta,
                        version=replace(
                            meta.version,
                            image={**meta.version.image, **news},
                            unknown=meta.version.unknown | set(news),
                        ),
                    )
        sub.schemaversion = pub.schemaversion
        yield "schema"

    def news(self, source, dest):
        start = min(source.sent[dest.name], dest.recv[source.name])
        held = {guid for guid, _ in dest.gens.values()}
        gens = [n for n, (guid, origin) in source.gens.items() if n > start and guid not in held]
        return [source.gens[n] for n in gens], {k for k, meta in source.meta.items() if meta.gen in gens}

    def decide(self, cs, pub, sub, key, in_up, in_down):
        vs, vp = self.version(sub, key), self.version(pub, key)
        p_knows, s_knows = not in_up, not in_down
        if in_up and in_down:
            p_knows, s_knows = covers(vp.lineage, vs.lineage), covers(vs.lineage, vp.lineage)
        if p_knows and s_knows:
            return
        if s_knows:
            final = self.filled(pub, key, vs)
            travels = sub.gens[sub.meta[key].gen][0]
        elif p_knows:
            final, travels = vp, pub.gens[pub.meta[key].gen][0]
        else:
            final, travels = self.resolve(pub, vs, vp, -pub.nick), cs.guid
        if not p_knows:
            cs.to_pub[key] = final, travels
        if not s_knows:
            cs.to_sub[key] = final, travels

    def filled(self, pub, key, version):
        """Return an uploaded version with the publisher's values in the columns of which it says nothing."""
        row, mine = pub.captured.get(key), self.version(pub, key)
        if version.image is None:
            return self.filled_tombstone(version, mine)
        if not self.on("skipped is unknown"):
            image = {**{f: NULL for f in pub.fields}, **version.image}
            return replace(version, image=image)
        if not self.on("filled"):
            return version
        absent = frozenset(f for f in pub.fields if not version.says(f))
        image = {
            **{f: NULL for f in absent},
            **version.image,
            **{f: row[f] for f in absent if row and f in row},
        }
        elsewhere = version.unknown - version.image.keys()  # of a row that was revived without them
        said = {f for f in absent if self.on("claims stay") and key in pub.meta and mine.says(f)}
        if self.on("claims of a delete") and mine.image is None:
            said = (mine.last.keys() - mine.unknown) & absent - elsewhere
        image |= {f: mine.last[f] for f in elsewhere & absent if mine.image is None and f in mine.last}
        unknown = (absent | elsewhere) - said
        under = version.under | (
            said if mine.image is None else said & mine.under
        )  # ghost: its writer had the column, or deleted it
        return replace(
            version, image=image, unknown=unknown if self.on("unknown stays") else frozenset(), under=under
        )

    def filled_tombstone(self, version, mine):
        """Return a delete with the values of the row below it in the columns that its image lacks."""
        absent = {f for f in mine.image or mine.last if f not in version.last or f in version.unknown}
        if not self.on("filled tombstone") or not absent:
            return version
        last = {**version.last, **{f: (mine.image or mine.last)[f] for f in absent}}
        return replace(version, last=last, unknown=version.unknown - absent | absent & mine.unknown)

    def resolve(self, pub, s, p, nick):
        """Merge or decide two concurrent versions; log the loser's values."""
        sent = s, p
        lineage = merged(s.lineage, p.lineage)
        hidden, equals = s.hidden | p.hidden, s.equals | p.equals
        s, p = replace(s, equals=equals), replace(p, equals=equals)
        if s.image is None and p.image is None:
            event = self.token()
            self.parents |= {(event, f): {s.gone, p.gone} for f in range(self.last_field + 1)}
            return replace(p, lineage=lineage, prio=max(s.prio, p.prio), colv={}, hidden=hidden, gone=event)
        fields = [*(p.image or s.image)]
        fields += [f for f in (s.image or ()) if f not in fields]
        if s.image is not None and p.image is not None:
            differing = {
                f for f in fields if s.says(f) and p.says(f) and s.image[f].value != p.image[f].value
            }
            by_s, by_p = self.unknown_to(pub, s, p), self.unknown_to(pub, p, s)
            clash = differing & by_s & by_p if pub.is_column else differing
            if not clash:
                image, colv = {}, {}
                for f in fields:
                    is_s = (
                        s.says(f)
                        and (not p.says(f) or (pub.is_column and f in by_s and f not in by_p))
                        or f not in p.image
                    )
                    one, other = (s, p) if is_s else (p, s)
                    image[f] = one.image[f]
                    if self.colv_key(pub, f) in (one.colv or ()):
                        colv[self.colv_key(pub, f)] = one.colv[self.colv_key(pub, f)]
                    if (
                        f in other.image
                        and other.image[f].token
                        and other.image[f].token != one.image[f].token
                        and other.image[f].value == one.image[f].value
                    ):
                        if not one.image[f].token:
                            image[f] = other.image[f]
                            continue
                        equals |= {(other.image[f].token, f)}
                        self.twins.setdefault((one.image[f].token, f), set()).add(other.image[f].token)
                        self.twins.setdefault((other.image[f].token, f), set()).add(one.image[f].token)
                unknown = frozenset(f for f in fields if not s.says(f) and not p.says(f))
                if not pub.is_column or None in (s.colv, p.colv):
                    colv = None
                return Version(
                    image,
                    lineage,
                    colv,
                    max(s.prio, p.prio),
                    unknown,
                    0,
                    s.under | p.under,
                    hidden,
                    is_whole=s.is_whole or p.is_whole,
                    equals=equals,
                )
        self.check_false(pub, *sent)
        self.stats["conflicts"] += 1
        winner, loser = (s, p) if s.prio > p.prio else (p, s)
        stamp = max(lineage.values()) + 1
        lineage = {**lineage, nick: stamp}
        event = self.token()
        if winner.image is None:
            self.beaten[event] = {(c.token, f) for f, c in loser.image.items()}
            self.log(self.beaten[event])
            self.parents |= {(event, f): {winner.gone} for f in range(self.last_field + 1)}
            return replace(
                self.filled_tombstone(winner, loser), lineage=lineage, colv={}, hidden=hidden, gone=event
            )
        image = dict(winner.image)
        if loser.image is None:
            # What it says nothing of, it takes from the tombstone: there the delete does not lose.
            self.log([(loser.gone, 0), *((loser.gone, f) for f in fields if winner.says(f))])
            self.parents |= {(event, f): {c.token} for f, c in image.items()}
            said = frozenset()
            if self.on("revived says") and loser is p:
                said |= {
                    f for f in loser.last if not winner.says(f) and f in pub.fields and f not in loser.unknown
                }
            is_event = not pub.is_column  # with column tracking only the lineage is stamped
            is_stamped = any(winner.says(f) for f in image)
            image = {f: Cell(event, c.value) if is_event and winner.says(f) else c for f, c in image.items()}
            if self.on("revived") and loser is p:
                image |= {f: c for f, c in loser.last.items() if not winner.says(f) and f in pub.fields}
            colv = None if is_event else winner.colv
            if colv is not None:
                colv = {**colv, **dict.fromkeys((self.colv_key(pub, f) for f in said), (nick, stamp))}
            unknown = frozenset(f for f in image if not winner.says(f))
            if self.on("revived elsewhere"):
                unknown |= winner.unknown | loser.last.keys() - image.keys()
            return replace(
                winner,
                unknown=unknown - said,
                under=winner.under | said,
                lineage=lineage,
                colv=colv,
                hidden=hidden if is_event and is_stamped else hidden | {(event, 0)},
                image=image,
            )
        for f in fields:
            if (
                not winner.says(f) and f in loser.image and (loser.says(f) or loser is p)
            ):  # of neither: the publisher's
                image[f] = loser.image[f]
            elif f in loser.image and loser.says(f) and loser.image[f] != image[f]:
                self.log([(loser.image[f].token, f)])
                if loser.image[f].value == image[f].value:
                    if image[f].token:
                        self.twins.setdefault((image[f].token, f), set()).add(loser.image[f].token)
                        self.twins.setdefault((loser.image[f].token, f), set()).add(image[f].token)
                    else:
                        image[f] = loser.image[f]
        by_loser = by_s if loser is s else by_p
        colv = None
        if pub.is_column and winner.colv is not None:
            colv = {**winner.colv}
            colv |= dict.fromkeys((self.colv_key(pub, f) for f in differing & by_loser), (nick, stamp))
            colv |= {
                self.colv_key(pub, f): loser.colv[self.colv_key(pub, f)]
                for f in fields
                if not winner.says(f) and self.colv_key(pub, f) in (loser.colv or ())
            }
        for f in differing & by_loser if colv is not None else [f for f in fields if winner.says(f)]:
            self.parents[event, f] = {image[f].token}
            image[f] = Cell(event, image[f].value)
        unknown = frozenset(f for f in fields if not s.says(f) and not p.says(f))
        under = winner.under | {f for f in loser.under if not winner.says(f)}
        return Version(
            image,
            lineage,
            colv,
            winner.prio,
            unknown,
            0,
            under,
            hidden,
            is_whole=winner.is_whole or loser.is_whole,
            equals=equals,
        )

    def recover(self, name):
        for cs in list(self.staged):
            if name in (cs.pub, cs.sub):
                for step in ("pub", "sub", "subwm", "pubwm"):
                    self.carry_out(cs, step)

    def carry_out(self, cs, step):
        if step in cs.done:
            return
        cs.done.add(step)
        pub, sub = self.r[cs.pub], self.r[cs.sub]
        if step == "pub":
            self.side(pub, cs.to_pub, cs.up_gens, sub.name)
        elif step == "sub":
            self.side(sub, cs.to_sub, cs.down_gens, pub.name)
        elif step == "subwm":
            sub.sent[pub.name], sub.recv[pub.name] = cs.up_mark, cs.down_mark
        else:
            pub.sent[sub.name], pub.recv[sub.name] = cs.down_mark, cs.up_mark
            self.staged.remove(cs)

    def side(self, replica, changes, gens, peer):
        """Write the staged rows into a table; a row that a user has changed since the capture is decided late."""
        for guid, _ in gens:
            if replica.number(guid) is None:
                replica.add(guid, peer)
        late = []
        fields = self.walk(replica)[0] if self.on("staged by identity") else dict(replica.ident)
        for key, (version, guid) in changes.items():
            before = self.version(replica, key)
            is_late = self.is_changed(replica, key)
            gen = replica.number(guid) or replica.add(guid)
            if version.image is None:
                replica.unseen |= {(key, f): version.gone for f in replica.skips}
            else:
                for f in [f for f in replica.skips if f in version.image and (version.says(f) or replica.up)]:
                    replica.unseen[key, f] = version.image[f].token
                for f in [f for f in version.image if f not in fields and f not in replica.skips]:
                    if self.on("staged dropped"):
                        self.log([(version.image[f].token, f)])
            if is_late:
                late.append((key, before, version, gen))
                continue
            self.put(replica, key, version, gen, fields)
        if not late:
            return
        gen = replica.add(self.guid())
        for key, before, version, sent_gen in late:
            row, writer = self.row_of(replica, key), replica.nick + LATE
            is_blind = (
                row is None
                and version.image is not None
                and bool(version.image.keys() & replica.skips)
                and self.on("late delete")
            )  # a delete of what it does not see
            if (
                covers(before.lineage, version.lineage)
                or self.is_same_row(before, version, fields)
                and not is_blind
            ):
                same = {
                    f: version.image[f]
                    for f, c in (row or {}).items()
                    if version.image and f in version.image and version.image[f].value == c.value
                }
                final = self.edit(replica, key, version, row and {**row, **same}, writer)
                for f, cell in (final.image or {}).items():  # ghost: the same values
                    was = version.gone if version.image is None else version.image.get(f, NULL).token
                    if cell.token != was and cell.token:
                        self.parents.setdefault((cell.token, f), set()).add(was)
                if final.image is None and version.image is not None:
                    for f in version.image.keys() & fields.keys():
                        self.parents.setdefault((final.gone, f), set()).add(version.image[f].token)
            else:
                edited = self.edit(replica, key, before, row, writer)
                mine = replace(
                    version,
                    image=None
                    if version.image is None
                    else {
                        f: c
                        for f, c in version.image.items()
                        if f in fields or f in replica.skips and self.on("whole loser")
                    },
                )
                edited = replace(edited, prio=max(edited.prio, version.prio + (edited.prio == version.prio)))
                final = self.resolve(replica, edited, mine, -replica.nick)
            self.put(
                replica,
                key,
                replace(final, prio=replica.prio),
                gen,
                fields,
                (version, sent_gen) if peer == replica.up else None,
            )

    def is_same_row(self, one, other, fields):
        """Whether the session left the row as it was: the late write follows it."""
        if one.image is None or other.image is None:
            return one.image is other.image
        return all(one.image.get(f, NULL).value == other.image.get(f, NULL).value for f in fields)

    def put(self, replica, key, version, gen, fields, base=None):
        """Write a version into table and metadata."""
        table = replica.table
        meta = replica.meta.get(key)
        base = (
            base or (meta.base, meta.base_gen)
            if base or self.is_unsent(replica, key)
            else (self.version(replica, key), meta.gen if meta else 0)
        )
        self.replaced(replica, key, version)
        if version.image is None:
            table.rows.pop(key, None)
            table.gone[key] = version.gone
            row = None
        else:
            is_new = key not in table.rows
            row = dict(table.rows.get(key) or {i: NULL for i in table.cols})
            for f, cell in version.image.items():
                ident = fields.get(f)
                if not self.on("staged by identity") and ident not in table.cols:
                    ident = table.named((replica.fields.get(f) or Column("?")).name)
                if ident is None:
                    continue
                if not is_new and not version.says(f) and replica.up and not self.on("filled"):
                    continue
                if cell.value is not None and cell.value >= BIG and not table.cols[ident].is_wide:
                    raise Broken(f"cut: {key}.{f} at {replica.name}")
                row[ident] = cell
            table.rows[key] = row
            table.gone.pop(key, None)
        table.seen.pop(key, None)
        captured = None if row is None else {f: row[i] for f, i in fields.items() if i in row}
        self.set_captured(replica, key, captured)
        kept = version
        if version.image is not None:
            absent = captured.keys() - version.image.keys()  # neither side of a revived row has them
            hidden = {(c.token, f) for f, c in version.image.items() if f not in fields and c.token}
            self.real |= hidden
            image = (
                captured if self.on("filled") else {f: captured[f] for f in version.image if f in captured}
            )
            kept = replace(
                version, image=image, unknown=version.unknown | absent, hidden=version.hidden | hidden
            )
        replica.meta[key] = Meta(gen, kept, *base)
