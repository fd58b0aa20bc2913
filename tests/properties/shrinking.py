"""From thousands of histories in which model and engine differ to the smallest one, in a few runs.

What a run costs is its commits, not its rows. So one run tries every part of a history's operations at once, each as
a row of its own. The sessions, which all rows share, stay.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.properties.engine_network import Setting
from tests.properties.reference import Subscriber
from tests.properties.side_by_side import History, NewEngine, Schedule, Session, Slot, play

REGRESS = Path(__file__).parents[1] / "regress"
MOST_RUNS = 6
ALL_PARTS_UP_TO = 8
"""Operations whose subsets are all tried at once: 2^8 rows a history."""

Differing = Callable[[Schedule, Mapping[str, History]], Mapping[str, list[str]]]
"""Plays histories through a schedule; key -> what differs."""


@dataclass(frozen=True)
class Case:
    """One history with all that is needed to play it again."""

    setting: Setting
    schedule: Schedule
    history: History
    note: str = ""

    def to_json(self) -> str:
        """Return the case as a regression file holds it: one moment and one operation a line."""
        schedule = [
            {"sync": moment.subscriber, "direction": moment.direction}
            if isinstance(moment, Session)
            else {"write": moment.replica, "slot": moment.number}
            for moment in self.schedule
        ]
        # In the schedule's order: a person reads it.
        operations = [
            [moment.replica, moment.number, self.history.operations[moment]]
            for moment in self.schedule
            if isinstance(moment, Slot) and moment in self.history.operations
        ]
        content = {
            "note": json.dumps(self.note),
            "setting": json.dumps(asdict(self.setting)),
            "schedule": _one_a_line(schedule),
            "row": json.dumps(self.history.row),
            "operations": _one_a_line(operations),
        }
        return "{\n" + ",\n".join(f'  "{name}": {text}' for name, text in content.items()) + "\n}\n"


def _one_a_line(items: Sequence[object]) -> str:
    return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in items) + "\n  ]"


def read_case(file: Path) -> Case:
    """Read a regression file."""
    content = json.loads(file.read_text(encoding="utf-8"))
    stated = content["setting"]
    setting = Setting(
        tuple(Subscriber(**subscriber) for subscriber in stated["subscribers"]),
        stated["tracking"],
        stated["resolution"],
    )
    schedule: Schedule = tuple(
        Session(moment["sync"], moment["direction"])
        if "sync" in moment
        else Slot(moment["write"], moment["slot"])
        for moment in content["schedule"]
    )
    operations = {Slot(replica, number): operation for replica, number, operation in content["operations"]}
    assert operations.keys() <= set(schedule), f"{file.name}: an operation in a slot that the schedule lacks"
    return Case(setting, schedule, History(content["row"], operations), content["note"])


def save_case(case: Case, folder: Path) -> Path:
    """Write a regression file, named after what it holds: finding it again adds no second one."""
    text = case.to_json()
    file = folder / f"found-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    file.write_text(text, encoding="utf-8")
    return file


def assert_equal(
    new_engine: NewEngine,
    setting: Setting,
    schedule: Schedule,
    histories: Mapping[str, History],
    differing: Mapping[str, list[str]],
    *,
    note: str,
    folder: Path = REGRESS,
) -> None:
    """Fail if histories differ: with the smallest one, saved to be played on every run from now on.

    Raises: AssertionError.
    """
    if not differing:
        return
    found = {key: histories[key] for key in differing if key in histories}
    assert found, f"keys that no history has: {differing}"

    def run(schedule: Schedule, histories: Mapping[str, History]) -> Mapping[str, list[str]]:
        return play(new_engine, setting, schedule, histories).differing()

    short, history, problems = shrink(run, schedule, found)
    case = Case(setting, short, history, note)
    if problems:
        where = f"The smallest is saved as {save_case(case, folder)}"
    else:
        # A file would say nothing: what it holds does not differ.
        where = "By itself none differs: other rows, or the keys, have a part in it. One of them"
        problems = next(iter(differing.values()))
    raise AssertionError(
        f"{len(differing)} histories differ. {note}. {where}:\n{case.to_json()}" + "\n".join(problems)
    )


def shrink(
    run: Differing, schedule: Schedule, histories: Mapping[str, History]
) -> tuple[Schedule, History, list[str]]:
    """Return the smallest history that still differs, its schedule, and what differs (nothing: not by itself)."""
    best, problems = min(map(_done, histories.values()), key=_size), list[str]()
    for _ in range(MOST_RUNS):
        parts = {f"k{number:04d}": part for number, part in enumerate(_parts(best))}
        differing = run(schedule, parts)
        if not parts.keys() & differing.keys():
            break
        key = min(parts.keys() & differing.keys(), key=lambda key: (_size(parts[key]), key))
        is_smallest = _size(parts[key]) == _size(best) or _size(best) <= ALL_PARTS_UP_TO
        best, problems = parts[key], differing[key]
        if is_smallest:
            break
    # A slot without operations is no commit: leaving it out changes nothing that would need a run.
    return tuple(m for m in schedule if isinstance(m, Session) or m in best.operations), best, problems


def _done(history: History) -> History:
    """Leave out the operations that do nothing."""
    return History(history.row, {slot: op for slot, op in history.operations.items() if op != "none"})


def _size(history: History) -> int:
    return len(history.operations)


def _parts(history: History) -> Iterator[History]:
    """Give all parts of the history, itself included; of a long one itself and those without one operation."""
    items = list(history.operations.items())
    least = 0 if len(items) <= ALL_PARTS_UP_TO else len(items) - 1
    for length in range(least, len(items) + 1):
        for chosen in itertools.combinations(items, length):
            yield History(history.row, dict(chosen))
