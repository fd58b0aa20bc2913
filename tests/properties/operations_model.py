"""A model of the clock, of what is settled, of cleanup, expiry and reinitialisation, in plain Python.

This file: the rules. operations_rows.py: what a replica keeps. operations_histories.py: steps, properties, histories.

A tree of replicas (root, republishers, leaves) holds one article with row or column tracking, optionally filtered by the
third column. Capture, lineage, colv1, generations, watermarks, resolution and late writers are those of docs/protocol.md,
reduced: a capture closes its generation, each side of a staged session is carried out in one piece.

Ghost state: `Version.of` says for each column which edits its value includes, replaced knowingly, or won against. No rule
reads it. `RULES` names every rule that a World may switch off; each one switched off alone must break a property:
 lost       a version is replaced by one that neither includes it nor is logged against it (I6, I8, I11)
 false      a conflict is declared although one side knew the other's change
 settled    a replica does not know a change at or below its settled version
 refused    a session is refused although nothing is wrong
 diverged   two quiet passes do not make all replicas equal (I1)
 stuck      after three quiet passes (leaves to root, root to leaves) some metadata may still not be cleaned
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests.properties.operations_rows import (
    KEYS,
    LATE,
    NEVER,
    STOPS,
    TREES,
    Changeset,
    Ghosts,
    Replica,
    Version,
    covers,
    entry_of,
    joined,
    knows,
    merged,
)
from tests.properties.ruled_worlds import Broken, Refused

RULES = {
    "stamps follow the clock": "every stamp is max(clock, versions of the row) + 1, not only above the row's versions",
    "lift": "a session begins by lifting both clocks to the higher one",
    "clock of generations": "a received generation moves the clock, also where its rows were refused",
    "through at capture": "through is the clock right after the capture, not at the end of the session",
    "through below": "through counts the relations below the subscriber",
    "through needs upload": "a session without upload leaves through",
    "through before failed": "a session after which the publisher refuses a row leaves through",
    "settled at staging": "the subscriber stores what the publisher had stored before, not what it has at the end",
    "settled needs download": "a session without download leaves settled",
    "settled before failed": "a session after which the subscriber refuses a row leaves settled",
    "subscriber's floor": "versions are compared with what had settled at the subscriber, not at the publisher",
    "floor": "... nor without any floor (KB309400)",
    "C acknowledged": "cleanup waits for the acknowledgement of every live relation",
    "C settled": "cleanup waits until generations are settled",
    "C known": "... and known to every live replica of the tree, not only here and above",
    "resent anew": "a refused row that is sent again travels in a generation of its own",
    "settled is held": "a generation at or below the destination's settled version counts as held",
    "guard cleaned": "an enumeration that starts below cleaned is refused",
    "guard through": "a session of a relation whose through is below the publisher's settled version is refused",
    "guard knows": "... or whose knows is below the publisher's known version",
    "guard told": "... or below what the publisher has told its own publisher of through and knows",
    "own side first": "a replica finishes its own side of a staged session before anything else, also as a subscriber",
    "quiet moves": "a session with nothing to send still moves watermarks, through and settled",
    "reinit copies": "reinitialising copies the publisher's metadata",
    "reinit by value": "upload-first compares rows, not lineages",
    "reinit sees uncleaned": "a row without metadata was received only if the publisher cleaned up nothing after that",
    "reinit sees no refused": "... and a row on its list for the subscriber was not",
    "reinit stamps": "a row that upload-first brings up has a new version",
    "reinit below": "reinitialising a republisher asks the relations below to be reinitialised",
    "reinit marks": "reinitialising cleans through an empty generation: who was up to date below starts below",
    "reinit lists": "unsent rows are those after the watermark and those on the list of failed changes",
    "fresh rows know nothing": "filtered: the floor does not count for a new insert of the subscriber",
    "compare with the table": "filtered: an uploaded row is compared with the publisher's version, enumerated or not",
    "anew": "filtered: an insert over a tombstone that has been sent starts anew, whatever its type",
    "left alone is listed": "filtered: a leaving row with a pending edit, left alone by a download, is on the list",
    "born": "filtered: new is what was born after the watermark, not what shares no writer",
}
"""Rule -> what it says."""


class World(Ghosts):
    rules = RULES

    def __init__(
        self, tree="pair", *, column=False, filtered=False, prios=(50,), keys=KEYS, there=("x",), off=()
    ):
        super().__init__()
        self.column, self.filtered, self.keys, self.off = column, filtered, keys, frozenset(off)
        self.ncols = 3 if filtered else 2
        self.nick, self.tokens = 0, 0
        self.r, self.staged = {}, []
        self.prios, self.stats = prios, Counter()
        for name, up in TREES[tree].items():
            new = self.r[name] = self.fresh(name, up)
            new.rows = dict.fromkeys(there, (0, 0, 1)[: self.ncols])
            new.captured = {k: row for k, row in new.rows.items() if new.sees(row)}
            new.rows = dict(new.captured)
            new.of = {k: (frozenset({-1} if k in new.rows else ()),) * self.ncols for k in keys}
            if up:
                new.sent[up] = new.recv[up] = self.r[up].sent[name] = self.r[up].recv[name] = 0
                self.r[up].through[name], self.r[up].knows[name] = self.r[up].clock, self.r[up].known
                self.r[up].there[name] = set(new.rows)

    def fresh(self, name, up):
        self.nick += 1
        part = {"A": 1, "B": 2}.get(name) if self.filtered else None
        of = {k: (frozenset(),) * self.ncols for k in self.keys}
        return Replica(name, self.nick, self.prios[self.nick % len(self.prios)], up, part, of=of)

    # -- users --------------------------------------------------------------------------------------------------------

    def write(self, name, key, what):
        """what: a or b sets a column, p moves the row to the other partition, d deletes; sets insert where no row is."""
        replica = self.r[name]
        old = replica.rows.get(key)
        self.tokens += 1
        if what == "d" or (what == "p" and (old is None or not self.filtered)):
            if what == "d":
                replica.rows.pop(key, None)
            return
        row = list(old or (self.tokens,) * 2 + ((replica.part or 1),) * (self.ncols - 2))
        if what == "p":
            row[2] = 3 - row[2]
        else:
            row["ab".index(what)] = self.tokens
        replica.rows[key] = tuple(row)

    def stamp(self, replica, lineage):
        floor = replica.clock if self.on("stamps follow the clock") else 0
        return max([floor, *lineage.values()]) + 1

    def edit(self, replica, key, old, row, nick):
        """Record one edit of a user on top of a version."""
        before = old.row
        cols = [
            c for c in range(self.ncols) if not self.column or not before or not row or before[c] != row[c]
        ]
        number, version = len(self.edits), self.stamp(replica, old.lineage)
        self.edits.append((key, cols))
        self.writer[number], self.past[number] = nick, old.of
        self.version[number] = NEVER if self.is_suspect(replica.name) else version
        lineage = {**old.lineage, nick: version}
        colv = (
            {**(old.colv if before else {}), **dict.fromkeys(cols, (nick, version))}
            if self.column and row
            else {}
        )
        of = tuple(known | {number} if c in cols else known for c, known in enumerate(old.of))
        return Version(row, lineage, colv, replica.prio, of)

    def capture(self, replica):
        changed = [k for k in self.keys if replica.rows.get(k) != replica.captured.get(k)]
        gen = replica.add(self.guid()) if changed else 0
        new = {}
        for key in changed:
            old, row, meta = replica.version(key), replica.rows.get(key), replica.meta.get(key)
            born = meta.born if meta else gen if old.row is None else 0
            if (
                replica.part is not None
                and old.row is None
                and meta
                and meta.gen <= replica.sent[replica.up]
                and self.on("anew")
            ):
                old, born = (
                    replace(old, lineage={}),
                    gen,
                )  # the key may have had another life outside of the partition
            new[key] = self.edit(replica, key, old, row, replica.nick), born
        for key, (version, born) in new.items():
            replica.put(key, version, gen, born)
            replica.note_parts(gen, replica.captured.get(key), version.row)
            replica.set_row(replica.captured, key, version.row)

    # -- the rules of a session -----------------------------------------------------------------------------------------

    def floors(self, pub, sub):
        """What counts as known to the publisher, and to the subscriber, whatever their lineages."""
        if not self.on("floor"):
            return 0, 0
        return (sub.settled,) * 2 if self.on("subscriber's floor") else (pub.settled,) * 2

    def settle_root(self, replica):
        if replica.up is None:
            live = [replica.through[k] for k in replica.live()]
            replica.settled = max(replica.settled, min([replica.clock, *live]))
            replica.known = max(
                replica.known, min([replica.settled, *(replica.knows[k] for k in replica.live())])
            )

    def start(self, source, dest):
        start = min(source.sent[dest.name], dest.recv[source.name])
        if start < source.cleaned and self.on("guard cleaned"):
            raise Refused(
                f"{dest.name} starts at {start} at {source.name}, which was cleaned up to {source.cleaned}"
            )
        return start

    def news(self, source, dest):
        """The generations to send, and the rows whose latest change is in them or that wait on the list."""
        start = self.start(source, dest)
        held = {guid for guid, _, _ in dest.gens.values()}
        gens = []
        for number, (guid, highest, origin) in source.gens.items():
            if (
                number > start
                and guid not in held
                and not (self.on("settled is held") and highest <= dest.settled)
            ):
                if origin == dest.name:
                    raise Refused(f"{dest.name} lacks its own generation {guid}")
                gens.append(number)
        rows = {k for k, meta in source.meta.items() if meta.gen in gens}
        return start, gens, rows | set(source.failed.get(dest.name, ()))

    def begin(self, name, is_guarded=False):
        """Recover, lift the clocks, capture; return both sides. A refused session captures nothing."""
        sub = self.r[name]
        pub = self.r[sub.up]
        self.recover(pub.name)
        self.recover(name, as_sub=True)
        if is_guarded:
            told = pub.told if self.on("guard told") else (0, 0)
            is_behind = pub.through[name] < max(told[0], pub.settled) and self.on("guard through")
            if is_behind or (pub.knows[name] < max(told[1], pub.known) and self.on("guard knows")):
                raise Refused("expired before")
            self.start(sub, pub)
            self.start(pub, sub)
        if self.on("lift"):
            pub.clock = sub.clock = max(pub.clock, sub.clock)
        self.capture(pub)
        self.capture(sub)
        return pub, sub

    def session(self, name, direction="both", stop=None):
        if name in self.r[self.r[name].up].dead:
            raise Refused("expired")
        pub, sub = self.begin(name, is_guarded=True)
        up, down = direction != "download", direction != "upload"
        up_start, up_gens, in_up = self.news(sub, pub)
        _, down_gens, in_down = self.news(pub, sub)
        if not in_up and not in_down and not self.on("quiet moves"):
            return
        cs = Changeset(pub.name, name, up, down, self.guid(), up_mark=sub.last, down_mark=pub.last)
        cs.up_gens = [sub.gens[n] for n in up_gens] if up else []
        mine = [n for n in down_gens if sub.part is None or sub.part in pub.parts.get(n, ())]
        cs.down_gens = [pub.gens[n] for n in mine] if down else []
        cs.there, cs.floor, cs.clock = set(pub.there.get(name, ())), sub.settled, max(pub.clock, sub.clock)
        is_filtered = sub.part is not None
        cs.resolves = is_filtered and bool(in_up) and up and down
        for key in sorted(in_up | in_down | cs.there):
            self.decide(cs, pub, sub, key, key in in_up, key in in_down, up_start, is_filtered)
        self.bounds(cs, pub, sub)
        self.carry_out(cs, stop)

    def decide(self, cs, pub, sub, key, in_up, in_down, up_start, is_filtered):
        """Decide one row that a side sends (filtered: or that the subscriber has) and enter it in the changeset."""
        vs, vp = sub.version(key), pub.version(key)
        p_floor, s_floor = self.floors(pub, sub)
        has = key in cs.there
        if is_filtered:
            in_down = in_down and (has or sub.sees(vp.row) or key in pub.failed.get(sub.name, ()))
            if (
                in_up and not cs.up and not sub.sees(vp.row)
            ):  # a pending edit of a row that leaves goes up first
                if in_down and self.on("left alone is listed"):
                    cs.failed_down[key] = 0
                return
        is_new = is_filtered and in_up and self.is_new(sub, key, vs, vp, up_start, p_floor)
        if is_new and self.on("fresh rows know nothing"):
            s_floor = 0
        p_knows, s_knows = not in_up, not in_down  # what a side does not send, the other one has
        if (in_up and in_down) or (is_filtered and in_up and not has and self.on("compare with the table")):
            p_knows = covers(vp.lineage, vs.lineage, p_floor)
            s_knows = covers(vs.lineage, vp.lineage, s_floor)
        if (
            is_new and vs.row is None and vp.row is not None
        ):  # the delete of a row that nobody else had is dropped
            self.gone |= frozenset().union(*vs.of) - frozenset().union(*vp.of)
            p_knows = True
        # a new row where another was deleted: no conflict
        is_another_life = is_new and vp.row is None and vp.recorded
        if is_another_life:
            p_knows, s_knows = False, not cs.down
        final, log, stamped, travels = None, (), (), cs.guid
        if p_knows and s_knows:
            if not is_filtered:
                return
        elif s_knows or is_another_life:
            final, travels = vs, sub.guid_of(key) or cs.guid
            if is_another_life:
                final = replace(vs, of=joined(vs.of, vp.of))
                sub.of[key] = final.of
                if cs.down:  # both sides record both lives
                    final, travels = replace(final, lineage=merged(vs.lineage, vp.lineage)), cs.guid
            if not cs.up:
                return
        elif p_knows:
            final, travels = vp, pub.guid_of(key) or cs.guid
            if not cs.down:
                return
        else:
            agent = pub if cs.up else sub
            nick = -agent.nick
            top = merged(vs.lineage, vp.lineage)
            stamp = max(self.stamp(pub, top), self.stamp(sub, top))
            final, log, stamped = self.resolve(vs, vp, s_floor, p_floor, nick, stamp, is_checked=not is_new)
            travels = cs.guid
        to_pub, to_sub = cs.up and not p_knows, cs.down and not s_knows
        if (to_pub and key in pub.refuses) or (to_sub and key in sub.refuses):
            if in_up and cs.up:
                cs.failed_up[key] = 0
                cs.new |= {key} if is_new else set()
            if (in_down or (is_filtered and not s_knows)) and cs.down:
                cs.failed_down[key] = 0
            return
        if (
            self.on("resent anew")
            and (p_knows or s_knows)
            and (key in sub.failed.get(pub.name, ()) or key in pub.failed.get(sub.name, ()))
        ):
            travels = cs.again
        if stamped:
            final = self.event(key, final, stamped, nick, agent.name)
        self.logged |= set(log)
        self.stats["conflicts"] += bool(log)
        if to_pub:
            cs.to_pub[key] = final, travels
        if not is_filtered:
            if to_sub:
                cs.to_sub[key] = final, travels
            return
        at_pub = final if to_pub else vp
        if cs.down and at_pub.row is not None and not sub.sees(at_pub.row):
            if has or in_up:
                cs.to_sub[key] = None, at_pub.of
                cs.there.discard(key)
        elif cs.down:
            if to_sub:
                cs.to_sub[key] = final, travels
            (cs.there.add if at_pub.row is not None else cs.there.discard)(key)
        elif to_pub and vs.row is not None:
            cs.there.add(key)
            if is_new and not s_knows:  # it has not been told how its new row ended
                cs.new.add(key)

    def is_new(self, sub, key, vs, vp, up_start, p_floor):
        if self.on("born"):
            return key in sub.meta and sub.meta[key].born > up_start  # NEVER: it stays new
        return not any(n == 0 or n in vp.lineage or v <= p_floor for n, v in vs.lineage.items())

    def resolve(self, s, p, s_floor, p_floor, nick, stamp, *, is_checked=True):
        """Merge or decide two concurrent versions; return the result, the edits logged and the columns stamped."""
        cols = range(self.ncols)
        lineage, of = merged(s.lineage, p.lineage), joined(s.of, p.of)
        by_s = {c for c in cols if not self.column or not knows(p.lineage, p_floor, entry_of(s, c))}
        by_p = {c for c in cols if not self.column or not knows(s.lineage, s_floor, entry_of(p, c))}
        if s.row is None and p.row is None:
            return Version(None, lineage, {}, max(s.prio, p.prio), of), (), ()
        s_wins, clash = s.prio > p.prio, set(cols)
        differing = set(cols)
        if s.row and p.row:
            differing = {c for c in cols if s.row[c] != p.row[c]}
            clash = differing & by_s & by_p if self.column else differing
            if not clash:
                pick = [s if c in by_s and c not in by_p else p for c in cols]
                colv = {c: v.colv[c] for c, v in enumerate(pick) if c in v.colv}
                for c in (by_s & by_p) - differing:
                    for one, other in ((s, p), (p, s)):
                        for e in one.of[c] - other.of[c]:
                            self.twins.setdefault(e, set()).update(other.of[c])
                lost = self.logged | self.gone
                of = tuple(o if c not in differing else pick[c].of[c] | o & lost for c, o in enumerate(of))
                return (
                    Version(
                        tuple(v.row[c] for c, v in enumerate(pick)), lineage, colv, max(s.prio, p.prio), of
                    ),
                    (),
                    (),
                )
        winner, loser = (s, p) if s_wins else (p, s)
        if is_checked and not any(
            (s.of[c] - p.of[c]) and (p.of[d] - s.of[d])
            for c in clash
            for d in (clash if not (self.column and s.row and p.row) else (c,))
        ):
            raise Broken(f"false: {s} against {p}")
        colv, stamped = {}, cols
        if self.column and winner.row:
            stamped = differing & (by_p if s_wins else by_s) if loser.row else ()
            colv = {**winner.colv, **dict.fromkeys(stamped, (nick, stamp))}
        log = frozenset().union(*loser.of) - frozenset().union(*winner.of)
        log |= frozenset(e for c in cols for e in loser.of[c] - winner.of[c])
        return Version(winner.row, {**lineage, nick: stamp}, colv, winner.prio, of), log, stamped

    def bounds(self, cs, pub, sub):
        """What through and settled will be once both sides are done."""
        lists = {**sub.failed.get(pub.name, {}), **cs.failed_up} if not cs.up else cs.failed_up
        below = [sub.through[k] for k in sub.live()] if self.on("through below") else []
        waits = lists and self.on("through before failed")
        cs.through = 0 if waits else min([sub.clock, *below])
        waits = cs.failed_down and self.on("settled before failed")
        cs.settled, cs.known = (0, 0) if waits else (pub.settled, pub.known)

    # -- carrying out -----------------------------------------------------------------------------------------------------

    def carry_out(self, cs, stop):
        if cs not in self.staged:
            self.staged.append(cs)
        for step in STOPS[stop]:
            if step not in cs.done:
                cs.done.add(step)
                getattr(self, f"_{step}")(cs, self.r[cs.pub], self.r[cs.sub])
        if len(cs.done) == 4:
            self.staged.remove(cs)

    def recover(self, name, *, as_sub=False):
        for cs in list(self.staged):
            if cs.sub == name and (as_sub or self.on("own side first")):
                self.carry_out(cs, None)
            elif cs.pub == name and "pub" not in cs.done:
                cs.done.add("pub")
                self._pub(cs, self.r[cs.pub], self.r[cs.sub])

    def _pub(self, cs, pub, sub):
        mark = self.side(pub, cs.to_pub, cs.up_gens, sub.name, cs)
        if cs.wipe:
            cs.down_mark = pub.number(cs.guid) or cs.down_mark
        elif cs.up:  # both sides have what was received now
            cs.down_mark = mark
        if cs.down:
            pub.failed[sub.name] = dict(cs.failed_down)
        if sub.part is not None:
            pub.there[sub.name] = set(cs.there)

    def again(self, cs):
        return (
            cs.again
            if any(guid == cs.again for _, guid in (*cs.to_pub.values(), *cs.to_sub.values()))
            else None
        )

    def _sub(self, cs, pub, sub):
        if cs.wipe:
            sub.meta.clear()
            sub.failed.clear()
            if self.on("reinit marks"):
                sub.add(cs.guid + " empty")
            sub.cleaned = sub.last
            sub.add(cs.guid, 0, pub.name)
            cs.up_mark = sub.last
        mark = self.side(sub, cs.to_sub, cs.down_gens, pub.name, cs)
        if cs.down and not cs.wipe:
            cs.up_mark = mark
        if cs.up:
            for key in sub.failed.get(pub.name, {}).keys() & sub.meta.keys() - cs.new:
                sub.meta[key] = replace(sub.meta[key], born=0)
            for key in cs.new & sub.meta.keys():
                sub.meta[key] = replace(sub.meta[key], born=NEVER)
            sub.failed[pub.name] = dict(cs.failed_up)

    def side(self, replica, changes, gens, peer, cs):
        """Carry out one side; return its last generation before late changes."""
        wipe, again = cs.wipe and replica.name == cs.sub, self.again(cs)
        for guid, highest, _ in gens:
            if replica.number(guid) is None:
                replica.add(guid, highest, peer)
                if self.on("clock of generations"):
                    replica.clock = max(replica.clock, highest)
        if again:
            replica.add(again)
        if cs.resolves:
            replica.clock = max(replica.clock, cs.clock + 1)
            replica.add(cs.guid, cs.clock + 1)
        late = []
        for key, (version, guid) in changes.items():
            written, before = replica.rows.get(key), replica.version(key)
            is_late = written != replica.captured.get(key)
            if version is None:  # LEAVE; a row that was written late comes back as a new one
                self.replaced(replica, key, guid)
                replica.captured.pop(key, None)
                replica.meta.pop(key, None)
                if not is_late:
                    replica.rows.pop(key, None)
                continue
            if wipe and not version.recorded and version.row is None:  # of another partition, or unknown
                replica.of[key] = version.of
                replica.captured.pop(key, None)
                if not is_late:
                    replica.rows.pop(key, None)
                continue
            self.replaced(replica, key, version.of)
            gen = replica.number(guid)
            if gen is None:  # what both sides resolved or merged: a resolution has the next version
                gen = replica.add(guid, cs.clock + 1 if guid == cs.guid else 0, replica.name)
                replica.clock = max(replica.clock, replica.gens[gen][1])
            if wipe and not (version.recorded and self.on("reinit copies")):
                replica.of[key] = version.of
            else:
                replica.put(key, version, gen)
                replica.note_parts(gen, version.row)
                replica.note_parts(replica.number(cs.guid), replica.captured.get(key), version.row)
            replica.set_row(replica.captured, key, version.row)
            if is_late and (written or version.row):
                late.append((key, before, version, written))
            else:
                replica.set_row(replica.rows, key, version.row)
        last = replica.last
        if not late:
            return last
        gen = replica.add(self.guid())
        for key, before, version, written in late:
            writer = replica.nick + LATE
            if version.row == before.row:  # the session left the row as it was: the late write follows it
                final = self.edit(replica, key, version, written, writer)
            else:
                edited = self.edit(replica, key, before, written, writer)
                if wipe:  # what it was based on cannot be compared any more
                    entry = writer, edited.lineage[writer]
                    colv = {c: e for c, e in edited.colv.items() if e == entry}
                    edited = replace(edited, lineage=dict([entry]), colv=colv)
                edited = replace(edited, prio=max(edited.prio, version.prio + (edited.prio == version.prio)))
                stamp = self.stamp(replica, merged(edited.lineage, version.lineage))
                is_new = replica.part is not None and before.row is None and not before.recorded
                known = 0 if is_new and self.on("fresh rows know nothing") else cs.floor
                final, log, cols = self.resolve(
                    edited, version, known, known, -replica.nick, stamp, is_checked=not (wipe or is_new)
                )
                final = self.event(key, final, cols, -replica.nick, replica.name)
                self.logged |= set(log)
            is_new = before.row is None and not before.recorded
            replica.put(key, replace(final, prio=replica.prio), gen, gen if is_new else 0)
            replica.set_row(replica.captured, key, final.row)
            replica.set_row(replica.rows, key, final.row)
        return last

    def _subwm(self, cs, pub, sub):
        if cs.up:
            sub.sent[pub.name] = cs.up_mark
            sub.told = max(sub.told[0], cs.through), sub.told[1]
        if cs.down:
            sub.recv[pub.name] = cs.down_mark
        cs.settled = cs.settled if self.on("settled at staging") else max(cs.settled, pub.settled)
        if cs.wipe or cs.down or not self.on("settled needs download"):
            sub.settled = max(sub.settled, cs.settled)
            sub.known = max(sub.known, cs.known)
        sub.told = sub.told[0], max(sub.told[1], self.knows_below(sub))

    def knows_below(self, sub):
        return min([sub.settled, *(sub.knows[k] for k in sub.live())])

    def _pubwm(self, cs, pub, sub):
        if cs.up:
            pub.recv[sub.name] = cs.up_mark
        if cs.down:
            pub.sent[sub.name] = cs.down_mark
        cs.through = cs.through if self.on("through at capture") else max(cs.through, sub.clock)
        if cs.wipe or cs.up or not self.on("through needs upload"):
            pub.through[sub.name] = max(pub.through.get(sub.name, 0), cs.through)
        pub.knows[sub.name] = max(pub.knows.get(sub.name, 0), self.knows_below(sub))
        self.settle_root(pub)

    def cleanup(self, name):
        self.recover(name)
        replica = self.r[name]
        self.settle_root(replica)
        relations = replica.relations()
        upto = min([replica.sent[k] for k in relations if self.on("C acknowledged")], default=replica.last)
        bound = replica.known if self.on("C known") else replica.settled
        above = [n for n, (_, highest, _) in replica.gens.items() if highest > bound]
        if self.on("C settled"):
            upto = min([upto, *(n - 1 for n in above)])
        replica.cleaned = max(replica.cleaned, upto)
        for key, meta in list(
            replica.meta.items()
        ):  # what is refused somewhere is not known, so C stays below it
            if meta.gen <= replica.cleaned:
                del replica.meta[key]
                self.stats["cleaned rows"] += 1
        for number in [
            n for n in replica.gens if n < min([replica.cleaned, *(replica.sent[k] for k in relations)])
        ]:
            del replica.gens[number]

    def below(self, name):
        return [name, *(d for k in self.r[name].through for d in self.below(k))]

    def expire(self, name):
        pub = self.r[self.r[name].up]
        pub.dead.add(name)
        self.suspect.add(name)
        for below in self.below(name):
            for key in self.keys:
                for mine, theirs in zip(self.r[below].of[key], pub.of[key], strict=True):
                    self.version.update(dict.fromkeys(mine - theirs, NEVER))
            for cs in self.staged:
                if cs.sub == below:
                    self.version.update(dict.fromkeys(self.brought(cs, pub), NEVER))

    def brought(self, cs, pub):
        """The edits that a staged session is to bring to its subscriber and that a replica does not have."""
        pairs = [(version.of, pub.of[key]) for key, (version, _) in cs.to_sub.items() if version]
        return {e for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True) for e in a - b}

    def revive(self, name):
        """Somebody puts the relation back without reinitialising: an old copy of the row, a longer retention."""
        self.r[self.r[name].up].dead.discard(name)

    def reinit(self, name, upload, stop=None):
        pub, sub = self.begin(name)
        sub.clock = pub.clock = max(pub.clock, sub.clock)
        if sub.refuses:
            raise Refused("its table takes no rows")
        start = min(sub.sent[pub.name], pub.recv[name])
        new = {
            n
            for n, (guid, _, origin) in sub.gens.items()
            if n > start and origin != pub.name and pub.number(guid) is None
        }
        unsent = {k for k, meta in sub.meta.items() if meta.gen in new}
        if self.on("reinit lists"):
            unsent |= set(sub.failed.get(pub.name, ()))
        cs = Changeset(pub.name, name, True, True, self.guid(), up_mark=0, down_mark=pub.last, wipe=True)
        final = {k: pub.version(k) for k in self.keys}
        for key in sorted(unsent):
            s, p = sub.version(key), final[key]
            mine = {e for c in range(self.ncols) for e in s.of[c] - p.of[c]}
            if not upload or s.row == p.row:
                self.gone |= mine
                continue
            is_new = sub.meta[key].born > start and p.row is None
            stamp = max(pub.clock, *[0, *p.lineage.values()]) + 1
            by_lineage = not self.on("reinit by value") and covers(s.lineage, p.lineage, sub.settled)
            by_lineage |= self.is_seen(pub, sub, key)
            is_new |= by_lineage
            if key in pub.refuses or not (is_new or s.prio > p.prio):
                self.logged |= mine
                self.gone |= mine
                continue
            self.logged |= {e for c in range(self.ncols) for e in p.of[c] - s.of[c]} if not is_new else set()
            lineage = {**p.lineage, -pub.nick: stamp}
            differing = [c for c in range(self.ncols) if not p.row or not s.row or s.row[c] != p.row[c]]
            colv = (
                {**(p.colv if p.row else {}), **dict.fromkeys(differing, (-pub.nick, stamp))}
                if self.column and s.row
                else {}
            )
            if not self.on("reinit stamps"):
                lineage, colv = {**merged(s.lineage, p.lineage), -pub.nick: 0}, s.colv
            won = Version(s.row, lineage, colv, s.prio, s.of if by_lineage else joined(s.of, p.of))
            cs.to_pub[key] = (
                self.event(
                    key, won, differing if self.column and s.row else range(self.ncols), -pub.nick, pub.name
                ),
                cs.guid,
            )
            self.version.update(dict.fromkeys(mine, NEVER if self.is_suspect(pub.name) else stamp))
            final[key] = cs.to_pub[key][0]
        for key, version in final.items():
            if version.row is not None and not sub.sees(
                version.row
            ):  # of another partition: nothing of it is known
                version = Version(None, {}, {}, 100, sub.of[key], recorded=False)
            cs.to_sub[key] = version, cs.guid
        cs.there = {k for k, version in final.items() if sub.sees(version.row)}
        cs.through, cs.settled, cs.known = sub.clock, pub.settled, pub.known
        pub.dead.discard(name)
        self.suspect.discard(name)
        pub.through[name] = max(pub.through.get(name, 0), sub.clock)
        pub.knows[name] = max(pub.knows.get(name, 0), pub.known)
        if self.on("reinit below"):
            for below in sub.through:
                self.expire(below)
        self.carry_out(cs, stop)

    def is_seen(self, pub, sub, key):
        """Whether the subscriber has received the publisher's version of a row: its change replaces it knowingly."""
        received = sub.recv[pub.name]
        if sub.part is not None:  # it does not know rows outside of its partition
            return False
        if self.on("reinit sees uncleaned") and pub.cleaned > received:
            return False
        if self.on("reinit sees no refused") and key in pub.failed.get(sub.name, ()):
            return False
        return key not in pub.meta or pub.meta[key].gen <= received

    def unsubscribe(self, name):
        """End a leaf's subscription and give its place to a new one, from a snapshot."""
        sub = self.r[name]
        pub = self.r[sub.up]
        self.recover(pub.name)
        for cs in [cs for cs in self.staged if cs.sub == name]:
            self.gone |= self.brought(cs, pub)
            self.staged.remove(cs)
        for key in self.keys:
            for mine, theirs in zip(sub.of[key], pub.of[key], strict=True):
                self.gone |= mine - theirs
        for memory in (pub.sent, pub.recv, pub.through, pub.knows, pub.failed, pub.there):
            memory.pop(name, None)
        pub.dead.discard(name)
        new = self.r[name] = self.fresh(name, pub.name)
        new.sent[pub.name] = new.recv[pub.name] = pub.sent[name] = pub.recv[name] = 0
        pub.through[name], pub.knows[name] = pub.clock, pub.known
        self.reinit(name, upload=False)
