"""The shrinker finds the smallest history of a planted difference, within its runs; without Spark."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mergerepl.model.results import PhaseCounts, SessionResult
from tests.properties.engine_network import COLUMNS, Setting, Tracked, model_conflict
from tests.properties.reference import Direction, Row, Subscriber
from tests.properties.shrinking import Case, assert_equal, read_case, save_case
from tests.properties.side_by_side import (
    OPERATIONS,
    START,
    History,
    Schedule,
    Session,
    Slot,
    counted,
    new_model,
    play,
)

SETTING = Setting((Subscriber("north", "server", 75.0), Subscriber("south", "client")), "row")
SLOTS = [Slot(replica, number) for number in range(3) for replica in ("hub", "north")]
SESSION = Session("north")
THREE_SESSIONS: Schedule = (*SLOTS[:2], SESSION, *SLOTS[2:4], SESSION, *SLOTS[4:], SESSION)


class Exact:
    """A stand-in for the engine that does what the model does."""

    def __init__(self, setting: Setting, snapshot: Mapping[str, Row]) -> None:
        self.model = new_model(setting, snapshot)
        self.names = tuple(self.model.replicas)

    def write(self, replica: str, changed: Mapping[str, Mapping[str, str | None] | None]) -> None:
        for key, row in changed.items():
            self.model.replicas[replica].put_row(self.model.rows(replica), key, dict(row) if row else None)

    def sync(self, subscriber: str, direction: Direction = "both") -> SessionResult:
        up, down, conflicts = counted(self.model, subscriber, direction)
        upload, download = PhaseCounts(*up, conflicts), PhaseCounts(*down)
        return SessionResult("net", subscriber, "succeeded", upload, download)

    def rows(self, replica: str) -> dict[str, list[str | None]]:
        return {key: [row[c] for c in COLUMNS] for key, row in self.model.rows(replica).items()}

    def conflicts(self) -> list[Any]:
        return [model_conflict(conflict) for conflict in self.model.conflicts]

    def tracked(self, replica: str) -> dict[str, Tracked]:
        there = self.model.replicas[replica]
        return {
            key: Tracked(meta.lineage, {name: nickname for name, (nickname, _) in meta.colv.items()})
            for key, meta in (there.tombstones | there.contents).items()
        }


class Forgetful(Exact):
    """Does not log an update that loses to a delete."""

    def conflicts(self) -> list[Any]:
        return [conflict for conflict in super().conflicts() if conflict[1] != 3]


def random_histories(seed: int, slots: list[Slot], count: int) -> dict[str, History]:
    drawn = random.Random(seed)
    return {
        f"r{number:04d}": History(
            drawn.choice((START, None)), {slot: drawn.choice(OPERATIONS) for slot in slots}
        )
        for number in range(count)
    }


def test_equal_histories_are_no_failure(tmp_path: Path) -> None:
    histories = random_histories(1, SLOTS, 200)
    differing = play(Exact, SETTING, THREE_SESSIONS, histories).differing()
    assert_equal(Exact, SETTING, THREE_SESSIONS, histories, differing, note="seed 1", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_planted_difference_is_shrunk_saved_and_found_again(tmp_path: Path) -> None:
    histories = random_histories(2, SLOTS, 500)
    differing = play(Forgetful, SETTING, THREE_SESSIONS, histories).differing()
    assert len(differing) > 10
    with pytest.raises(
        AssertionError, match=r"histories differ\. seed 2\. The smallest is saved as .*found-"
    ):
        assert_equal(Forgetful, SETTING, THREE_SESSIONS, histories, differing, note="seed 2", folder=tmp_path)
    (file,) = tmp_path.iterdir()
    case = read_case(file)
    (hub_slot, hub_operation), (north_slot, north_operation) = sorted(
        case.history.operations.items(), key=lambda item: item[0].replica
    )
    assert (hub_slot.replica, hub_operation) == ("hub", "delete or insert")
    assert (north_slot.replica, north_operation[:4]) == ("north", "set ")
    assert {moment for moment in case.schedule if isinstance(moment, Slot)} == {hub_slot, north_slot}
    assert play(Forgetful, case.setting, case.schedule, {"k": case.history}).differing().keys() == {"k"}
    assert not play(Exact, case.setting, case.schedule, {"k": case.history}).differing()


def test_a_difference_that_needs_other_rows_is_said_to_and_not_saved(tmp_path: Path) -> None:
    histories = random_histories(4, SLOTS, 20)
    differing = {"r0003": ["a row differs"]}
    with pytest.raises(AssertionError, match=r"By itself none differs[\s\S]*a row differs"):
        assert_equal(Exact, SETTING, THREE_SESSIONS, histories, differing, note="seed 4", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_saved_case_reads_back_the_same(tmp_path: Path) -> None:
    case = Case(SETTING, THREE_SESSIONS, History(None, {SLOTS[1]: "delete or insert"}), "a test")
    assert read_case(save_case(case, tmp_path)) == case
    save_case(case, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
