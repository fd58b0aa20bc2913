"""A snapshot: an article's table at a new subscriber, its first rows, and the comparison of both sides' rows."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from mergerepl.changes import ROW
from mergerepl.delta.copy_files import copy_files
from mergerepl.delta.layout import clustering_columns
from mergerepl.delta.metadata import CDF_PROPERTY, CONSTRAINT_PREFIX
from mergerepl.delta.properties import folder_properties, retention_properties
from mergerepl.delta.tables import (
    NewTable,
    TableState,
    Transaction,
    append,
    find_own_commit,
    open_table,
    read_version,
)
from mergerepl.delta.types import INVARIANTS, Field, invariant_text
from mergerepl.frames import DataFrame, F
from mergerepl.rows.images import image_type, row_image, same_image
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location

KEY_PREFIX = "k"

MISSING, TWICE, EXTRA, DIFFERENT = (
    "missing at the subscriber",
    "twice at the subscriber",
    "missing at the publisher",
    "different",
)

_OWN_METADATA = ("delta.columnMapping.", "delta.typeChanges", "delta.identity.", "parquet.")
_OWN_PROPERTIES = (
    "delta.checkpointPolicy",
    "delta.columnMapping.",
    "delta.coordinatedCommits.",
    "delta.enableIcebergCompat",
    "delta.enableInCommitTimestamps",
    "delta.enableRowTracking",
    "delta.enableTypeWidening",
    "delta.feature.",
    "delta.inCommitTimestamp",
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.rowTracking",
    # Marks of replication in the copy would expire.
    "delta.setTransactionRetentionDuration",
    "delta.universalFormat.",
)


def replica_table(
    table: TableState,
    columns: Collection[str],
    properties: Mapping[str, str],
    *,
    clustering: Sequence[Sequence[str]],
    is_computable: Callable[[str], bool],
) -> NewTable:
    """Return the table to create at a subscriber.

    `table` is the publisher's, `columns` are the published ones, `properties` those that replication adds. `clustering`
    has the publisher's clustering columns, each as its path of names. `is_computable` is true for the expression of a
    constraint or an invariant that needs published columns only; others cannot hold where their columns are missing.
    """
    fields = [_without_own(field) for field in table.fields if field["name"] in columns]
    for field in fields:
        if INVARIANTS in field["metadata"] and not is_computable(invariant_text(field["metadata"])):
            del field["metadata"][INVARIANTS]
    own = {name: value for name, value in table.properties.items() if not name.startswith(_OWN_PROPERTIES)}
    if len(fields) < len(table.fields):
        # Delta refuses every later ALTER of a table without a column that is named there.
        own.pop("delta.dataSkippingStatsColumns", None)
    kept = {
        name: value
        for name, value in own.items()
        if not name.startswith(CONSTRAINT_PREFIX) or is_computable(value)
    }
    return NewTable(
        fields,
        [name for name in table.metadata.partition_columns if name in columns],
        {**kept, **properties},
        table.description,
        [path for path in clustering if path[0] in columns],
    )


def copied_table(
    spark_of: Callable[[], SparkSession],
    source: TableState,
    target: Location,
    columns: Collection[str],
    retention: timedelta,
) -> NewTable:
    """Return the table to create at a subscriber from the publisher's, with its change feed kept for `retention`."""
    properties = {
        CDF_PROPERTY: "true",
        **retention_properties(source.properties, retention),
        **folder_properties(source),
    }
    return replica_table(
        source,
        columns,
        properties,
        # Its table feature keeps fences away.
        clustering=clustering_columns(spark_of, source) if target.is_local else (),
        is_computable=partial(is_computable, spark_of, source, columns),
    )


def is_computable(
    spark_of: Callable[[], SparkSession], table: TableState, columns: Collection[str], expression: str
) -> bool:
    """True if an expression of the table needs only these columns."""
    if len(columns) == len(table.fields):
        return True
    rows = read_version(spark_of(), table.path, table.version)
    try:
        rows.select(*(F.col(quote(name)) for name in columns)).select(F.expr(expression))
    except AnalysisException:
        return False
    return True


def _without_own(field: Field) -> Field:
    metadata = {
        name: value for name, value in field["metadata"].items() if not name.startswith(_OWN_METADATA)
    }
    return {**field, "type": _nested(field["type"]), "metadata": metadata}


def _nested(data_type: Any) -> Any:
    if isinstance(data_type, str):
        return data_type
    if data_type["type"] == "struct":
        return {**data_type, "fields": [_without_own(field) for field in data_type["fields"]]}
    parts = [part for part in ("elementType", "keyType", "valueType") if part in data_type]
    return {**data_type, **{part: _nested(data_type[part]) for part in parts}}


def copy_rows(
    spark_of: Callable[[], SparkSession],
    source: Location,
    version: int,
    target: Location,
    *,
    columns: Sequence[str],
    partition_columns: Sequence[str],
    transaction: Transaction,
    only: DataFrame | None = None,
) -> int:
    """Append columns of a version to an empty table, in one marked commit and at most one job; return its version.

    `only` (row images of these columns) limits the copy to these rows of the version; None copies all. A small table
    whose rows and columns are all copied is copied file by file.

    Raises: StoreError if the commit is not in the log afterwards.
    """
    if only is not None or not copy_files(open_table(source, version), target, transaction):
        if only is None:
            rows = read_version(spark_of(), source, version).select(*(F.col(quote(name)) for name in columns))
        else:
            fields = zip(image_type(only, ROW).names, columns, strict=True)
            rows = only.select(*(F.col(f"{ROW}.{field}").alias(name) for field, name in fields))
        append(by_partition(rows, partition_columns), target, transaction)
    commit = find_own_commit(target, transaction.mark, from_version_exclusive=0)
    assert commit is not None
    return commit.version


def by_partition(rows: DataFrame, partition_columns: Sequence[str]) -> DataFrame:
    """Repartition rows for a write to a table with these partitions: a task writes a file for each partition it meets.

    Rows of an unpartitioned table keep their order, and with it the ranges that prune its files.
    """
    if not partition_columns:
        return rows
    return rows.hint("rebalance", *(F.col(quote(name)) for name in partition_columns))


def compared_rows(
    publisher: DataFrame, subscriber: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> DataFrame:
    """Return every key of both sides once: k0, k1, …, the images `ours` and `theirs`, and `kind`, the kind of difference.

    `times` is the number of rows at the subscriber. `kind` is NULL where both sides have the same row. The order of rows,
    of columns and of files does not matter.
    """
    names = [f"{KEY_PREFIX}{i}" for i in range(len(key))]
    keys = [F.col(quote(name)).alias(alias) for name, alias in zip(key, names, strict=True)]
    ours = publisher.select(*keys, row_image(columns).alias("ours"))
    theirs = subscriber.select(*keys, row_image(columns).alias("theirs"))
    # A key with several or no rows at the subscriber must not count as one row.
    counted = theirs.groupBy(*names).agg(F.count(F.lit(1)).alias("times"), F.first("theirs").alias("theirs"))
    both = ours.join(counted, names, "full_outer")
    kind = (
        F.when(F.col("theirs").isNull(), F.lit(MISSING))
        .when(F.col("times") > 1, F.lit(TWICE))
        .when(F.col("ours").isNull(), F.lit(EXTRA))
        .when(~same_image("ours", "theirs", image_type(both, "ours")), F.lit(DIFFERENT))
    )
    return both.select(*names, "ours", "theirs", "times", kind.alias("kind"))


def differing_rows(
    publisher: DataFrame, subscriber: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> DataFrame:
    """Return the keys (k0, k1, …) of the rows that differ between both sides, with the kind of difference in `kind`."""
    rows = compared_rows(publisher, subscriber, columns, key).where(F.col("kind").isNotNull())
    return rows.drop("ours", "theirs", "times")
