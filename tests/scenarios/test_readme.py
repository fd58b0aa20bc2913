"""A reader types the README, from its first table to the dashboard."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.calls import conflicts_of
from tests.commands_of_docs import blocks, type_blocks

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def rows(table: str) -> dict[int, dict[str, Any]]:
    return {row["order_id"]: row for row in DeltaTable(table).to_pyarrow_table().to_pylist()}


def test_the_readme_does_what_it_says(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(replica_dir)
    typed: dict[str, Any] = {}
    notes = {"order_id": [1, 2], "amount": [10.0, 20.0], "note": [None, "gift"]}
    write_deltalake("hq/orders", pa.table(notes))
    *applied, synced = blocks("README.md", "Two commands")
    type_blocks([*blocks("docs/install.md"), *applied], typed)
    for site, number, column, value in (
        ("hq", 1, "amount", "12.5"),
        ("north", 1, "note", "'call first'"),
        ("hq", 2, "note", "'no gift'"),
        ("south", 2, "note", "'big gift'"),
    ):
        DeltaTable(f"{site}/orders").update(predicate=f"order_id = {number}", updates={column: value})
    type_blocks([synced], typed)
    assert rows("hq/orders") == rows("north/orders")
    assert (rows("hq/orders")[1]["amount"], rows("hq/orders")[1]["note"]) == (12.5, "call first")
    [lost] = conflicts_of("hq", article="orders").list()
    type_blocks(blocks("README.md", "Conflicts: seen, and decided again"), typed, lambda: lost.conflict_id)
    assert Path("lost.html").exists()
    assert rows("hq/orders")[2]["note"] == "big gift"
    type_blocks(blocks("README.md", "See what is behind"), typed)
    assert Path("status.html").exists()
