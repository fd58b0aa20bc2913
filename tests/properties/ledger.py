"""A network with its users: every write carries a unique token, so that its fate can be looked up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tests.properties.reference import CRASH_POINTS, Direction, Network, Result, Row, Subscriber, Value
from tests.properties.strategies import COLUMNS, KEYS, SNAPSHOT, History, Step

RowImage = tuple[Value, ...]
SMALL: tuple[Value, ...] = (None, "x", "y")


def image(row: Row) -> RowImage:
    """Return a row as a tuple, in column order."""
    return tuple(row[c] for c in COLUMNS)


class World:
    """Plays a history on a network and keeps the users' side of the story."""

    def __init__(self, history: History, **options: Any) -> None:
        config = history.config
        choices: dict[str, Any] = {
            "tracking": "column" if config & 1 else "row",
            "resolution": "columns" if config & 2 else "row",
        }
        subscribers = [
            Subscriber("north", "server", 75.0),
            Subscriber("south", "client"),
            Subscriber("east", "client")
            if config & 4
            else Subscriber("east", "server", 75.0 if config & 8 else 25.0),
        ]
        self.net = Network(subscribers, columns=COLUMNS, snapshot=SNAPSHOT, **{**choices, **options})
        self.names = ("hub", *self.net.subscribers)
        self.tokens: dict[str, tuple[str, str]] = {}
        self.superseded: set[str] = set()
        self.values: set[tuple[str, str, Value]] = {
            (k, c, r[c]) for k, r in SNAPSHOT.items() for c in COLUMNS
        }
        self.images: set[tuple[str, RowImage]] = {(k, image(r)) for k, r in SNAPSHOT.items()}
        self._numbers = itertools.count(1)

    # -- playing -------------------------------------------------------------------------------------------
    def write(self, name: str, key: str, op: str, columns: tuple[str, ...] = COLUMNS, small: int = 0) -> bool:
        """Do one user write; with `small` the values come from a domain of three, NULL among them."""
        before = self.net.rows(name).get(key)
        values: dict[str, Value] = {}
        for number, column in enumerate(columns):
            if op == "delete":
                break
            values[column] = SMALL[(small + number) % 3] if small else f"t{next(self._numbers)}"
        if not self.net.write(name, key, op, values):
            return False
        after = self.net.rows(name).get(key)
        for column in COLUMNS:
            new = after[column] if after else None
            if before and (not after or before[column] != new):
                self.superseded.add(str(before[column]))
            if after:
                self.values.add((key, column, new))
                if new is not None and new.startswith("t"):
                    self.tokens[new] = (key, column)
        if after:
            self.images.add((key, image(after)))
        return True

    def upsert(self, name: str, key: str, columns: tuple[str, ...] = COLUMNS, small: int = 0) -> None:
        """Update the row, or insert it where there is none."""
        if not self.write(name, key, "update", columns, small):
            self.write(name, key, "insert", COLUMNS, small)

    def step(self, step: Step) -> None:
        """Do one step of a history."""
        name = self.names[step.replica % len(self.names)]
        if step.op in ("delete", "upsert"):
            if step.op == "upsert":
                self.upsert(name, KEYS[step.key], step.columns, step.small)
            else:
                self.write(name, KEYS[step.key], "delete")
        else:
            subscriber = self.names[1 + step.replica % (len(self.names) - 1)]
            direction: Direction = (
                "upload" if step.op == "upload" else "download" if step.op == "download" else "both"
            )
            crash = CRASH_POINTS[step.small % len(CRASH_POINTS)] if step.op == "crash" else None
            self.net.sync(subscriber, direction, crash)

    def play(self, history: History, after_step: Callable[[World], None] | None = None) -> World:
        """Do every step."""
        for step in history.steps:
            self.step(step)
            if after_step:
                after_step(self)
        return self

    def one_pass(self) -> list[Result]:
        """Synchronise every subscriber once."""
        return [self.net.sync(name) for name in self.net.subscribers]

    def quiesce(self) -> World:
        """Two passes: all the invariants allow."""
        self.one_pass()
        self.one_pass()
        return self

    # -- looking -------------------------------------------------------------------------------------------
    def state(self, *, metadata: bool = True) -> Any:
        """Return everything but the generation numbers and guids."""
        replicas = {}
        for name, r in self.net.replicas.items():
            tables = [
                {k: (m.lineage, m.colv) for k, m in table.items()} for table in (r.contents, r.tombstones)
            ]
            replicas[name] = (r.rows, tables if metadata else None)
        log = [
            (c.key, c.type, c.winner, c.loser, c.row, c.winner_lineage, c.loser_lineage)
            for c in self.net.conflicts
        ]
        return replicas, sorted(log, key=repr)

    def lost(self) -> list[str]:
        """Return the tokens not in the final rows, nor overwritten by a user who saw them, nor logged."""
        kept = {str(row[c]) for row in self.net.rows("hub").values() for c in COLUMNS}
        logged = {str(c.row[col]) for c in self.net.conflicts if c.row for col in COLUMNS}
        return [t for t in self.tokens if t not in kept | logged | self.superseded]

    def lost_changes(self) -> list[int]:
        """Return changes the publisher never took in, or undone without a user or a log row."""
        net, lost = self.net, []
        for number, event in enumerate(net.events):
            if event.kind == "resolve":
                continue
            row = net.rows("hub").get(event.key)
            if number not in net.hub.seen.get(event.key, frozenset()):
                lost.append(number)
            elif (event.kind == "delete") == (row is not None):
                against = "delete" if event.kind != "delete" else "insert"
                by_user = any(
                    number in e.past and e.kind == against and e.key == event.key for e in net.events
                )
                logged = any(number in c.loser_seen - c.winner_seen for c in net.conflicts)
                if not by_user and not logged:
                    lost.append(number)
        return lost
