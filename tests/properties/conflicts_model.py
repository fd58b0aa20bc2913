"""The reference of resolvers: one row at a publisher (hub) and two subscribers, in plain Python.

The row has a plain column `a` and the column `v` that a resolver is given. Lineage, colv1, priorities and stamps are those
of the engine (decisions 0002, 0004, 0005); generations are reduced to "the other side has my version". Each replica keeps
every version that it held, as contents and tombstones do, with the row before its first change as the version {}. The
common ancestor of two versions is the latest version, of those that either chain holds, whose lineage both cover.
"""

import itertools
from dataclasses import dataclass, field, replace

from tests.properties.state import bump, covers, merge_lineage

HUB, A, B = "hub", "A", "B"
COLUMNS = ("a", "v")
NICK = {HUB: 1, A: 2, B: 3}


@dataclass(frozen=True)
class Version:
    row: dict | None
    lineage: dict
    colv: dict
    priority: float
    seen: frozenset = frozenset()
    """Ghost: the edits it includes, or that lost against it and were logged. No rule reads it."""
    of: tuple = ()
    """Ghost: the same for each column, as (column, edits)."""

    def edits_of(self, column):
        return dict(self.of).get(column, frozenset())


@dataclass
class Replica:
    name: str
    kind: str
    priority: float
    chain: list
    unsent: dict = field(default_factory=dict)  # peer -> it has not got the latest version

    @property
    def now(self):
        return self.chain[-1]


# ---- resolvers ----
# (publisher row, subscriber row, ancestor row, both changed v, default says publisher, columns changed by each)
# -> (publisher wins, made values)


def by_order(better):
    def resolve(p, s, base, both, default, counts):
        if p is None or s is None or p["v"] == s["v"]:
            return default, {}
        if p["v"] is None or s["v"] is None:
            return s["v"] is None, {}
        return better(p["v"], s["v"]), {}

    return resolve


def made(compute):
    def resolve(p, s, base, both, default, counts):
        if p is None or s is None or not both:
            return default, {}
        value = compute(p["v"], s["v"], base["v"] if base else None, default, base is not None)
        return default, ({} if value is KEEP else {"v": value})

    return resolve


KEEP = object()


def total(p, s, base, default, has_base):
    return s if p is None else p if s is None else p + s


def average(p, s, base, default, has_base):
    return s if p is None else p if s is None else int((p + s) / 2)


def delta(p, s, base, default, has_base):
    if not has_base:
        return KEEP
    return s if p is None else p if s is None else p + s - (base or 0)


def text_columns(p, s, base, default, has_base):
    p, s = p or "", s or ""
    if p == s:
        return KEEP
    shared = 0
    while shared < min(len(p), len(s)) and p[shared] == s[shared]:
        shared += 1
    return p[:shared] + p[shared:] + "===" + s[shared:]


def union(p, s, base, default, has_base):
    if p is None or s is None:
        return s if p is None else p
    base = base or ()
    gone = set(base) - (set(p) & set(s))
    return tuple(x for x in dict.fromkeys((*p, *s)) if x not in gone)


def fields(p, s, base, default, has_base):
    """Struct or JSON object, one level: a field that one side changed is that side's; else the winner's."""
    if p is None or s is None or not has_base or base is None:
        return KEEP
    p, s, base = dict(p), dict(s), dict(base)
    result = {}
    for name in dict.fromkeys((*p, *s)):
        mine, theirs, old = p.get(name, KEEP), s.get(name, KEEP), base.get(name, KEEP)
        value = theirs if mine == old else mine if theirs == old else (mine if default else theirs)
        if value is not KEEP:
            result[name] = value
    return tuple(sorted(result.items()))


RESOLVERS = {
    "priority": lambda p, s, base, both, default, counts: (default, {}),
    "additive": made(total),
    "averaging": made(average),
    "maximum": by_order(lambda p, s: p > s),
    "minimum": by_order(lambda p, s: p < s),
    "datetime_earlier_wins": by_order(lambda p, s: p < s),
    "datetime_later_wins": by_order(lambda p, s: p > s),
    "priority_column": by_order(lambda p, s: p > s),
    "merge_text": made(text_columns),
    "subscriber_wins": lambda p, s, base, both, default, counts: (False, {}),
    "publisher_wins": lambda p, s, base, both, default, counts: (True, {}),
    "upload_only": lambda p, s, base, both, default, counts: (False, {}),
    "download_only": lambda p, s, base, both, default, counts: (True, {}),
    "most_changes_win": lambda p, s, base, both, default, counts: (
        (default, {}) if p is None or s is None or counts[0] == counts[1] else (counts[0] > counts[1], {})
    ),
    "delta": made(delta),
    "union": made(union),
    "fields": made(fields),
}
MAKES = {"additive", "averaging", "merge_text", "delta", "union", "fields"}
ONE_WAY = {"upload_only", "download_only"}
"""Nothing is taken of the other side, so that nothing merges: rows that differ are decided as wholes."""
CLASHES_IF_EQUAL = {"additive", "delta"}
"""Two changes to one value are two changes to these: 10 to 11 here and there is 12."""


# ---- the network ---------------------------------------------------------------------------------------------------


class Network:
    def __init__(self, row, *, resolver, tracking, resolution="row", refuses=None):
        """`refuses`: rows that the publisher's table does not take; the article compensates for errors."""
        start = Version(row, {}, {}, 100.0)
        peers = {HUB: (A, B), A: (HUB,), B: (HUB,)}
        about = {HUB: ("publisher", 100.0), A: ("server", 75.0), B: ("client", 0.0)}
        self.replicas = {n: Replica(n, *about[n], [start], dict.fromkeys(peers[n], False)) for n in peers}
        self.resolver, self.tracking, self.resolution = resolver, tracking, resolution
        self.refuses = refuses or (lambda row: False)
        self.log, self.moves, self.silent = [], 0, 0
        self.edits = itertools.count()
        self.logged = set()  # edits that lost and are in a conflict table
        self.twins = {}  # edit -> edits that came to the same value of a column: who knows one knows the value

    def edit(self, name, change):
        """change: None deletes, a dict sets columns (and inserts where no row is)."""
        replica = self.replicas[name]
        old = replica.now
        if change is None and old.row is None:
            return
        row = None if change is None else {**(old.row or {"a": 0, "v": None}), **change}
        if row == old.row or (row is not None and name == HUB and self.refuses(row)):
            return
        lineage = bump(old.lineage, NICK[name])
        changed = () if row is None else [c for c in row if old.row is None or row[c] != old.row[c]]
        colv = (
            {}
            if row is None or self.tracking == "row"
            else {
                **(old.colv if old.row is not None else {}),
                **dict.fromkeys(changed, (NICK[name], lineage[NICK[name]])),
            }
        )
        new = {next(self.edits)}
        of = tuple((c, old.edits_of(c) | (new if row is None or c in changed else set())) for c in COLUMNS)
        self._put(replica, Version(row, lineage, colv, replica.priority, old.seen | new, of), knowing=())

    def _put(self, replica, version, *, knowing):
        self.silent += not replica.now.seen <= version.seen or not covers(
            version.lineage, replica.now.lineage
        )
        replica.chain.append(version)
        replica.unsent = {peer: peer not in knowing for peer in replica.unsent}

    def ancestor(self, hub, sub):
        """The latest common version: of each chain the last one that the other side's version includes."""
        found = [
            next(v for v in reversed(one.chain) if covers(other.now.lineage, v.lineage))
            for one, other in ((sub, hub), (hub, sub))
        ]
        assert covers(found[0].lineage, found[1].lineage) or covers(found[1].lineage, found[0].lineage)
        return found[0] if covers(found[0].lineage, found[1].lineage) else found[1]

    def session(self, name, direction="both"):
        before = {n: r.now.row for n, r in self.replicas.items()}
        self._session(name, direction)
        if self.resolver == "upload_only":
            assert self.replicas[name].now.row == before[name], "something was downloaded"
        if self.resolver == "download_only":
            assert self.replicas[HUB].now.row == before[HUB], "something was uploaded"

    def _session(self, name, direction):
        hub, sub = self.replicas[HUB], self.replicas[name]
        up, down = direction != "download", direction != "upload"
        in_up, in_down = sub.unsent[HUB], hub.unsent[name]
        mine, theirs = sub.now, hub.now
        sub_knows = covers(mine.lineage, theirs.lineage) or not in_down
        hub_knows = covers(theirs.lineage, mine.lineage) or not in_up
        if hub_knows and sub_knows:
            outcome = None
        elif hub_knows:
            outcome = self._one_sided(hub, sub, theirs, down) if down else "later"
        elif sub_knows:
            outcome = self._one_sided(sub, hub, self._uploaded(sub, mine, up), up) if up else "later"
        else:
            outcome = self._concurrent(hub, sub, mine, theirs, up, down)
        if outcome != "later":
            # Move the watermarks.
            sub.unsent[HUB] &= not up
            hub.unsent[name] &= not down

    def _uploaded(self, sub, version, up):
        taken = sub.kind == "client" and up and version.priority == 0
        return replace(version, priority=100.0 if taken else version.priority)

    def _one_sided(self, source, dest, version, runs):
        if self.resolver == "upload_only" and source.name == HUB:
            # Rejected: the subscriber's row stays, and knows of the change.
            seen, of = dest.now.seen | version.seen, self._of(dest.now, version)
            lineage = merge_lineage(dest.now.lineage, version.lineage)
            kept = replace(dest.now, lineage=lineage, seen=seen, of=of)
            self.log.append(("rejected", HUB, version.row))
            self._put(dest, kept, knowing=(HUB,))
            return None
        if self.resolver == "download_only" and dest.name == HUB:
            old = self.ancestor(dest, source)  # the publisher's row: it has not changed since
            nick = -NICK[HUB]
            lineage = bump(merge_lineage(version.lineage, dest.now.lineage), nick)
            is_live = old.row is not None and version.row is not None
            undone = [c for c in COLUMNS if old.row[c] != version.row[c]] if is_live else ()
            stamps = dict.fromkeys(undone, (nick, lineage[nick]))
            colv = {} if old.row is None or self.tracking == "row" else {**dest.now.colv, **stamps}
            back = Version(old.row, lineage, colv, 100.0, version.seen | dest.now.seen, dest.now.of)
            for c in COLUMNS:
                self.logged |= version.edits_of(c) - dest.now.edits_of(c)
            self.log.append(("rejected", source.name, version.row))
            self.moves += 1
            self._put(source, back, knowing=(HUB,))
            self._put(dest, back, knowing=(source.name,))
            return None
        if dest.name == HUB and version.row is not None and self.refuses(version.row):
            return self._undone(dest, source)
        if version.row != dest.now.row:
            self.moves += 1
        self._put(dest, version, knowing=(source.name,))
        source.unsent[dest.name] = False
        return None

    def _undone(self, hub, sub):
        """Give the subscriber the publisher's row back. To others nothing has happened."""
        mine, theirs = sub.now, hub.now
        lineage = bump(merge_lineage(mine.lineage, theirs.lineage), -NICK[sub.name])
        for c in COLUMNS:
            self.logged |= mine.edits_of(c) - theirs.edits_of(c)
        self.log.append(("undone", sub.name, mine.row))
        self.moves += 1
        self._put(sub, replace(theirs, lineage=lineage, seen=mine.seen | theirs.seen), knowing=(HUB,))
        hub.unsent[sub.name] = False

    def _concurrent(self, hub, sub, mine, theirs, up, down):
        uploaded = self._uploaded(sub, mine, up)
        # What a client has not uploaded yet counts as 0, also while it is uploaded.
        default = theirs.priority >= mine.priority
        final, conflict = self._resolved(hub, sub, uploaded, theirs, up, default)
        if up and final.row is not None and self.refuses(final.row):
            # The publisher's row takes the place of a winner, or of merged columns, that its table refuses.
            if not default:
                return self._undone(hub, sub)
            nick = -NICK[HUB]
            lineage = bump(merge_lineage(mine.lineage, theirs.lineage), nick)
            colv = {}
            if theirs.row is not None and self.tracking == "column":
                colv = {**theirs.colv, **dict.fromkeys(theirs.row, (nick, lineage[nick]))}
            seen = mine.seen | theirs.seen
            final = Version(theirs.row, lineage, colv, theirs.priority, seen, self._of(mine, theirs))
            conflict = ("conflict", None, uploaded.row)
        if conflict:
            self.log.append(conflict)
        if up:
            self.moves += final.row != hub.now.row
            self._put(hub, final, knowing=(sub.name,) if down else ())
        if down:
            self.moves += final.row != sub.now.row
            self._put(sub, final, knowing=(HUB,) if up else ())
        return None

    def _resolved(self, hub, sub, mine, theirs, up, default):
        p, s = theirs.row, mine.row
        columns = COLUMNS
        of = tuple((c, theirs.edits_of(c) | mine.edits_of(c)) for c in columns)
        lineage = merge_lineage(mine.lineage, theirs.lineage)
        if self.tracking == "column":
            by_p = {c for c, (n, v) in theirs.colv.items() if not v <= mine.lineage.get(n, 0)}
            by_s = {c for c, (n, v) in mine.colv.items() if not v <= theirs.lineage.get(n, 0)}
        else:
            by_p = by_s = set(columns)
        priority = max(theirs.priority, mine.priority) if up else mine.priority
        seen = theirs.seen | mine.seen
        if p is None and s is None:
            return Version(None, lineage, {}, priority, seen, of), None
        live = p is not None and s is not None
        differing = {c for c in columns if p[c] != s[c]} if live else set(columns)
        for c in set(columns) - differing:
            for one, other in ((theirs, mine), (mine, theirs)):
                for edit in one.edits_of(c) - other.edits_of(c):
                    self.twins.setdefault(edit, set()).update(other.edits_of(c))
        clashing = differing & by_p & by_s
        is_counted = self.resolver in CLASHES_IF_EQUAL
        if live and is_counted and self.tracking == "column":
            clashing |= {"v"} & by_p & by_s
        base = self.ancestor(hub, sub).row if live else None
        pick = (
            {c: (s if c in by_s and not (c in by_p and default) else p)[c] for c in columns} if live else None
        )
        is_whole = self.tracking == "row" or self.resolver in ONE_WAY
        if live and (not differing if is_whole else not clashing):
            # Nobody is logged: a column must include what the other side did to it, or be the same at both.
            for c in differing:
                taken, left = (mine, theirs) if c in by_s and not (c in by_p and default) else (theirs, mine)
                unknown = left.edits_of(c) - taken.edits_of(c) - self.logged
                accounted = taken.edits_of(c) | self.logged
                self.silent += any(self.twins.get(e, set()).isdisjoint(accounted) for e in unknown)
            return Version(pick, lineage, self._colv(theirs, mine, by_p, by_s), priority, seen, of), None
        both = "v" in by_p and "v" in by_s
        handled = self.tracking == "column" or self.resolver not in MAKES
        wins, values = (
            RESOLVERS[self.resolver](p, s, base, both, default, (len(by_p), len(by_s)))
            if handled
            else (default, {})
        )
        winner, loser = (theirs, mine) if wins else (mine, theirs)
        row = None if winner.row is None else dict(winner.row)
        if live and self.resolution == "columns" and self.tracking == "column":
            row = {c: (s if c in by_s and not (c in by_p and wins) else p)[c] for c in columns}
        if live and handled and self.resolver in MAKES:
            row["v"] = values.get("v", pick["v"] if not both else winner.row["v"])
        for c in columns:
            self.logged |= loser.edits_of(c) - winner.edits_of(c)
        if not (live and handled and self.resolver in MAKES):  # a made value includes both sides
            of = tuple(
                (c, (loser if row and row[c] != winner.row[c] else winner).edits_of(c)) for c in columns
            )
        nick = -NICK[HUB] if up else -NICK[sub.name]
        lineage = bump(lineage, nick)
        stamp = (nick, lineage[nick])
        if row is None or self.tracking == "row":
            colv = {}
        elif not live:
            colv = dict(winner.colv)
        else:
            overridden = {
                c for c in columns if (c in by_p and row[c] != p[c]) or (c in by_s and row[c] != s[c])
            }
            colv = {**self._colv(theirs, mine, by_p, by_s), **dict.fromkeys(overridden, stamp)}
        return Version(row, lineage, colv, winner.priority, seen, of), ("conflict", None, loser.row)

    @staticmethod
    def _of(one, other):
        return tuple((c, one.edits_of(c) | other.edits_of(c)) for c in COLUMNS)

    def _colv(self, theirs, mine, by_p, by_s):
        colv = {}
        if self.tracking == "column":
            for c in ("a", "v"):
                entries = [x.colv[c] for x in (theirs, mine) if c in x.colv]
                if c in by_p:
                    colv[c] = theirs.colv[c]
                elif c in by_s:
                    colv[c] = mine.colv[c]
                elif entries:
                    colv[c] = max(entries, key=lambda e: (e[1], e[0]))
        return colv


# ---- what is checked -----------------------------------------------------------------------------------------------

NUMBERS = ({"v": 3}, {"v": 15}, {"v": None}, {"v": 15, "a": 1}, {"a": 2}, None)
TEXTS = ({"v": "1\n2\n3\nA\n"}, {"v": "0\n1\n2\n3\n"}, {"v": "1\ntwo\n3\n"}, {"v": None}, {"a": 2}, None)
SETS = ({"v": ("x", "y", "p")}, {"v": ("y",)}, {"v": ()}, {"v": None}, {"a": 2}, None)
OBJECTS = (
    {"v": (("k", 1), ("m", 5))},
    {"v": (("k", 7),)},
    {"v": (("k", 1), ("m", 2), ("z", 0))},
    {"v": None},
    {"a": 2},
    None,
)
STARTS = {"numbers": {"a": 0, "v": 10}, "texts": {"a": 0, "v": "1\n2\n3\n"}, "sets": {"a": 0, "v": ("x", "y")},
          "objects": {"a": 0, "v": (("k", 1), ("m", 2))}}  # fmt: skip
KIND = {"merge_text": "texts", "union": "sets", "fields": "objects"}
EDITS = {"numbers": NUMBERS, "texts": TEXTS, "sets": SETS, "objects": OBJECTS}
NOTHING = object()

SCHEDULES = (
    ((A, "both"), (B, "both")),
    ((B, "both"), (A, "both")),
    ((A, "upload"), (B, "upload"), (A, "download"), (B, "download")),
    ((A, "download"), (B, "upload"), (B, "download"), (A, "upload")),
)


def quiesce(network, *, passes=3):
    for _ in range(passes):
        for name in (A, B):
            network.session(name)


def equal(network):
    rows = [r.now for r in network.replicas.values()]
    return all(v.row == rows[0].row and v.lineage == rows[0].lineage and v.colv == rows[0].colv for v in rows)


def histories(kind):
    first = (NOTHING, *EDITS[kind])
    second = [(who, change) for who in (HUB, A) for change in EDITS[kind][:3]] + [(A, NOTHING)]
    for start in (STARTS[kind], None):
        for changes in itertools.product(first, repeat=3):
            for later in second:
                for schedule in SCHEDULES:
                    yield start, changes, later, schedule


def play(start, changes, later, schedule, **options):
    network = Network(start, **options)
    for name, change in zip((HUB, A, B), changes, strict=True):
        if change is not NOTHING:
            network.edit(name, change)
    for name, direction in schedule:
        network.session(name, direction)
    if later[1] is not NOTHING:
        network.edit(*later)
    for name, direction in schedule:
        network.session(name, direction)
    return network


def check(resolver, tracking, resolution, *, stride=1):
    """Play every `stride`-th history; return how many, and how many rows were logged.

    All replicas come to one row, lineage and colv1; synchronizing again does nothing; nobody overwrites what it did not
    know.
    """
    count = logged = 0
    for history in itertools.islice(histories(KIND.get(resolver, "numbers")), 0, None, stride):
        network = play(*history, resolver=resolver, tracking=tracking, resolution=resolution)
        quiesce(network)
        # What it does not send leaves the rows as they are.
        assert resolver == "upload_only" or equal(network), (
            history,
            {name: each.now for name, each in network.replicas.items()},
        )
        before = len(network.log), network.moves
        quiesce(network)
        assert (len(network.log), network.moves) == before, ("synchronizing again did something", history)
        assert not network.silent, (
            "an edit was overwritten by somebody who did not know it, and not logged",
            history,
        )
        count, logged = count + 1, logged + len(network.log)
    return count, logged


SESSIONS = tuple((name, direction) for name in (A, B) for direction in ("both", "upload", "download"))


def check_sums(*, stride=1):
    """delta: whatever the order and direction of sessions, the outcome is the start plus everybody's differences."""
    edits = itertools.product((0, 3, 5), (0, 1, 5), (0, -2, 5))
    laters = ((HUB, 4), (A, 4), (B, 4), (A, 0))
    cases = itertools.product(edits, laters, itertools.product(SESSIONS[:2] + SESSIONS[3:], repeat=3))
    count = 0
    for changes, (who, more), schedule in itertools.islice(cases, 0, None, stride):
        network = Network({"a": 0, "v": 10}, resolver="delta", tracking="column")
        for name, add in zip((HUB, A, B), changes, strict=True):
            network.edit(name, {"v": 10 + add, "a": NICK[name] * (add != 1)})
        for name, direction in schedule:
            network.session(name, direction)
        network.edit(who, {"v": network.replicas[who].now.row["v"] + more})
        for name, direction in schedule:
            network.session(name, direction)
        quiesce(network)
        found = {each.now.row["v"] for each in network.replicas.values()}
        assert found == {10 + sum(changes) + more}, (changes, who, more, schedule, found)
        assert not network.silent, (changes, who, more, schedule)
        count += 1
    return count


def check_sets(*, stride=1):
    """union: the start with what anybody added, without what anybody removed, whatever the order and direction."""
    start, count = ("x", "y", "z"), 0
    choices = (
        (None, ("x", "y", "z", "h"), ("y", "z")),
        (None, ("x", "y", "z", "a"), ("x", "z"), ("x", "z", "a")),
        (None, ("x", "y", "z", "b"), ("x", "y", "b"), ("y", "z")),
    )
    cases = itertools.product(itertools.product(*choices), itertools.product(SESSIONS, repeat=3))
    for values, schedule in itertools.islice(cases, 0, None, stride):
        network = Network({"a": 0, "v": start}, resolver="union", tracking="column")
        expected = set(start).union(*(value or () for value in values))
        for name, value in zip((HUB, A, B), values, strict=True):
            if value is not None:
                network.edit(name, {"v": value})
                expected -= set(start) - set(value)
        for name, direction in schedule:
            network.session(name, direction)
        quiesce(network)
        found = {frozenset(each.now.row["v"]) for each in network.replicas.values()}
        assert found == {frozenset(expected)}, (values, schedule, found)
        count += 1
    return count
