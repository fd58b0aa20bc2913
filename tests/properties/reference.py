"""Reference model of merge replication: one publisher, N subscribers, plain dictionaries.

Written from the specification, not from the engine, so that one misreading cannot hide in both. Each replica
also keeps *ghost* state (`seen`: the exact set of changes a row includes). No rule reads it; it only checks
what the rules decide.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

from tests.properties.resolver_rules import CLASHES_IF_EQUAL, MAKES, NEEDS_BASE, ONE_WAY, RESOLVERS
from tests.properties.state import (
    CRASH_POINTS,
    PUBLICATION,
    PUBLISHER_PRIORITY,
    Changeset,
    Colv,
    Conflict,
    Direction,
    Event,
    Generation,
    Lineage,
    Replica,
    Result,
    Row,
    Step,
    Subscriber,
    Value,
    Version,
    bump,
    covers,
    merge_lineage,
)


class ModelError(AssertionError):
    """The rules decided something the ghost state disproves."""


class UnknownGenerationError(Exception):
    """A watermark names a generation the other side does not have: resynchronise."""


class Network:
    """A publisher and its subscribers, all starting from one snapshot.

    `resolver` is one of `RESOLVERS`. `refuses`: rows that the publisher's table does not take; an article with it
    compensates for errors, so that the subscriber gets the publisher's row back.
    """

    def __init__(
        self,
        subscribers: Iterable[Subscriber],
        *,
        publisher: str = "hub",
        columns: tuple[str, ...] = ("a", "b", "c"),
        snapshot: Mapping[str, Row] | None = None,
        tracking: Literal["row", "column"] = "row",
        resolution: Literal["row", "columns"] = "row",
        resolver: str = "priority",
        refuses: Callable[[Row], bool] = lambda row: False,
    ) -> None:
        self.columns, self.tracking, self.resolution = columns, tracking, resolution
        self.resolver, self.refuses = resolver, refuses
        self.hub = Replica(publisher, 1, "publisher", PUBLISHER_PRIORITY)
        self.subscribers = {
            s.name: Replica(s.name, nick, s.kind, s.priority if s.kind == "server" else 0.0)
            for nick, s in enumerate(subscribers, 2)
        }
        self.replicas = {publisher: self.hub, **self.subscribers}
        for replica in self.replicas.values():
            replica.rows, replica.captured = (
                copy.deepcopy(dict(snapshot or {})),
                copy.deepcopy(dict(snapshot or {})),
            )
            for key, row in replica.rows.items():
                replica.past[key] = [
                    Version(row, replica.known_lineage(key), {}, PUBLISHER_PRIORITY, frozenset())
                ]
        self.conflicts: list[Conflict] = []
        # Ghosts: events that are in a logged row; events that came to the value that others have, too.
        self.logged: set[int] = set()
        self.twins: dict[int, set[int]] = {}
        self.events: list[Event] = []
        self.trace: list[
            tuple[str, str, frozenset[int], frozenset[int]]
        ] = []  # replica, key, seen before, after
        self.staged: list[Changeset] = []
        self._guids = itertools.count(1)

    # -- users ---------------------------------------------------------------------------------------------
    def write(self, replica: str, key: str, op: str, values: Mapping[str, Value] | None = None) -> bool:
        """Do one user `insert`, `update` or `delete`; False where no row is there (or one is in the way)."""
        rows = self.replicas[replica].rows
        if (op == "insert") == (key in rows):
            return False
        if op == "delete":
            del rows[key]
            return True
        row = {**(rows.get(key) or dict.fromkeys(self.columns)), **(values or {})}
        if replica == self.hub.name and self.refuses(row):
            return False
        rows[key] = row
        return True

    def rows(self, replica: str) -> dict[str, Row]:
        """Return the replica's table."""
        return self.replicas[replica].rows

    def lineage(self, replica: str, key: str) -> Lineage:
        """Return a row's lineage; {} where nothing is recorded of it."""
        meta = self.replicas[replica].meta(key)
        return meta.lineage if meta else {}

    # -- tracking ------------------------------------------------------------------------------------------
    def capture(self, name: str) -> int:
        """Track the user's net changes since the last capture; return how many rows changed."""
        replica = self.replicas[name]
        changed = [
            k
            for k in sorted({*replica.rows, *replica.captured})
            if replica.rows.get(k) != replica.captured.get(k)
        ]
        if not changed:
            return 0
        gen = next((n for n, g in replica.generations.items() if g.status == 0), None)
        if gen is None:
            gen = replica.add_generation(f"g{next(self._guids)}", 0, {replica.nick})
        for key in changed:
            before, after, old = replica.captured.get(key), replica.rows.get(key), replica.meta(key)
            mask = frozenset(c for c in self.columns if not before or not after or before[c] != after[c])
            lineage = bump(replica.known_lineage(key), replica.nick, replica.clock)
            colv: Colv = {}
            if self.tracking == "column" and after is not None:
                colv = {
                    **(old.colv if old else {}),
                    **dict.fromkeys(mask, (replica.nick, lineage[replica.nick])),
                }
            past = replica.seen.get(key, frozenset())
            kind: Literal["insert", "update", "delete"] = (
                "delete" if after is None else "insert" if before is None else "update"
            )
            new = {self._event(Event(name, key, kind, mask, past))}
            was = replica.version(key)
            of = {c: was.events_of(c) | (new if c in mask else set()) for c in self.columns}
            replica.put_meta(key, gen, Version(after, lineage, colv, replica.priority, past | new, of))
            replica.put_row(replica.captured, key, after)
        return len(changed)

    def _event(self, event: Event) -> int:
        self.events.append(event)
        return len(self.events) - 1

    # -- sessions ------------------------------------------------------------------------------------------
    def sync(self, subscriber: str, direction: Direction = "both", crash: str | None = None) -> Result:
        """Run one session; with `crash`, stop after that step (one of CRASH_POINTS), also of one that is recovered."""
        if not self._recover(crash):
            return Result(0, 0, 0, crashed=True)
        hub, sub = self.hub, self.subscribers[subscriber]
        for replica in (sub, hub):
            self.capture(replica.name)
            for generation in replica.generations.values():
                generation.status = generation.status or 1
        up_start, down_start = self._start(sub, hub), self._start(hub, sub)
        up, down = self._enumerate(sub, hub, up_start), self._enumerate(hub, sub, down_start)
        guid = f"g{next(self._guids)}"
        in_up = {k for k in (*sub.contents, *sub.tombstones) if self._gen(sub, k) in up}
        in_down = {k for k in (*hub.contents, *hub.tombstones) if self._gen(hub, k) in down}
        plans = (
            self._plan(sub, hub, k, k in in_up, k in in_down, direction, guid)
            for k in sorted(in_up | in_down)
        )
        changeset = Changeset(
            subscriber,
            direction,
            [step for step in plans if step],
            [sub.generations[n] for n in up],
            [hub.generations[n] for n in down],
            guid,
            self._mark(sub),
            self._mark(hub),
        )
        self.staged.append(changeset)
        if not self._apply(changeset, crash):
            return Result(0, 0, 0, crashed=True)
        moved = [
            (s.to_hub is not None, s.to_sub is not None, s.conflict is not None) for s in changeset.steps
        ]
        return Result(*(sum(column) for column in zip(*moved, strict=True)) if moved else (0, 0, 0))

    def _gen(self, replica: Replica, key: str) -> int:
        meta = replica.meta(key)
        return meta.gen if meta else 0

    def _mark(self, replica: Replica) -> tuple[int, str]:
        last = max(replica.generations, default=0)
        return (last, replica.generations[last].guid) if last else (0, "")

    def _start(self, source: Replica, dest: Replica) -> int:
        marks = source.sent.get(dest.name, (0, "")), dest.received.get(source.name, (0, ""))
        for number, guid in marks:
            if number and (number not in source.generations or source.generations[number].guid != guid):
                raise UnknownGenerationError(
                    f"{source.name} does not know generation {number} ({guid}): resynchronise"
                )
        return min(marks)[0]

    def _enumerate(self, source: Replica, dest: Replica, start: int) -> list[int]:
        known = {g.guid for g in dest.generations.values()}  # not by nickname: it may have been restored
        return [n for n, g in source.generations.items() if n > start and g.status and g.guid not in known]

    def _plan(
        self,
        sub: Replica,
        hub: Replica,
        key: str,
        in_up: bool,
        in_down: bool,
        direction: Direction,
        new_guid: str,
    ) -> Step | None:
        """Classify one changed row by what each side knows of it, sent or not (sp_MSgetmetadata)."""
        mine, theirs = sub.version(key), hub.version(key)
        is_undone = key in sub.undone
        hub_knows = is_undone or covers(theirs.lineage, mine.lineage)
        sub_knows = covers(mine.lineage, theirs.lineage)
        at_sub, at_hub = sub.seen.get(key, frozenset()), hub.seen.get(key, frozenset())
        if not is_undone and (hub_knows, sub_knows) != (at_sub <= at_hub, at_hub <= at_sub):
            raise ModelError(f"{key}: lineage says {hub_knows, sub_knows}, history says {at_sub, at_hub}")
        if hub_knows and sub_knows:
            return None
        if hub_knows:
            if direction == "upload":
                return None
            down = hub.generations[self._gen(hub, key)].guid
            if self.resolver != "upload_only":
                return Step(key, down, None, theirs)
            # Rejected: the subscriber's row stays, and knows of the change.
            kept = replace(
                mine, lineage=merge_lineage(mine.lineage, theirs.lineage), seen=mine.seen | theirs.seen
            )
            kept = replace(kept, of=self._of_both(mine, theirs))
            return Step(key, down, None, kept, self._logged(key, (sub, mine), (hub, theirs)))
        if sub.kind == "client" and direction != "download" and mine.priority == 0:
            merged = replace(mine, priority=PUBLISHER_PRIORITY)
        else:
            merged = mine
        if sub_knows:
            if direction == "download":
                return None
            if self.resolver == "download_only":
                back = self._put_back(key, sub, hub, mine, theirs, hub)
                return Step(key, new_guid, back, back, self._logged(key, (hub, theirs), (sub, mine)))
            if mine.row is not None and self.refuses(mine.row):
                return self._undo(key, sub, hub, mine, theirs, new_guid)
            return Step(key, sub.generations[self._gen(sub, key)].guid, merged, None)
        resolver = sub if direction == "download" else hub
        result, conflict = self._resolve(key, sub, hub, mine, replace(merged), theirs, resolver)
        if direction != "download" and result.row is not None and self.refuses(result.row):
            # The publisher's row takes the place of a winner, or of merged columns, that its table refuses.
            if mine.priority > theirs.priority:
                return self._undo(key, sub, hub, mine, theirs, new_guid)
            result = self._put_back(key, sub, hub, mine, theirs, hub)
            conflict = self._logged(key, (hub, theirs), (sub, mine))
        return Step(
            key,
            new_guid,
            None if direction == "download" else result,
            None if direction == "upload" else result,
            conflict,
        )

    def _of_both(self, one: Version, other: Version) -> dict[str, frozenset[int]]:
        return {c: one.events_of(c) | other.events_of(c) for c in self.columns}

    def _put_back(
        self, key: str, sub: Replica, hub: Replica, mine: Version, theirs: Version, resolver: Replica
    ) -> Version:
        """Return the publisher's row as a new version, which follows those of both sides."""
        lineage = bump(merge_lineage(mine.lineage, theirs.lineage), resolver.nick, max(hub.clock, sub.clock))
        stamp = (resolver.nick, lineage[resolver.nick])
        rows = mine.row, theirs.row
        undone = {c for c in self.columns if rows[0][c] != rows[1][c]} if None not in rows else set()
        colv = dict(theirs.colv) if theirs.row is not None else {}
        if self.tracking == "column" and theirs.row is not None:
            colv |= dict.fromkeys(undone, stamp)
        seen = mine.seen | theirs.seen
        seen |= {self._event(Event(resolver.name, key, "resolve", frozenset(undone), seen))}
        return Version(theirs.row, lineage, colv, theirs.priority, seen, theirs.of)

    def _undo(self, key: str, sub: Replica, hub: Replica, mine: Version, theirs: Version, guid: str) -> Step:
        """Give the subscriber the publisher's row back. To others nothing has happened."""
        back = replace(self._put_back(key, sub, hub, mine, theirs, sub), colv=theirs.colv)
        return Step(key, guid, None, back, self._logged(key, (hub, theirs), (sub, mine)), is_undone=True)

    def _logged(
        self, key: str, winner: tuple[Replica, Version], loser: tuple[Replica, Version], code: int = 0
    ) -> Conflict:
        """Return what is logged of a loser; 0 is the code of what was rejected or undone."""
        (won, winning), (lost, losing) = winner, loser
        for c in self.columns:
            self.logged |= losing.events_of(c) - winning.events_of(c)
        lineages = winning.lineage, losing.lineage
        return Conflict(
            key,
            code,
            won.name,
            lost.name,
            losing.row,
            *lineages,
            winner_seen=winning.seen,
            loser_seen=losing.seen,
        )

    # -- conflicts -----------------------------------------------------------------------------------------
    def _resolve(
        self,
        key: str,
        sub: Replica,
        hub: Replica,
        mine: Version,
        merged: Version,
        theirs: Version,
        resolver: Replica,
    ) -> tuple[Version, Conflict | None]:
        """Merge or resolve two concurrent versions; equal priorities go to the publisher's."""
        default = theirs.priority >= mine.priority
        lineage, seen = merge_lineage(mine.lineage, theirs.lineage), mine.seen | theirs.seen
        of = self._of_both(mine, theirs)
        priority = mine.priority if resolver is sub else max(merged.priority, theirs.priority)
        p, s = theirs.row, mine.row
        if p is None and s is None:
            return Version(None, lineage, {}, priority, seen, of), None
        by_p = by_s = set(self.columns)
        if self.tracking == "column":
            by_p = self._changed(theirs, mine.lineage)
            by_s = self._changed(mine, theirs.lineage)

        def picked(publisher_wins: bool) -> Row:
            takes = {c: c in by_s and not (c in by_p and publisher_wins) for c in self.columns}
            return {c: (s if takes[c] else p)[c] for c in self.columns}  # type: ignore[index]

        colv: Colv = {}
        if self.tracking == "column":
            for c in self.columns:
                pairs = [x.colv[c] for x in (mine, theirs) if c in x.colv]
                entry = max(pairs, key=lambda pair: (pair[1], pair[0]), default=None)
                if c in by_p or c in by_s:
                    entry = (theirs if c in by_p else mine).colv.get(c)
                if entry is not None:
                    colv[c] = entry
        is_live = p is not None and s is not None
        if is_live:
            differing = {c for c in self.columns if p[c] != s[c]}  # type: ignore[index]
            self._note_twins(mine, theirs, {*self.columns} - differing)
            clashing = differing & by_p & by_s
            if self.tracking == "column" and self.resolver in CLASHES_IF_EQUAL:
                clashing |= {"v"} & by_p & by_s
            is_whole = self.tracking == "row" or self.resolver in ONE_WAY
            if not (differing if is_whole else clashing):
                for c in differing:
                    mine_taken = c in by_s and not (c in by_p and default)
                    self._check_overwritten(key, c, *((theirs, mine) if mine_taken else (mine, theirs)))
                return Version(picked(default), lineage, colv, priority, seen, of), None
        makes = is_live and self.tracking == "column" and self.resolver in MAKES
        both = "v" in by_p and "v" in by_s
        wins, made = default, {}
        if makes or self.resolver not in MAKES:
            base = self._ancestor(key, sub, hub) if is_live and self.resolver in NEEDS_BASE else None
            wins, made = RESOLVERS[self.resolver](p, s, base, both, default, (len(by_p), len(by_s)))
        winner, loser = ((hub, theirs), (sub, merged)) if wins else ((sub, merged), (hub, theirs))
        code = (
            4
            if loser[1].row is None
            else 3
            if winner[1].row is None
            else 2
            if self.tracking == "column"
            else 1
        )
        conflict = self._logged(key, winner, loser, code)
        row = winner[1].row and dict(winner[1].row)
        if is_live and self.resolution == "columns" and self.tracking == "column":
            row = picked(wins)
        if makes:
            row["v"] = made.get("v", winner[1].row["v"] if both else picked(default)["v"])  # type: ignore[index]
        else:  # a made value includes both sides
            takes = {c: loser if row and row[c] != winner[1].row[c] else winner for c in self.columns}  # type: ignore[index]
            of = {c: side[1].events_of(c) for c, side in takes.items()}
        lineage = bump(lineage, resolver.nick, max(hub.clock, sub.clock))
        stamped: set[str] = set()
        if is_live:
            own = ((by_p, p), (by_s, s))
            stamped = {c for c in self.columns if any(c in by and row[c] != there[c] for by, there in own)}  # type: ignore[index]
        if self.tracking == "column":
            # Where an update won over a delete, the row comes back as the winner had it.
            colv = {
                **(colv if is_live else winner[1].colv),
                **dict.fromkeys(stamped, (resolver.nick, lineage[resolver.nick])),
            }
        seen |= {self._event(Event(resolver.name, key, "resolve", frozenset(stamped), seen))}
        return Version(row, lineage, {} if row is None else colv, winner[1].priority, seen, of), conflict

    def _ancestor(self, key: str, sub: Replica, hub: Replica) -> Row | None:
        """Return the row of the latest common version: of each past the last one that the other side includes."""
        lineages = sub.version(key).lineage, hub.version(key).lineage
        one, other = sub.latest_known(key, lineages[1]), hub.latest_known(key, lineages[0])
        if not covers(one.lineage, other.lineage) and not covers(other.lineage, one.lineage):
            raise ModelError(f"{key}: two common versions, of which neither follows the other")
        return (one if covers(one.lineage, other.lineage) else other).row

    def _note_twins(self, mine: Version, theirs: Version, columns: set[str]) -> None:
        for c in columns:
            for one, other in ((theirs, mine), (mine, theirs)):
                for event in one.events_of(c) - other.events_of(c):
                    self.twins.setdefault(event, set()).update(other.events_of(c))

    def _check_overwritten(self, key: str, column: str, left: Version, taken: Version) -> None:
        """Fail where a value takes the place of one that it does not include, and nobody logs that."""
        accounted = taken.events_of(column) | self.logged
        unknown = left.events_of(column) - accounted
        if any(self.twins.get(event, set()).isdisjoint(accounted) for event in unknown):
            raise ModelError(f"{key}: {column} was overwritten by somebody who did not know it")

    def _changed(self, version: Version, other: Lineage) -> set[str]:
        """Return the columns of a version that the other side's does not include.

        One that nobody changed since it was published is the publication's, if the row is.
        """
        published = (PUBLICATION, 1) if PUBLICATION in version.lineage else None
        writers = {c: version.colv.get(c, published) for c in self.columns}
        return {c for c, writer in writers.items() if writer and not covers(other, dict([writer]))}

    # -- applying ------------------------------------------------------------------------------------------
    def _recover(self, crash: str | None = None) -> bool:
        """Roll every staged session forward before anything else happens, at every replica's turn; False after a crash."""
        return all(self._apply(cs, crash) or cs not in self.staged for cs in list(self.staged))

    def _apply(self, cs: Changeset, crash: str | None) -> bool:
        """Do the steps that are not done; False after a crash or if the changeset was outdated."""
        for point in range(cs.done, len(CRASH_POINTS)):
            if not self._apply_step(cs, point):
                self.staged.remove(cs)
                return False
            cs.done = point + 1
            if CRASH_POINTS[point] == crash:
                return False
        hub, sub = self.hub, self.subscribers[cs.sub]
        if cs.direction != "download":
            sub.sent[hub.name] = cs.up_mark
        if cs.direction != "upload":
            hub.sent[sub.name] = cs.down_mark
        self.staged.remove(cs)
        return True

    def _apply_step(self, cs: Changeset, point: int) -> bool:
        hub, sub = self.hub, self.subscribers[cs.sub]
        name = CRASH_POINTS[point]
        to_hub = [(s, s.to_hub) for s in cs.steps if s.to_hub]
        to_sub = [(s, s.to_sub) for s in cs.steps if s.to_sub and s.key not in cs.skipped]
        if name in ("hub data", "sub data"):
            dest, moves = (hub, to_hub) if name == "hub data" else (sub, to_sub)
            late = {s.key for s, _ in moves if dest.rows.get(s.key) != dest.captured.get(s.key)}
            if late and (dest is hub or cs.direction == "download"):
                return False  # a user wrote after the capture and nothing is applied yet: start again
            cs.skipped |= late  # the hub has its part: leave the row to the next session
            for step, version in moves:
                if step.key not in late:
                    dest.put_row(dest.rows, step.key, version.row)
                    dest.put_row(dest.captured, step.key, version.row)
        elif name == "hub metadata":
            self._record(cs, hub, sub, cs.up if cs.direction != "download" else [], to_hub)
            for step in cs.steps:
                if step.conflict:
                    self.conflicts.append(step.conflict)
            again = [k for k in sorted(cs.skipped) if hub.meta(k)]
            if again:
                number = hub.add_generation(f"g{next(self._guids)}", 1, {hub.nick})
                for key in again:
                    hub.put_meta(key, number, hub.version(key))
        elif name == "sub metadata":
            self._record(cs, sub, hub, cs.down if cs.direction != "upload" else [], to_sub)
        elif name == "recgen":
            if cs.direction != "download":
                hub.received[sub.name] = cs.up_mark
            if cs.direction != "upload":
                known = {g.guid for g in sub.generations.values()}
                while (after := hub.generations.get(cs.down_mark[0] + 1)) and after.guid in known:
                    cs.down_mark = (
                        cs.down_mark[0] + 1,
                        after.guid,
                    )  # resolutions too: a restored hub lacks them
                sub.received[hub.name] = cs.down_mark
        return True

    def _record(
        self,
        cs: Changeset,
        dest: Replica,
        source: Replica,
        gens: list[Generation],
        moves: list[tuple[Step, Version]],
    ) -> None:
        """Write generations, then contents and tombstones, then the clock, at one side."""
        for generation in gens:
            if dest.local_number(generation.guid) is None:
                dest.add_generation(generation.guid, 2, generation.nicknames | {source.nick, dest.nick})
        for step, version in moves:
            number = dest.local_number(step.guid)
            if number is None:  # a merge or resolution: known to both sides, or to the resolver alone
                known = {dest.nick} if cs.direction != "both" else {dest.nick, source.nick}
                number = dest.add_generation(
                    step.guid, 1 if dest is self.hub or cs.direction != "both" else 2, known
                )
            self.trace.append((dest.name, step.key, dest.seen.get(step.key, frozenset()), version.seen))
            dest.put_meta(step.key, number, version)
            if step.is_undone:
                dest.undone.add(step.key)
        dest.clock = max(dest.clock, source.clock if gens or cs.direction == "both" else 0)

    # -- restore -------------------------------------------------------------------------------------------
    def backup(self, name: str) -> Replica:
        """Copy a replica."""
        return copy.deepcopy(self.replicas[name])

    def restore(self, backup: Replica) -> None:
        """Put a copy back in place of the replica."""
        self.staged = [cs for cs in self.staged if backup is not self.hub and cs.sub != backup.name]
        vars(self.replicas[backup.name]).update(copy.deepcopy(vars(backup)))
