"""Writes of whole tables that happen once: append, overwrite, other columns and column types."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mergerepl.delta.contract.problems import COMMITTED_BY_DELTA_RS
from mergerepl.delta.create import NewTable, features_of
from mergerepl.delta.known_heads import forget_head
from mergerepl.delta.log import head_version
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import COMMENT
from mergerepl.delta.own_commits import commit_files, is_committed_here
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.transactions import (
    Transaction,
    commit_properties,
    is_done,
    read_back,
    session_with_mark,
    write_once,
)
from mergerepl.delta.types import Field, ddl_of, field, json_of
from mergerepl.errors import CommitConflictError
from mergerepl.rows.sql import literal, quote
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import before_write
from mergerepl.store.storage import facts_of, size_to_read

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession


def append(rows: "DataFrame", table: Location, transaction: Transaction) -> None:
    """Append rows to a user's table through Spark; without effect if the table already holds the transaction.

    Raises: CommitConflictError if the commit is not in the log afterwards (another process overwrote it).
    """
    from mergerepl.spark.session import with_write_confs

    if is_done(open_table(table), transaction):
        return
    head = head_version(table)
    write_once(with_write_confs(rows).write.format("delta").mode("append"), table, transaction, head=head)


def add_files(
    state: TableState, files: Mapping[Location, Mapping[str, Any]], transaction: Transaction
) -> None:
    """Commit files already in a table's folder, each with its statistics; an empty list is a commit too.

    Raises: deltalake's CommitFailedError if the table refuses the commit; CommitConflictError if the commit is not in
    the log afterwards (another process overwrote it).
    """
    if is_committed_here(state):
        sizes = {file: (size_to_read(file), statistics) for file, statistics in files.items()}
        try:
            commit_files(state, sizes, mark=transaction.mark, once=(transaction.app_id, transaction.version))
        except CommitConflictError:
            if not state.path.is_local:
                raise
            # delta-rs commits after a user's OPTIMIZE, say, or names what it conflicts with.
        else:
            if state.path.is_local:
                read_back(state.path, transaction, from_version_exclusive=state.version)
            return
    from deltalake.transaction import AddAction

    def added(file: Location, statistics: Mapping[str, Any]) -> AddAction:
        facts = facts_of(file)
        written_ms = facts.written_ns // 1_000_000
        return AddAction(file.name, facts.size, {}, written_ms, True, json.dumps(statistics))

    with state.writing() as opened:
        opened.create_write_transaction(
            [added(*each) for each in files.items()],
            mode="append",
            schema=opened.schema(),
            commit_properties=commit_properties(state.path, transaction.mark, transaction),
        )
    read_back(state.path, transaction, from_version_exclusive=state.version)


def overwrite(
    rows: "DataFrame",
    table: Location,
    transaction: Transaction,
    *,
    partition_columns: Sequence[str],
    keeps_columns: bool = False,
) -> int:
    """Make `rows` the content of a table, in one commit: readers never see it empty.

    Its columns and partitions change to those of the rows. `keeps_columns`: a table that can take the rows keeps its
    other columns and its partitions.

    Returns: The version of the commit.

    Raises: CommitConflictError if the commit is not in the log afterwards (another process overwrote it).
    """
    from mergerepl.spark.session import with_write_confs

    state = open_table(table)
    present = {each["name"]: ddl_of(each["type"]) for each in state.fields}
    wanted = {each.name: ddl_of(each.jsonValue()["type"]) for each in rows.schema}
    writer = with_write_confs(rows).write.format("delta").mode("overwrite")
    is_taken = (
        keeps_columns and wanted.items() <= present.items() and wanted.keys() <= {*state.written_columns}
    )
    is_same = present == wanted and list(state.metadata.partition_columns) == list(partition_columns)
    if not is_taken and not is_same:
        # Delta refuses an overwrite with a column type whose table feature is missing.
        state_features(lambda: rows.sparkSession, state, wanted.values())
        writer = writer.option("overwriteSchema", "true").partitionBy(*partition_columns)
    return write_once(writer, table, transaction, head=state.version).version


def retype_columns(
    spark: "SparkSession", table: Location, types: Mapping[str, str], transaction: Transaction
) -> None:
    """Give columns of a table other types (Spark DDL), in one marked commit that rewrites its rows; once.

    It avoids Delta's type widening, a feature that would lock delta-rs out. The caller ensures that no value is lost.
    """
    from pyspark.sql import functions as F

    from mergerepl.delta.reads import read_version
    from mergerepl.spark.session import new_session

    state = open_table(table)
    present = {each["name"]: ddl_of(each["type"]) for each in state.fields}
    if all(present.get(name) == type_ for name, type_ in types.items()):
        return
    rows = read_version(new_session(spark), table, state.version)

    def column(name: str) -> "Column":
        value = F.col(quote(name))
        return value.cast(types[name]).alias(name) if name in types else value

    rows = rows.select(*(column(name) for name in rows.columns))
    overwrite(rows, table, transaction, partition_columns=state.metadata.partition_columns)


def add_columns(
    spark_of: "Callable[[], SparkSession]",
    path: Location,
    columns: Sequence[Field],
    mark: CommitMark | None = None,
) -> None:
    """Add columns at a table's end: by delta-rs, in milliseconds, unless they need a missing table feature."""
    if not columns:
        return
    state = open_table(path)

    def add(opened: "DeltaTable") -> None:
        from deltalake import Field as LogField

        added = [LogField.from_json(json.dumps(column)) for column in columns]
        opened.alter.add_columns(
            added, commit_properties=None if mark is None else commit_properties(path, mark)
        )

    if not missing_features(state, columns) and _is_altered_in_process(state, add):
        return
    named = ", ".join(_declared(column) for column in columns)
    forget_head(path)
    session = _session_of(spark_of, mark)
    state_features(lambda: session, state, (ddl_of(column["type"]) for column in columns))
    before_write()
    session.sql(f"ALTER TABLE delta.{quote(str(path))} ADD COLUMNS ({named})")


def set_comment(
    spark_of: "Callable[[], SparkSession]", path: Location, column: str, comment: str, mark: CommitMark
) -> None:
    """Set the comment of a column in a marked commit: by delta-rs, in milliseconds, unless only Spark can."""
    said, properties = {COMMENT: comment}, commit_properties(path, mark)
    state = open_table(path)
    if not _is_altered_in_process(
        state, lambda opened: opened.alter.set_column_metadata(column, said, commit_properties=properties)
    ):
        alter_table(spark_of, path, f"ALTER COLUMN {quote(column)} COMMENT {literal(comment)}", mark)


def _is_altered_in_process(state: TableState, alter: "Callable[[DeltaTable], None]") -> bool:
    """Alter a table by delta-rs; False if that cannot write to it."""
    if state.has_column_mapping or not state.features <= COMMITTED_BY_DELTA_RS:
        return False
    with state.writing() as opened:
        alter(opened)
    return True


def alter_table(
    spark_of: "Callable[[], SparkSession]", path: Location, change: str, mark: CommitMark | None = None
) -> None:
    """Change a table's columns by ALTER TABLE, in one commit; `change` is what follows the table's name."""
    forget_head(path)
    session = _session_of(spark_of, mark)
    before_write()
    session.sql(f"ALTER TABLE delta.{quote(str(path))} {change}")


def _session_of(spark_of: "Callable[[], SparkSession]", mark: CommitMark | None) -> "SparkSession":
    """Return a session of its own: a commit changes a conf."""
    from mergerepl.spark.session import new_session

    return new_session(spark_of()) if mark is None else session_with_mark(spark_of(), mark)


def _declared(column: Field) -> str:
    comment = column["metadata"].get("comment")
    said = f" COMMENT {literal(str(comment))}" if comment is not None else ""
    return f"{quote(column['name'])} {ddl_of(column['type'])}{said}"


def state_features(spark_of: "Callable[[], SparkSession]", table: TableState, types: Iterable[str]) -> None:
    """Add the features that a table lacks for columns of some types (Spark DDL): Delta adds them only on request."""
    missing = missing_features(table, [field("c", json_of(type_)) for type_ in types])
    if missing:
        before_write()
        pairs = ", ".join(f"'delta.feature.{name}' = 'supported'" for name in missing)
        spark_of().sql(f"ALTER TABLE delta.{quote(str(table.path))} SET TBLPROPERTIES ({pairs})")


def missing_features(table: TableState, columns: Sequence[Field]) -> list[str]:
    """Return the table features that a table lacks for some columns."""
    return sorted({*features_of(NewTable(columns))} - table.features)


def compact(
    table: Location, *, target_bytes: int, most_files: int = 0, rows_of_group: int | None = None
) -> bool:
    """Rewrite files below a size as few of about that size if a table has more than `most_files`. Return whether it did.

    The same rows, in a commit that changes no data, without Spark. Files stay in the order of their appends, so that
    bounds of a column that rises with every append do not overlap. `rows_of_group`: the most rows of a row group, for
    readers that look rows up by bounds.
    """
    from deltalake import ColumnProperties, WriterProperties

    state = open_table(table)
    if state.files(with_bounds=False).num_rows <= most_files:
        return False
    bounded = WriterProperties(
        compression="ZSTD",
        max_row_group_size=rows_of_group,
        default_column_properties=ColumnProperties(statistics_enabled="CHUNK"),
    )
    properties = None if rows_of_group is None else bounded
    with state.writing() as opened:
        done = opened.optimize.compact(target_size=target_bytes, writer_properties=properties)
    return bool(done["numFilesRemoved"])
