"""A transaction's view of a table: the rows of its snapshot, replaced by its own changes.

An operation is evaluated at once and written as Parquet files, one row for each key that it changed. A staged row holds
the table's columns, the three tracking columns as they will be, and the state of its key, in columns with reserved names.
The last of several operations on one key counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mergerepl.delta.tables import TableState, read_columns
from mergerepl.model.tracking import TrackedTable, TrackingKeyType, TrackingOptions
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.systables.tracking import CHANGE_BSN, CONTEXT, INSERT_BSN, ROW_COLUMNS

EXISTED = "__sysExisted"
"""Whether the key is in the snapshot."""
PRESENT = "__sysPresent"
"""Whether the key exists after the operation."""
REBORN = "__sysReborn"
"""Whether the transaction deleted a row of the snapshot and inserted its key again."""
WAS_CHANGE, WAS_INSERT, WAS_CONTEXT = "__sysWasChange", "__sysWasInsert", "__sysWasContext"
"""The tracking columns of the row in the snapshot."""
DELETED_AT, DELETE_CONTEXT = "__sysDeletedAt", "__sysDeleteContext"
"""When, and under which context, the transaction deleted the row."""
CHANGE_CONTEXT = "__sysChangeContext"
"""The context under which the transaction last changed or deleted the row."""
PROBLEM = "__sysProblem"
"""Why the row cannot be written; NULL where it can."""
OPERATION = "__sysOperation"

STATE = (EXISTED, PRESENT, REBORN, WAS_CHANGE, WAS_INSERT, WAS_CONTEXT, DELETED_AT, DELETE_CONTEXT)
"""The state of a key that an operation reads and passes on."""

_PLAIN_FILES_AT_MOST = 32
"""Above this number of files, Delta's bounds save more than reading its snapshot costs."""


@dataclass(frozen=True)
class Stamps:
    """The stamps of a transaction in the three tracking columns of a row, as Column expressions (compact.md 3).

    | tracked | effect when tracked | when not tracked |
    |---|---|---|
    | insert | both BSN and the context are set | all three NULL: the row is as old as the table to consumers |
    | update | change BSN and context are set, the insert BSN stays | all three stay |
    | delete | a tombstone with the insert BSN that the row had | none: consumers keep the row |

    Where inserts are not tracked, a key that is there before and after a transaction counts as updated, also if it was
    deleted and inserted again: a tombstone alone would take a live row from consumers.
    """

    change_bsn: Column
    insert_bsn: Column
    context: Column

    def named(self) -> list[Column]:
        """Return them under their names, in the order of the table."""
        return [
            self.change_bsn.alias(CHANGE_BSN),
            self.insert_bsn.alias(INSERT_BSN),
            self.context.alias(CONTEXT),
        ]


def stamps_of(
    options: TrackingOptions, *, existed: Column, reborn: Column, was: Stamps, bsn: Column, context: Column
) -> Stamps:
    """Return the stamps of a row that a transaction changed and kept.

    Args:
        options: The tracking options.
        existed: Whether the key existed before.
        reborn: Whether the transaction deleted it and inserted it again.
        was: The stamps before; arbitrary where the row did not exist.
        bsn: BSN of the transaction, in its stored form.
        context: Its context when it changed the row.
    """
    is_born = ~existed | reborn if TrackingOptions.INSERT in options else ~existed
    born_bsn, born_context = (
        (bsn, context) if TrackingOptions.INSERT in options else (_none("binary"), _none("string"))
    )
    if TrackingOptions.UPDATE in options:
        kept = Stamps(bsn, was.insert_bsn, context)
    else:
        kept = was
    return Stamps(
        F.when(is_born, born_bsn).otherwise(kept.change_bsn),
        F.when(is_born, born_bsn).otherwise(kept.insert_bsn),
        F.when(is_born, born_context).otherwise(kept.context),
    )


def leaves_tombstone(
    options: TrackingOptions, *, existed: Column, present: Column, reborn: Column
) -> Column | None:
    """Whether a changed key leaves a tombstone; None if deletes are not tracked."""
    if TrackingOptions.DELETE not in options:
        return None
    is_replaced = reborn if TrackingOptions.INSERT in options else F.lit(False)
    return existed & (~present | is_replaced)


def _none(type_: str) -> Column:
    return F.lit(None).cast(type_)


@dataclass
class Touched:
    """A table that a transaction has touched: fixed at one version."""

    table: TrackedTable
    facts: TableState
    version: int
    folder: Location
    operations: list[StructType] = field(default_factory=list)
    """The schemas of the operations so far."""

    @property
    def columns(self) -> list[str]:
        """The user's columns, in the order of the table."""
        ours = {name for name, _ in ROW_COLUMNS}
        return [each["name"] for each in self.facts.fields if each["name"] not in ours]

    @property
    def keys(self) -> list[str]:
        """The names of the staged key columns."""
        return key_names(self.table)

    def operation_folder(self, number: int) -> Location:
        """Return where the rows of an operation are staged."""
        return self.folder / f"{number:06d}"


def key_names(table: TrackedTable) -> list[str]:
    """Return the names under which the key of a row is staged."""
    return [f"__sysKey{i}" for i in range(len(table.key))]


def key_columns(table: TrackedTable, *, of: str = "") -> list[Column]:
    """Return a key in the form in which equal keys are equal: a GUID in lower case."""
    values = [F.col(f"{of}{quote(name)}") for name in table.key]
    return [F.lower(values[0])] if table.key_type is TrackingKeyType.GUID else values


def same_key(table: TrackedTable, *, target: str, source: str) -> Column:
    """True if a row of the table and a staged row have the same key."""
    pairs = zip(key_columns(table, of=target), key_names(table), strict=True)
    return reduce(Column.__and__, (key == F.col(f"{source}{name}") for key, name in pairs))


def snapshot_rows(spark: SparkSession, path: Location, version: int) -> DataFrame:
    """Return the rows of a table at a version; without Delta's own snapshot where its files are few and plain."""
    return read_columns(spark, path, version, files_at_most=_PLAIN_FILES_AT_MOST)


def stamps_before() -> Stamps:
    """Return the stamps that a staged key had in the snapshot."""
    return Stamps(F.col(WAS_CHANGE), F.col(WAS_INSERT), F.col(WAS_CONTEXT))


def view(spark: SparkSession, touched: Touched, within: Column | None = None) -> DataFrame:
    """Return the transaction's view: columns, tracking columns, staged keys, state; also keys that it deleted.

    `within` bounds the rows of the snapshot.
    """
    rows = snapshot_rows(spark, touched.facts.path, touched.version)
    rows = rows if within is None else rows.where(within)
    nothing = F.lit(None)
    base = rows.select(
        *(quote(name) for name in touched.columns),
        *(name for name, _ in ROW_COLUMNS),
        *(key.alias(name) for key, name in zip(key_columns(touched.table), touched.keys, strict=True)),
        F.lit(True).alias(EXISTED),
        F.lit(True).alias(PRESENT),
        F.lit(False).alias(REBORN),
        F.col(CHANGE_BSN).alias(WAS_CHANGE),
        F.col(INSERT_BSN).alias(WAS_INSERT),
        F.col(CONTEXT).alias(WAS_CONTEXT),
        nothing.cast("timestamp").alias(DELETED_AT),
        nothing.cast("string").alias(DELETE_CONTEXT),
    )
    if not touched.operations:
        return base
    changed = overlay(spark, touched)
    return (
        base.join(changed.select(*touched.keys), on=touched.keys, how="left_anti")
        .select(*map(quote, base.columns))
        .unionByName(changed.select(*map(quote, base.columns)))
    )


def overlay(spark: SparkSession, touched: Touched) -> DataFrame:
    """Return the staged rows of a table: one for each key that the transaction changed, as its last operation left it."""
    operations = [
        spark.read.schema(schema)
        .parquet(str(touched.operation_folder(number)))
        .withColumn(OPERATION, F.lit(number))
        for number, schema in enumerate(touched.operations)
    ]
    if len(operations) == 1:
        return operations[0].drop(OPERATION)
    newest_first = Window.partitionBy(*touched.keys).orderBy(F.col(OPERATION).desc())
    ranked = reduce(DataFrame.unionByName, operations).withColumn(
        "__sysRank", F.row_number().over(newest_first)
    )
    return ranked.where(F.col("__sysRank") == 1).drop("__sysRank", OPERATION)


def staged(
    rows: DataFrame,
    touched: Touched,
    values: Mapping[str, Column],
    *,
    state: Mapping[str, Column],
    bsn: Column,
    context: str | None,
    rules: Mapping[str, Column],
) -> DataFrame:
    """Return the rows of an operation in their staged form.

    Args:
        rows: Rows of `view`, or of a join with it.
        touched: The table.
        values: The table's columns after the operation; missing ones stay.
        state: The columns of STATE after the operation; missing ones stay.
        bsn: BSN of the transaction, in its stored form.
        context: Its tracking context now.
        rules: Broken rules of the table or of the operation: text to condition on the columns of the result.
    """
    after = rows.select(
        *(values.get(name, F.col(quote(name))).alias(name) for name in touched.columns),
        *touched.keys,
        *(state.get(name, F.col(name)).alias(name) for name in STATE),
        *(F.col(name) for name in rows.columns if name.startswith("__sysRule")),
    )
    stamps = stamps_of(
        touched.table.options,
        existed=F.col(EXISTED),
        reborn=F.col(REBORN),
        was=stamps_before(),
        bsn=bsn,
        context=F.lit(context).cast("string"),
    )
    broken = [F.when(condition, F.lit(text)) for text, condition in rules.items()]
    # This column of rules is text; the others are boolean.
    broken += [F.col(name) for name in after.columns if name == "__sysRuleGiven"]
    problem = F.coalesce(*broken) if broken else F.lit(None).cast("string")
    return after.select(
        *(quote(name) for name in touched.columns),
        *stamps.named(),
        *touched.keys,
        *STATE,
        F.lit(context).cast("string").alias(CHANGE_CONTEXT),
        problem.alias(PROBLEM),
    )
