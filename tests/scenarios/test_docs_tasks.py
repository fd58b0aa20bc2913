"""The tasks of docs/tasks.md, typed as they stand."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.commands_of_docs import blocks, type_blocks

pytestmark = pytest.mark.spark

TASKS = {block.heading: blocks("docs/tasks.md", block.heading) for block in blocks("docs/tasks.md")}


def rows(table: str) -> list[dict[str, Any]]:
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: next(iter(row.values())))


STATES = {
    "Merge two copies": {
        name: [{"item": 1, "qty": 11, "place": "C"}, {"item": 2, "qty": 22, "place": "B"}]
        for name in ("hq/stock", "north/stock")
    },
    "Keep a read-only copy": {
        name: [{"item": 1, "price": 1.0}, {"item": 2, "price": 2.5}]
        for name in ("hq/prices", "branch/prices")
    },
    "Stream changes to a warehouse": {
        name: [{"id": 1, "state": "paid"}, {"id": 2, "state": "new"}]
        for name in ("shop/orders", "warehouse/orders")
    },
    "Recover": {
        name: [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}] for name in ("hq/notes", "north/notes")
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_task_does_what_the_page_says(
    spark: SparkSession, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    type_blocks(TASKS[task], {})
    assert {table: rows(table) for table in STATES[task]} == STATES[task]
