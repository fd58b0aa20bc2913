"""Which column a name means: case tables over the metadata commits of a log."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from mergerepl.delta.commits import Commit
from mergerepl.delta.feed.schema_walk import walk
from mergerepl.delta.feed.window import retyped_column
from mergerepl.delta.metadata import TableMetadata

Columns = dict[str, str]
"""Name -> physical name, or the type of a column that is not mapped."""


@dataclass(frozen=True)
class Step:
    """A commit with these columns."""

    columns: Columns
    is_mapped: bool = True
    data_change: bool = False
    restores: bool = False


def of(columns: Columns, *, is_mapped: bool) -> TableMetadata:
    fields = [
        {
            "name": name,
            "type": "string" if is_mapped else text,
            "nullable": True,
            "metadata": {"delta.columnMapping.physicalName": text} if is_mapped else {},
        }
        for name, text in columns.items()
    ]
    mode = {"delta.columnMapping.mode": "name"} if is_mapped else {}
    return TableMetadata("t", json.dumps({"type": "struct", "fields": fields}), mode, ())


def commit(version: int, step: Step) -> Commit:
    metadata = of(step.columns, is_mapped=step.is_mapped)
    restored = 0 if step.restores else None
    return Commit(
        version,
        "RESTORE" if step.restores else "",
        None,
        step.data_change,
        metadata,
        restored_version=restored,
    )


A, B = {"a": "p1"}, {"b": "p2"}

CASES: dict[str, tuple[Columns, list[Step], dict[str, int]]] = {
    "nothing": ({**A, **B}, [Step({**A, **B})], {}),
    "a column is added": (A, [Step({**A, **B})], {}),
    "a column is dropped": ({**A, **B}, [Step(A)], {}),
    "a column is renamed": ({**A, **B}, [Step({"x": "p1", **B})], {}),
    "it has its former name again": (A, [Step({"x": "p1"}), Step(A)], {}),
    "it is dropped and added again": ({**A, **B}, [Step(B), Step({**B, "a": "p3"})], {"a": 1}),
    "another one gets its name": ({**A, **B}, [Step({"x": "p1", **B}), Step({"x": "p1", "a": "p2"})], {"a": 1}),
    "two exchange their names": (
        {**A, **B},
        [Step({"x": "p1", **B}), Step({"x": "p1", "a": "p2"}), Step({"b": "p1", "a": "p2"})],
        {"a": 1, "b": 2},
    ),
    "RESTORE brings it back": ({**A, **B}, [Step(B), Step({**A, **B}, restores=True, data_change=True)], {}),
    "RESTORE of another state does not": (A, [Step({"a": "p3"}, restores=True, data_change=True)], {"a": 1}),
    "rows are replaced, under new physical names": (A, [Step({"a": "p7"}, data_change=True)], {}),
    "rows are replaced after it was dropped": (
        {**A, **B},
        [Step(B), Step({"a": "p7", "b": "p8"}, data_change=True)],
        {"a": 1},
    ),
    "mapping is switched on": ({"a": "string"}, [Step({"a": "p1"})], {}),
    "mapping is switched off": (A, [Step({"a": "string"}, is_mapped=False)], {}),
    "rows are replaced without it, then it is added": (
        {"a": "string", "b": "string"},
        [Step({"b": "string"}, False, True), Step({"a": "string", "b": "string"}, False)],
        {"a": 1},
    ),
    "rows are replaced without it, then RESTORE": (
        {"a": "string", "b": "string"},
        [Step({"b": "string"}, False, True), Step({"a": "string", "b": "string"}, False, True, True)],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_name_means_the_column_that_had_it_before(case: str) -> None:
    before, steps, expected = CASES[case]
    is_mapped = "string" not in before.values()
    commits = [commit(i, step) for i, step in enumerate(steps, 1)]
    found = walk(of(before, is_mapped=is_mapped), commits).replaced_names
    assert {".".join(path): each.version for path, each in found.items()} == expected


def nested(physical: str) -> TableMetadata:
    inside: dict[str, Any] = {
        "name": "x",
        "type": "long",
        "nullable": True,
        "metadata": {"delta.columnMapping.physicalName": physical},
    }
    struct = {"type": "struct", "fields": [inside]}
    array = {"type": "array", "elementType": struct, "containsNull": True}
    field = {"name": "s", "type": array, "nullable": True, "metadata": {}}
    text = json.dumps({"type": "struct", "fields": [field]})
    return TableMetadata("t", text, {"delta.columnMapping.mode": "name"}, ())


def test_a_field_inside_of_a_column_may_be_another_one_too() -> None:
    found = walk(nested("p1"), [Commit(1, "", None, False, nested("p2"))]).replaced_names
    assert list(found) == [("s", "elementType", "x")]


def test_a_column_is_retyped_unless_delta_widened_it() -> None:
    before, after = ({"a": "integer"}, {"a": "long"})
    assert retyped_column(of(before, is_mapped=False), of(after, is_mapped=False)) == "a"
    widened = of(after, is_mapped=False)
    fields = [{**each, "metadata": {"delta.typeChanges": []}} for each in widened.fields]
    stated = TableMetadata("t", json.dumps({"type": "struct", "fields": fields}), {}, ())
    assert retyped_column(of(before, is_mapped=False), stated) is None
    assert retyped_column(of(before, is_mapped=False), of({"b": "long"}, is_mapped=False)) is None
