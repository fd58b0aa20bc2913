"""A model of Compact change tracking in a bucket (docs/decisions/0170): a transaction is one hold of the root's register.

Every request is one step. A register may be taken over at any step, so a pause of any length is in it; an agent may be
killed at any step, and a PUT may land after its sender gave it up. A foreign writer commits to the table meanwhile: what
it wrote before our commit is published with it (the extension).

The register (`lease_model.py`) holds the numbers, the open transaction and the intent. Each transaction reads a counter in
the table and writes the next one, as rows that it stages first. What is checked, in each state and after one more agent:
 T1 No number is given twice; transactions are shown in the order of their CSNs.
 T2 A shown transaction is whole: its rows are in the table once, and so are the foreign commits that it publishes.
 T3 No update is lost: the counters of the table are 1, 2, 3, ...
 T4 A transaction whose owner was told that it was refused is never there; one that was acknowledged stays.
 T5 A bound once given for BSNs that may still commit (EBSN) holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.properties.register_models import Histories, fence_of


@dataclass(frozen=True)
class Design:
    fence: bool = True  # a taker commits its fence to each table before it reads one
    dirty: bool = True  # a release says that a request has no known outcome
    numbers: bool = True  # numbers change with the register alone; else in an object of their own
    intent: bool = True  # the intent is in the register; else an object in the transaction's folder
    open: bool = True  # the register names the open transaction; else the bound is the next number
    again: bool = True  # rows that are staged by whoever carries out lie in a folder with its fence
    order: bool = True  # the table, then the gate; else the gate first
    forgets: bool = True  # the register forgets an intent before its rows are removed


class Reg(NamedTuple):
    etag: int = 0
    owner: int | None = None
    fence: int = 0
    dirty: bool = False
    bsn: int = 0
    csn: int = 0
    open: tuple[int, int] | None = None  # BSN and fence
    plan: tuple | None = None  # (bsn, csn, counter, from_version, extension)


class Agent(NamedTuple):
    pc: str = "read"
    reg: Reg | None = None
    plan: tuple | None = None
    at: int = 0
    bsn: int = 0
    told: str = ""


class State(NamedTuple):
    reg: Reg
    bsn: int  # the object of numbers, where the register has none
    intents: tuple  # plans in folders of transactions, where the register has none
    files: frozenset  # (folder, file) of staged rows
    A: tuple  # the table: ("w", csn, bsn, counter, files), ("x",) of a foreign writer, ("f", fence)
    G: tuple  # tracking_commits: ("g", csn, bsn, files of the extension), ("f", fence)
    promised: int  # the highest EBSN that a reader may have got
    agents: tuple
    flying: tuple
    kills: int
    lost: int
    foreign: int


def start(agents: int = 2, *, kills: int = 0, lost: int = 0, foreign: int = 0) -> State:
    fresh = (Agent(),) * agents
    return State(Reg(), 0, (), frozenset(), (), (), 1, fresh, (), kills, lost, foreign)


def rows_of(log: tuple, kind: str) -> list[tuple]:
    return [row for row in log if row[0] == kind]


Steps = Iterator[tuple[str, State]]


class Model(Histories):
    def __init__(self, design: Design) -> None:
        self.d = design

    def steps(self, st: State) -> Steps:
        for label, after in self.requests(st):
            yield label, after._replace(promised=max(st.promised, self.bound(after)))

    def requests(self, st: State) -> Steps:
        for i, a in enumerate(st.agents):
            if a.pc in ("end", "dead", "stuck"):
                continue
            yield from self.agent(st, i, a)
            if st.kills and a.pc not in ("read", "take"):
                yield f"{i} killed", self.go(st._replace(kills=st.kills - 1), i, a._replace(pc="dead"))
        for n, op in enumerate(st.flying):
            yield f"landed {op[0]}", self.land(st._replace(flying=st.flying[:n] + st.flying[n + 1 :]), op)
        if st.foreign:
            yield "foreign", st._replace(A=(*st.A, ("x",)), foreign=st.foreign - 1)

    @staticmethod
    def land(st: State, op: tuple) -> State:
        """Carry out a PUT: (place, condition, content)."""
        where, condition, new = op
        if where == "reg":
            return st._replace(reg=new._replace(etag=st.reg.etag + 1)) if st.reg.etag == condition else st
        if where == "files":
            return st._replace(files=st.files | {new})
        if where == "bsn":
            return st._replace(bsn=new)
        if where == "intents":
            return st._replace(intents=(*st.intents, new))
        log = getattr(st, where)
        since = log[condition:]
        if where == "A" and new[0] == "w":
            # Spark commits behind commits of others that it has not read, unless they name our application.
            since = tuple(row for row in since if row[0] != "x")
        return st if since else st._replace(**{where: (*log, new)})

    def put(self, st: State, i: int, a: Agent, op: tuple, ok: Agent, failed: Agent) -> Steps:
        done = self.land(st, op)
        applied = done != st or op[0] in ("files", "bsn")
        yield f"{i} {a.pc}", self.go(done, i, ok if applied else failed)
        if st.lost and applied:
            # It gives up waiting, and releases with a note that a request is on its way.
            gone = st._replace(flying=(*st.flying, op), lost=st.lost - 1)
            yield f"{i} {a.pc}: in flight", self.go(gone, i, a._replace(pc="release dirty"))

    def change(self, st: State, i: int, a: Agent, ok: Agent, **changed: Any) -> Steps:
        assert a.reg is not None
        new = a.reg._replace(**changed)
        refused = a._replace(pc="end", told=a.told or ("refused" if a.pc == "decide" else ""))
        held = ok._replace(reg=new._replace(etag=a.reg.etag + 1))
        yield from self.put(st, i, a, ("reg", a.reg.etag, new), held, refused)

    def agent(self, st: State, i: int, a: Agent) -> Steps:
        d, pc = self.d, a.pc
        carry_out = "open A" if d.order else "open G"
        reg: Any = a.reg
        if pc == "read":
            yield f"{i} read", self.go(st, i, a._replace(pc="take", reg=st.reg))
        elif pc == "take":
            dirty = (reg.dirty and d.dirty) or reg.owner is not None
            mine = reg._replace(owner=i, fence=reg.fence + 1, dirty=dirty)
            to = "fence A" if dirty and d.fence else "look"
            held = a._replace(pc=to, reg=mine._replace(etag=reg.etag + 1))
            done = self.land(st, ("reg", reg.etag, mine))
            yield f"{i} take", self.go(done, i, held if done != st else a._replace(pc="read", reg=None))
        elif pc.startswith("fence "):
            yield f"{i} {pc}", self.go(st, i, a._replace(pc=f"fencing {pc[-1]}", at=len(getattr(st, pc[-1]))))
        elif pc.startswith("fencing "):
            done, again = ("fence G" if pc[-1] == "A" else "clean"), f"fence {pc[-1]}"
            op = (pc[-1], a.at, ("f", reg.fence))
            yield from self.put(st, i, a, op, a._replace(pc=done), a._replace(pc=again))
        elif pc == "clean":
            yield from self.change(st, i, a, a._replace(pc="look"), dirty=False)
        elif pc == "look":
            # Another's intent is carried out; another's open transaction ends and takes its CSN.
            plan = reg.plan if d.intent else next(iter(st.intents), None)
            if plan is not None:
                to = carry_out if any(each[0] == plan[0] for each in st.files) else "stuck"
                yield f"{i} takes up", self.go(st, i, a._replace(pc=to, plan=plan))
            elif a.told:
                yield f"{i} is done", self.go(st, i, a._replace(pc="release"))
            else:
                number = (reg.bsn if d.numbers else st.bsn) + 1
                begun = a._replace(pc="stage", bsn=number)
                if not d.numbers:
                    yield from self.put(st, i, a, ("bsn", None, number), begun._replace(pc="begin"), a)
                else:
                    ended = max(reg.csn, number - 1)
                    yield from self.change(st, i, a, begun, bsn=number, csn=ended, open=(number, reg.fence))
        elif pc == "begin":
            yield from self.change(st, i, a, a._replace(pc="stage"), csn=a.bsn - 1, open=(a.bsn, reg.fence))
        elif pc == "stage":
            counter = len(rows_of(st.A, "w")) + 1
            staged = a._replace(pc="decide", plan=(a.bsn, reg.csn + 1, counter, len(st.A), None))
            yield from self.put(st, i, a, ("files", None, (a.bsn, i)), staged, a)
        elif pc == "decide":
            if d.intent:
                yield from self.change(st, i, a, a._replace(pc=carry_out), plan=a.plan, csn=a.plan[1])
            else:
                yield from self.put(st, i, a, ("intents", None, a.plan), a._replace(pc=carry_out), a)
        else:
            yield from self.carry_out(st, i, a)

    def carry_out(self, st: State, i: int, a: Agent) -> Steps:
        d, pc = self.d, a.pc
        reg: Any = a.reg
        first, second = ("A", "G") if d.order else ("G", "A")
        after = {first: f"open {second}", second: "finish"}
        if pc in ("open A", "open G", "again A"):
            bsn, csn, counter, _, extension = a.plan or ((0,) * 5)
            table = pc[-1]
            log = getattr(st, table)
            kind = "w" if table == "A" else "g"
            if fence_of(log) > reg.fence:
                yield f"{i} {pc}: displaced", self.go(st, i, a._replace(pc="end"))
            elif pc != "again A" and any(row[1:3] == (csn, bsn) for row in rows_of(log, kind)):
                yield (
                    f"{i} {pc}: there",
                    self.go(st, i, a._replace(pc="extend" if table == "A" else after["G"])),
                )
            else:
                # The rows are read before the commit: the number of their files.
                folder = bsn if table == "A" else extension
                found = sum(1 for each in st.files if each[0] == folder)
                row = (
                    ("w", csn, bsn, counter, found) if table == "A" else ("g", csn, bsn, extension and found)
                )
                yield f"{i} {pc}", self.go(st, i, a._replace(pc=f"write {table}", at=(len(log), row)))
        elif pc.startswith("write "):
            table = pc[-1]
            done = a._replace(pc="extend" if table == "A" else after["G"], at=0)
            op = (table, *a.at)
            # The table's log is searched for our commit once, before the first attempt.
            failed = a._replace(pc="again A" if table == "A" else "open G", at=0)
            yield from self.put(st, i, a, op, done, failed)
        elif pc == "extend":
            assert a.plan is not None
            place = next(n for n, row in enumerate(st.A) if row[0] == "w" and row[1] == a.plan[1])
            between = rows_of(st.A[a.plan[3] : place], "x")
            if not between or a.plan[4] is not None:
                yield f"{i} as it is", self.go(st, i, a._replace(pc=after["A"]))
            else:
                # Files that are there are removed first.
                folder = ("between", a.plan[1], reg.fence if d.again else 0)
                left = st._replace(files=frozenset(each for each in st.files if each[0] != folder))
                ok = a._replace(pc="decide again", plan=(*a.plan[:4], folder))
                yield from self.put(left, i, a, ("files", None, (folder, i)), ok, a)
        elif pc == "decide again":
            ok = a._replace(pc=after["A"])
            if d.intent:
                yield from self.change(st, i, a, ok, plan=a.plan)
            else:
                yield f"{i} {pc}", self.go(st, i, ok)
        elif pc == "finish":
            assert a.plan is not None
            told = a.told or ("done" if a.plan[0] == a.bsn else "")
            ok = a._replace(pc="remove", told=told)
            if not d.intent:
                kept = tuple(each for each in st.intents if each[0] != a.plan[0])
                yield f"{i} finish", self.go(st._replace(intents=kept), i, ok)
            elif d.forgets:
                yield from self.change(st, i, a, ok, plan=None, open=None)
            else:
                yield (
                    f"{i} removes first",
                    self.go(self.without(st, a), i, a._replace(pc="forget", told=told)),
                )
        elif pc == "forget":
            yield from self.change(st, i, a, a._replace(pc="look", plan=None), plan=None, open=None)
        elif pc == "remove":
            yield f"{i} remove", self.go(self.without(st, a), i, a._replace(pc="look", plan=None))
        elif pc in ("release", "release dirty"):
            new = reg._replace(owner=None, dirty=reg.dirty or pc == "release dirty")
            yield f"{i} {pc}", self.go(self.land(st, ("reg", reg.etag, new)), i, a._replace(pc="end"))

    @staticmethod
    def without(st: State, a: Agent) -> State:
        assert a.plan is not None
        gone = (a.plan[0], a.plan[4])
        return st._replace(files=frozenset(each for each in st.files if each[0] not in gone))

    # ---- checks
    def bound(self, st: State) -> int:
        """Return the EBSN that a reader gets now."""
        if self.d.open and st.reg.open is not None:
            return st.reg.open[0]
        return (st.reg.bsn if self.d.numbers else st.bsn) + 1

    def wrong(self, _st: State) -> str | None:
        return None

    def wrong_since(self, before: State, st: State) -> str | None:
        if any(a.pc == "stuck" for a in st.agents):
            return "T2: the rows of an intent are gone"
        shown, written = rows_of(st.G, "g"), rows_of(st.A, "w")
        csns, bsns = [row[1] for row in shown], [row[2] for row in shown]
        if csns != sorted(set(csns)) or len({*bsns}) < len(bsns):
            return f"T1: shown CSNs {csns}, BSNs {bsns}"
        for row in shown:
            ours = [each for each in written if each[1:3] == row[1:3]]
            if [each[4] for each in ours] != [1] or row[3] not in (None, 1):
                return f"T2: transaction {row} has {ours}"
        if [row[3] for row in written] != list(range(1, len(written) + 1)):
            return f"T3: counters {written}"
        for a in st.agents:
            if a.told == "refused" and any(row[2] == a.bsn for row in written):
                return f"T4: transaction {a.bsn} was refused"
            if a.told == "done" and a.bsn not in bsns:
                return f"T4: transaction {a.bsn} was acknowledged"
        if len(st.G) > len(before.G) and st.G[-1][0] == "g" and st.G[-1][2] < before.promised:
            return f"T5: {st.G[-1]} is below {before.promised}"
        return None

    def wrong_at_end(self, st: State) -> str | None:
        """Let one more agent run alone."""
        me = len(st.agents)
        st = st._replace(agents=(*st.agents, Agent()), kills=0, lost=0, foreign=0)
        for _ in range(200):
            if st.agents[me].pc == "end":
                break
            after = next(iter(self.agent(st, me, st.agents[me])))[1]
            if (found := self.wrong_since(st, after)) is not None:
                return found
            st = after
        if st.agents[me].told != "done" or len(rows_of(st.A, "w")) != len(rows_of(st.G, "g")):
            return f"T2: not finished: {st.A}, {st.G}"
        return None


SCOPES = [{"kills": 1}, {"lost": 1}, {"kills": 1, "foreign": 1}, {"lost": 1, "foreign": 1}]

ABLATIONS = {
    "fences in the tables": ("fence", SCOPES[0]),
    "a release says what is in flight": ("dirty", SCOPES[1]),
    "numbers change with the register": ("numbers", SCOPES[0]),
    "the intent is in the register": ("intent", SCOPES[0]),
    "the register names the open transaction": ("open", SCOPES[0]),
    "a folder that is staged again has the fence": ("again", SCOPES[3]),
    "the table, then the gate": ("order", SCOPES[0]),
    "the register forgets before rows are removed": ("forgets", SCOPES[0]),
}
"""Rule to the field of `Design`, and a scope that needs it."""
