"""A model of Change Data Capture over Delta tables, in plain Python, checked by drawn histories.

What it models: several source tables with versions; commits that become visible some time after their file was written;
scan cycles (cut, LSNs, plan, change tables, gate, positions) that may die at every step, also while recovering; capture
instances that begin at different times; cleanup (low mark first, then deletes in pieces); readers at every moment.

What it checks, by number:
 P1 LSNs rise strictly, also over crashes; the LSN of a planned transaction is the same after a crash.
 P2 Of one table, LSN order is version order; every change of every commit is in the change table exactly once.
 P3 A commit whose file was written after another one was visible has the higher LSN, whatever tables they are of.
 P4 A reader bound by the highest LSN of the gate never sees half a cycle: for each instance, the changes up to it lead from
    the snapshot at the instance's beginning to the very version that the gate names.
 P5 All changes, and net changes with each option, lead from the snapshot at from-1 to the snapshot at to; the net operation
    is that of the table in cdc.md.
 P6 A query inside the validity interval misses nothing while cleanup works; below the low mark it fails.
 P7 A commit with a time in the future waits for one cycle only; times of LSNs never fall, and rise from cycle to cycle, so
    that nothing comes at a time that somebody has read already.
 P8 Members of a unit have one LSN, or (where another commit of their table lies between) each its own; commits of one table
    never share one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from mergerepl.logreader.plan import Placed, cut, in_order
from mergerepl.logreader.units import grouped, incomplete, readable

Row = tuple[int, ...]
Lsn = tuple[int, int]  # (scan cycle, slot); the epoch is constant here


class Crash(Exception):
    """The scanner died."""


class OutOfRange(Exception):
    """Error 313."""


@dataclass
class Commit:
    version: int
    mtime: int
    visible_at: int
    pre: dict[int, Row]
    post: dict[int, Row]
    unit: tuple[str, frozenset[int]] | None = None
    """Its name and the tables that it says it has commits in."""


@dataclass
class Source:
    """A Delta table: its commits and the state after each version."""

    object_id: int
    commits: list[Commit] = field(default_factory=list)
    states: list[dict[int, Row]] = field(default_factory=lambda: [{}])

    def write(
        self, now: int, delay: int, state: dict[int, Row], unit=None, *, mtime: int | None = None
    ) -> None:
        old = self.states[-1]
        keys = {k for k in old.keys() | state.keys() if old.get(k) != state.get(k)}
        pre = {k: old[k] for k in keys if k in old}
        post = {k: state[k] for k in keys if k in state}
        # version n+1 can only be written once version n is visible
        if self.commits:
            now = max(now, self.commits[-1].visible_at)
        self.commits.append(
            Commit(len(self.states), now if mtime is None else mtime, now + delay, pre, post, unit)
        )
        self.states.append(dict(state))

    def head(self, now: int) -> int:
        return max([0, *(c.version for c in self.commits if c.visible_at <= now)])


@dataclass
class Instance:
    name: str
    object_id: int
    begins_after_version: int
    start_lsn: Lsn
    rows: list[tuple[Lsn, int, int, int, Row, int]] = field(default_factory=list)
    """The change table: start_lsn, phase and key (together seqval), operation, row, mask."""
    txn: int = 0


def change_rows(commit: Commit, lsn: Lsn) -> list[tuple]:
    """Return the change table's rows of one commit: deletes, then updates, then inserts; seqval is (phase, key)."""
    out = []
    for key in commit.pre.keys() | commit.post.keys():
        before, after = commit.pre.get(key), commit.post.get(key)
        if before is None:
            out.append((lsn, 2, key, 2, after, full_mask(len(after))))
        elif after is None:
            out.append((lsn, 0, key, 1, before, full_mask(len(before))))
        else:
            mask = sum(1 << i for i, (b, a) in enumerate(zip(before, after, strict=True)) if b != a)
            if mask:
                out += [(lsn, 1, key, 3, before, mask), (lsn, 1, key, 4, after, mask)]
    return sorted(out)


def full_mask(columns: int) -> int:
    return (1 << columns) - 1


def mask_bytes(mask: int, columns: int) -> bytes:
    """The layout of __$update_mask: the LAST byte holds ordinals 1 to 8, bit (n - 1) mod 8."""
    return mask.to_bytes(-(-columns // 8), "big")


def is_bit_set(position: int, mask: bytes) -> bool:
    at = len(mask) - 1 - (position - 1) // 8
    return at >= 0 and bool(mask[at] >> ((position - 1) % 8) & 1)


class Database:
    """What is durable: plan, change tables, gate (lsn_time_mapping), positions, low marks."""

    def __init__(self, sources: list[Source]) -> None:
        self.sources = {s.object_id: s for s in sources}
        self.instances: dict[str, Instance] = {}
        self.plan: dict | None = None
        self.gate: list[dict] = []
        self.gate_cycle = 0
        self.state = {
            "cycle": 0,
            "position": dict.fromkeys(self.sources, 0),
            "seen": dict.fromkeys(self.sources, 0),
            "waiting": {},
            "time": 0,
        }
        self.low: dict[str, Lsn] = {}
        self.start_version: dict[str, int] = {}
        """Of each instance, the version of its source just before its low mark: moved together with the mark."""
        self.now = 0
        self.ever: dict[Lsn, list] = {}
        """What the gate ever held: for the checks alone."""

    # -- readers ---------------------------------------------------------------------------------------
    def max_lsn(self) -> Lsn:
        return max((row["lsn"] for row in self.gate), default=(0, 0))

    def version_at(self, name: str, lsn: Lsn) -> int:
        """Return the version of an instance's source that the database's history up to an LSN has reached."""
        object_id = self.instances[name].object_id
        reached = (v for row in self.gate if row["lsn"] <= lsn for o, v in row["commits"] if o == object_id)
        return max([self.start_version[name], *reached])

    def all_changes(self, name: str, low: Lsn, high: Lsn) -> list[tuple]:
        rows = list(self.instances[name].rows)  # pinned before the low mark is looked at
        if low < self.low[name] or high > self.max_lsn() or low > high:
            raise OutOfRange(name)
        return sorted(row for row in rows if low <= row[0] <= high)

    def net_changes(self, name: str, low: Lsn, high: Lsn, option: str = "all") -> list[tuple]:
        by_key: dict[int, list[tuple]] = {}
        for row in self.all_changes(name, low, high):
            by_key.setdefault(row[2], []).append(row)
        out = []
        for key, rows in by_key.items():
            first, last = rows[0], rows[-1]
            existed, exists = first[3] != 2, last[3] != 1
            if not existed and not exists:
                continue
            operation = 1 if not exists else (4 if existed else 2)
            mask = None
            if option == "all with mask" and operation == 4:
                mask = 0
                for row in rows:
                    mask |= row[5]
            if option == "all with merge" and operation != 1:
                operation = 5
            out.append((last[0], operation, key, last[4], mask))
        return sorted(out)

    # -- the scan cycle ----------------------------------------------------------------------------------
    def scan(self, step, *, maxtrans: int) -> bool:
        """One cycle; `step(name)` is called between any two things, and may raise Crash. Returns whether there was news."""
        self.recover(step)
        began = self.now
        heads = {}
        for object_id, source in self.sources.items():
            heads[object_id] = source.head(self.now)
            step("listed")
        tracked = {i.object_id for i in self.instances.values()}
        placed = [self.in_cut(object_id, heads[object_id], began) for object_id in tracked]
        found = in_order(placed)
        waiting = dict(self.state["waiting"])
        needs = needs_of(found, self.commit, tracked, waiting, self.state["position"], now=began)
        groups, split = grouped(readable(found, needs))
        check_whole(found, groups[:maxtrans], split)
        transactions = [
            [(each.at_ns, each.object_id, each.version, None) for each in group]
            for group in groups[:maxtrans]
        ]
        new_seen = {o: max(self.state["seen"][o], heads[o]) for o in heads}
        noted = {"seen": new_seen, "waiting": waiting}
        if not transactions:
            if noted != {k: self.state[k] for k in noted}:
                self.state = {**self.state, **noted}
            return False
        cycle = max(self.gate_cycle, self.state["cycle"], *(i.txn for i in self.instances.values()), 0) + 1
        plan = {"cycle": cycle, **noted, "rows": [], "position": dict(self.state["position"])}
        time = self.state["time"] + TICK
        for slot, members in enumerate(transactions, start=1):
            time = max([time, *(e for e, *_ in members)])
            plan["rows"].append(
                {"lsn": (cycle, slot), "time": time, "commits": [(o, v) for _, o, v, _ in members]}
            )
            for _, object_id, version, _ in members:
                plan["position"][object_id] = max(plan["position"][object_id], version)
        plan["time"] = time
        step("before plan")
        self.plan = plan
        step("after plan")
        self.carry_out(step)
        return True

    def commit(self, object_id: int, version: int) -> Commit:
        return self.sources[object_id].commits[version - 1]

    def in_cut(self, object_id: int, head: int, began: int) -> list[Placed]:
        """Return a source's commits in the cut, by the engine's own function."""
        position = self.state["position"][object_id]
        logged = (
            Placed(commit.mtime, object_id, commit.version, commit.unit[0] if commit.unit else "")
            for commit in self.sources[object_id].commits[position:head]
        )
        return list(cut(logged, began_ns=began, seen=self.state["seen"][object_id]))

    def carry_out(self, step) -> None:
        plan = self.plan
        assert plan is not None
        for instance in sorted(self.instances.values(), key=lambda i: i.name):
            if instance.txn >= plan["cycle"]:
                continue
            rows = []
            for row in plan["rows"]:
                for object_id, version in row["commits"]:
                    if object_id == instance.object_id and version > instance.begins_after_version:
                        rows += change_rows(self.sources[object_id].commits[version - 1], row["lsn"])
            instance.rows, instance.txn = (
                instance.rows + rows,
                plan["cycle"],
            )  # one commit with its transaction id
            step("change table")
        if self.gate_cycle < plan["cycle"]:
            self.gate, self.gate_cycle = self.gate + plan["rows"], plan["cycle"]
        step("gate")
        if self.state["cycle"] < plan["cycle"]:
            self.state = {k: plan[k] for k in ("cycle", "position", "seen", "waiting", "time")}
        step("state")
        self.plan = None
        step("plan dropped")

    def recover(self, step) -> None:
        if self.plan is not None:
            self.carry_out(step)
            return
        for instance in self.instances.values():
            # a plan that somebody removed: what its cycle left must not come to count
            instance.rows = [row for row in instance.rows if row[0][0] <= self.gate_cycle]

    def enable(self, name: str, object_id: int, step) -> None:
        """A marker cycle of its own: the instance begins at the log's present position."""
        self.recover(step)
        tracked = {i.object_id for i in self.instances.values()}
        if object_id not in tracked:
            head = self.sources[object_id].head(self.now)
            position = {**self.state["position"], object_id: head}
        else:
            position = dict(self.state["position"])
        cycle = max(self.gate_cycle, self.state["cycle"], *(i.txn for i in self.instances.values()), 0) + 1
        lsn = (cycle, 1)
        seen = {o: max(self.state["seen"][o], position[o]) for o in position}
        time = max(self.state["time"] + TICK, self.now)
        commits = [(object_id, position[object_id])]
        self.instances[name] = Instance(name, object_id, position[object_id], lsn, txn=cycle)
        self.low[name], self.start_version[name] = lsn, position[object_id]
        self.gate, self.gate_cycle = [*self.gate, {"lsn": lsn, "time": time, "commits": commits}], cycle
        self.state = {**self.state, "cycle": cycle, "position": position, "seen": seen, "time": time}

    def cleanup(self, retention: int, threshold: int, step) -> None:
        if not self.gate:
            return
        base = max(self.gate, key=lambda row: row["lsn"])["time"] - retention
        mark = min((row["lsn"] for row in self.gate if row["time"] >= base), default=None)
        if mark is None:
            return
        below = (mark[0], mark[1] - 1)
        self.start_version = {
            n: self.version_at(n, below) if low < mark else self.start_version[n]
            for n, low in self.low.items()
        }
        self.low = {name: max(low, mark) for name, low in self.low.items()}  # one commit, all instances
        step("low marks")
        for instance in self.instances.values():
            while expired := sorted(r for r in instance.rows if r[0] < self.low[instance.name])[:threshold]:
                gone = set(expired)
                instance.rows = [row for row in instance.rows if row not in gone]
                step("deleted")
        keep = min(self.low.values(), default=mark)
        self.gate = [row for row in self.gate if row["lsn"] >= keep]


def check_whole(found: list[Placed], read: list[list[Placed]], split: set[str]) -> None:
    """P8: of a unit the last commit of each table is read with the others, or waits with them."""
    last: dict[str, dict[int, Placed]] = {}
    for each in found:
        if each.unit and each.unit not in split:
            last.setdefault(each.unit, {})[each.object_id] = each
    for members in last.values():
        at = {next((i for i, group in enumerate(read) if each in group), None) for each in members.values()}
        assert len(at) == 1, ("P8 half", members, read)


UNIT_WAIT = 40
TICK = 2**-20  # 1 µs: the least time between two cycles


def needs_of(found: list[Placed], commits, tracked: set[int], waiting: dict[str, int], position, *, now: int):
    """Return the sources of each unit that must have a commit; none after a while from when it was first seen (`waiting`).

    No clock but the scanner's own is asked.
    """
    needs = {}
    for each in found:
        unit = commits(each.object_id, each.version).unit
        if unit:
            passed = {o for o in tracked for v in range(1, position[o] + 1) if commits(o, v).unit == unit}
            needs[unit[0]] = tracked.intersection(unit[1]) - passed
    for unit in incomplete(found, needs):
        if now - waiting.setdefault(unit, now) > UNIT_WAIT:
            needs[unit] = set()
    return needs


# -- checks --------------------------------------------------------------------------------------------------
def apply(state: dict[int, Row], changes: list[tuple]) -> dict[int, Row]:
    state = dict(state)
    for _, _, key, operation, row, _ in changes:
        if operation == 1:
            assert state.pop(key) == row
        elif operation == 2:
            assert key not in state
            state[key] = row
        elif operation == 3:
            assert state[key] == row
        else:
            assert key in state
            state[key] = row
    return state


def check_reader(db: Database, rng: random.Random) -> None:
    ever = db.ever
    ever.update({row["lsn"]: row["commits"] for row in db.gate})
    lsns = [row["lsn"] for row in db.gate]
    assert lsns == sorted(set(lsns)), "P1"
    times = [row["time"] for row in db.gate]
    assert times == sorted(times), "P7"
    pairs = zip(db.gate, db.gate[1:], strict=False)
    assert all(a["time"] < b["time"] for a, b in pairs if a["lsn"][0] != b["lsn"][0]), "P7 cycles"
    high = db.max_lsn()
    for instance in db.instances.values():
        source = db.sources[instance.object_id]
        low = db.low[instance.name]
        if low > high:
            continue
        choices = [lsn for lsn in lsns if low <= lsn <= high]
        for _ in range(2):
            a, b = sorted((rng.choice(choices), rng.choice(choices)))
            version = max(
                [
                    0,
                    *(
                        v
                        for lsn, commits in ever.items()
                        if lsn < a
                        for o, v in commits
                        if o == source.object_id
                    ),
                ]
            )
            version = max(version, instance.begins_after_version)
            start = source.states[version]
            assert db.version_at(instance.name, a) >= version
            end = source.states[db.version_at(instance.name, b)]
            changes = db.all_changes(instance.name, a, b)
            assert apply(start, changes) == end, ("P4/P5", instance.name, a, b, start, changes, end)
            net = db.net_changes(instance.name, a, b, "all with mask")
            state = dict(start)
            for _, operation, key, row, mask in net:
                existed, exists = key in start, key in end
                assert operation == {(0, 1): 2, (1, 0): 1, (1, 1): 4}[(existed, exists)], "P5"
                if operation == 1:
                    state.pop(key)
                else:
                    assert row == end[key]
                    if operation == 4:
                        differs = sum(
                            1 << i
                            for i, (x, y) in enumerate(zip(start[key], end[key], strict=True))
                            if x != y
                        )
                        assert mask & differs == differs, "P5 mask"
                    state[key] = row
            assert state == end, "P5 net"
            merged = db.net_changes(instance.name, a, b, "all with merge")
            assert sorted((lsn, 1 if o == 1 else 5, k, r) for lsn, o, k, r, _ in net) == [
                m[:4] for m in merged
            ], "P5 merge"
        if low > (0, 0):
            try:
                db.all_changes(instance.name, (low[0] - 1, 0), high)
            except OutOfRange:
                pass
            else:
                raise AssertionError("P6")


def check_order(db: Database, all_rows: list[dict], *, clock_is_one: bool) -> None:
    place = {}
    for row in all_rows:
        for each in row["commits"]:
            if not row.get("marker"):
                place[each] = row["lsn"]
    for (o1, v1), l1 in place.items():
        c1 = db.sources[o1].commits[v1 - 1]
        for (o2, v2), l2 in place.items():
            c2 = db.sources[o2].commits[v2 - 1]
            if o1 == o2 and v1 < v2:
                assert l1 < l2, ("P2", "P8")
            if clock_is_one and c1.visible_at < c2.mtime and not (c1.unit or c2.unit):
                assert l1 < l2, ("P3", (o1, v1), (o2, v2), l1, l2)


def history(seed: int) -> int:
    rng = random.Random(seed)
    sources = [Source(100 + i) for i in range(rng.randint(1, 3))]
    db = Database(sources)
    clock_is_one = rng.random() < 0.8
    units = 0
    planned: dict[tuple[int, int], Lsn] = {}
    all_rows: dict[Lsn, dict] = {}
    crash_at = -1
    steps = 0

    def write() -> None:
        nonlocal units
        db.now += rng.randint(1, 3)
        delay = rng.choice([0, 0, 0, 1, 2, 4])
        chosen = rng.sample(sources, 2) if len(sources) > 1 and rng.random() < 0.1 else [rng.choice(sources)]
        unit = None
        if len(chosen) > 1:
            units += 1
            unit = (f"u{units}", frozenset(s.object_id for s in chosen))
            chosen += chosen[: rng.choice([0, 0, 1])]  # one table twice
        for source in chosen:
            state = dict(source.states[-1])
            for _ in range(rng.choice([0, 1, 1, 2, 4])):
                key = rng.randint(1, 5)
                if key in state and rng.random() < 0.4:
                    del state[key]
                else:
                    state[key] = tuple(rng.randint(0, 2) for _ in range(3))
            mtime = None
            if not clock_is_one:
                mtime = max(0, db.now + rng.choice([0, 0, -20, 1000]))
            source.write(db.now, delay, state, unit, mtime=mtime)
            db.now += rng.randint(0, 2)

    def step(name: str) -> None:
        nonlocal steps, planned
        steps += 1
        if db.plan is not None:
            for row in db.plan["rows"]:
                for each in row["commits"]:
                    assert planned.setdefault(each, row["lsn"]) == row["lsn"], "P1 planned"
        for row in db.gate:
            all_rows.setdefault(row["lsn"], row)
        if rng.random() < 0.3:
            write()
        check_reader(db, rng)
        if steps == crash_at:
            raise Crash(name)

    def quiet(name: str) -> None:
        step_now = steps
        del step_now

    number = 0
    for _ in range(rng.randint(5, 25)):
        what = rng.random()
        crash_at = steps + rng.randint(1, 12) if rng.random() < 0.35 else -1
        try:
            if what < 0.04 and db.plan is not None and db.gate_cycle < db.plan["cycle"]:
                # somebody removed the plan of a cycle that died: it never was
                db.plan = None
                planned = {each: lsn for each, lsn in planned.items() if lsn[0] <= db.gate_cycle}
                db.recover(step)
            elif what < 0.35:
                write()
            elif what < 0.5 and number < 4:
                candidates = [
                    s.object_id
                    for s in sources
                    if sum(i.object_id == s.object_id for i in db.instances.values()) < 2
                ]
                if candidates:
                    number += 1
                    db.enable(f"i{number}", rng.choice(candidates), quiet if db.plan is None else step)
                    db.gate[-1]["marker"] = True
            elif what < 0.9:
                db.scan(step, maxtrans=rng.choice([1, 2, 3, 1000]))
            else:
                db.recover(step)
                db.cleanup(rng.choice([3, 10, 30]), rng.choice([1, 2, 5]), step)
        except Crash:
            pass
        for row in db.gate:
            all_rows.setdefault(row["lsn"], row)
        check_reader(db, rng)
    crash_at = -1
    for _ in range(4):
        # a commit that claims a time 1,000 ahead is among them, and a unit that never becomes whole
        while db.scan(lambda name: None, maxtrans=1000):
            pass
        db.now += UNIT_WAIT
    assert db.state["time"] <= db.now + 1, "P7"
    for row in db.gate:
        all_rows.setdefault(row["lsn"], row)
    check_reader(db, rng)
    # P2: whatever was committed after an instance began is there, unless its unit never became whole
    for instance in db.instances.values():
        source = db.sources[instance.object_id]
        reached = db.version_at(instance.name, db.max_lsn())
        assert max(reached, db.state["position"][source.object_id]) == source.head(db.now), "P2 all"
    check_order(db, list(all_rows.values()), clock_is_one=clock_is_one)
    for row in all_rows.values():
        names = [db.sources[o].commits[v - 1].unit for o, v in row["commits"] if not row.get("marker")]
        assert len(set(names)) <= 1 or len(names) == 1, "P8"
    return steps


def masks(rng: random.Random) -> None:
    assert mask_bytes(0b10_0000_0100, 10).hex() == "0204"  # ordinals 3 and 10 of 10
    assert mask_bytes(full_mask(9), 9).hex() == "01ff"
    assert mask_bytes(full_mask(5), 5).hex() == "1f"
    for _ in range(2000):
        columns = rng.randint(1, 40)
        chosen = {n for n in range(1, columns + 1) if rng.random() < 0.4}
        mask = mask_bytes(sum(1 << (n - 1) for n in chosen), columns)
        assert {n for n in range(1, columns + 1) if is_bit_set(n, mask)} == chosen
