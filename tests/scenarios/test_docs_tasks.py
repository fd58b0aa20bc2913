"""The tasks of docs/tasks.md, typed as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.commands_of_docs import run_command

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
TASKS = {
    title: blocks
    for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    if (blocks := re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S))
}


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


RARE = {"Merge two copies", "Keep a read-only copy", "Stream changes to a warehouse"}
"""Those that take several seconds."""


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=pytest.mark.slow) if task in RARE else task for task in TASKS]
)
def test_a_task_does_what_the_page_says(
    spark: SparkSession, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed: dict[str, Any] = {}
    for language, code in TASKS[task]:
        if language == "python":
            exec(code, typed)
        elif language == "yaml":
            Path("mergerepl.yml").write_text(code, encoding="utf-8")
        else:
            for line in code.splitlines():
                run_command(line)
    assert {table: rows(table) for table in STATES[task]} == STATES[task]
