"""A model of sessions on an object store in plain Python: the lease, its fence, and the staged session as one register.

What it models. Two replicas. The publisher P has a register (one object, changed only if its ETag is unchanged: lease and
staged session), a control table I (watermark, session number) and a source that users append to. The subscriber S has a
register (lease and pointer), a users' table D, a table of runs C and a control table R (last run, last session). Agents run
sessions (`sync`: take P, take S, read, point, stage, write D, C, R, I, unstage, release) or capture at S alone (`capture`).
Every request is one step. Between two steps any other agent may do anything, so a pause of any length is in it, and a
lease may be taken over at any step whatever: safety rests on no clock. A conditional PUT may be applied and its answer
lost, or be answered by a time-out and land later, also after its sender is dead. Agents may be killed at any step.

Two writers are modelled for a table: `rust` (delta-rs: open, look at the fence in the table, commit at the next version
or not at all) and `spark` (opens by itself, skips a transaction that it has seen, rebases over commits of others, fails
if one of them holds a transaction of its own application).

What it checks, for every history, after one more agent has run to its end:
 L1 Each change of the source is in D exactly once: none lost, none twice.
 L2 D, C, R and I have the same sessions: none is half applied for ever, and none blocks the replica.
 L3 What R counts as run s is what the writer of that row of R appended, not what another agent left under that number.
 L4 Watermark, session and run numbers only rise.

What it leaves out: renewals, the answer to a release, staged rows (their names hold a UUID, and only a register makes them
count), give-up. A log only grows here; that a conditional PUT never overwrites is for tests of the storage.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Design:
    """The protocol; each ablation changes one field."""

    fence: bool = True  # a taker commits its fence number to every table before it reads one
    numbered: bool = True  # versions of Delta transactions begin with the fence number
    apps: bool = True  # the fence commit holds the application ids that Spark's writes use
    exact: bool = True  # delta-rs commits at the version after the one it opened, or not at all
    look: bool = True  # delta-rs stops where the opened table has a higher fence than its own
    commit: str = "register"  # or "name" (a plain manifest), "fence in name" (the highest fence counts)
    takeover: str = "if unchanged"  # or "expired" (a PUT without a condition, when a clock says so)
    dirty: bool = True  # who releases after an answer that never came says so, and the next one fences
    void: bool = (
        True  # who drops the pointer of an unstaged session makes sure that it cannot be staged any more
    )
    settle: bool = (
        True  # nobody replaces or drops a pointer that it found without having settled its session at P
    )


class Reg(NamedTuple):
    """A register: ETag, holder, fence, whether requests may be in flight, and the staged session or the pointer."""

    etag: int
    owner: int | None
    fence: int
    dirty: bool
    value: object


class Agent(NamedTuple):
    """An agent: its step, whether its last PUT got no answer, and what it knows."""

    kind: str
    pc: str
    unsure: bool = False
    p: Reg | None = None
    s: Reg | None = None
    plan: tuple | None = None  # (number, low, high, base, seq, uid)
    at: int = 0
    info: tuple = ()
    left: bool = False  # it ends with a request in flight


class State(NamedTuple):
    """The store, the agents, what is in flight, and how much may still happen."""

    P: Reg
    S: Reg
    names: tuple
    I: tuple  # noqa: E741
    D: tuple
    C: tuple
    R: tuple
    h: int
    agents: tuple
    flying: tuple
    lost: int
    kills: int
    foreign: int
    changes: int


FENCES = {
    "fence I": ("I", "fence_I"),
    "fence D": ("D", "fence_D"),
    "fence C": ("C", "fence_C"),
    "fence R": ("R", "fence_R"),
}


def start(kinds: tuple, *, lost: int, kills: int, foreign: int, changes: int) -> State:
    free = Reg(0, None, 0, False, None)
    agents = tuple(Agent(kind, "read P" if kind == "sync" else "read S") for kind in kinds)
    return State(free, free, (), (), (), (), (), 1, agents, (), lost, kills, foreign, changes)


# A row of a log is (kind, agent, fence, number, ...): "f" fence, "u" user, "a" applied, "c" run, "r" and "i" control rows.
def fence_of(log: tuple) -> int:
    return max((row[2] for row in log if row[0] == "f"), default=0)


def numbers(log: tuple) -> list:
    return [(row[2], row[3]) for row in log if row[0] in "acri"]


def last_row(log: tuple, kind: str) -> tuple | None:
    return next((row for row in reversed(log) if row[0] == kind), None)


class Model:
    """One design: the steps of agents and the checks."""

    def __init__(self, design: Design) -> None:
        self.d = design

    # ---- steps
    def steps(self, st: State):
        for i, agent in enumerate(st.agents):
            if agent.pc in ("end", "dead"):
                continue
            yield from self.agent_steps(st, i, agent)
            if st.kills and agent.pc not in ("read P", "read S"):
                yield (
                    f"{i} killed",
                    self.put_agent(st, i, agent._replace(pc="dead"))._replace(kills=st.kills - 1),
                )
        for n, op in enumerate(st.flying):
            rest = st._replace(flying=st.flying[:n] + st.flying[n + 1 :])
            yield f"landed {op[0]}", self.land(rest, op)
        if st.changes and st.h < 3:
            yield "source", st._replace(h=st.h + 1, changes=st.changes - 1)
        if st.foreign:
            yield "user at D", st._replace(D=(*st.D, ("u",)), foreign=st.foreign - 1)

    @staticmethod
    def put_agent(st: State, i: int, agent: Agent) -> State:
        return st._replace(agents=(*st.agents[:i], agent, *st.agents[i + 1 :]))

    @staticmethod
    def land(st: State, op: tuple) -> State:
        where, condition, new = op
        if where in "PS":
            old = getattr(st, where)
            return st._replace(**{where: new._replace(etag=old.etag + 1)}) if old.etag == condition else st
        log = getattr(st, where)
        return st._replace(**{where: (*log, new)}) if len(log) == condition else st

    def put(self, st: State, i: int, agent: Agent, op: tuple, is_mine, ok: Agent, failed: Agent):
        """A conditional PUT with all that may become of it. `is_mine`: the object is there already, by this very PUT."""
        where, condition, _new = op
        current = getattr(st, where)
        applies = current.etag == condition if where in "PS" else len(current) == condition
        done = self.land(st, op)
        if agent.unsure and is_mine(current):
            yield f"{i} {agent.pc}: own", self.put_agent(st, i, ok._replace(unsure=False))
            return
        if applies:
            yield f"{i} {agent.pc}: put {where}", self.put_agent(done, i, ok._replace(unsure=False))
        else:
            yield f"{i} {agent.pc}: refused", self.put_agent(st, i, failed._replace(unsure=False))
        if st.lost and not agent.unsure:
            asked = agent._replace(unsure=True)
            if applies:
                yield (
                    f"{i} {agent.pc}: answer lost",
                    self.put_agent(done._replace(lost=st.lost - 1), i, asked),
                )
            flying = (*st.flying, op)
            yield (
                f"{i} {agent.pc}: in flight",
                self.put_agent(st._replace(lost=st.lost - 1, flying=flying), i, asked),
            )
        if agent.unsure:
            # It does not wait for an answer: the command fails, and the lease is released.
            quit_ = agent._replace(
                pc="release S" if agent.s and agent.s.owner == i else "release P", left=True, unsure=False
            )
            if agent.p is None and agent.s is None:
                quit_ = agent._replace(pc="end")
            yield f"{i} {agent.pc}: gives up waiting", self.put_agent(st, i, quit_)

    def change(self, st: State, i: int, a: Agent, side: str, value: object, pc: str, **known):
        """Set the value of a register that the agent holds, and go on; the agent ends if it was displaced."""
        own = getattr(a, side.lower())
        new = own._replace(value=value)
        ok = a._replace(pc=pc, **{side.lower(): new._replace(etag=own.etag + 1)}, **known)
        is_mine = lambda r: r.owner == i and r.value == value  # noqa: E731
        yield from self.put(st, i, a, (side, own.etag, new), is_mine, ok, a._replace(pc="end"))

    def agent_steps(self, st: State, i: int, a: Agent):
        go = lambda **changed: self.put_agent(st, i, a._replace(**changed))  # noqa: E731
        d, pc = self.d, a.pc
        sync = a.kind == "sync"
        if pc in ("read P", "read S"):
            side = pc[-1]
            yield f"{i} {pc}", go(pc=f"take {side}", info=(getattr(st, side),))
        elif pc in ("take P", "take S"):
            side = pc[-1]
            seen: Reg = a.info[0]
            mine = Reg(0, i, seen.fence + 1, seen.dirty or seen.owner is not None, seen.value)
            condition = seen.etag
            if d.takeover == "expired" and seen.owner is not None:
                condition = getattr(st, side).etag
            after = "fence I" if side == "P" else "fence D"
            got = a._replace(pc=after if mine.dirty and d.fence else self.after_fences(side, a), info=())
            got = got._replace(**{side.lower(): mine._replace(etag=condition + 1)})
            again = a._replace(pc=f"read {side}", info=())
            is_mine = lambda r: r.owner == i and r.fence == mine.fence  # noqa: E731
            yield from self.put(st, i, a, (side, condition, mine), is_mine, got, again)
        elif pc in FENCES:
            table = FENCES[pc][0]
            yield f"{i} {pc}", go(pc=FENCES[pc][1], at=len(getattr(st, table)))
        elif pc.startswith("fence_"):
            table = pc[-1]
            own = (a.p if table == "I" else a.s).fence
            log = getattr(st, table)
            low = max((n for _, n in numbers(log[: a.at])), default=0)
            row = ("f", i, own, low)
            following = {
                "I": self.after_fences("P", a),
                "D": "fence C",
                "C": "fence R",
                "R": self.after_fences("S", a),
            }[table]
            ok, failed = a._replace(pc=following), a._replace(pc=f"fence {table}")
            is_mine = lambda log: len(log) > a.at and log[a.at] == row  # noqa: E731
            yield from self.put(st, i, a, (table, a.at, row), is_mine, ok, failed)
        elif pc == "read I":
            row = last_row(st.I, "i")
            yield f"{i} {pc}", go(pc="read R", info=(row[4] if row else 0, row[3] if row else 0))
        elif pc == "read R":
            row = last_row(st.R, "r")
            base, session = (row[4], row[3]) if row else (0, 0)
            seq = max([base, *(n for _, n in numbers(st.C))]) + 1
            if sync:
                yield f"{i} {pc}", go(pc="plan", info=(*a.info, base, seq))
            elif a.s.value is not None:
                yield f"{i} {pc}", go(pc="see P", info=(base, seq, session))
            else:
                yield f"{i} {pc}", go(pc="open C", plan=(session, 0, 0, base, seq, i), info=())
        elif pc == "see P":
            # A capture at the subscriber finds a pointer: is that session staged, or can it still be?
            staged = self.staged(st)
            if staged is not None and (staged[5] == a.s.value or d.settle):
                yield f"{i} {pc}: staged", go(pc="release S")
            else:
                yield f"{i} {pc}", go(pc="void" if d.void else "drop pointer", p=st.P)
        elif pc == "void":
            ok, failed = a._replace(pc="drop pointer"), a._replace(pc="see P", p=None)
            yield from self.put(st, i, a, ("P", a.p.etag, a.p), lambda r: False, ok, failed)
        elif pc == "drop pointer":
            base, seq, session = a.info
            plan = (session, 0, 0, base, seq, i)
            yield from self.change(st, i, a, "S", None, "open C", p=None, plan=plan, info=())
        elif pc == "plan":
            low, number, base, seq = a.info
            staged = a.p.value if d.commit == "register" else self.staged(st)
            if staged is not None:
                yield f"{i} takes up", go(pc="open D", plan=staged)
            elif d.settle and a.s.value is not None:
                yield f"{i} finds a pointer", go(pc="settle")
            elif st.h == low:
                yield f"{i} nothing to do", go(pc="clear pointer" if a.s.value is not None else "release S")
            else:
                yield f"{i} plans", go(pc="point", plan=(number + 1, low, st.h, base, seq, i))
        elif pc == "settle":
            # Still the holder of P? Then the session that the pointer names can never be staged any more.
            seen = a.p._replace(etag=a.p.etag + 1)
            ok, failed = a._replace(pc="forget", p=seen), a._replace(pc="end")
            is_mine = lambda r: r.owner == i and r.etag == seen.etag  # noqa: E731
            yield from self.put(st, i, a, ("P", a.p.etag, a.p), is_mine, ok, failed)
        elif pc == "forget":
            yield from self.change(st, i, a, "S", None, "plan")
        elif pc == "point":
            yield from self.change(st, i, a, "S", i, "stage")
        elif pc == "stage" and d.commit == "register":
            yield from self.change(st, i, a, "P", a.plan, "open D")
        elif pc == "stage":
            name = (a.plan[0], a.p.fence if d.commit == "fence in name" else 0)
            if name in {n for n, _ in st.names}:
                yield f"{i} stage: refused", go(pc="end")
            else:
                named = st._replace(names=(*st.names, (name, a.plan)))
                yield f"{i} stage: put", self.put_agent(named, i, a._replace(pc="open D"))
        elif pc in ("open D", "open C", "open R", "open I"):
            yield from self.open_table(st, i, a)
        elif pc.startswith(("rust", "spark")):
            yield from self.write_table(st, i, a)
        elif pc == "unstage" and d.commit == "register":
            yield from self.change(st, i, a, "P", None, "clear pointer")
        elif pc == "unstage":
            left = st._replace(names=tuple(each for each in st.names if each[1] != a.plan))
            yield f"{i} unstage", self.put_agent(left, i, a._replace(pc="clear pointer"))
        elif pc == "clear pointer":
            yield from self.change(st, i, a, "S", None, "release S")
        elif pc in ("release S", "release P"):
            side = pc[-1]
            own = a.s if side == "S" else a.p
            following = a._replace(pc="release P" if side == "S" and sync else "end")
            if own is None or own.owner != i:
                yield f"{i} {pc}", self.put_agent(st, i, following)
                return
            # A release without an answer needs no second try: the lease is then taken over.
            new = own._replace(owner=None, dirty=a.left and d.dirty)
            now = getattr(st, side)
            if now.etag == own.etag or not d.dirty:
                done = self.land(st, (side, now.etag if now.owner == i else own.etag, new))
                yield f"{i} {pc}", self.put_agent(done, i, following)
            else:
                yield f"{i} {pc}: refused", self.put_agent(st, i, following)

    def after_fences(self, side: str, a: Agent) -> str:
        if side == "P":
            return "read S"
        return "read I" if a.kind == "sync" else "read R"

    def staged(self, st: State) -> tuple | None:
        if self.d.commit == "register":
            return st.P.value
        if not st.names:
            return None
        return max(st.names, key=lambda each: (each[0][1], each[0][0]))[1]

    def row(self, table: str, i: int, a: Agent) -> tuple:
        number, low, high, _base, seq, uid = a.plan
        fence = (a.p if table == "I" else a.s).fence
        return {
            "D": ("a", i, fence, number, low, high),
            "C": ("c", i, fence, seq, uid),
            "R": ("r", i, fence, number, seq, uid),
            "I": ("i", i, fence, number, high),
        }[table]

    def next_table(self, table: str, a: Agent) -> str:
        if a.kind == "capture":
            return {"C": "open R", "R": "release S"}[table]
        return {"D": "open C", "C": "open R", "R": "open I", "I": "unstage"}[table]

    def is_done(self, log: tuple, table: str, a: Agent) -> bool:
        """By the transaction's number without the fence, as a reader of the log sees it."""
        number = a.plan[0] if table in "DI" else a.plan[4]
        if table == "R":
            row = last_row(log, "r")
            return row is not None and row[4] >= number
        return any(n >= number for _, n in numbers(log))

    def open_table(self, st: State, i: int, a: Agent):
        table = a.pc[-1]
        log = getattr(st, table)
        fence = (a.p if table == "I" else a.s).fence
        if self.d.look and fence_of(log) > fence:
            yield f"{i} {a.pc}: fenced off", self.put_agent(st, i, a._replace(pc="end"))
            return
        if self.is_done(log, table, a):
            yield f"{i} {a.pc}: done", self.put_agent(st, i, a._replace(pc=self.next_table(table, a)))
            return
        if table == "R" and a.kind == "sync" and (last := last_row(log, "r")) and last[4] > a.plan[3]:
            # The subscriber has captured by itself since: the session cannot go on there.
            yield f"{i} {a.pc}: stuck", self.put_agent(st, i, a._replace(pc="end"))
            return
        yield f"{i} {a.pc}", self.put_agent(st, i, a._replace(pc=f"rust {table}", at=len(log)))
        if table in "DC":
            yield f"{i} {a.pc}", self.put_agent(st, i, a._replace(pc=f"spark? {table}"))

    def write_table(self, st: State, i: int, a: Agent):
        writer, table = a.pc.split()
        log, row = getattr(st, table), self.row(table, i, a)
        following, end = a._replace(pc=self.next_table(table, a)), a._replace(pc="end")
        if writer == "spark?":
            # Spark opens the table by itself, after everything that the agent looked at.
            mine = (row[2], row[3]) if self.d.numbered else (0, row[3])
            known = [(f if self.d.numbered else 0, n) for f, n in self.transactions(log)]
            if any(each >= mine for each in known):
                # Skipped silently. A reader that looks for the number finds it; its mark is another's.
                there = any(r[3] >= row[3] for r in log if r[0] in "ac")
                is_own = not there if self.d.numbered else False
                yield (
                    f"{i} spark skips {table}",
                    self.put_agent(st, i, end if is_own or self.d.numbered else following),
                )
            else:
                yield (
                    f"{i} spark opens {table}",
                    self.put_agent(st, i, a._replace(pc=f"spark {table}", at=len(log))),
                )
            return

        def is_mine(log: tuple) -> bool:
            return row in log[a.at :]

        since = log[a.at :]
        if writer == "rust":
            failed = a._replace(pc=f"open {table}")
            if not self.d.exact and since:
                clash = (
                    any(r[0] in "ac" or (r[0] == "f" and self.d.apps) for r in since)
                    if table in "DC"
                    else False
                )
                failed = end if clash else a._replace(at=len(log))
        else:
            clash = any(r[0] in "ac" or (r[0] == "f" and self.d.apps) for r in since)
            failed = end if clash else a._replace(at=len(log))
        yield from self.put(st, i, a, (table, a.at, row), is_mine, following, failed)

    def transactions(self, log: tuple) -> list:
        """What Delta has seen of our application: rows of ours, and fences if they name it."""
        found = numbers(log)
        if self.d.apps:
            found += [(row[2], row[3]) for row in log if row[0] == "f"]
        return found

    # ---- checks
    def finish(self, st: State) -> tuple[State, str | None]:
        """Let more agents run, one after the other, until one finds nothing to do."""
        st = st._replace(lost=0, kills=0, foreign=0, changes=0, flying=())
        for _ in range(6):
            i = len(st.agents)
            st = st._replace(agents=(*st.agents, Agent("sync", "read P")))
            idle = False
            for _ in range(100):
                agent = st.agents[i]
                if agent.pc == "end":
                    break
                label, st = next(iter(self.agent_steps(st, i, agent)))
                idle = idle or label.endswith("nothing to do")
            if idle:
                return st, None
        return st, "L2 the replicas are stuck"

    def problem(self, st: State) -> str | None:
        for finish_first in (True, False):
            end = st
            if not finish_first:
                for op in st.flying:
                    end = self.land(end, op)
            end, wrong = self.finish(end)
            if finish_first:
                for op in st.flying:
                    end = self.land(end, op)
                if st.flying and not wrong:
                    end, wrong = self.finish(end)
            wrong = wrong or self.final(end)
            if wrong:
                return wrong
            if not st.flying:
                return None
        return None

    def final(self, st: State) -> str | None:
        ranges = [(row[4], row[5]) for row in st.D if row[0] == "a"]
        applied = Counter(change for low, high in ranges for change in range(low, high))
        if any(applied[c] == 0 for c in range(st.h)):
            return "L1 a change is lost"
        if any(count > 1 for count in applied.values()):
            return "L1 a change is applied twice"
        if self.staged(st) is not None:
            return "L2 a session stays staged"
        in_d = [row[3] for row in st.D if row[0] == "a"]
        in_i = [row[3] for row in st.I if row[0] == "i"]
        if in_d != in_i or len(set(in_d)) < len(in_d):
            return "L2 sessions of D and I differ"
        rows = [row for row in st.I if row[0] == "i"]
        if any(one[4] >= other[4] for one, other in itertools.pairwise(rows)):
            return "L4 the watermark went back"
        runs: dict = {}
        for row in st.C:
            if row[0] == "c":
                runs.setdefault(row[3], row[4])
        counted = [row for row in st.R if row[0] == "r"]
        if any(runs.get(row[4]) != row[5] for row in counted):
            return "L3 a run holds another agent's rows"
        if [row[4] for row in counted] != sorted({row[4] for row in counted}):
            return "L4 run numbers went back"
        sessions = [row[3] for row in counted]
        if sessions != sorted(sessions) or (in_d and max(sessions, default=0) != in_d[-1]):
            return "L2 sessions of D and R differ"
        return None

    # ---- exploration
    def exhaust(self, first: State, *, most: int) -> tuple[int, str | None, list]:
        """All histories from a state, breadth first without order: each state once."""
        seen = {first}
        stack = [(first, None)]
        while stack:
            st, trail = stack.pop()
            ends = True
            for label, new in self.steps(st):
                ends = False
                if new not in seen:
                    if len(seen) >= most:
                        return len(seen), "stopped", []
                    seen.add(new)
                    stack.append((new, (label, trail)))
            ends = ends or all(agent.pc in ("end", "dead") for agent in st.agents)
            if ends and (wrong := self.problem(st)):
                return len(seen), wrong, path(trail)
        return len(seen), None, []

    def walk(self, first: State, rng: random.Random) -> tuple[str | None, list]:
        st, trail = first, None
        for _ in range(400):
            choices = list(self.steps(st))
            # Agents step most of the time; else most walks would be about kills.
            weights = [
                0.15 if "killed" in label or "landed" in label or "take" in label else 1
                for label, _ in choices
            ]
            if not choices or all(agent.pc in ("end", "dead") for agent in st.agents):
                break
            label, st = rng.choices(choices, weights)[0]
            trail = (label, trail)
        return self.problem(st), path(trail)


def path(trail) -> list:
    found = []
    while trail:
        found.append(trail[0])
        trail = trail[1]
    return found[::-1]


ABLATIONS = {
    "no fence commits": {"fence": False},
    "no fence commits, numbers only": {"fence": False, "look": False},
    "transaction versions without the fence number": {"numbered": False},
    "fence commit without the writers' application ids": {"apps": False},
    "delta-rs rebases by itself": {"exact": False},
    "delta-rs does not look at the table's fence": {"look": False},
    "manifest under a plain name": {"commit": "name"},
    "manifest with the fence in its name, the highest counts": {"commit": "fence in name"},
    "take-over by a clock, PUT without a condition": {"takeover": "expired"},
    "release after a lost answer as if all were settled": {"dirty": False},
    "pointer dropped without voiding the session": {"void": False},
    "pointer replaced or dropped by a session without settling it": {"settle": False},
}


THREE = [("sync", "sync", "sync"), ("sync", "sync", "capture"), ("sync", "capture", "capture")]
SMALL = [
    (("sync", "sync"), 0),
    (("capture", "capture"), 0),
    (("sync", "capture"), 0),
    (("capture", "capture"), 1),
]


TWO_POINTERS = """
1 read P; 1 take P: put P; 0 read P; 0 take P: put P; 0 fence I; 0 fence_I: put I; 0 read S; 0 take S: put S;
0 read I; 0 read R; 0 plans; 0 point: put S; 1 read S; 1 take S: put S; 1 fence D; 1 fence_D: put D; 1 fence
C; 1 fence_C: put C; 1 fence R; 1 fence_R: put R; 1 read I; 1 read R; 1 plans; 1 point: put S; 2 read S; 2
take S: put S; 2 fence D; 2 fence_D: put D; 2 fence C; 2 fence_C: put C; 2 fence R; 2 fence_R: put R; 2 read
R; 0 stage: put P; 2 see P; 2 void: put P; 2 drop pointer: put S; 2 open C; 2 rust C: put C; 2 open R; 2 rust
R: put R; 2 release S; 0 open D: fenced off; 1 stage: refused
"""
"""Agent 1 has lost P without knowing it and replaces the pointer of agent 0, which then stages."""


def replayed(model: Model, first: State, labels: list) -> str | None:
    """The problem at the end of one history; None if the design does not allow it, or it ends well."""
    reached = {first}
    for label in labels:
        reached = {new for st in reached for found, new in model.steps(st) if found == label}
    return next((wrong for st in reached if (wrong := model.problem(st))), None)


def drawn(kinds: tuple, rng: random.Random) -> State:
    return start(kinds, lost=rng.randint(0, 3), kills=rng.randint(0, 2), foreign=1, changes=2)


def broken(model: Model, rng: random.Random) -> str | None:
    """How a design without one of its rules breaks; None if it was not seen to."""
    for kinds, lost in SMALL:
        count, wrong, trail = model.exhaust(
            start(kinds, lost=lost, kills=1, foreign=0, changes=0), most=12_000
        )
        if wrong and wrong != "stopped":
            return f"breaks: {wrong} ({kinds}, {len(trail)} steps, found after {count} states)"
    three = start(("sync", "sync", "capture"), lost=0, kills=0, foreign=0, changes=0)
    labels = [label.strip() for label in TWO_POINTERS.replace("\n", " ").split(";")]
    if wrong := replayed(model, three, labels):
        return f"breaks: {wrong} (a history of {len(labels)} steps by two sessions and a capture)"
    begun, walks = time.time(), 0
    while time.time() - begun < 8:
        kinds = rng.choice(THREE)
        wrong, trail = model.walk(drawn(kinds, rng), rng)
        walks += 1
        if wrong:
            return f"breaks: {wrong} ({kinds}, {len(trail)} steps, walk {walks})"
    return None
