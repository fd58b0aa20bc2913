"""A reader types the README, from its first table to the dashboard."""

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
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
    type_blocks([*blocks("docs/install.md"), *blocks("README.md", "Two commands")], typed)
    assert rows("hq/orders") == rows("north/orders")
    assert (rows("hq/orders")[1]["amount"], rows("hq/orders")[1]["note"]) == (12.5, "call first")
    [lost] = conflicts_of("hq", article="orders").list()
    type_blocks(blocks("README.md", "Conflicts: seen, and decided again"), typed, lambda: lost.conflict_id)
    assert Path("lost.html").exists()
    assert rows("hq/orders")[2]["note"] == "big gift"
    type_blocks(blocks("README.md", "One way, by commands", "Change Data Capture for ETL jobs"), typed)
    assert rows("mart/orders") == rows("store/orders")
    assert rows("lake/orders") == rows("shop/orders")
    type_blocks(blocks("README.md", "Change tracking for a synchronisation of your own"), typed)
    printed = type_blocks(blocks("README.md", "One agent for everything"), typed)
    assert len(printed) == 3
    type_blocks(blocks("README.md", "See what is behind", "From Python"), typed)
    assert Path("status.html").exists()
    assert typed["result"].ok
    assert rows("south/orders") == rows("hq/orders")
