"""Reference model of filtered articles in plain dictionaries: filters, mappings, enumeration, sessions.

One publisher, subscribers with a partition each, join filters over several levels, the append-only runs (`seq`) of
contents, tombstone and the mapping tables, generations, crashes after staging (each side is finished by a later run),
commits of users between capture and MERGE at both sides (late rounds), partition_options, a partition added later.

Not in it: column tracking, the layout of storage, `maxversion_at_cleanup`. `seen` (which writes a version includes) is read
by no rule; it checks what the rules decide.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.properties.state import PUBLICATION, Lineage, bump, covers, merge_lineage

ALL = -1  # partition_id -1: relevant to every subscriber
P_NICK, P_PRIORITY = 1, 100.0
AGENT, LATE = -1, 1 << 20
DELETED_ROW, FILTER_COLUMN, PARENT, FILTERS = 1, 2, 3, 5  # past_partition_mappings.reason


class Hole(AssertionError):
    """The rules decided something that the ghost state or the full evaluation disproves."""


Row = dict
Own = Callable[[Row, object], object]


@dataclass(frozen=True)
class Article:
    """own(row, filter value): True, False or None (NULL). kind: none, static or param. unread: by filters and joins."""

    name: str
    kind: str = "none"
    own: Own | None = None
    columns: tuple[str, ...] = ()
    unread: tuple[str, ...] = ("val",)


@dataclass(frozen=True)
class Join:
    child: str
    parent: str
    on: tuple[tuple[str, str], ...]  # (parent column, child column), all equal
    term: Callable[[Row, Row], bool] | None = None  # the other terms of `on`: (parent, child); NULL is False
    term_columns: tuple[str, ...] = ()  # the parent's columns in them

    def parent_columns(self) -> tuple[str, ...]:
        return (*(p for p, _ in self.on), *self.term_columns)


@dataclass(frozen=True)
class Filters:
    articles: dict[str, Article]
    joins: tuple[Join, ...] = ()

    def order(self) -> list[str]:
        """Parents first. Raises on a circle."""
        done: list[str] = []
        while len(done) < len(self.articles):
            free = [
                a
                for a in self.articles
                if a not in done and all(j.parent in done for j in self.joins if j.child == a)
            ]
            if not free:
                raise ValueError("circular join filters")
            done += free
        return done


def matches(join: Join, parent: Row | None, child: Row | None) -> bool:
    if parent is None or child is None:
        return False
    if not all(parent[p] is not None and parent[p] == child[c] for p, c in join.on):
        return False
    return join.term is None or join.term(parent, child)


def own_members(article: Article, row: Row, parts: dict[int, object], has_joins: bool) -> set[int]:
    if article.kind == "none":
        return set() if has_joins else {ALL}
    if article.kind == "static":
        return {ALL} if article.own(row, None) is True else set()
    return {pid for pid, value in parts.items() if article.own(row, value) is True}


def full_members(filters: Filters, parts, state) -> dict[str, dict[object, frozenset[int]]]:
    """The oracle: membership of every row, evaluated from nothing."""
    found: dict[str, dict[object, frozenset[int]]] = {}
    for a in filters.order():
        joins = [j for j in filters.joins if j.child == a]
        found[a] = {}
        for k, row in state[a].items():
            members = own_members(filters.articles[a], row, parts, bool(joins))
            for j in joins:
                for q, prow in state[j.parent].items():
                    if matches(j, prow, row):
                        members |= found[j.parent][q]
            found[a][k] = frozenset(members)
    return found


def visible(filters: Filters, parts, pid, state) -> dict[str, dict[object, Row]]:
    members = full_members(filters, parts, state)
    return {
        a: {k: state[a][k] for k, m in rows.items() if pid in m or ALL in m} for a, rows in members.items()
    }


def put(table: dict, k, row: Row | None) -> None:
    """Set or remove a row of a table."""
    table.pop(k, None)
    if row is not None:
        table[k] = row


def with_changes(state, changed, side: int = 1) -> dict[str, dict]:
    """Return tables as they are after the changes (article -> key -> (before, after)), or before them (side 0)."""
    found = {a: dict(rows) for a, rows in state.items()}
    for a, rows in changed.items():
        for k, pair in rows.items():
            put(found[a], k, pair[side])
    return found


Pass = dict[str, dict[object, tuple[frozenset[int], frozenset[int]]]]


def membership_pass(
    filters: Filters, parts, base, changed, refuse: Callable | None = None
) -> tuple[Pass, set[tuple[str, object]]]:
    """Membership before and after, for changed rows and for rows whose parents' contribution changed.

    base: article -> key -> row; of changed keys it does not matter what it holds.
    changed: article -> key -> (before, after).
    refuse(article, key, members after): puts a changed row back as it was, before its children are looked at.
    """
    old, new = (with_changes(base, changed, side) for side in (0, 1))
    result: Pass = {a: {} for a in filters.articles}
    refused: set[tuple[str, object]] = set()

    def members(a: str, row: Row | None, side: int) -> frozenset[int]:
        if row is None:
            return frozenset()
        state = (old, new)[side]
        joins = [j for j in filters.joins if j.child == a]
        found = own_members(filters.articles[a], row, parts, bool(joins))
        for j in joins:
            for q, prow in state[j.parent].items():
                if matches(j, prow, row):
                    change = result[j.parent].get(q)
                    found |= change[side] if change else members(j.parent, prow, side)
        return frozenset(found)

    for a in filters.order():
        keys = set(changed.get(a, {}))
        for j in (j for j in filters.joins if j.child == a):
            for q, (was, is_) in result[j.parent].items():
                before, after = old[j.parent].get(q), new[j.parent].get(q)
                contribution = [
                    row and (tuple(row[p] for p in j.parent_columns()), m)
                    for row, m in ((before, was), (after, is_))
                ]
                if contribution[0] != contribution[1]:
                    keys |= {
                        k for k, row in new[a].items() if matches(j, before, row) or matches(j, after, row)
                    }
        for k in sorted(keys, key=str):
            was, is_ = members(a, old[a].get(k), 0), members(a, new[a].get(k), 1)
            if refuse and k in changed.get(a, {}) and refuse(a, k, is_):
                refused.add((a, k))
                before = changed[a][k][0]
                put(new[a], k, before)
                is_ = members(a, before, 1)
            result[a][k] = (was, is_)
    return result, refused


def baseline() -> Lineage:
    return {PUBLICATION: 1}


@dataclass(frozen=True)
class Meta:
    """The row of contents (row is set) or tombstone that counts; gen: of the last change of the data."""

    gen: int
    lineage: Lineage
    row: Row | None
    priority: float
    seen: frozenset
    seq: int = 0
    type: int | None = None
    partchangegen: int | None = None
    born: int = 0  # own generation of an insert that is new to all other replicas


@dataclass(frozen=True)
class Event:
    """One appended mapping row: enter and stay in current_partition_mappings, leave in past_partition_mappings."""

    seq: int
    gen: int
    pid: int
    kind: str
    reason: int = 0


@dataclass
class Generation:
    guid: str
    art: str
    closed: bool = False


@dataclass
class Replica:
    name: str
    nick: int
    priority: float
    articles: tuple[str, ...]
    tables: dict = field(default_factory=dict)
    captured: dict = field(default_factory=dict)
    meta: dict = field(default_factory=dict)
    base: dict = field(default_factory=dict)  # ghost: (article, key) -> seen of rows without metadata
    gens: dict[int, Generation] = field(default_factory=dict)
    seq: int = 0

    def held(self) -> dict[str, int]:
        return {g.guid: n for n, g in self.gens.items()}

    def seen(self, key) -> frozenset:
        return self.meta[key].seen if key in self.meta else self.base.get(key, frozenset())

    def new_gen(self, guid: str, art: str, closed: bool) -> int:
        number = max(self.gens, default=0) + 1
        self.gens[number] = Generation(guid, art, closed)
        return number

    def close(self) -> None:
        for g in self.gens.values():
            g.closed = True


@dataclass
class Publisher(Replica):
    events: dict = field(default_factory=dict)
    gpm: dict = field(default_factory=dict)  # (generation, partition) -> [changecount, first_seq]
    parts: dict[int, object] = field(default_factory=dict)


@dataclass
class Subscriber(Replica):
    pid: int = 0
    options: int = 0
    up_mark: int = 0
    down_mark: int = 0
    storage: list = field(default_factory=list)
    """Everything a session ever wrote here: (article, key, row or None)."""


@dataclass
class Changeset:
    """What a session staged: everything both sides will do."""

    sub: str
    hub_rows: dict  # key -> Meta: what the publisher records
    hub_data: dict  # key -> row or None: what its tables become
    hub_pass: Pass
    own_gens: dict[str, tuple[int, str]]  # article -> the publisher's own generation of this session
    hub_received: list[tuple[int, str, str]]
    sub_rows: dict  # key -> (action, Meta)
    sub_received: list[tuple[int, str, str]]
    losers: list
    up_mark: int
    down_mark: int
    hub_merged: set[str]  # articles: the tables that each side writes, where late rounds follow
    sub_merged: set[str]
    done: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Merged:
    """Articles whose tables a session writes at each side, for whatever rows."""

    hub: frozenset[str] = frozenset()
    sub: frozenset[str] = frozenset()


class Network:
    def __init__(self, filters: Filters, values: dict[int, object], rows) -> None:
        self.filters = filters
        self.names = tuple(filters.articles)
        self.ids = itertools.count(1)
        self.hub = Publisher("hub", P_NICK, P_PRIORITY, self.names, parts=dict(values))
        self.hub.tables = {a: dict(rows.get(a, {})) for a in self.names}
        self.hub.captured = copy.deepcopy(self.hub.tables)
        self.writes: dict[int, tuple[str, str, object]] = {}
        self.void: set[int] = set()
        for a in self.names:
            for k in self.hub.tables[a]:
                self.hub.base[(a, k)] = frozenset({self.event("publication", (a, k))})
        self.subs: dict[str, Subscriber] = {}
        self.losers: list = []
        self.staged: dict[str, Changeset] = {}
        self.merged_too = Merged()
        self.log: list[str] = []

    def event(self, replica: str, key) -> int:
        number = next(self.ids)
        self.writes[number] = (replica, *key)
        return number

    def write(self, replica: str, a: str, op: str, k, values: Row | None = None) -> bool:
        table = (self.hub if replica == "hub" else self.subs[replica]).tables[a]
        if (op == "insert") == (k in table):
            return False
        self.log.append(f"{replica}: {op} {a} {k} {values or ''}")
        if op == "delete":
            del table[k]
        else:
            blank = dict.fromkeys(self.filters.articles[a].columns)
            table[k] = {**blank, **(table.get(k) or {}), **(values or {}), "tok": next(self.ids)}
        return True

    def subscribe(self, name: str, value: object, *, priority: float = 50.0, options: int = 0) -> None:
        """Snapshot of one partition, from the captured state; a value nobody had becomes a partition first."""
        self.log.append(f"subscribe {name} {value} {priority}")
        self.recover_hub()
        hub = self.hub
        self.capture_hub()
        hub.close()
        pid = next((p for p, v in hub.parts.items() if v == value), None)
        if pid is None:
            pid = max(hub.parts, default=0) + 1
            hub.parts[pid] = value
        sub = Subscriber(name, len(self.subs) + 2, priority, self.names, pid=pid, options=options)
        rows = visible(self.filters, hub.parts, pid, hub.captured)
        sub.tables, sub.captured = copy.deepcopy(rows), copy.deepcopy(rows)
        for a, there in rows.items():
            for k in there:
                sub.storage.append((a, k, there[k]))
                if (a, k) in hub.meta:  # metadata of its own rows only; no tombstones
                    sub.meta[(a, k)] = replace(hub.meta[(a, k)], gen=0, partchangegen=None)
                else:
                    sub.base[(a, k)] = hub.base[(a, k)]
        sub.down_mark = max(hub.gens, default=0)
        self.subs[name] = sub

    def capture_hub(self) -> None:
        hub = self.hub
        changed = self._changed(hub)
        if not any(changed.values()):
            return
        found, _ = membership_pass(self.filters, hub.parts, hub.tables, changed)
        self._check_pass(found, hub.captured, hub.tables)
        events = {a for a in self.names if changed[a] or any(w != i for w, i in found[a].values())}
        gens = {a: self._open(hub, a) for a in self.names if a in events}
        metas = {}
        for a, rows in changed.items():
            for k, (before, after) in rows.items():
                metas[(a, k)] = self._tracked(hub, a, k, before, after, gens[a])
        self._append_run(metas, found, {(a, k) for a in changed for k in changed[a]}, gens)
        hub.captured = copy.deepcopy(hub.tables)

    def capture_sub(self, sub: Subscriber) -> None:
        for a, rows in self._changed(sub).items():
            if rows:
                gen = self._open(sub, a)
                for k, (before, after) in rows.items():
                    sub.meta[(a, k)] = self._tracked(sub, a, k, before, after, gen)
        sub.captured = copy.deepcopy(sub.tables)

    def _changed(self, replica: Replica) -> dict:
        return {
            a: {
                k: (replica.captured[a].get(k), replica.tables[a].get(k))
                for k in {*replica.captured[a], *replica.tables[a]}
                if replica.captured[a].get(k) != replica.tables[a].get(k)
            }
            for a in self.names
        }

    def _open(self, replica: Replica, a: str) -> int:
        found = next((n for n, g in replica.gens.items() if g.art == a and not g.closed), None)
        return found or replica.new_gen(f"g{next(self.ids)}", a, False)

    def _tracked(
        self, replica: Replica, a, k, before, after, gen, *, writer=None, known: Meta | None = None
    ) -> Meta:
        """The INSERT, UPDATE and DELETE triggers."""
        known = known or replica.meta.get((a, k))
        seen = known.seen if known else replica.base.get((a, k), frozenset())
        lineage, floor = known.lineage if known else baseline() if before is not None else {}, 0
        is_new = before is None and known is None
        if before is None and known and self._goes_on_elsewhere(replica, known, is_late=writer is not None):
            # The row goes on without this replica: an insert of the key here knows nothing of it.
            is_own = known.type != 5
            seen = frozenset(e for e in seen if is_own and self.writes[e][0] == replica.name)
            floor = max(known.lineage.values(), default=0)
            lineage, is_new = {}, True
        lineage = bump(lineage, writer or replica.nick, floor)
        seen = seen | {self.event(replica.name, (a, k))}
        moved = -gen if before is None and known is None else known and known.partchangegen
        born = gen if is_new else known.born if known else 0
        type_ = 1 if after is None else None
        return Meta(gen, lineage, after, replica.priority, seen, type=type_, partchangegen=moved, born=born)

    def _goes_on_elsewhere(self, replica: Replica, known: Meta, *, is_late: bool) -> bool:
        """Whether a row may be outside of the partition: it left, or its delete was sent."""
        was_sent = isinstance(replica, Subscriber) and (is_late or known.gen <= replica.up_mark)
        return known.type == 5 or (known.row is None and was_sent)

    def change_filters(self, filters: Filters) -> None:
        """`apply` with other filters: the old ones against the new ones over whole tables, as a run of its own."""
        self.log.append("change filters")
        self.recover_hub()
        self.capture_hub()
        hub = self.hub
        was, is_ = (full_members(each, hub.parts, hub.captured) for each in (self.filters, filters))
        found = {a: {k: (was[a][k], is_[a][k]) for k in was[a] if was[a][k] != is_[a][k]} for a in self.names}
        gens = {a: self._open(hub, a) for a in self.names if found[a]}
        self._append_run({}, found, set(), gens, FILTERS)
        self.filters = filters

    def _append_run(
        self, metas: dict, found: Pass, changed: set, gens: dict[str, int], of_touched: int = PARENT
    ) -> None:
        """Append one run: contents or tombstone rows, touched children, events. gens: of the events, per article.

        of_touched: why rows leave that nobody changed.
        """
        hub = self.hub
        hub.seq += 1
        for key, meta in metas.items():
            was, is_ = found[key[0]].get(key[1], (frozenset(), frozenset()))
            kept = meta.partchangegen
            if was != is_ and key[0] in gens and not (kept and kept < 0 and -kept == meta.gen):
                kept = gens[key[0]]
            hub.meta[key] = replace(meta, seq=hub.seq, partchangegen=kept)
        for a, rows in found.items():
            for k, (was, is_) in rows.items():
                key = (a, k)
                if key not in changed and was == is_:
                    continue
                if key not in metas:  # touched: an unchanged row whose membership changes
                    there = hub.meta.get(key)
                    there = there or Meta(0, baseline(), hub.tables[a][k], P_PRIORITY, hub.base[key])
                    hub.meta[key] = replace(there, seq=hub.seq, partchangegen=gens[a])
                is_deleted = hub.meta[key].row is None
                why = of_touched if key not in changed else DELETED_ROW if is_deleted else FILTER_COLUMN
                for pid in sorted(was | is_):
                    kind = "stay" if pid in was and pid in is_ else "enter" if pid in is_ else "leave"
                    self._add_event(key, Event(hub.seq, gens[a], pid, kind, why if kind == "leave" else 0))
                data_gen = hub.meta[key].gen
                if key in metas and data_gen != gens[a]:
                    # Uploaded: the data in the uploaded generation, the move in our own.
                    for pid in is_:
                        self._count(data_gen, pid)

    def _add_event(self, key, event: Event) -> None:
        self.hub.events.setdefault(key, []).append(event)
        self._count(event.gen, event.pid)

    def _count(self, gen: int, pid: int) -> None:
        entry = self.hub.gpm.setdefault((gen, pid), [0, self.hub.seq])
        entry[0] += 1

    def _check_pass(self, found: Pass, before, after) -> None:
        """The incremental pass against the full evaluation."""
        was, is_ = (full_members(self.filters, self.hub.parts, state) for state in (before, after))
        for a in self.names:
            for k in {*before[a], *after[a]}:
                truth = (was[a].get(k, frozenset()), is_[a].get(k, frozenset()))
                if found[a].get(k, (truth[0], truth[0])) != truth:
                    raise Hole(f"membership of {a} {k}: {found[a].get(k)}, is {truth}")

    def window(self, sub: Subscriber, start: int) -> dict:
        """key -> (had it, has it to have, generation of the last event, reason of the last leave).

        What the engine reads: generation_partition_mappings names the generations that matter to the partition and the
        first run to look at; mapping rows of the partition and of -1 from that run on.
        """
        hub, held = self.hub, sub.held()
        firsts = [
            (gen, first)
            for (gen, pid), (_, first) in hub.gpm.items()
            if pid in (sub.pid, ALL)
            and gen > start
            and hub.gens[gen].closed
            and hub.gens[gen].guid not in held
        ]
        if not firsts:
            return {}
        relevant, first_seq = {gen for gen, _ in firsts}, min(first for _, first in firsts)
        found = {}
        for key, events in hub.events.items():
            mine = [e for e in events if e.seq >= first_seq and e.gen in relevant and e.pid in (sub.pid, ALL)]
            if not mine:
                continue
            first = [e for e in mine if e.seq == mine[0].seq]
            last = [e for e in mine if e.seq == mine[-1].seq]
            had = any(e.kind in ("stay", "leave") for e in first)
            has = any(e.kind in ("enter", "stay") for e in last)
            if hub.meta[key].seq < first_seq:
                raise Hole(
                    f"{key}: its metadata (run {hub.meta[key].seq}) lies before the first run read ({first_seq})"
                )
            why = next((e.reason for e in reversed(mine) if e.kind == "leave"), 0)
            found[key] = (had, has, mine[-1].gen, why)
        return found

    def sync(self, name: str, *, crash: str | None = None, late_hub=(), late_sub=()) -> int:
        """One session; returns how many rows it moved. crash: staged, hub or sub: what was finished before it died."""
        self.log.append(f"sync {name} crash={crash} late hub {list(late_hub)} sub {list(late_sub)}")
        moved = self.recover(name)
        sub = self.subs[name]
        changeset = self._stage(sub)
        if changeset is None:
            return moved
        self.staged[name] = changeset
        for call in late_hub:
            self.write("hub", *call)
        for call in late_sub:
            self.write(name, *call)
        if crash == "staged":
            return -1
        if crash != "sub":
            self._apply_hub(changeset)
        if crash == "hub":
            return -1
        self._apply_sub(changeset)
        if crash == "sub":
            return -1
        self._finish(changeset)
        if not late_hub and not late_sub:
            self._check_exact(sub, "after a session")
        of_sub = [action for action, _ in changeset.sub_rows.values() if action != "metadata"]
        return moved + len(changeset.hub_data) + len(of_sub)

    def recover_hub(self) -> None:
        """Finish the publisher's side of every staged session; the subscriber's waits for its own next one."""
        for changeset in self.staged.values():
            if "hub" not in changeset.done:
                self._apply_hub(changeset)

    def recover(self, name: str) -> int:
        self.recover_hub()
        changeset = self.staged.get(name)
        if changeset is None:
            return 0
        if "sub" not in changeset.done:
            self._apply_sub(changeset)
        self._finish(changeset)
        return 1

    def _finish(self, changeset: Changeset) -> None:
        sub = self.subs[changeset.sub]
        sub.up_mark, sub.down_mark = changeset.up_mark, changeset.down_mark
        del self.staged[changeset.sub]

    def _version(self, key) -> Meta | None:
        """What the publisher knows of a row; one it never tracked is as it was published."""
        hub = self.hub
        if key in hub.meta:
            return hub.meta[key]
        row = hub.captured[key[0]].get(key[1])
        return None if row is None else Meta(0, baseline(), row, P_PRIORITY, hub.base[key])

    def _stage(self, sub: Subscriber) -> Changeset | None:
        hub = self.hub
        self.capture_hub()
        self.capture_sub(sub)
        hub.close()
        sub.close()
        p_held, s_held = hub.held(), sub.held()
        up = {n for n, g in sub.gens.items() if n > sub.up_mark and g.guid not in p_held}
        sent = {key: meta for key, meta in sub.meta.items() if meta.gen in up and meta.type not in (5, 6)}
        start = sub.down_mark
        window = self.window(sub, start)

        def is_news(meta: Meta) -> bool:
            return meta.gen > start and hub.gens[meta.gen].guid not in s_held

        relevant = {
            gen
            for gen, pid in hub.gpm
            if pid in (sub.pid, ALL) and gen > start and hub.gens[gen].guid not in s_held
        }

        # What the two know of the rows that the subscriber sends: verdict and the final version, before filters
        final: dict[object, Meta] = {}
        verdicts: dict[object, str] = {}
        losers: list = []
        own: dict[str, int] = {}
        number = itertools.count(max(hub.gens, default=0) + 1)
        received = {n: next(number) for n in sorted(up)}

        def own_gen(a: str) -> int:
            if a not in own:
                own[a] = next(number)
            return own[a]

        for key, mine in sent.items():
            is_new = mine.born > sub.up_mark
            verdict, version, loser = self._decide(key, mine, self._version(key), P_NICK, sub, is_new=is_new)
            verdicts[key], final[key] = verdict, version
            if loser:
                losers.append(loser)

        # At the publisher an uploaded row keeps what is known there of its membership
        for key, version in final.items():
            theirs = self._version(key)
            final[key] = replace(version, partchangegen=theirs.partchangegen if theirs else None, born=0)

        # What becomes of the publisher's rows, and the membership of everything that this moves
        changed: dict[str, dict] = {a: {} for a in self.names}
        hub_rows: dict = {}
        for (a, k), verdict in verdicts.items():
            if verdict not in ("download", "known", "drop"):
                changed[a][k] = (hub.captured[a].get(k), final[(a, k)].row)

        def refuse(a, k, is_) -> bool:
            key = (a, k)
            if sub.options == 0 or verdicts.get(key) not in ("upload", "reinsert", "merge", "conflict"):
                return False
            row, theirs = final[key].row, self._version(key)
            if row is None or sub.pid in is_ or ALL in is_:
                return False
            if theirs is None or theirs.row is None or not set(theirs.lineage) & set(sent[key].lineage):
                return True  # an insert
            # An edit of a row that left for a reason at the publisher moves nothing: it is taken, and the row leaves.
            article = self.filters.articles[a]
            return any(row[c] != theirs.row[c] for c in article.columns if c not in article.unread)

        found, refused = membership_pass(self.filters, hub.parts, hub.captured, changed, refuse)
        for key in refused:
            a, k = key
            before, mine = changed[a][k][0], sent[key]
            theirs = self._version(key)
            lineage = bump(merge_lineage(theirs.lineage if theirs else {}, mine.lineage), AGENT * P_NICK)
            seen = mine.seen | (theirs.seen if theirs else frozenset())
            losers = [(other, loser) for other, loser in losers if other != key] + [(key, mine)]
            verdicts[key] = "refused"
            priority = (theirs or mine).priority
            final[key] = Meta(0, lineage, before, priority, seen, type=6 if before is None else None)
            changed[a][k] = (before, before)
        after = with_changes(hub.captured, changed)
        self._check_pass(found, hub.captured, after)

        # Which generation the publisher records each row under, and which ones it makes itself
        for key, verdict in verdicts.items():
            if verdict in ("download", "known", "drop"):
                continue
            if verdict == "upload":
                hub_rows[key] = replace(final[key], gen=received[sent[key].gen])
            else:
                hub_rows[key] = replace(final[key], gen=own_gen(key[0]))
        for a in self.names:
            if any(w != i or k in changed[a] for k, (w, i) in found[a].items()):
                own_gen(a)

        # What the subscriber does
        sub_rows: dict = {}
        numbers: dict[int, int] = {}
        to_sub = itertools.count(max(sub.gens, default=0) + 1)

        def sub_gen(gen: int) -> int:
            if gen not in numbers:
                numbers[gen] = next(to_sub)
            return numbers[gen]

        keys = {*window, *sent, *((a, k) for a in self.names for k in found[a])}
        for key in sorted(keys, key=str):
            a, k = key
            was, is_ = found[a].get(k, (None, None))
            if key not in window and key not in sent and was == is_:
                continue  # looked at, and nothing became of it
            had, has, event_gen, why = window.get(key, (None, None, 0, 0))
            if had is None:
                if was is None:
                    version = self._version(key)
                    # sent, and unchanged at the publisher: where it is now says whether it stays
                    state = self._member(key)
                    had = has = bool({sub.pid, ALL} & state)
                else:
                    had = bool({sub.pid, ALL} & was)
            if is_ is not None and (key in hub_rows or was != is_):
                has = bool({sub.pid, ALL} & is_)
                event_gen = own.get(a, event_gen)
            version = final.get(key) or self._version(key)
            if key in sent:
                had = sent[key].row is not None
            elif had != (k in sub.captured[a]):
                raise Hole(f"{key}: the events say that {sub.name} {'has' if had else 'lacks'} it")
            gone = version is None or version.row is None
            if gone or not has:
                # It has the delete too: its lineage is the publisher's now.
                is_known_delete = gone and verdicts.get(key, "upload") not in ("upload", "known")
                if not had and not is_known_delete:
                    continue
                type_ = (version.type or 1) if gone and (why in (0, DELETED_ROW) or key in sent) else 5
                number_ = sub_gen(hub_rows[key].gen if key in hub_rows else event_gen or own_gen(a))
                seen = version.seen if type_ != 5 else sub.seen(key)
                if not version.seen >= sub.seen(key) - self.void:
                    raise Hole(f"{key} leaves {sub.name} with changes that the publisher does not have")
                action = "metadata" if not had else "delete" if type_ != 5 else "leave"
                sub_rows[key] = (
                    action,
                    Meta(number_, version.lineage, None, version.priority, seen, type=type_),
                )
                continue
            if key in verdicts:
                if verdicts[key] in ("upload", "known"):
                    continue
                action = "metadata" if sent[key].row == version.row else "update" if had else "insert"
                version = hub_rows.get(key, version)
            elif had and not is_news(version):
                continue
            else:
                action, version = "update" if had else "insert", replace(version, type=None)
            gen = version.gen if version.gen in relevant or key in hub_rows else event_gen or own_gen(a)
            sub_rows[key] = (action, replace(version, gen=sub_gen(gen), born=0))
        for key, (_, meta) in sub_rows.items():
            if meta.row is not None and not meta.seen >= sub.seen(key) - self.void:
                raise Hole(f"{key}: what {sub.name} gets does not include what it has")
        for key, (action, meta) in sub_rows.items():  # nothing outside of the partition is sent
            if meta.row is not None and action != "metadata":
                self._check_sent(sub, key, meta.row, after)
        guid_of = {n: f"g{next(self.ids)}" for n in own.values()}
        uploaded = {number: sub.gens[local].guid for local, number in received.items()}

        def guid(gen: int) -> str:
            return guid_of.get(gen) or uploaded.get(gen) or hub.gens[gen].guid

        sub_received = [(local, guid(gen), "") for gen, local in numbers.items()]
        if not verdicts and not sub_rows and not window and not up and self.merged_too == Merged():
            return None
        hub_data = {
            key: meta.row for key, meta in hub_rows.items() if hub.captured[key[0]].get(key[1]) != meta.row
        }
        of_sub = {key[0] for key, (action, _) in sub_rows.items() if action != "metadata"}
        return Changeset(
            sub.name,
            hub_rows,
            hub_data,
            found,
            {a: (n, guid_of[n]) for a, n in own.items()},
            [(n, sub.gens[local].guid, sub.gens[local].art) for local, n in received.items()],
            sub_rows,
            sub_received,
            losers,
            max([0, *sub.gens, *numbers.values()]),
            max([0, *hub.gens, *own.values(), *received.values()]),
            {key[0] for key in hub_data} | self.merged_too.hub,
            of_sub | self.merged_too.sub,
        )

    def _member(self, key) -> frozenset[int]:
        """Membership of one row of the publisher as captured: an upward look-up."""
        (a, k), rows = key, self.hub.captured
        found, _ = membership_pass(self.filters, self.hub.parts, rows, {a: {k: (rows[a].get(k),) * 2}})
        return found[a][k][1]

    def _decide(
        self, key, mine: Meta, theirs: Meta | None, resolver: int, sub: Subscriber, *, is_new: bool = False
    ):
        """sp_MSgetmetadata, then detection and resolution (row tracking). Returns verdict, final version, loser."""
        if theirs is None:
            return "upload", mine, None
        hub_knows, sub_knows = covers(theirs.lineage, mine.lineage), covers(mine.lineage, theirs.lineage)
        if hub_knows and sub_knows:
            return "known", theirs, None
        if is_new and theirs.row is not None:
            # Another row of that key: no version of the publisher's, whatever the lineages say.
            sub_knows = False
        if hub_knows:
            if not theirs.seen >= mine.seen:
                raise Hole(f"{key}: the publisher's lineage covers changes that it does not have")
            return "download", theirs, None
        if sub_knows:
            if not mine.seen >= theirs.seen:
                raise Hole(f"{key}: {sub.name} would overwrite changes that it never saw")
            return "upload", mine, None
        lineage, seen = merge_lineage(mine.lineage, theirs.lineage), mine.seen | theirs.seen
        stamped = bump(lineage, AGENT * resolver)
        if is_new and theirs.row is None and mine.row is not None:
            # It never knew the row that was deleted there: its insert is an insert.
            return "reinsert", replace(mine, lineage=stamped, seen=seen), None
        if is_new and mine.row is None and theirs.row is not None:
            # It deleted a row of its own that nobody had; the publisher's is another one.
            self.void |= mine.seen - theirs.seen
            return "drop", theirs, None
        if mine.row == theirs.row:
            priority = max(mine.priority, theirs.priority)
            type_ = 1 if mine.row is None else None
            return "merge", Meta(0, lineage, mine.row, priority, seen, type=type_), None
        winner, loser = (mine, theirs) if mine.priority > theirs.priority else (theirs, mine)
        version = Meta(0, stamped, winner.row, winner.priority, seen, type=1 if winner.row is None else None)
        return "conflict", version, (key, loser)

    def _apply_hub(self, changeset: Changeset) -> None:
        hub = self.hub
        changeset.done.add("hub")
        self.losers += changeset.losers
        for number, guid, art in changeset.hub_received:
            hub.gens[number] = Generation(guid, art, True)
        for art, (number, guid) in changeset.own_gens.items():
            hub.gens[number] = Generation(guid, art, True)
        late = self._late(hub, changeset.hub_merged)
        for (a, k), row in changeset.hub_data.items():
            for table in (hub.tables[a], hub.captured[a]):
                put(table, k, row)
        gens = {a: changeset.own_gens[a][0] for a in changeset.own_gens}
        tables, hub.tables = hub.tables, hub.captured
        self._append_run(changeset.hub_rows, changeset.hub_pass, set(changeset.hub_rows), gens)
        hub.tables = tables
        if late:
            self._late_hub(late, changeset)

    def _late(self, replica: Replica, articles: set[str]) -> dict:
        """What users committed after the capture and before a MERGE: key -> (row before, row after, known before)."""
        changed = self._changed(replica)
        return {(a, k): (*pair, replica.meta.get((a, k))) for a in articles for k, pair in changed[a].items()}

    def _late_version(
        self, key, mine: Meta, applied: Meta | None, sides, resolver: int, sub: Subscriber
    ) -> Meta:
        """Return what a late change comes to beside what was applied to its row; sides: which of the two is the hub's."""
        if applied is None or covers(mine.lineage, applied.lineage):
            return mine
        _, version, loser = self._decide(key, *sides(mine, applied), resolver, sub)
        if loser:
            self.losers.append(loser)
        return version

    def _late_hub(self, late: dict, changeset: Changeset) -> None:
        """Late capture at the publisher: concurrent with what was applied; its membership follows the staged state."""
        hub = self.hub
        gens = {a: hub.new_gen(f"g{next(self.ids)}", a, True) for a in sorted({key[0] for key in late})}
        changed: dict[str, dict] = {a: {} for a in self.names}
        metas = {}
        for key, (was, row, known) in late.items():
            a, k = key
            if key in changeset.hub_rows and key not in changeset.hub_data:
                known = hub.meta[key]
            mine = self._tracked(hub, a, k, was, row, gens[a], writer=P_NICK + LATE, known=known)
            if known is None and was is None:
                mine = replace(mine, lineage={P_NICK + LATE: 1}, seen=frozenset({max(mine.seen)}))
            applied = hub.meta[key] if key in changeset.hub_data else None
            version = self._late_version(
                key, mine, applied, lambda mine, applied: (applied, mine), P_NICK, self.subs[changeset.sub]
            )
            changed[a][k] = (hub.captured[a].get(k), version.row)
            metas[key] = replace(version, gen=gens[a])
            put(hub.tables[a], k, version.row)
        base = hub.captured
        found, _ = membership_pass(self.filters, hub.parts, base, changed)
        after = with_changes(base, changed)
        self._check_pass(found, base, after)
        for a in self.names:  # children of an article that no session merged join a generation of their own
            if a not in gens and any(w != i for w, i in found[a].values()):
                gens[a] = hub.new_gen(f"g{next(self.ids)}", a, True)
        tables, hub.tables = hub.tables, after
        self._append_run(metas, found, {(a, k) for a in changed for k in changed[a]}, gens)
        hub.tables = tables
        hub.captured = after

    def _apply_sub(self, changeset: Changeset) -> None:
        sub = self.subs[changeset.sub]
        changeset.done.add("sub")
        for number, guid, art in changeset.sub_received:
            sub.gens[number] = Generation(guid, art, True)
        late = self._late(sub, changeset.sub_merged)
        for key, (action, meta) in changeset.sub_rows.items():
            a, k = key
            sub.storage.append((a, k, meta.row))
            sub.meta[key] = meta
            if action != "metadata":
                for table in (sub.tables[a], sub.captured[a]):
                    put(table, k, meta.row)
        for key, (was, row, known) in late.items():
            a, k = key
            gen = self._open(sub, a)
            action, applied = changeset.sub_rows.get(key, (None, None))
            if action == "metadata":
                known = sub.meta[key]
            if known is None:
                lineage = baseline() if was is not None else {}
                known = Meta(0, lineage, was, 0, sub.base.get(key, frozenset()))
            mine = self._tracked(sub, a, k, was, row, gen, writer=sub.nick + LATE, known=known)
            # A row that left is no conflict: the late change comes back and goes up next time.
            applied = applied if action in ("insert", "update", "delete") else None
            version = self._late_version(key, mine, applied, lambda *both: both, sub.nick, sub)
            sub.meta[key] = replace(version, gen=gen)
            for table in (sub.tables[a], sub.captured[a]):
                put(table, k, version.row)
        sub.close()

    def cleanup(self) -> None:
        """Drop mapping events and their counts that every subscriber is past."""
        low = min((s.down_mark for s in self.subs.values()), default=0)
        for key, events in list(self.hub.events.items()):
            self.hub.events[key] = [e for e in events if e.gen > low]
        for gen, pid in [x for x in self.hub.gpm if x[0] <= low]:
            del self.hub.gpm[(gen, pid)]

    def _check_sent(self, sub: Subscriber, key, row: Row, state) -> None:
        """A row that is sent is in the partition (as the publisher's rows will be)."""
        members = full_members(self.filters, self.hub.parts, state)[key[0]].get(key[1], frozenset())
        if not ({sub.pid, ALL} & members):
            raise Hole(f"{key} goes to {sub.name}, whose partition it is not in")

    def _check_exact(self, sub: Subscriber, when: str) -> None:
        want = visible(self.filters, self.hub.parts, sub.pid, self.hub.captured)
        for a in self.names:
            if sub.tables[a] != want[a]:
                extra = {k: v for k, v in sub.tables[a].items() if want[a].get(k) != v}
                lack = {k: v for k, v in want[a].items() if sub.tables[a].get(k) != v}
                raise Hole(f"{when}: {sub.name}.{a} has {extra} instead of {lack}")

    def quiesce(self) -> None:
        for _ in range(6):
            if sum(self.sync(name) for name in self.subs) == 0:
                break
        else:
            raise Hole("sessions go on moving rows although nobody writes")

    def check(self) -> None:
        """I32, I33, I35, I6: exact partitions, nothing lost, nothing leaked, quiet afterwards."""
        self.quiesce()
        for sub in self.subs.values():
            self._check_exact(sub, "at the end")
        logged = [loser.seen for _, loser in self.losers]
        for number, (replica, a, k) in self.writes.items():
            if (
                number in self.void
                or number in self.hub.seen((a, k))
                or any(number in seen for seen in logged)
            ):
                continue
            raise Hole(f"write {number} of {a} {k} by {replica} is lost")
        for (a, k), events in self.hub.events.items():
            for pid in {e.pid for e in events}:
                kinds = [e.kind for e in events if e.pid == pid]
                for one, two in itertools.pairwise(kinds):
                    if (one == "leave") != (two == "enter"):
                        raise Hole(f"events of {a} {k} in {pid}: {kinds}")

    def netted(self) -> tuple[list, list]:
        """current_partition_mappings and past_partition_mappings as a reader nets them."""
        current, past = [], []
        for (a, k), events in self.hub.events.items():
            for pid in sorted({e.pid for e in events}):
                last = [e for e in events if e.pid == pid][-1]
                (past if last.kind == "leave" else current).append((a, k, pid, last))
        return current, past
