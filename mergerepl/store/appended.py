"""The tables that sessions append to (contents, tombstone, conflicts): Spark writes and reads rows, `deltalake` the log.

A commit through Spark rebuilds the table's state before and after it: 0.7 s for three rows, 0.1 s this way
(docs/decisions/0006). Both kinds of writers keep to Delta's protocol, so OPTIMIZE or a DELETE may come from Spark.
"""

import json
import shutil
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

from delta.tables import DeltaTable
from deltalake import DeltaTable as LogTable
from deltalake import Transaction as LogTransaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, CommitProperties
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mergerepl.changes import GENERATION
from mergerepl.errors import CommitConflictError
from mergerepl.store.delta import Transaction, read_back
from mergerepl.store.plain_files import plain_files, read_files, schema_of
from mergerepl.store.sql import quote

STATS_PROPERTY = "delta.dataSkippingStatsColumns"
"""Names the columns (whole numbers) whose bounds every commit tells of its files."""


def append(rows: DataFrame, table: Path, transaction: Transaction) -> None:
    """Append rows once; without effect if the table holds the transaction already. No rows are a commit too.

    Raises: CommitConflictError if another agent committed a transaction of the same application meanwhile; StoreError
        if the commit is not in the log afterwards (another process overwrote it).
    """
    log = LogTable(str(table))
    done = log.transaction_version(transaction.app_id)
    if done is not None and done >= transaction.version:
        return
    head = log.version()
    files = _written(rows, table, schema_of(log))
    stated = log.metadata().configuration.get(STATS_PROPERTY, "")
    bounded = [name for name in stated.split(",") if name]
    try:
        log.create_write_transaction(
            [_added(file, bounded) for file in files],
            mode="append",
            schema=log.schema(),
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": transaction.mark.to_user_metadata()},
                app_transactions=[LogTransaction(transaction.app_id, transaction.version)],
            ),
        )
    except CommitFailedError as error:
        raise CommitConflictError(
            f"Another agent wrote to '{table}' at the same time ({error}). Run again: what was staged is finished "
            "first.",
            table=str(table),
        ) from error
    read_back(table, transaction, from_version_exclusive=head)


def _written(rows: DataFrame, table: Path, schema: StructType) -> list[Path]:
    """Write rows as the table's columns to Parquet files in its folder; nobody sees them before they are committed."""
    present = {name.casefold() for name in rows.columns}
    columns = [
        F.col(quote(field.name)).cast(field.dataType).alias(field.name)
        for field in schema
        if field.name.casefold() in present
    ]
    # Without an underscore: if a crash leaves it here, VACUUM removes it.
    folder = table / f"run-{uuid4()}"
    try:
        rows.select(*columns).write.parquet(str(folder))
        # Spark's names hold a UUID of each write.
        return [file.rename(table / file.name) for file in sorted(folder.glob("*.parquet"))]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _added(file: Path, bounded: Sequence[str]) -> AddAction:
    stat = file.stat()
    return AddAction(
        file.name, stat.st_size, {}, int(stat.st_mtime * 1000), True, json.dumps(_stats(file, bounded))
    )


def _stats(file: Path, bounded: Sequence[str]) -> dict[str, Any]:
    """Return what a commit tells of a file (PROTOCOL.md, Per-file Statistics), from the file's own footer."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(file)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    index = {footer.schema.column(i).path: i for i in range(len(footer.schema))}
    stats: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in bounded:
        told = [group.column(index[name]).statistics for group in groups] if name in index else []
        if told and all(each is not None and each.has_min_max and each.has_null_count for each in told):
            stats["minValues"][name] = min(each.min for each in told)
            stats["maxValues"][name] = max(each.max for each in told)
            stats["nullCount"][name] = sum(each.null_count for each in told)
    return stats


def read(spark: SparkSession, table: Path, *, from_generation_exclusive: int | None = None) -> DataFrame:
    """Return a table's rows as it is now; of files whose generations all lie below the bound, none."""
    log = LogTable(str(table))
    files = [
        file
        for file in plain_files(log) or ()
        if from_generation_exclusive is None
        or (highest := file.get(f"max.{GENERATION}")) is None
        or highest > from_generation_exclusive
    ]
    return (
        read_files(spark, table, files, schema_of(log))
        if files
        else spark.read.format("delta").load(str(table))
    )


def file_count(table: Path) -> int:
    """Return the number of a table's data files."""
    return len(LogTable(str(table)).file_uris())


def union_all(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames; a column some lack (another article's image) is NULL there."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def join_small_files(spark: SparkSession, table: Path, *, large_bytes: int) -> None:
    """Rewrite a table's small files as few large ones (OPTIMIZE): the same rows, in a commit that changes no data.

    Files that are large already are left alone, so that the work follows what was appended, not all there is.
    """
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(large_bytes))
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(2 * large_bytes))
    DeltaTable.forPath(session, str(table)).optimize().executeCompaction()
