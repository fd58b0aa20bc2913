"""A transaction's view of a table: the rows of its snapshot, replaced by its own changes, which are staged.

An operation is evaluated at once and written as Parquet files, one row for each key that it changed. A staged row holds
the table's columns, the three tracking columns as they will be, and the state of its key, in columns with reserved names.
The last of several operations on one key counts. The table's rules are checked here, since a decided transaction must be
carried out; the files are read back without Spark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mergerepl.delta.contract.problems import OF_STORES, Code, Problem, TableContract, Texts
from mergerepl.delta.contract.rules import partition_rules, value_rules
from mergerepl.delta.engine_choice import require_texts
from mergerepl.delta.footers import read_footer, statistics_of
from mergerepl.delta.metadata import DEFAULT_EXPRESSION
from mergerepl.delta.parquet_files import parquet_dataset
from mergerepl.delta.tables import TableState, read_columns
from mergerepl.delta.types import Field, ddl_of
from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.model.article import BOUNDED_TYPES
from mergerepl.model.tracking import TrackedTable
from mergerepl.model.tracking_options import TrackingKeyType, TrackingOptions
from mergerepl.rows.key_bounds import within
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import frame_of
from mergerepl.store.location import Location
from mergerepl.store.storage import size_to_read
from mergerepl.systables.tracking import CHANGE_BSN, CONTEXT, INSERT_BSN, ROW_COLUMNS
from mergerepl.tracking.counters import Bounds, Counts, parquet_files
from mergerepl.tracking.few_rows import rows_with_keys
from mergerepl.tracking.row_keys import LONGEST

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


# The stamps of a row, its three tracking columns, are one struct (compact.md 3):
#
# | tracked | effect when tracked | when not tracked |
# |---|---|---|
# | insert | both BSN and the context are set | all three NULL: the row is as old as the table to consumers |
# | update | change BSN and context are set, the insert BSN stays | all three stay |
# | delete | a tombstone with the insert BSN that the row had | none: consumers keep the row |
#
# Where inserts are not tracked, a key that is there before and after a transaction counts as updated, also if it was
# deleted and inserted again: a tombstone alone would take a live row from consumers.

STAMPS = f"struct<{CHANGE_BSN}:binary,{INSERT_BSN}:binary,{CONTEXT}:string>"


def stamps(change_bsn: Column, insert_bsn: Column, context: Column) -> Column:
    """Return the stamps of a row."""
    return F.struct(change_bsn.alias(CHANGE_BSN), insert_bsn.alias(INSERT_BSN), context.alias(CONTEXT))


def stamps_of_insert(options: TrackingOptions, bsn: Column, context: Column) -> Column:
    """Return the stamps of a row that a transaction inserted."""
    return stamps(bsn, bsn, context) if TrackingOptions.INSERT in options else F.lit(None).cast(STAMPS)


def stamps_of_update(options: TrackingOptions, was: Column, bsn: Column, context: Column) -> Column:
    """Return the stamps of a row that a transaction updated; `was` are those before."""
    return stamps(bsn, was[INSERT_BSN], context) if TrackingOptions.UPDATE in options else was


def stamps_of(
    options: TrackingOptions, *, existed: Column, reborn: Column, was: Column, bsn: Column, context: Column
) -> Column:
    """Return the stamps of a row that a transaction changed and kept.

    `was` are those before, arbitrary if the row did not exist. `reborn`: the transaction deleted it and inserted it again.
    """
    is_born = ~existed | reborn if TrackingOptions.INSERT in options else ~existed
    updated = stamps_of_update(options, was, bsn, context)
    return F.when(is_born, stamps_of_insert(options, bsn, context)).otherwise(updated)


def leaves_tombstone(
    options: TrackingOptions, *, existed: Column, present: Column, reborn: Column
) -> Column | None:
    """Whether a changed key leaves a tombstone; None if deletes are not tracked."""
    if TrackingOptions.DELETE not in options:
        return None
    is_replaced = reborn if TrackingOptions.INSERT in options else F.lit(False)
    return existed & (~present | is_replaced)


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

    @property
    def staged_count(self) -> int:
        """The number of rows that the operations have staged."""
        return sum(count_rows(self.operation_folder(number)) for number, _ in enumerate(self.operations))

    @property
    def staged_bytes(self) -> int:
        """The bytes of their files."""
        return sum(count_bytes(self.operation_folder(number)) for number, _ in enumerate(self.operations))

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
    return reduce(and_, (key == F.col(f"{source}{name}") for key, name in pairs))


def snapshot_rows(spark: SparkSession, path: Location, version: int) -> DataFrame:
    """Return the rows of a table at a version; without Delta's own snapshot where its files are few and plain."""
    return read_columns(spark, path, version, files_at_most=_PLAIN_FILES_AT_MOST)


def view(
    spark: SparkSession, touched: Touched, within: Column | None = None, *, among: DataFrame | None = None
) -> DataFrame:
    """Return the transaction's view: columns, tracking columns, staged keys, state; also keys that it deleted.

    `within` bounds the rows of the snapshot. In process these are the rows that may have one of the keys of `among`.
    """
    if is_in_process():
        assert among is not None
        rows = rows_with_keys(touched, among)
    else:
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


def read_staged(spark: SparkSession, folder: Location, schema: StructType) -> DataFrame:
    """Return the rows that an operation wrote to a folder. Raises: NeedsSparkError in process for text that is no UTF-8."""
    if not is_in_process():
        return spark.read.schema(schema).parquet(folder.spark_uri)
    rows = staged_columns(folder, schema.names)
    require_texts(rows)
    return frame_of(None, rows, schema)


def overlay(spark: SparkSession, touched: Touched) -> DataFrame:
    """Return the staged rows of a table: one for each key that the transaction changed, as its last operation left it."""
    operations = [
        read_staged(spark, touched.operation_folder(number), schema)
        for number, schema in enumerate(touched.operations)
    ]
    if len(operations) == 1:
        return operations[0]
    numbered = [rows.withColumn(OPERATION, F.lit(number)) for number, rows in enumerate(operations)]
    row = F.struct(*map(quote, operations[0].columns))
    last = F.max_by(row, F.col(OPERATION)).alias("last")
    return reduce(DataFrame.unionByName, numbered).groupBy(*touched.keys).agg(last).select("last.*")


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
    """Return the rows of an operation, which come from `view` or a join with it, in their staged form.

    `values` and `state` are the table's columns, and those of STATE, after the operation; missing ones stay. `bsn` is in
    its stored form. `rules` are broken rules of the table or of the operation: text to condition on the result's columns.
    """
    after = rows.select(
        *(values.get(name, F.col(quote(name))).alias(name) for name in touched.columns),
        *touched.keys,
        *(state.get(name, F.col(name)).alias(name) for name in STATE),
        *(F.col(name) for name in rows.columns if name.startswith("__sysRule")),
    )
    stamped = stamps_of(
        touched.table.options,
        existed=F.col(EXISTED),
        reborn=F.col(REBORN),
        was=stamps(F.col(WAS_CHANGE), F.col(WAS_INSERT), F.col(WAS_CONTEXT)),
        bsn=bsn,
        context=F.lit(context).cast("string"),
    )
    broken = [F.when(condition, F.lit(text)) for text, condition in rules.items()]
    # This column of rules is text; the others are boolean.
    broken += [F.col(name) for name in after.columns if name == "__sysRuleGiven"]
    problem = F.coalesce(*broken) if broken else F.lit(None).cast("string")
    return after.select(
        *(quote(name) for name in touched.columns),
        *(stamped[name].alias(name) for name, _ in ROW_COLUMNS),
        *touched.keys,
        *STATE,
        F.lit(context).cast("string").alias(CHANGE_CONTEXT),
        problem.alias(PROBLEM),
    )


_NO_RULES = "Lift these, or track another table."

_UNWRITABLE: Texts = {
    **OF_STORES,
    Code.APPEND_ONLY: ("it takes no updates and deletes (delta.appendOnly)", "Unset the property first."),
    Code.BACKTICK: (
        "Delta's MERGE cannot write column '{column}': its name has a backtick",
        "Rename the column.",
    ),
    **dict.fromkeys(
        (Code.GENERATED, Code.IDENTITY),
        ("Delta computes column '{column}' itself", "Make it an ordinary column."),
    ),
    Code.INNER_RULE: ("column '{column}' has NOT NULL parts or an invariant", _NO_RULES),
    Code.INNER_LENGTH: ("column '{column}' has char or varchar inside", _NO_RULES),
}


def broken_rules(facts: TableState, key: Sequence[str], is_there: Column) -> dict[str, Column]:
    """Return the broken rules of a table: text to condition, on columns by their own names, for rows that exist."""
    names = [field["name"] for field in facts.fields]
    # A value of another partition column that Delta stores as NULL is NULL from then on.
    rules = value_rules(facts, names) | partition_rules(facts, key)
    return {f"rows break the {name}": is_there & ~rule for name, rule in rules.items()}


def unwritable(facts: TableState) -> Problem | None:
    """Return why transactions cannot write a table and the remedy, None if they can."""
    return TableContract(facts).explain(_UNWRITABLE)


def default_of(field: Field) -> Column:
    """Return the value of a row in a column that is not given."""
    default = field["metadata"].get(DEFAULT_EXPRESSION)
    value = F.lit(None) if default is None else F.expr(default)
    return value.cast(ddl_of(field["type"]))


def fitted(value: Column, given: str, field: Field) -> tuple[Column, Column | None]:
    """Return a value as a column's type, and where it does not fit; None where any does."""
    wanted = ddl_of(field["type"])
    if given == wanted:
        return value, None
    fitting = value.try_cast(wanted) if given != "void" else value.cast(wanted)
    return fitting, value.isNotNull() & fitting.isNull()


def too_long_key(packed: Column) -> Mapping[str, Column]:
    """Return the rule that a packed key keeps."""
    return {f"row keys take more than {LONGEST} bytes when packed": F.octet_length(packed) > LONGEST}


_EXAMPLES = 3


def count_rows(folder: Location) -> int:
    """Return the number of staged rows, from the files' footers."""
    return sum(footer.num_rows for footer in _footers(folder))


def count_bytes(folder: Location) -> int:
    """Return the bytes of the files of staged rows."""
    return sum(size_to_read(file) for file in parquet_files(folder))


def count_where(folder: Location, name: str) -> int:
    """Return the number of rows with a true value in a boolean column."""
    import pyarrow.compute as pc

    return int(pc.sum(staged_columns(folder, [name])[name]).as_py() or 0)


def counts_of(folder: Location) -> Counts:
    """Return the numbers of inserted, updated and deleted rows."""
    import pyarrow as pa

    kinds = [EXISTED, PRESENT, REBORN]
    grouped = pa.TableGroupBy(staged_columns(folder, kinds), kinds).aggregate([([], "count_all")]).to_pylist()
    inserts = updates = deletes = reborn = 0
    for each in grouped:
        rows = each["count_all"]
        inserts += rows * (not each[EXISTED] and each[PRESENT])
        updates += rows * (each[EXISTED] and each[PRESENT])
        deletes += rows * (each[EXISTED] and not each[PRESENT])
        reborn += rows * (each[EXISTED] and each[PRESENT] and each[REBORN])
    return Counts(inserts, updates, deletes, reborn)


def problems_of(folder: Location, keys: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the first rule that staged rows break, with the keys of some; None if they break none."""
    import pyarrow.compute as pc

    rows = staged_columns(folder, [PROBLEM, *keys])
    broken = rows.filter(pc.is_valid(rows[PROBLEM])).slice(0, 1000).to_pylist()
    if not broken:
        return None
    text = broken[0][PROBLEM]
    return text, key_texts([[each[name] for name in keys] for each in broken if each[PROBLEM] == text])


def key_texts(keys: Sequence[Sequence[object]]) -> list[str]:
    """Return some keys as text; an ellipsis replaces those after the first three."""
    shown = [[str(value) for value in key] for key in keys[:_EXAMPLES]]
    found = [key[0] if len(key) == 1 else f"({', '.join(key)})" for key in shown]
    return [*found, "…"] if len(keys) > _EXAMPLES else found


def context_of(folders: Sequence[Location]) -> str | None:
    """Return the context of all staged changes; None if it is missing or not unique."""
    import pyarrow.compute as pc

    found: set[str | None] = set()
    for folder in folders:
        found |= set(pc.unique(staged_columns(folder, [CHANGE_CONTEXT])[CHANGE_CONTEXT]).to_pylist())
    return found.pop() if len(found) == 1 else None


def bounds_of(folder: Location, table: TrackedTable) -> dict[str, tuple[str, str]]:
    """Return the bounds of the staged key columns that have some, from the files' footers."""
    ends = {
        name: _ends(folder, name)
        for name, type_ in zip(key_names(table), table.key_types, strict=True)
        if type_ in BOUNDED_TYPES
    }
    return {name: found for name, found in ends.items() if found is not None}


def _ends(folder: Location, name: str) -> tuple[str, str] | None:
    lows, highs = [], []
    for footer in _footers(folder):
        for i, bounds in enumerate(statistics_of(footer, name)):
            if not footer.row_group(i).num_rows:
                continue
            if bounds is None or not bounds.has_min_max:
                return None
            lows.append(bounds.min)
            highs.append(bounds.max)
    return (str(min(lows)), str(max(highs))) if lows else None


def within_keys(table: TrackedTable, bounds: Bounds, *, of: str = "") -> Column | None:
    """Return a condition that rows with keys inside the bounds meet, also for file skipping."""
    ends = [
        within(F.col(f"{of}{quote(column)}"), *bounds[name], type_)
        for column, name, type_ in zip(table.key, key_names(table), table.key_types, strict=True)
        if name in bounds
    ]
    return reduce(and_, ends) if ends else None


def _footers(folder: Location) -> list[Any]:
    return [read_footer(file) for file in parquet_files(folder)]


def staged_columns(folder: Location, names: Sequence[str]) -> Any:
    """Return columns of staged rows as an Arrow table."""
    return parquet_dataset(parquet_files(folder)).to_table(columns=list(names))
