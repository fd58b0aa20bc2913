"""A model of the log reader in a bucket (docs/decisions/0161): register, plan, change table, gate and positions.

Every request is one step. A lease may be taken over at any step, so a pause of any length is in it; an agent may be killed
at any step, and a conditional PUT may land after its sender gave it up. The source grows while agents scan.

An attempt to write a change table may fail for good: its source leaves the cycle, and a number without rows is used again.

What is checked, in each state and after one more agent has run to its end:
 R1 Each commit of the source is in the change table exactly once.
 R2 What readers have seen stays: no row of a shown cycle comes or goes after the gate has passed it.
 R3 A shown cycle has the rows of the commits that its entry names; the entries cover the source without a gap.
 R4 No agent meets a plan that it cannot read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from tests.properties.register_models import Histories, Reg, fence_of, last


@dataclass(frozen=True)
class Design:
    fence: bool = True  # a taker commits its fence to each table before it reads one
    registered: bool = True  # the register names the plan; else the object itself counts
    hashed: bool = True  # the plan's object is named by its content
    gate_last: bool = True  # rows, then the gate, then the positions


class Agent(NamedTuple):
    pc: str = "read"
    reg: Reg | None = None
    plan: tuple | None = None  # (cycle, low, high, writer)
    at: int = 0


class State(NamedTuple):
    reg: Reg
    objects: tuple  # (name, plan)
    C: tuple  # change table: rows ("c", cycle, low, high) and fences ("f", n)
    G: tuple  # gate: ("g", cycle, low, high)
    L: tuple  # positions: ("l", cycle, position)
    head: int
    agents: tuple
    flying: tuple
    kills: int
    lost: int
    grows: int
    drops: int


def start(agents: int, *, kills: int, lost: int, grows: int, drops: int) -> State:
    return State(Reg(), (), (), (), (), 1, (Agent(),) * agents, (), kills, lost, grows, drops)


class Model(Histories):
    begins = "read"

    def __init__(self, design: Design) -> None:
        self.d = design

    def name(self, plan: tuple) -> object:
        """Return the name of a plan's object; the plan itself stands for its hash."""
        return plan if self.d.hashed else "plan"

    def staged(self, st: State) -> tuple | None:
        """The plan that waits: ("unreadable",) if the register names one whose object is another."""
        objects = dict(st.objects)
        if not self.d.registered:
            return objects.get("plan")
        if st.reg.plan is None:
            return None
        return st.reg.plan if objects.get(self.name(st.reg.plan)) == st.reg.plan else ("unreadable",)

    def agent(self, st: State, i: int, a: Agent):
        pc, d = a.pc, self.d
        if pc == "read":
            yield f"{i} read", self.go(st, i, a._replace(pc="take", reg=st.reg))
        elif pc == "take":
            seen = a.reg
            mine = seen._replace(owner=i, fence=seen.fence + 1, dirty=seen.dirty or seen.owner is not None)
            got = a._replace(
                pc="fence C" if mine.dirty and d.fence else "look", reg=mine._replace(etag=seen.etag + 1)
            )
            op = ("reg", seen.etag, mine)
            done = self.land(st, op)
            yield f"{i} take", self.go(done, i, got if done != st else a._replace(pc="read", reg=None))
        elif pc.startswith("fence "):
            yield f"{i} {pc}", self.go(st, i, a._replace(pc=f"fencing {pc[-1]}", at=len(getattr(st, pc[-1]))))
        elif pc.startswith("fencing "):
            table = pc[-1]
            following = {"C": "fence G", "G": "fence L", "L": "clean"}[table]
            op = (table, a.at, ("f", a.reg.fence))
            yield from self.put(st, i, a, op, a._replace(pc=following), a._replace(pc=f"fence {table}"))
        elif pc == "clean":
            yield from self.change(st, i, a, "reg", "look", dirty=False)
        elif pc == "look":
            plan = self.staged(st)
            row = last(st.L, "l")
            cycle, position = (row[1], row[2]) if row else (0, 0)
            if plan is not None:
                yield (
                    f"{i} takes up",
                    self.go(
                        st, i, a._replace(pc="stuck" if plan == ("unreadable",) else "open C", plan=plan)
                    ),
                )
            elif position == st.head:
                yield f"{i} nothing", self.go(st, i, a._replace(pc="release"))
            else:
                yield (
                    f"{i} plans",
                    self.go(st, i, a._replace(pc="object", plan=(cycle + 1, position, st.head, i))),
                )
        elif pc == "object":
            op = ("objects", self.name(a.plan), a.plan)
            ok = a._replace(pc="stage" if d.registered else "open C")
            yield from self.put(st, i, a, op, ok, ok)
        elif pc == "stage":
            yield from self.change(st, i, a, "reg", "open C", plan=a.plan)
        elif pc.startswith("open "):
            table = pc[-1]
            log = getattr(st, table)
            if fence_of(log) > a.reg.fence:
                yield f"{i} {pc}: displaced", self.go(st, i, a._replace(pc="end"))
            elif any(row[0] != "f" and row[1] >= a.plan[0] for row in log):
                yield f"{i} {pc}: there", self.go(st, i, a._replace(pc=self.after(table)))
            else:
                yield f"{i} {pc}", self.go(st, i, a._replace(pc=f"write {table}", at=len(log)))
                if table == "C" and st.drops and d.registered:
                    # The source has to leave the cycle: its commits are read later, and the cycle's number is used again.
                    yield from self.change(st._replace(drops=st.drops - 1), i, a, "reg", "remove", plan=None)
        elif pc.startswith("write "):
            table = pc[-1]
            cycle, low, high, _ = a.plan
            row = {"C": ("c", cycle, low, high), "G": ("g", cycle, low, high), "L": ("l", cycle, high)}[table]
            yield from self.put(
                st, i, a, (table, a.at, row), a._replace(pc=self.after(table)), a._replace(pc=f"open {table}")
            )
        elif pc == "finish":
            if d.registered:
                yield from self.change(st, i, a, "reg", "remove", plan=None)
            else:
                yield f"{i} finish", self.go(st, i, a._replace(pc="remove"))
        elif pc == "remove":
            rest = tuple(each for each in st.objects if each[0] != self.name(a.plan))
            yield f"{i} remove", self.go(st._replace(objects=rest), i, a._replace(pc="look"))
        elif pc in ("release", "release dirty"):
            new = a.reg._replace(owner=None, dirty=a.reg.dirty or pc == "release dirty")
            done = self.land(st, ("reg", a.reg.etag, new))
            yield f"{i} {pc}", self.go(done, i, a._replace(pc="end"))

    def after(self, table: str) -> str:
        if self.d.gate_last:
            return {"C": "open G", "G": "open L", "L": "finish"}[table]
        # Positions first: what comes after a kill is skipped.
        return {"C": "open L", "L": "finish"}.get(table, "finish")

    # ---- checks
    @staticmethod
    def shown(st: State) -> tuple:
        gate = last(st.G, "g")
        return tuple(sorted(row for row in st.C if row[0] == "c" and gate and row[1] <= gate[1]))

    def wrong(self, st: State) -> str | None:
        if any(a.pc == "stuck" for a in st.agents):
            return "R4: a plan that nobody can read"
        gates = [row for row in st.G if row[0] == "g"]
        rows = [row for row in st.C if row[0] == "c"]
        covered = 0
        for _, cycle, low, high in gates:
            if low != covered:
                return "R3: entries of the gate do not cover the source"
            covered = high
            if [row[2:] for row in rows if row[1] == cycle] != [(low, high)]:
                return "R3: a shown cycle has other rows"
        return None

    def wrong_at_end(self, st: State) -> str | None:
        while True:
            agent = len(st.agents)
            st = st._replace(agents=(*st.agents, Agent()), kills=0, lost=0, grows=0, drops=0)
            for _ in range(200):
                if st.agents[agent].pc in ("end", "stuck"):
                    break
                mine = list(self.agent(st, agent, st.agents[agent]))
                st = mine[0][1]
            if (found := self.wrong(st)) is not None:
                return found
            position = last(st.L, "l")
            if position is not None and position[2] == st.head:
                break
            if len(st.agents) > agent + 3 or agent > 6:
                return "R1: the source is never read to its end"
        commits = [n for row in st.C if row[0] == "c" for n in range(row[2], row[3])]
        shown = [n for row in st.G if row[0] == "g" for n in range(row[2], row[3])]
        if commits != list(range(st.head)) or shown != list(range(st.head)):
            return f"R1: commits {commits}, shown {shown}"
        return None

    def wrong_since(self, before: State, after: State) -> str | None:
        gate = last(before.G, "g")
        known = tuple(row for row in self.shown(after) if gate and row[1] <= gate[1])
        return "R2: rows behind the gate changed" if gate and known != self.shown(before) else None


ABLATIONS = {
    "fences in the log reader's tables": {"fence": False},
    "the register names the plan": {"registered": False, "hashed": False},
    "a plan's object is named by its hash": {"hashed": False},
    "rows, then the gate, then the positions": {"gate_last": False},
}

NOTHING = {"kills": 0, "lost": 0, "grows": 0, "drops": 0}
SCOPES = [
    NOTHING | {"kills": 1, "grows": 1},
    NOTHING | {"lost": 1, "grows": 1},
    NOTHING | {"grows": 1, "drops": 1},
    NOTHING | {"kills": 1, "drops": 1},
]


# ---- the cut of two tables, by a clock of whole seconds


class Cut(NamedTuple):
    waits: bool = True  # a commit of the second in which the cycle began waits
    sees: bool = False  # a commit that an earlier listing has seen is in the cut


CUT_ABLATIONS = {
    "commits of the cycle's own second wait": Cut(waits=False),
    "what a listing has seen counts for nothing": Cut(sees=True),
}

_OF_A_SECOND = 4
"""Moments of a second."""


def wrong_cut(rule: Cut, *, moments: int = 10) -> str | None:
    """Try two cycles in all histories: a writer commits to A, sees it, then commits to B; each cycle lists A, B, or B, A.

    Returns a history in which a cycle has the commit of B and no cycle so far has that of A; None without one.
    """
    times = range(moments)
    for first, then in ((a, b) for a in times for b in times if a < b):
        at = {"A": first, "B": then}
        for order in ("AB", "BA"):
            for begun in itertools.combinations(times, 2):
                for gaps in itertools.product(range(3), repeat=4):
                    taken: set[str] = set()
                    seen: set[str] = set()
                    for cycle, began in enumerate(begun):
                        moment = began
                        listed = set()
                        for table, gap in zip(order, gaps[2 * cycle :], strict=False):
                            moment += gap
                            if at[table] > moment:
                                continue
                            listed.add(table)
                            second, own = at[table] // _OF_A_SECOND, began // _OF_A_SECOND
                            is_before = second < own or (second == own and not rule.waits)
                            if is_before or (rule.sees and table in seen):
                                taken.add(table)
                        seen |= listed
                        if "B" in taken and "A" not in taken:
                            return f"A at {first}, B at {then}, cycles at {begun}, {order}, gaps {gaps}"
    return None
