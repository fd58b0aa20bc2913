"""An article's table at a new subscriber: like the publisher's, without what belongs to one copy only."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl.delta.create import NewTable
from mergerepl.delta.metadata import CONSTRAINT_PREFIX
from mergerepl.delta.table import TableState
from mergerepl.delta.types import INVARIANTS, Field, invariant_text
from mergerepl.rows.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    Args:
        table: The publisher's table.
        columns: The published columns.
        properties: What replication adds to the table's own properties.
        clustering: The columns the publisher's table is clustered by, each as its path of names.
        is_computable: Whether the expression of a constraint or an invariant needs published columns only; others cannot
            hold where their columns are missing.
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


def uncomputable(table: TableState, *, is_computable: Callable[[str], bool]) -> list[str]:
    """Return the names of the CHECK constraints that a subscriber cannot have."""
    return [
        name.removeprefix(CONSTRAINT_PREFIX)
        for name, value in table.properties.items()
        if name.startswith(CONSTRAINT_PREFIX) and not is_computable(value)
    ]


def is_computable(
    spark: "SparkSession", table: TableState, columns: Collection[str], expression: str
) -> bool:
    """Return whether an expression of the table needs only these columns."""
    if len(columns) == len(table.fields):
        return True
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    from mergerepl.delta.versions import read_version

    rows = read_version(spark, table.path, table.version)
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
