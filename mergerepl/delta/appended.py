"""The tables that sessions append to (contents, tombstone, conflicts): Arrow or Spark writes rows, `deltalake` the log.

A commit through Spark rebuilds the table's state before and after it: 0.7 s for three rows, 0.1 s this way
(docs/decisions/0006). Both writers follow Delta's protocol, so OPTIMIZE or a DELETE may come from Spark.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from io import BytesIO
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import uuid4

from delta.tables import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from mergerepl.delta.chosen_rows import Chosen
from mergerepl.delta.engine_choice import NeedsSparkError, require_texts, too_many
from mergerepl.delta.footers import commit_statistics, read_footer
from mergerepl.delta.known_heads import forget_head
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import STATS_PROPERTY
from mergerepl.delta.reads import Bounds, may_hold, plain_files, read_files, read_version, write_files
from mergerepl.delta.small_tables import is_of_odd_text, typed_rows
from mergerepl.delta.small_writer import type_problem
from mergerepl.delta.table import TableState, open_table, reason_of
from mergerepl.delta.transactions import Transaction, is_done, marked_session, next_transaction
from mergerepl.delta.types import inner_types
from mergerepl.delta.writes import add_files
from mergerepl.errors import CommitConflictError, StoreError
from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import collected, frame_of
from mergerepl.spark.session import new_session
from mergerepl.store.location import Location
from mergerepl.store.storage import (
    files_in,
    is_local,
    make_folder,
    put_once_written,
    remove_leftover,
    rename,
    storage,
)
from mergerepl.systables.contents import SEQ

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_OF_GROUP = 1 << 16

_DICTIONARY_BYTES = 1 << 15
"""Arrow looks each value of a group up in a dictionary until it has this many bytes, in vain for rowguids and ids. With
its default, a megabyte, writing took up to twice as long (measured), and the files were larger.
"""

_being_written: set[Location] = set()
"""Folders of this process' writers: the two sides of a session append in parallel."""


def append(
    rows: "DataFrame | pa.Table | Iterator[pa.Table]",
    table: Location,
    transaction: Transaction,
    *,
    even_if_empty: bool = True,
) -> int | None:
    """Append rows of Spark, or of Arrow, once; without effect if the table already holds the transaction.

    Arrow batches are written one after the other; if one cannot be made, nothing is appended. The caller holds the
    replica. An empty append is a commit too, unless `even_if_empty` is False. Returns the number of appended rows; None
    if the table already held the transaction.

    Raises: Any error of making a batch; CommitConflictError if another agent has committed a transaction of the same
    application since; StoreError if the table lacks a column, cannot be committed to, or its log does not have the
    commit afterwards (another process overwrote it).
    """
    state = open_table(table)
    if is_done(state, transaction):
        return None
    if isinstance(rows, DataFrame) and is_in_process():
        rows = collected(rows)
    if isinstance(rows, DataFrame):
        files = _written(rows, table, state.schema)
    else:
        files = [_written_here(rows if isinstance(rows, Iterator) else iter([rows]), table, state)]
    stated = state.properties.get(STATS_PROPERTY, "")
    bounded = [name.strip("`") for name in stated.split(",") if name]
    stats = {file: commit_statistics(read_footer(file), bounded) for file in files}
    count = sum(int(each["numRecords"]) for each in stats.values())
    if not even_if_empty:
        # Spark also writes a file for a task without rows.
        for file in [file for file in files if not stats[file]["numRecords"]]:
            storage(file).delete(file)
            del stats[file]
        if not stats:
            return 0
    try:
        add_files(state, stats, transaction)
    except CommitFailedError as error:
        if head_version(table) == state.version:
            raise StoreError(
                f"'{table}' cannot be appended to: {reason_of(error)}. Nothing was appended. Undo what was changed of "
                "it, or restore the folder from a copy taken together with the tables.",
                table=str(table),
            ) from error
        raise CommitConflictError(
            f"Another agent wrote to '{table}' at the same time ({reason_of(error)}). Run again: what was staged is "
            "finished first.",
            table=str(table),
        ) from error
    return count


def may_be_collected(table: Location, count: int) -> bool:
    """True if this process may write the rows that are made of some changes: they are few, and Arrow has their types."""
    fields = open_table(table).fields
    values = count * sum(max(1, len(inner_types(each["type"]))) for each in fields)
    return too_many(count, values) is None and not any(type_problem(each["type"]) for each in fields)


def _written(rows: DataFrame, table: Location, schema: StructType) -> list[Location]:
    """Write rows as the table's columns to Parquet files in its folder; they are invisible to readers before the commit."""
    type_of = {field.name.lower(): field for field in schema}
    _require_columns(rows.columns, table, type_of)
    # Only if types differ: every function of a column costs several messages to the JVM.
    columns = [_as_stored(field, type_of[field.name.lower()]) for field in rows.schema]
    if any(isinstance(column, Column) for column in columns):
        rows = rows.select(columns)
    with _folder_of_run(table) as folder:
        write_files(rows, folder)
        # Spark's names hold a UUID of each write.
        files = [rename(file, table / file.name) for file in files_in(folder, ".parquet")]
    if not files:
        # Even an empty append makes a file, so Spark wrote elsewhere: its default file system is not this machine's.
        raise StoreError(
            f"Spark wrote rows for '{table}', and there are none. Nothing was appended. Let Spark's default file "
            "system (spark.hadoop.fs.defaultFS) be file:///, and run where the replica's folder is.",
            table=str(table),
        )
    return files


def _written_here(batches: "Iterator[pa.Table]", table: Location, state: TableState) -> Location:
    """Write Arrow rows as the table's columns to a file in its folder; missing columns are NULL."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stored = {field.name.lower() for field in state.schema}
    schema = state.arrow_schema
    name = f"part-00000-{uuid4()}-c000.snappy.parquet"
    with (
        _file_of_run(table / name) as file,
        pq.ParquetWriter(file, schema, dictionary_pagesize_limit=_DICTIONARY_BYTES) as writer,
    ):
        # Batches share row groups: each group states all columns again, and one without rows has no bounds.
        waiting: list[pa.Table] = []
        for rows in batches:
            _require_columns(rows.column_names, table, stored)
            columns = [
                rows[field.name].cast(field.type)
                if field.name in rows.column_names
                else pa.nulls(rows.num_rows, field.type)
                for field in schema
            ]
            waiting.append(pa.table(columns, schema=schema))
            if sum(each.num_rows for each in waiting) >= _ROWS_OF_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if any(each.num_rows for each in waiting):
            writer.write_table(pa.concat_tables(waiting))
    return table / name


@contextmanager
def _file_of_run(at: Location) -> "Iterator[Location | BytesIO]":
    """Give what a file of one append is written to; it is in its place at the end."""
    if not is_local(at):
        written = BytesIO()
        yield written
        put_once_written(at, written.getvalue())
        return
    with _folder_of_run(at.parent) as folder:
        make_folder(folder)
        yield folder / at.name
        rename(folder / at.name, at)


@contextmanager
def _folder_of_run(table: Location) -> Iterator[Location]:
    """Give a hidden folder for the files of one append; it is removed at the end."""
    folder = table / f"run-{uuid4()}"
    _being_written.add(folder)
    # The caller holds the replica: all other files here were left by a writer that died.
    runs = {each for each in files_in(table) if each.name.startswith("run-")}
    for left in runs - _being_written:
        remove_leftover(left)
    try:
        yield folder
    finally:
        remove_leftover(folder)
        _being_written.discard(folder)


def _require_columns(names: Sequence[str], table: Location, stored: Collection[str]) -> None:
    """Check that a table has these columns; `stored` are its own in lower case.

    Raises: StoreError.
    """
    unknown = [name for name in names if name.lower() not in stored]
    if unknown:
        raise StoreError(
            f"System table '{table.name}' has no column '{unknown[0]}': it was edited, or restored to an earlier "
            f"version. Nothing was appended. Restore '{table.parent}' from a copy taken together with the tables.",
            table=str(table),
            column=unknown[0],
        )


def _as_stored(field: StructField, stored: StructField) -> str | Column:
    if (field.name, field.dataType.simpleString()) == (stored.name, stored.dataType.simpleString()):
        return quote(field.name)
    return F.col(quote(field.name)).cast(stored.dataType).alias(stored.name)


def read(
    spark: SparkSession | None,
    table: Location,
    bounds: Bounds | None = None,
    *,
    version: int | None = None,
    columns: Sequence[str] = (),
    among: Mapping[str, Collection[int | str]] = MappingProxyType({}),
) -> DataFrame:
    """Return a table's rows at its head or a version, without files that hold no row within the bounds.

    In process these are the rows within the bounds, with some columns, and among the values of others (`among`); on Spark
    other rows and columns may be among them.

    Raises: StoreError if its last commit is damaged; NeedsSparkError for text that is no UTF-8.
    """
    bounds = bounds or {}
    state = open_table(table, version)
    if is_in_process():
        assert version is None, "delta-rs reads the head"
        return _read_here(state, bounds, columns, among)
    assert spark is not None
    files = plain_files(state, bounded=bounds)
    if files:
        chosen = [file for file in files if may_hold(file, bounds)]
        rows = read_files(spark, table, chosen or files[:1], state.schema)
        return rows if chosen else rows.limit(0)
    # Delta prunes files by literals only.
    return within(read_version(spark, table, state.version), bounds, F.lit)


def _read_here(
    state: TableState, bounds: Bounds, columns: Sequence[str], among: Mapping[str, Collection[int | str]]
) -> DataFrame:
    types = {name: state.arrow_schema.field(name).type for name in columns}
    try:
        rows = typed_rows(state.path, types, where=Chosen(bounds, among))
    except StoreError as error:
        if is_of_odd_text(error.__cause__):
            raise NeedsSparkError(f"'{state.path.name}' holds text that is no UTF-8") from error
        raise
    require_texts(rows)
    return frame_of(None, rows, StructType([state.schema[name] for name in columns]))


def within(rows: DataFrame, bounds: Bounds, constant: Callable[[int], Column]) -> DataFrame:
    """Return the rows within the bounds; `constant` makes a column of a number."""
    for name, (above, most) in bounds.items():
        if above is not None:
            rows = rows.where(F.col(name) > constant(above))
        if most is not None:
            rows = rows.where(F.col(name) <= constant(most))
    return rows


def newest_runs(table: Location, *, rows: int) -> tuple[int, int] | None:
    """Return a run after which the table has at least `rows` rows (about) and at most half of all, and their number.

    None without such a run, or if the log does not state the row counts.
    """
    last, count = f"max.{SEQ}", "num_records"
    # Spark also writes a file for a task without rows.
    files = [file for file in plain_files(open_table(table), bounded=(SEQ,)) or () if file.get(count) != 0]
    if any(file.get(last) is None or file.get(count) is None for file in files):
        return None
    rows_of: Counter[int] = Counter()
    for file in files:
        rows_of[file[last]] += file[count]
    read = 0
    for run in sorted(rows_of, reverse=True):
        if read >= rows:
            return (run, read) if 2 * read <= rows_of.total() else None
        read += rows_of[run]
    return None


def row_count(table: Location, *, from_run_exclusive: int | None = None) -> int | None:
    """Return a table's row count by its log, an upper bound for runs after one; None if the log does not state it."""
    bounded = () if from_run_exclusive is None else (SEQ,)
    files = plain_files(open_table(table), bounded=bounded)
    if files is None:
        return None
    if from_run_exclusive is not None:
        files = [file for file in files if may_hold(file, {SEQ: (from_run_exclusive, None)})]
    counts: list[int] = [count for file in files if (count := file.get("num_records")) is not None]
    return sum(counts) if len(counts) == len(files) else None


def bytes_within(table: Location, bounds: Bounds) -> int:
    """Return the bytes of a table's files that may hold rows within the bounds; 0 if its rows are not those of files."""
    files = plain_files(open_table(table), bounded=bounds) or ()
    return sum(file["size_bytes"] for file in files if may_hold(file, bounds))


def delete_where(spark: SparkSession, table: Location, condition: Column, app_id: str) -> bool:
    """Delete rows, in a commit marked as ours if any match. Returns whether any did.

    `app_id` is an application that counts such commits: a fence stops one of a displaced agent.
    """
    if read(spark, table).where(condition).isEmpty():
        return False
    forget_head(table)
    transaction = next_transaction(table, app_id, CommitMark("cleanup", "delete"))
    with marked_session(spark, transaction, table) as session:
        DeltaTable.forPath(session, Location.of(table).spark_uri).delete(condition)
    return True


def file_count(table: Location) -> int:
    """Return the number of a table's data files."""
    return int(open_table(table).files(with_bounds=False).num_rows)


def union_all(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of all frames; a missing column (another article's image) is NULL."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def join_small_files(spark: SparkSession, table: Location, *, large_bytes: int) -> None:
    """Rewrite a table's small files as few large ones (OPTIMIZE): the same rows, in a commit that changes no data.

    Files that are already large are left alone, so that the work grows with the appended rows, not with the table.
    """
    forget_head(table)
    session = new_session(spark)
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(large_bytes))
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(2 * large_bytes))
    DeltaTable.forPath(session, Location.of(table).spark_uri).optimize().executeCompaction()
