"""The staged rows of a changeset, read again: for the MERGEs, the runs and the conflict tables."""

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from mergerepl.delta.table import reason_of
from mergerepl.errors import StoreError

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""Where Spark notes in a Parquet file what columns it wrote."""


def read_staged(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the rows that Spark wrote to a folder, with the columns that it wrote.

    Spark itself would run a job at each of a session's eight readings to learn the columns from a footer.

    Raises: StoreError if there is no such file, or it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = next(iter(sorted(folder.glob("*.parquet"))), None)
    if file is None:
        raise _unreadable(folder, "there is no file; or Spark wrote them to another machine's file system")
    try:
        written = (pq.read_metadata(file).metadata or {}).get(_SPARK_SCHEMA)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(file, reason_of(error)) from error
    reader = spark.read if written is None else spark.read.schema(StructType.fromJson(json.loads(written)))
    return reader.parquet(str(folder))


def _unreadable(path: Path, reason: str) -> StoreError:
    return StoreError(
        f"Staged rows cannot be read in '{path}': {reason}. Run again; if a session that was interrupted needs them, "
        "restore the files from a copy.",
        path=str(path),
    )
