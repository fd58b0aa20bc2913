"""The staged rows of a changeset, read again: for the MERGEs, the runs and the conflict tables."""

import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from mergerepl.changes import DATA_ACTIONS, ROW, Action
from mergerepl.delta.footers import read_footer
from mergerepl.delta.small_writer import ACTION, SmallRows
from mergerepl.delta.table import reason_of
from mergerepl.delta.types import ddl_of
from mergerepl.errors import StoreError

_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""The key of a Parquet file under which Spark notes the columns that it wrote."""


def read_staged(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the rows that Spark wrote to a folder, with the columns that it wrote.

    Spark itself would run a job at each of a session's eight readings to learn the columns from a footer.

    Raises: StoreError if there is no such file, or it is damaged.
    """
    written = _written_schema(folder)
    reader = spark.read if written is None else spark.read.schema(StructType.fromJson(json.loads(written)))
    return reader.parquet(str(folder))


def small_rows(folder: Path, action: str) -> SmallRows:
    """Return the rows that Spark wrote to a folder for one side's table, in this process' memory.

    A row that leaves the partition counts as deleted. The caller knows that there are few rows.

    Raises: StoreError if there is no such file, or it is damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    written = _written_schema(folder)
    assert written is not None
    image = next(field["type"] for field in json.loads(written)["fields"] if field["name"] == ROW)
    types = {field["name"]: ddl_of(field["type"]) for field in image["fields"]}
    try:
        of_side = ds.dataset(folder, format="parquet").to_table(
            columns=[action, ROW], filter=pc.field(action).isin([each.value for each in DATA_ACTIONS])
        )
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(folder, reason_of(error)) from error
    is_gone = pc.equal(of_side[action], Action.LEAVE.value)
    actions = pc.if_else(is_gone, Action.DELETE.value, of_side[action])
    values = of_side.select([ROW]).flatten().rename_columns(list(types))
    return SmallRows(values.append_column(ACTION, actions), types)


def _written_schema(folder: Path) -> bytes | None:
    """Return the columns that Spark notes in what it wrote to a folder, as JSON."""
    import pyarrow as pa

    file = next(iter(sorted(folder.glob("*.parquet"))), None)
    if file is None:
        raise _unreadable(folder, "there is no file; or Spark wrote them to another machine's file system")
    try:
        return (read_footer(file).metadata or {}).get(_SPARK_SCHEMA)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(file, reason_of(error)) from error


def _unreadable(path: Path, reason: str) -> StoreError:
    return StoreError(
        f"Staged rows cannot be read in '{path}': {reason}. Run again; if a session that was interrupted needs them, "
        "restore the files from a copy.",
        path=str(path),
    )
