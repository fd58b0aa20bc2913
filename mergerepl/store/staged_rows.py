"""The staged rows of a changeset, read again: for the MERGEs, the runs and the conflict tables."""

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from mergerepl.errors import StoreError

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark notes in a Parquet file what columns it wrote."""


def read_staged(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the rows that Spark wrote to a folder, with the columns that it wrote.

    Spark itself would run a job at each of a session's eight readings to learn the columns from a footer.

    Raises: StoreError if there is no such file.
    """
    import pyarrow.parquet as pq

    file = next(iter(sorted(folder.glob("*.parquet"))), None)
    if file is None:
        raise StoreError(
            f"The staged rows in '{folder}' are gone; the session needs them to be finished. Restore the folder from a "
            "copy, then run again.",
            path=str(folder),
        )
    written = json.loads(pq.read_schema(file).metadata[_SPARK_SCHEMA])
    return spark.read.schema(StructType.fromJson(written)).parquet(str(folder))
