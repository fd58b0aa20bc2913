"""Metadata cleanup at a publisher with row filters: rows that only follow others move all the same."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.merge.session.clean_up import clean_up_metadata
from mergerepl.store.location import Location
from tests.networks import publish


@pytest.mark.slow
def test_inv_36_unchanged_rows_enter_a_partition_although_their_metadata_was_cleaned_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = {
        "customers": [{"id": 1, "region": "South"}],
        "orders": [{"id": number, "customer": 1, "v": "old"} for number in (10, 11)],
    }
    for name, rows in tables.items():
        write_deltalake(str(tmp_path / "hq" / name), pa.Table.from_pylist(rows))
    articles = [
        {"name": "customers", "key": ["id"], "filter": "region = HOST_NAME()"},
        {"name": "orders", "key": ["id"]},
    ]
    join = {"article": "orders", "parent": "customers", "on": "orders.customer = customers.id"}
    to = [{"subscriber": "./north", "host_name": "North"}]
    project = mergerepl.Project.load(publish(tmp_path, "sales", articles, to, joins=[join]))

    def update(table: str, key: int, **values: str) -> None:
        DeltaTable(str(tmp_path / "hq" / table)).update(predicate=f"id = {key}", new_values={**values})

    def clean_up() -> int:
        return clean_up_metadata(Location.of(tmp_path / "hq"), older_than=timedelta(0)).rows[
            "MSmerge_contents"
        ]

    update("orders", 10, v="new")
    for _ in range(3):
        project.sync()
    assert clean_up() == 1
    update("customers", 1, region="North")
    update("orders", 11, v="late")
    project.sync()
    # Order 10 was recorded as it was published, in no generation.
    found = DeltaTable(str(tmp_path / "north" / "orders")).to_pyarrow_table().to_pydict()
    assert dict(zip(found["id"], found["v"], strict=True)) == {10: "new", 11: "late"}
    assert clean_up() == 0
