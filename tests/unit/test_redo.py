"""The redo log: a plan comes back as it was, whole or not at all, and one that cannot be read is refused by name."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mergerepl.errors import StoreError
from mergerepl.logreader import plan as log_reader
from mergerepl.logreader.plan import Reading
from mergerepl.store import changeset
from mergerepl.store.changeset import Mark
from mergerepl.store.redo import RedoLog
from mergerepl.tracking import counters
from mergerepl.transactional import position
from tests.faults.deaths import dies

LOGS: dict[str, Callable[[Path], RedoLog]] = {
    "log reader": log_reader.redo_log,
    "Compact": counters.redo_log,
    "session": lambda folder: changeset.redo_log(folder / "staging" / "a"),
    "distribution": lambda folder: position.redo_log(folder, "guid"),
}
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=3)


def drawn(kind: Any) -> st.SearchStrategy:
    """Return values of a type of a plan; what it leaves open (`Any`) is JSON."""
    inner = [drawn(each) for each in get_args(kind) if each is not ...]
    if kind is Any:
        return JSON
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{each.name: drawn(hints[each.name]) for each in fields(kind)})
    if get_origin(kind) is tuple:
        return st.lists(inner[0], max_size=2).map(tuple) if ... in get_args(kind) else st.tuples(*inner)
    if get_origin(kind) is list:
        return st.lists(inner[0], max_size=2)
    if get_origin(kind) in (Mapping, dict):
        return st.dictionaries(*inner, max_size=2)
    return st.one_of(inner) if inner else st.from_type(kind)


EXAMPLES = 15 if os.environ.get("MERGEREPL_TEST_PROFILE") == "long" else 6


@pytest.mark.parametrize("of", LOGS.values(), ids=LOGS)
@settings(
    max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
)
@given(data=st.data())
def test_a_plan_of_any_values_comes_back(
    of: Callable[[Path], RedoLog], data: st.DataObject, tmp_path: Path
) -> None:
    redo = of(tmp_path)
    plan = data.draw(drawn(redo.plan_type))
    redo.stage(plan)
    assert redo.is_pending
    assert redo.pending() == plan
    redo.finish()
    redo.finish()
    assert (redo.is_pending, redo.pending()) == (False, None)


def test_a_plan_is_staged_whole_or_not_at_all(tmp_path: Path) -> None:
    redo = position.redo_log(tmp_path, "guid")
    first, second = (position.BatchPlan(number, b"", b"\xff", {}) for number in (1, 2))
    for point, left in (("before", None), ("after", first), ("before", first), ("after", second)):
        with dies(f"distribute.{point}_plan"):
            redo.stage(second if (left in (first, second) and point != "after") or left == second else first)
        assert redo.pending() == left
    # A process that died while it wrote leaves the earlier plan.
    (redo.folder / f"{redo.file.name}.tmp").write_text('{"form')
    assert redo.pending() == second


def test_a_plan_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    redo = log_reader.redo_log(tmp_path)
    redo.folder.mkdir()
    for text, why in (
        ("", "Invalid JSON"),
        ("[]", r"_logreader/plan\.json' is damaged \(.*Restore the file from a copy\. Or remove it"),
        ('{"format": 1, "plan": {"scan_cycle": 1}}', r"damaged \(plan\.serve: "),
        ('{"format": 9, "plan": {}}', "has the format 9; this mergerepl reads 1"),
    ):
        Path(redo.file).write_text(text)
        with pytest.raises(StoreError, match=why) as refused:
            redo.pending()
        assert refused.value.facts["path"] == str(redo.file)
        assert redo.is_pending


def test_a_plan_of_another_format_is_not_read_even_if_its_fields_are_known(tmp_path: Path) -> None:
    redo = position.redo_log(tmp_path, "guid")
    redo.stage(position.BatchPlan(1, b"", b"\xff", {}))
    file = Path(redo.file)
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match="has the format 2"):
        redo.pending()


def test_a_step_is_done_with_its_outcome_until_the_plan_is_finished(tmp_path: Path) -> None:
    redo = changeset.redo_log(tmp_path / "staging" / "a")
    assert (redo.is_done("publisher"), redo.outcome("publisher", Mark)) == (False, None)
    redo.mark_done("publisher", Mark(generation=3, guid=None))
    assert (redo.is_done("publisher"), redo.is_done("subscriber")) == (True, False)
    assert redo.outcome("publisher", Mark) == Mark(generation=3, guid=None)
    redo.finish()
    assert not redo.is_done("publisher")
    assert not redo.folder.exists()


def test_a_plan_with_a_value_of_another_type_is_not_staged(tmp_path: Path) -> None:
    redo = position.redo_log(tmp_path, "guid")
    with pytest.raises(ValueError, match="number"):
        redo.stage(position.BatchPlan("1", b"", b"", {}))  # type: ignore[arg-type]
    assert not redo.is_pending


def test_a_plan_keeps_what_a_log_states(tmp_path: Path) -> None:
    """Fields of a Delta schema are JSON of any depth."""
    field = {
        "name": "a",
        "type": {"type": "struct", "fields": []},
        "nullable": True,
        "metadata": {"n": [1, None]},
    }
    redo = RedoLog(tmp_path, Reading, "logreader")
    redo.stage(Reading(1, 2, (1, 2), (field,)))
    found = redo.pending()
    assert found == Reading(1, 2, (1, 2), (field,))
    assert json.loads(Path(redo.file).read_text())["format"] == 1
