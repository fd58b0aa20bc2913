"""Rows of Arrow as frames."""

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from mergerepl.engine.in_memory import collected, frame_of

pytestmark = pytest.mark.spark


def test_no_row_after_an_empty_chunk_is_lost(spark: SparkSession) -> None:
    parts = [pa.table({"a": pa.array(values, pa.int64())}) for values in ([1, 2], [], [3])]
    rows = pa.concat_tables(parts)
    assert rows["a"].num_chunks == 3
    assert collected(frame_of(spark, rows)).to_pylist() == rows.to_pylist()
