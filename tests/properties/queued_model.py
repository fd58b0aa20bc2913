"""A model of queued updating subscriptions in plain Python, checked by drawn histories.

What it models: one article's table at the publisher and at subscribers that write; the log; the queue, which is the edits
that a subscriber's own table log has since the last reading; the version check at the publisher (publisher wins); agents
that die and begin again. Rows are values, their versions the values themselves.

What it checks, by number:
 Q1 When everybody rests, all tables are the publisher's.
 Q2 No edit is lost silently: the value of each net edit reached the publisher, was there already, or is logged as a loser.
 Q3 A death between any two steps of a reading changes nothing: neither rows nor losers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

KEYS = "abc"
ALL, LEFT_OUT, UNREAD = "sent like all others", "originator left out", "left out where an edit is unread"
"""The rules of what an originator gets of its own transactions."""

Row = int | None
Edit = tuple[bool, str, Row, Row]
"""Whether distribution made it, its key, the row before and the row after."""


@dataclass
class Subscriber:
    """A table with its log, and how far the log was read (`read`) and the commands were applied (`position`)."""

    table: dict[str, Row] = field(default_factory=dict)
    log: list[Edit] = field(default_factory=list)
    read: int = 0
    position: int = 0
    losers: list[tuple[int, str, Row, Row]] = field(default_factory=list)
    fates: dict[tuple[int, str], str] = field(default_factory=dict)
    merged: tuple[int, int, dict[str, Row], dict[str, tuple[Row, Row]]] | None = None
    """The run whose MERGE is done: begin, end, the publisher just before it, its messages."""

    def write(self, key: str, row: Row, *, is_own: bool) -> None:
        before = self.table.get(key)
        if before != row:
            self.table[key] = row
            self.log.append((is_own, key, before, row))

    def run(self) -> tuple[int, int, dict[str, tuple[Row, Row]]]:
        """The next edits without a commit of ours between them, netted by key, with the end of both."""
        begin = self.read
        while begin < len(self.log) and self.log[begin][0]:
            begin += 1
        end, net = begin, dict[str, tuple[Row, Row]]()
        while end < len(self.log) and not self.log[end][0]:
            _, key, before, after = self.log[end]
            net[key] = (net[key][0] if key in net else before, after)
            end += 1
        return begin, end, {key: each for key, each in net.items() if each[0] != each[1]}


@dataclass
class World:
    """A publisher, its log (originator, key, row) and its subscribers."""

    rule: str
    cuts: bool = True
    table: dict[str, Row] = field(default_factory=dict)
    log: list[tuple[int | None, str, Row]] = field(default_factory=list)
    subscribers: list[Subscriber] = field(default_factory=list)

    def write(self, key: str, row: Row, origin: int | None = None) -> None:
        if self.table.get(key) != row:
            self.table[key] = row
            self.log.append((origin, key, row))

    def read_queue(self, number: int, *, dies_after: int = 9) -> None:
        """Read one run of edits. Steps: 1 MERGE at the publisher, 2 losers, 3 the position; it may die after each."""
        at = self.subscribers[number]
        begin, end, messages = at.run()
        if at.merged is None:
            # The MERGE checks versions in the very snapshot that it changes.
            at.merged = begin, end, dict(self.table), messages
            for key, (old, new) in messages.items():
                if self.table.get(key) == old:
                    self.write(key, new, number)
        if dies_after == 1:
            return
        begin, end, before, messages = at.merged
        if not any(each[0] == begin for each in at.losers):
            for key, (old, new) in messages.items():
                is_taken = before.get(key) in (old, new)
                at.fates[begin, key] = "taken" if is_taken else "lost"
                if not is_taken:
                    at.losers.append((begin, key, old, new))
        if dies_after == 2:
            return
        at.read, at.merged = end, None

    def distribute(self, number: int, count: int) -> None:
        """Apply the next transactions, as upserts; one commit for the last row of each key."""
        at = self.subscribers[number]
        chosen = self.log[at.position : at.position + count]
        unread = {key for is_own, key, *_ in at.log[at.read :] if not is_own}
        net: dict[str, Row] = {}
        for origin, key, row in chosen:
            is_left_out = self.rule == LEFT_OUT or (self.rule == UNREAD and key in unread)
            if origin == number and is_left_out:
                continue
            net[key] = row
        for key, row in net.items():
            at.write(key, row, is_own=True)
        if chosen and self.cuts:
            # A batch is a commit also where it changes nothing, and cuts the edits before it from those after it.
            at.log.append((True, "", None, None))
        at.position += len(chosen)

    def rest(self) -> None:
        """Everything is read and distributed; two rounds are enough."""
        for _ in range(2):
            for number, at in enumerate(self.subscribers):
                while any(not each[0] for each in at.log[at.read :]):
                    self.read_queue(number)
            for number in range(len(self.subscribers)):
                self.distribute(number, len(self.log))


def history(seed: int, rule: str = ALL, *, cuts: bool = True) -> tuple[bool, int]:
    """Play a drawn history; return whether all tables are equal at rest, and the number of losers."""
    rng = random.Random(seed)
    start: dict[str, Row] = {key: 0 for key in KEYS if rng.random() < 0.5}
    world = World(rule, cuts, dict(start))
    world.subscribers = [Subscriber(dict(start)) for _ in range(rng.choice((1, 2, 2)))]
    for _ in range(rng.randint(4, 24)):
        number = rng.randrange(len(world.subscribers))
        key, row = rng.choice(KEYS), rng.choice((None, 1, 2, 3))
        kind = rng.random()
        if kind < 0.2:
            world.write(key, row)
        elif kind < 0.55:
            world.subscribers[number].write(key, row, is_own=False)
        elif kind < 0.75:
            # An agent that died is followed by one that finishes its work.
            if rng.random() < 0.3:
                world.read_queue(number, dies_after=rng.choice((1, 2)))
                if rng.random() < 0.5:
                    world.write(rng.choice(KEYS), rng.choice((None, 4)))
            world.read_queue(number)
        else:
            world.distribute(number, rng.randint(1, 4))
    world.rest()
    is_equal = all(at.table.get(key) == world.table.get(key) for at in world.subscribers for key in KEYS)
    for at in world.subscribers:
        logged = {(begin, key) for begin, key, *_ in at.losers}
        assert all((fate == "lost") == (place in logged) for place, fate in at.fates.items()), ("Q2", seed)
        assert len(logged) == len(at.losers), ("Q3", seed)
        assert at.run()[2] == {}, ("Q2", seed)
    return is_equal, sum(len(at.losers) for at in world.subscribers)
