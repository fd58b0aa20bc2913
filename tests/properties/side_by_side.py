"""Histories of single rows, played on the reference model and on the engine side by side.

All histories of a run share one schedule: who writes when, and who synchronises when. A history says what
becomes of one row in the slots that the schedule has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mergerepl.model.results import PhaseCounts
from tests.properties.engine_network import COLUMNS, EngineNetwork, Setting, differing_keys
from tests.properties.reference import Direction, Network, Row

OPERATIONS = ("none", "set a", "set b", "set a+b", "delete or insert")
DEEP_OPERATIONS = (*OPERATIONS, "set c")
"""With a column that is NULL now and then."""

START: Row = {"a": "a0", "b": "b0", "c": None}


@dataclass(frozen=True)
class Slot:
    """A moment in which the users of one replica write, in one commit."""

    replica: str
    number: int


@dataclass(frozen=True)
class Session:
    """A moment in which one subscriber synchronises."""

    subscriber: str
    direction: Direction = "both"


Schedule = tuple[Slot | Session, ...]


@dataclass(frozen=True)
class History:
    """One row: as the snapshot has it (None: not there), and what happens to it in which slot."""

    row: Mapping[str, str | None] | None
    operations: Mapping[Slot, str]


NewEngine = Callable[[Setting, Mapping[str, Row]], EngineNetwork]
"""Makes an engine of its own, in a folder of its own, with the snapshot's rows."""


def new_model(setting: Setting, snapshot: Mapping[str, Row]) -> Network:
    """Return the reference model of a setting."""
    return Network(
        setting.subscribers,
        columns=COLUMNS,
        snapshot=snapshot,
        tracking=setting.tracking,  # type: ignore[arg-type]
        resolution=setting.resolution,  # type: ignore[arg-type]
    )


class Together:
    """Model and engine, given the same operations slot by slot."""

    def __init__(self, model: Network, engine: EngineNetwork) -> None:
        self.model, self.engine = model, engine
        self.miscounted: list[str] = []
        """Sessions that reported other counts than the differences they made (I10)."""

    def slot(self, slot: Slot, operations: Mapping[str, str]) -> None:
        """Let one replica's user do one operation per key, in one commit."""
        before = {key: dict(row) for key, row in self.model.rows(slot.replica).items()}
        for key, operation in operations.items():
            _play(self.model, slot, key, operation)
        after = self.model.rows(slot.replica)
        self.engine.write(
            slot.replica, {k: after.get(k) for k in operations if after.get(k) != before.get(k)}
        )

    def sync(self, subscriber: str, direction: Direction = "both") -> None:
        """Run one session of both, and compare what it says that it did with the differences it made."""
        expected = counted(self.model, subscriber, direction)
        session = self.engine.sync(subscriber, direction)
        conflicts = (session.upload + session.download).conflicts
        reported = (_reported(session.upload), _reported(session.download), conflicts)
        # A session that died before has reported its own part.
        if reported != expected and not session.recovered:
            self.miscounted.append(f"{subscriber}, {direction}: reported {reported}, made {expected}")

    def differing(self) -> dict[str, list[str]]:
        """Return key -> what differs between engine and model."""
        return differing_keys(self.engine, self.model)


def _reported(counts: PhaseCounts) -> Moved:
    return (counts.inserts, counts.updates, counts.deletes)


Moved = tuple[int, int, int]
"""Rows of a table that came, changed and went."""


def counted(model: Network, subscriber: str, direction: Direction) -> tuple[Moved, Moved, int]:
    """Run one session of the model; return the differences it made at the hub and the subscriber, and its conflicts."""
    hub, theirs = (dict(model.rows(name)) for name in (model.hub.name, subscriber))
    conflicts = model.sync(subscriber, direction).conflicts
    return _moved(hub, model.rows(model.hub.name)), _moved(theirs, model.rows(subscriber)), conflicts


def _moved(before: Mapping[str, Row], after: Mapping[str, Row]) -> Moved:
    both = before.keys() & after.keys()
    changed = sum(before[key] != after[key] for key in both)
    return (len(after) - len(both), changed, len(before) - len(both))


def _play(model: Network, slot: Slot, key: str, operation: str) -> None:
    """Do one operation in the model: `a` gets a token of the writer, `b` the same value everywhere, `c` NULL at times."""
    replica, is_there = slot.replica, key in model.rows(slot.replica)
    values = {"a": f"{replica}{slot.number}", "b": f"b{slot.number}"}
    if operation == "delete or insert":
        model.write(replica, key, "delete" if is_there else "insert", None if is_there else values)
    elif operation == "set c" and is_there:
        model.write(replica, key, "update", {"c": None if slot.number % 2 else f"{replica}{slot.number}"})
    elif operation != "none" and is_there:
        chosen = operation.removeprefix("set ").split("+")
        model.write(replica, key, "update", {name: values[name] for name in chosen})


def play(
    new_engine: NewEngine, setting: Setting, schedule: Schedule, histories: Mapping[str, History]
) -> Together:
    """Play all histories, each on a row of its own, through one schedule."""
    snapshot = {key: dict(history.row) for key, history in histories.items() if history.row is not None}
    together = Together(new_model(setting, snapshot), new_engine(setting, snapshot))
    for moment in schedule:
        if isinstance(moment, Session):
            together.sync(moment.subscriber, moment.direction)
        else:
            together.slot(
                moment, {key: h.operations[moment] for key, h in histories.items() if moment in h.operations}
            )
    return together
