"""Single histories as files: of thousands in which model and engine differ, the shortest is saved."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.properties.engine_network import Setting
from tests.properties.reference import Subscriber
from tests.properties.side_by_side import History, Schedule, Session, Slot

REGRESS = Path(__file__).parents[1] / "regress"


@dataclass(frozen=True)
class Case:
    """One history with all that is needed to play it again."""

    setting: Setting
    schedule: Schedule
    history: History
    note: str = ""

    def to_json(self) -> str:
        """Return the case as a regression file holds it, its operations in the schedule's order: a person reads it."""
        moments = [moment for moment in self.schedule if moment in self.history.operations]
        content = {
            "note": self.note,
            "setting": asdict(self.setting),
            "schedule": [
                {"sync": moment.subscriber, "direction": moment.direction}
                if isinstance(moment, Session)
                else {"write": moment.replica, "slot": moment.number}
                for moment in self.schedule
            ],
            "row": self.history.row,
            "operations": [[m.replica, m.number, self.history.operations[m]] for m in moments],
        }
        return json.dumps(content, indent=1) + "\n"


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
    setting: Setting,
    schedule: Schedule,
    histories: Mapping[str, History],
    differing: Mapping[str, list[str]],
    *,
    note: str,
    folder: Path = REGRESS,
) -> None:
    """Fail if histories differ: with the shortest one, saved to be played on every run from now on.

    Raises: AssertionError.
    """
    if not differing:
        return
    found = {key: done(histories[key]) for key in differing if key in histories}
    assert found, f"keys that no history has: {differing}"
    key = min(found, key=lambda key: (len(found[key].operations), key))
    short = found[key]
    # A slot without operations is no commit: leaving it out changes nothing.
    best = tuple(m for m in schedule if isinstance(m, Session) or m in short.operations)
    case = Case(setting, best, short, note)
    raise AssertionError(
        f"{len(differing)} histories differ. {note}. The shortest is saved as {save_case(case, folder)}:\n"
        f"{case.to_json()}" + "\n".join(differing[key])
    )


def done(history: History) -> History:
    """Leave out the operations that do nothing."""
    return History(history.row, {slot: op for slot, op in history.operations.items() if op != "none"})
