"""docs/cdc.md takes an ETL job from a captured table to an incremental load: its commands and code run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl import cdc
from tests.commands_of_docs import blocks, type_blocks

pytestmark = pytest.mark.spark


def rows_of(table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in DeltaTable(table).to_pyarrow_table().to_pylist())


@pytest.mark.slow
def test_the_page_does_what_it_says(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(replica_dir)
    typed: dict[str, Any] = {}
    page = [each for each in blocks("docs/cdc.md") if each.language in ("python", "bash")]
    assert len(page) > 8
    printed = type_blocks(page, typed)
    assert re.search(r"^shop +4 +3 ", printed["mergerepl capture -f shop"], re.M)
    net = printed["mergerepl cdc changes --net dbo_orders -f shop --row-filter all-with-mask"]
    assert [line.split()[1:4] for line in net.splitlines()[1:4]] == [
        ["4", "0x02", "1"],
        ["1", "NULL", "2"],
        ["2", "NULL", "4"],
    ]
    assert "3 rows" in printed["mergerepl cdc load dbo_orders -f shop --consumer lake --into lake/orders"]
    assert (typed["done"].upserted, typed["done"].deleted) == (2, 0)
    # The incremental load, the load of one's own, and the target of the first after the last update.
    assert rows_of("lake/orders") == [(1, "paid", 11.0), (3, "paid", 31.0), (4, "new", 40.0)]
    assert [row["order_id"] for row in typed["changes"].collect()] == [3]
    assert all('"op"' in row["value"] for row in typed["messages"].collect())
    # A field that is NULL is not a field that was left out.
    assert any('"before":null' in row["value"] for row in typed["messages"].collect())
    cdc.Database("shop").capture()
    cdc.Database("shop").instance("dbo_orders").load("lake/orders", consumer="lake")
    assert rows_of("lake/orders") == rows_of("shop/orders")
