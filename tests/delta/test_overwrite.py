"""All rows of a table are replaced in one commit, also where the new columns need table features that it lacks."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl.delta.marks import CommitMark
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.writes import overwrite

pytestmark = pytest.mark.spark


def test_a_table_gets_the_features_that_new_column_types_need(spark: SparkSession, replica_dir: Path) -> None:
    table = replica_dir / "visits"
    write_deltalake(str(table), pa.table({"id": [1], "day": ["2026-01-01"]}))
    rows = spark.sql("select 2 as id, timestamp_ntz'2026-01-02 03:04:05' as day")
    version = overwrite(
        rows, table, Transaction("copies", 1, CommitMark("s", "distribute:snapshot:1")), partition_columns=()
    )
    state = DeltaTable(str(table))
    assert (state.version(), state.to_pyarrow_table()["id"].to_pylist()) == (version, [2])
    assert "timestampNtz" in (state.protocol().writer_features or [])
