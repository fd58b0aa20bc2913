"""What the models of agents at registers in buckets share: their requests, and all histories from a state.

A state is a named tuple with registers, `objects`, logs, `agents`, `flying`, and how often what may still happen.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Reg(NamedTuple):
    etag: int = 0
    owner: int | None = None
    fence: int = 0
    dirty: bool = False
    plan: object = None


def last(log: tuple, kind: str) -> tuple | None:
    return next((row for row in reversed(log) if row[0] == kind), None)


def fence_of(log: tuple) -> int:
    return max((row[1] for row in log if row[0] == "f"), default=0)


class Histories:
    begins: str
    """How the names of the steps begin before which an agent has done nothing: it is not killed there."""

    def agent(self, st: Any, i: int, a: Any):
        """Yield what an agent may do next, as (label, state)."""
        raise NotImplementedError

    def wrong(self, st: Any) -> str | None:
        raise NotImplementedError

    def wrong_at_end(self, st: Any) -> str | None:
        """What is wrong when no agent runs any more."""
        raise NotImplementedError

    def wrong_since(self, _before: Any, _after: Any) -> str | None:
        return None

    def clashing(self, _where: str, since: tuple) -> tuple:
        """Return the rows written since a log was opened because of which a row cannot be written to it."""
        return since

    # ---- steps
    def steps(self, st: Any):
        for i, a in enumerate(st.agents):
            if a.pc in ("end", "dead", "stuck"):
                continue
            yield from self.agent(st, i, a)
            if st.kills and not a.pc.startswith(self.begins):
                yield f"{i} killed", self.go(st._replace(kills=st.kills - 1), i, a._replace(pc="dead"))
        for n, op in enumerate(st.flying):
            yield f"landed {op[0]}", self.land(st._replace(flying=st.flying[:n] + st.flying[n + 1 :]), op)
        if st.grows:
            yield "grows", st._replace(head=st.head + 1, grows=st.grows - 1)

    @staticmethod
    def go(st: Any, i: int, a: Any) -> Any:
        return st._replace(agents=(*st.agents[:i], a, *st.agents[i + 1 :]))

    def land(self, st: Any, op: tuple) -> Any:
        where, condition, new = op
        at = getattr(st, where)
        if isinstance(at, Reg):
            return st._replace(**{where: new._replace(etag=condition + 1)}) if at.etag == condition else st
        if where == "objects":
            return st._replace(objects=(*(each for each in at if each[0] != condition), (condition, new)))
        return st if self.clashing(where, at[condition:]) else st._replace(**{where: (*at, new)})

    def put(self, st: Any, i: int, a: Any, op: tuple, ok: Any, failed: Any):
        done = self.land(st, op)
        applied = op[0] == "objects" or done != st
        yield f"{i} {a.pc}", self.go(done, i, ok if applied else failed)
        if st.lost and applied:
            # It gives up waiting, and releases with a note that a request is on its way.
            later = st._replace(flying=(*st.flying, op), lost=st.lost - 1)
            yield f"{i} {a.pc}: in flight", self.go(later, i, a._replace(pc="release dirty"))

    def change(self, st: Any, i: int, a: Any, where: str, ok: str, **changed: Any):
        """Change a register that the agent holds."""
        was = getattr(a, where.lower())
        new = was._replace(**changed)
        got = a._replace(pc=ok, **{where.lower(): new._replace(etag=was.etag + 1)})
        yield from self.put(st, i, a, (where, was.etag, new), got, a._replace(pc="end"))

    # ---- exploration
    def exhaust(self, begun: Any, most: int) -> tuple[int, str | None, list[str]]:
        """Return the number of states, and the first fault with the history that comes to it."""
        came: dict[Any, tuple[Any, str] | None] = {begun: None}
        todo = [begun]
        while todo and len(came) < most:
            st = todo.pop()
            for label, after in self.steps(st):
                if after in came:
                    continue
                came[after] = (st, label)
                found = self.wrong(after) or self.wrong_since(st, after)
                if found is None and not after.flying and all(a.pc in ("end", "dead") for a in after.agents):
                    found = self.wrong_at_end(after)
                if found is not None:
                    return len(came), found, trail(came, after)
                todo.append(after)
        return len(came), None, []


def trail(came: dict[Any, tuple[Any, str] | None], at: Any) -> list[str]:
    found = []
    while (before := came[at]) is not None:
        at, label = before
        found.append(label)
    return found[::-1]
