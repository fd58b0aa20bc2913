"""A model of distribution with ends in buckets (docs/decisions/0169): two registers, a batch of two tables, a position.

Agents deliver, begin the subscription again (`reinit`), or hold one end for other work (`at D`, `at S`). Every request is a
step. A register may be taken over at any step, so a pause of any length is in it; an agent may be killed at any step, and a
conditional PUT may land after its sender gave it up. The commands grow while agents work.

The tables T and U of the articles are written by Spark, which looks at no fence: it skips a transaction that the table has,
or a later one, and fails if the table has got one of its application since it was opened. The position P at the subscriber
and the subscription's row Q at the distributor are written at the next version or not at all, after a look at the fence.

What is checked, in each state and after more agents have run to their ends:
 B1 A batch is applied to the rows that it was decided for: each command once, none left out, none on half a snapshot.
 B2 Both tables and the position are at the same command, the last one.
 B3 No agent meets a plan that it cannot read, and no subscription is blocked for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.properties.register_models import Histories, Reg, fence_of, last


@dataclass(frozen=True)
class Design:
    fence_s: bool = True  # a taker commits its fence to the subscriber's tables before it reads one
    fence_d: bool = True  # and to those of the distributor
    apps: bool = True  # the fence names the application of the batches
    numbered: bool = True  # a transaction has the fence of its holder beside the batch's number
    registered: bool = True  # the subscriber's register names the plan; else the object itself counts
    hashed: bool = True  # the plan's object is named by its content and the fence
    holds_d: bool = True  # the distributor is held until the end
    position_last: bool = True  # tables first, then the position


class Agent(NamedTuple):
    kind: str
    pc: str
    d: Reg | None = None
    s: Reg | None = None
    plan: tuple | None = None  # (number, low, high): low is None for a snapshot
    at: int = 0


class State(NamedTuple):
    D: Reg
    S: Reg
    objects: tuple  # (name, plan)
    T: tuple  # fences ("f", fence, number or None), writes ("w", fence, number, low, high)
    U: tuple
    P: tuple  # fences, positions ("p", fence, number, high)
    Q: tuple  # fences, rows ("q", fence, is_active)
    head: int
    agents: tuple
    flying: tuple
    kills: int
    lost: int
    grows: int


def start(kinds: tuple[str, ...], design: Design, *, kills: int, lost: int, grows: int) -> State:
    """A subscription that has its snapshot as of command 1; command 2 waits."""
    table, agents = (("w", 0, 1, None, 1),), tuple(Agent(kind, first(kind, design)) for kind in kinds)
    position, row = (("p", 0, 1, 1),), (("q", 0, True),)
    return State(Reg(), Reg(), (), table, table, position, row, 2, agents, (), kills, lost, grows)


def first(kind: str, design: Design) -> str:
    return "take S" if kind == "at S" or (not design.holds_d and kind != "at D") else "take D"


def has(log: tuple, number: int) -> bool:
    return any(row[0] == "w" and row[2] == number for row in log)


def reached(log: tuple) -> int | None:
    """Return the command up to which a table has all; None if a batch met other rows than it was decided for."""
    at = 0
    for row in log:
        if row[0] == "w":
            if row[3] is not None and row[3] != at:
                return None
            at = row[4]
    return at


class Model(Histories):
    begins = "take"

    def __init__(self, design: Design) -> None:
        self.d = design

    def clashing(self, where: str, since: tuple) -> tuple:
        if where in "TU":
            # Spark passes a commit that does not name its application.
            return tuple(row for row in since if row[0] != "f" or row[2] is not None)
        return since

    def name(self, a: Agent) -> object:
        """Return the name of a plan's object; the plan itself stands for its hash."""
        return (a.s.fence, a.plan) if self.d.hashed else "plan"

    def agent(self, st: State, i: int, a: Agent):
        pc, d = a.pc, self.d
        if pc.startswith("take "):
            end = pc[-1]
            was = getattr(st, end)
            mine = was._replace(owner=i, fence=was.fence + 1, dirty=was.dirty or was.owner is not None)
            fences = mine.dirty and (d.fence_d if end == "D" else d.fence_s)
            held = {"d" if end == "D" else "s": mine._replace(etag=was.etag + 1)}
            a = a._replace(pc=f"fence {'Q' if end == 'D' else 'T'}" if fences else self.taken(a, end), **held)
            yield f"{i} {pc}", self.go(self.land(st, (end, was.etag, mine)), i, a)
        elif pc.startswith("fence "):
            table = pc[-1]
            reg, log = (a.d if table == "Q" else a.s), getattr(st, table)
            number = max((row[2] for row in log if row[0] == "w"), default=0) if d.apps else None
            ok = {"Q": "clean D", "T": "fence U", "U": "fence P", "P": "clean S"}[table]
            op = (table, len(log), ("f", reg.fence, number))
            if fence_of(log) < reg.fence:
                yield from self.put(st, i, a, op, a._replace(pc=ok), a)
            else:
                yield (
                    f"{i} {pc}: there",
                    self.go(st, i, a._replace(pc=ok if fence_of(log) == reg.fence else "end")),
                )
        elif pc.startswith("clean "):
            yield from self.change(st, i, a, pc[-1], self.taken(a, pc[-1]), dirty=False)
        elif pc == "look":
            yield from self.look(st, i, a)
        elif pc == "forget":
            yield from self.change(st, i, a, "S", "open T", plan=None)
        elif pc == "object":
            ok = a._replace(pc="stage" if d.registered else self.writes()[0])
            yield from self.put(st, i, a, ("objects", self.name(a), a.plan), ok, ok)
        elif pc == "stage":
            yield from self.change(st, i, a, "S", self.writes()[0], plan=self.name(a))
        elif pc.startswith("open "):
            table = pc[-1]
            log = getattr(st, table)
            number = a.plan[0] if a.plan else 0
            txn = max(
                (row[1:3] if d.numbered else (0, row[2]) for row in log if row[2] is not None), default=(0, 0)
            )
            if table in "TU" and has(log, number):
                yield f"{i} {pc}: there", self.go(st, i, a._replace(pc=self.after(a)))
            elif table in "TU" and txn >= ((a.s.fence if d.numbered else 0), number):
                yield f"{i} {pc}: skipped", self.go(st, i, a._replace(pc="end"))
            elif table in "PQ" and (reg := a.d if table == "Q" else a.s) and fence_of(log) > reg.fence:
                yield f"{i} {pc}: displaced", self.go(st, i, a._replace(pc="end"))
            else:
                yield f"{i} {pc}", self.go(st, i, a._replace(pc=pc.replace("open", "write"), at=len(log)))
        elif pc.startswith("write "):
            table = pc[-1]
            fence = (a.d or Reg()).fence if table == "Q" else a.s.fence
            if table == "Q":
                row = ("q", fence, a.plan is not None)
            else:
                row = ("p", fence, a.plan[0], a.plan[2]) if table == "P" else ("w", fence, *a.plan)
            again = a._replace(pc=f"open {table}")
            yield from self.put(st, i, a, (table, a.at, row), a._replace(pc=self.after(a)), again)
        elif pc == "snapshot":
            # Its number is unused so far.
            logs = (*st.T, *st.U, *st.P)
            number = 1 + max(row[2] for row in logs if row[0] in "wp")
            a = a._replace(plan=(number, None, st.head), pc="forget" if a.s.plan is not None else "open T")
            yield f"{i} snapshot", self.go(st, i, a)
        elif pc == "finish":
            yield from self.change(st, i, a, "S", "release", plan=None)
        elif pc in ("release", "release dirty"):
            for end, reg in (("S", a.s), ("D", a.d)):
                if reg is not None:
                    free = reg._replace(owner=None, dirty=reg.dirty or pc == "release dirty")
                    st = self.land(st, (end, reg.etag, free))
            yield f"{i} {pc}", self.go(st, i, a._replace(pc="end"))

    def look(self, st: State, i: int, a: Agent):
        """Finish the batch that was begun, or decide the next one."""
        _, _, number, at = last(st.P, "p")
        named = a.s.plan if self.d.registered else ("plan" if st.objects else None)
        plan = dict(st.objects).get(named) if named is not None else None
        if self.d.hashed and plan is not None and plan != named[1]:
            plan = None
        if not last(st.Q, "q")[2]:
            yield f"{i} refused", self.go(st, i, a._replace(pc="release"))
        elif named is not None and plan is None:
            yield f"{i} stuck", self.go(st, i, a._replace(pc="stuck"))
        elif plan and plan[:2] == (number + 1, at) and (has(st.T, plan[0]) or has(st.U, plan[0])):
            yield f"{i} goes on", self.go(st, i, a._replace(pc=self.writes()[0], plan=plan))
        elif at == st.head:
            yield f"{i} nothing", self.go(st, i, a._replace(pc="release"))
        else:
            yield f"{i} decides", self.go(st, i, a._replace(pc="object", plan=(number + 1, at, st.head)))

    def taken(self, a: Agent, end: str) -> str:
        """Return the step after an end was taken."""
        if a.kind in ("at D", "at S"):
            return "release"
        return "take S" if end == "D" else {"deliver": "look", "reinit": "open Q"}[a.kind]

    def writes(self) -> list[str]:
        return ["open T", "open U", "open P"] if self.d.position_last else ["open P", "open T", "open U"]

    def after(self, a: Agent) -> str:
        """Return the step after a table was written."""
        table = a.pc[-1]
        if table == "Q":
            return "snapshot" if a.plan is None else "release"
        order = ["open T", "open U", "open P"] if a.kind == "reinit" else self.writes()
        following = order[order.index(f"open {table}") + 1 :]
        if following:
            return following[0]
        return "open Q" if a.kind == "reinit" else "finish" if self.d.registered else "release"

    # ---- checks
    def wrong(self, st: State) -> str | None:
        if any(a.pc == "stuck" for a in st.agents):
            return "B3: a plan that nobody can read"
        for table in "TU":
            if reached(getattr(st, table)) is None:
                return f"B1: {table} has {getattr(st, table)}"
        return None

    def wrong_at_end(self, st: State) -> str | None:
        for _ in range(4):
            kind = "deliver" if last(st.Q, "q")[2] else "reinit"
            agent = len(st.agents)
            st = st._replace(agents=(*st.agents, Agent(kind, first(kind, self.d))), kills=0, lost=0, grows=0)
            for _ in range(60):
                if st.agents[agent].pc in ("end", "stuck"):
                    break
                st = next(iter(self.agent(st, agent, st.agents[agent])))[1]
            if (found := self.wrong(st)) is not None:
                return found
            at = {reached(st.T), reached(st.U), last(st.P, "p")[3]}
            if at == {st.head} and last(st.Q, "q")[2]:
                return None
        return f"B2: T {st.T}, U {st.U}, P {st.P}, Q {st.Q}"


ABLATIONS = {
    "fences in the subscriber's tables": {"fence_s": False},
    "fences in the distributor's tables": {"fence_d": False},
    "a fence names the application": {"apps": False},
    "the fence beside the batch's number": {"numbered": False},
    "the register names the plan": {"registered": False, "hashed": False},
    "a plan's object is named by fence and hash": {"hashed": False},
    "the distributor is held until the end": {"holds_d": False},
    "tables, then the position": {"position_last": False},
}

SCOPES = [
    (("deliver", "deliver"), {"kills": 1, "lost": 0, "grows": 1}),
    (("deliver", "deliver"), {"kills": 0, "lost": 1, "grows": 1}),
    (("reinit", "deliver"), {"kills": 1, "lost": 0, "grows": 0}),
    (("reinit", "reinit"), {"kills": 1, "lost": 0, "grows": 1}),
    (("reinit", "deliver"), {"kills": 0, "lost": 1, "grows": 0}),
    (("deliver", "at S"), {"kills": 0, "lost": 1, "grows": 0}),
    (("deliver", "at D"), {"kills": 0, "lost": 1, "grows": 0}),
]
