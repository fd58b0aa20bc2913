"""Small tables, read and written through `deltalake`, without a JVM: the conditions are delta-rs' own SQL."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from mergerepl.delta.chosen_rows import Chosen, rows_of_few_files
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.log import is_delta_table
from mergerepl.delta.marks import BOOKKEEPING, CommitMark
from mergerepl.delta.opened import open_or_reuse
from mergerepl.delta.own_commits import (
    commit_files,
    is_committed_here,
    last_overwrite,
    other_commit,
    put_rows,
)
from mergerepl.delta.own_log import own_copy
from mergerepl.delta.sql_text import quoted
from mergerepl.delta.table import TableState, open_table, reason_of, refuse_empty_commit
from mergerepl.delta.transactions import Transaction, commit_properties
from mergerepl.delta.types import Json, field, json_of
from mergerepl.errors import CommitConflictError, StoreError, full_disk_named
from mergerepl.rows.arrow_values import python_values
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import before_write
from mergerepl.store.storage import is_local, storage

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

log = logging.getLogger(__name__)

Row = dict[str, Any]

_READ = frozenset({"timestampNtz"})
"""The reader features of users' tables whose rows delta-rs reads as they are."""


def read_rows(
    path: Location,
    names: Sequence[str],
    *,
    where: "str | Chosen | None" = None,
    order_limit: str = "",
    required: Sequence[str] = (),
) -> list[Row]:
    """Return rows of a Delta table read by delta-rs; columns that the stored table lacks are None.

    Raises: StoreError if the table is missing or unreadable, or lacks a value in a `required` column.
    """
    stored = version_and_rows(path, names, where=where, order_limit=order_limit, required=required)[1]
    return python_rows(stored, names)


def has_values(table: TableState, name: str) -> bool | None:
    """Return whether a column of a table has a value now; None if delta-rs cannot read the table."""
    if not table.reader_features <= _READ or table.has_column_mapping:
        return None
    return bool(read_rows(table.path, [name], where=f"{quoted(name)} is not null", order_limit="limit 1"))


def typed_rows(path: Location, types: Mapping[str, "pa.DataType"], *, where: "str | Chosen") -> "pa.Table":
    """Return columns of a table's rows with these types; a column that the table does not have yet is NULL."""
    import pyarrow as pa

    found = pa.table(version_and_rows(path, list(types), where=where)[1])
    columns = {
        name: found[name].cast(type_) if name in found.column_names else pa.nulls(found.num_rows, type_)
        for name, type_ in types.items()
    }
    return pa.table(columns)


def version_and_rows(
    path: Location,
    names: Sequence[str],
    *,
    where: "str | Chosen | None" = None,
    order_limit: str = "",
    required: Sequence[str] = (),
) -> tuple[int, "pa.Table"]:
    """Return the version of a table and rows of it, as `read_rows` does."""
    here = None if order_limit else _rows_here(path, where)
    if here is not None:
        version, found = here
        if not found.num_columns:
            return version, found
        _require_columns(path, required, found.column_names)
        chosen = where.of(found) if isinstance(where, Chosen) else found
        result = chosen.select([name for name in names if name in found.column_names])
    else:
        bounds = where.bounds if isinstance(where, Chosen) and not where.or_null else {}
        with _as_store_error(path), _at_head(path, bounds) as (version, table):
            refuse_empty_commit(path, version)
            stored = [field.name for field in table.schema().fields]
            _require_columns(path, required, stored)
            select = ", ".join(quoted(name) for name in names if name in stored)
            condition = f" where {where.sql if isinstance(where, Chosen) else where}" if where else ""
            result = _query(table, f"select {select} from t{condition} {order_limit}")
    if empty := [name for name in required if result.column(name).null_count]:
        raise edited_table(path, f"has no value in column '{empty[0]}'", column=empty[0])
    return version, result


def _rows_here(path: Location, where: "str | Chosen | None") -> "tuple[int, pa.Table] | None":
    """Return the version of a table and its rows, for `where` to choose from; None if delta-rs has to read it."""
    if isinstance(where, Chosen):
        few = rows_of_few_files(path)
        return few if few is not None and where.columns <= {*few[1].column_names} else None
    if where is not None:
        return None
    with _as_store_error(path):
        own = last_overwrite(path)
    if own is None:
        return None
    import pyarrow as pa

    version, parts = own
    return version, pa.concat_tables(parts) if parts else pa.table({})


def _require_columns(path: Location, required: Sequence[str], stored: Sequence[str]) -> None:
    if gone := [name for name in required if name not in stored]:
        raise edited_table(path, f"has no column '{gone[0]}'", column=gone[0])


@contextmanager
def _at_head(
    path: Location, bounds: Mapping[str, tuple[int | None, int | None]] = MappingProxyType({})
) -> Iterator[tuple[int, "DeltaTable"]]:
    """Give the latest version of a table, and its rows within bounds for queries; others may be among them."""
    with own_copy(path, bounds) as own:
        opened = open_or_reuse(path if own is None else own[1])
        with opened.at(opened.version) as table:
            yield opened.version if own is None else own[0], table


@contextmanager
def _writing(path: Location) -> Iterator["DeltaTable"]:
    """Give a table for one commit by delta-rs.

    Raises: CommitConflictError if another commit removed rows that this one reads.
    """
    from deltalake.exceptions import CommitFailedError

    with _as_store_error(path):
        opened = open_or_reuse(path)
    try:
        with opened.writing(opened.version) as table:
            yield table
    except CommitFailedError as error:
        raise other_commit(path) from error


def _query(table: "DeltaTable", query: str) -> "pa.Table":
    """Return the result of a query of `t`.

    By default Spark writes times as INT96, which DataFusion takes for nanoseconds in 64 bits: before 1677-09-21 and
    after 2262-04-11 it would read other times.
    """
    from deltalake import QueryBuilder

    builder = QueryBuilder()
    builder.execute("SET datafusion.execution.parquet.coerce_int96 = us").read_all()
    return builder.register("t", table).execute(query).read_all()


def python_rows(stored: "pa.Table", names: Sequence[str]) -> list[Row]:
    """Return Arrow rows as Python values; missing columns are None."""
    columns = {name: python_values(stored.column(name)) for name in stored.column_names}
    return [
        {name: _python_value(columns[name][i]) if name in columns else None for name in names}
        for i in range(stored.num_rows)
    ]


def column_names(path: Location) -> list[str]:
    """Return the columns of a Delta table.

    Raises: StoreError if the table is missing or unreadable.
    """
    with _as_store_error(path):
        return [field["name"] for field in open_table(path).fields]


def count_rows(path: Location, *, where: str | None = None) -> int:
    """Count the rows of a Delta table, or those that fulfil a condition.

    Raises: StoreError if the table is missing or unreadable.
    """
    with _as_store_error(path), _at_head(path) as (_, table):
        if where is None:
            return int(table.count())  # By the files' statistics.
        found = _query(table, f"select count(*) as n from t where {where}")
        return int(python_values(found.column("n"))[0])


def counts_by(path: Location, column: str, *, where: str) -> dict[Any, int]:
    """Count the rows of a Delta table that fulfil a condition, by the values of a column.

    Raises: StoreError if the table is missing or unreadable.
    """
    with _as_store_error(path), _at_head(path) as (_, table):
        name = quoted(column)
        found = _query(table, f"select {name} as value, count(*) as n from t where {where} group by {name}")
        return dict(zip(python_values(found.column("value")), python_values(found.column("n")), strict=True))


def is_of_odd_text(error: BaseException | None) -> bool:
    """Whether delta-rs refused to read text that is not UTF-8, which Spark reads."""
    return "non UTF-8" in str(error)


@contextmanager
def _as_store_error(path: Location) -> Iterator[None]:
    """Convert errors of delta-rs while it reads a table.

    Raises: StoreError.
    """
    from deltalake.exceptions import TableNotFoundError

    try:
        yield
    except TableNotFoundError as error:
        raise StoreError(
            f"System table '{path.name}' is missing below '{path.parent}': it was removed, or `mergerepl apply` "
            "was cut short. Restore the folder from a copy taken together with the tables, or run `mergerepl "
            "apply FILE`, which says what else can be done.",
            table=str(path),
        ) from error
    except StoreError:
        raise
    except Exception as error:
        if is_of_odd_text(error):
            raise StoreError(
                f"Table '{path}' holds text that is no UTF-8, which only Spark reads: look at it with "
                "`Replica(PATH).conflicts.rows(TABLE)` in Python, or with Spark SQL. Nothing is damaged.",
                table=str(path),
            ) from error
        # Not only DeltaError: a failure while rows are read is a bare Exception of the query engine.
        raise StoreError(
            f"Table '{path}' cannot be read: {reason_of(error)}. Its log or a file of it is damaged or gone: "
            "restore the folder from a copy.",
            table=str(path),
        ) from error


def write_rows(
    path: Location,
    rows: "pa.Table",
    *,
    mode: Literal["append", "overwrite"],
    properties: Mapping[str, str],
    once: tuple[str, int] | None = None,
    read_version: int | None = None,
) -> int:
    """Write rows in one commit; create a missing table with these properties. Returns the version.

    `once` is a Delta transaction, an application and a version, which the commit records. `read_version` is the version
    that the rows of an overwrite were made from.

    Raises: CommitConflictError if the rows to overwrite are not those of `read_version`; StoreError if the disk is full.
    """
    from deltalake import Schema, write_deltalake

    with full_disk_named(f"System table '{path.name}' in '{path.parent}'", table=str(path)):
        if not is_delta_table(path):
            if is_local(path) and rows.num_rows:
                before_write()
                terms = commit_properties(path, BOOKKEEPING)
                write_deltalake(
                    str(path), rows, mode=mode, configuration=dict(properties), commit_properties=terms
                )
                return 0
            fields = json.loads(Schema.from_arrow(rows.schema).to_json())["fields"]
            create_table(path, NewTable(fields, (), properties), CommitMark("", "create"))
            if not rows.num_rows:
                return 0
        state = open_table(path)
        if read_version is not None:
            _refuse_other_rows(state, read_version)
        if is_committed_here(state) and _has_columns(state, rows.schema):
            is_overwrite = mode == "overwrite"
            files = put_rows(path, rows) if rows.num_rows else {}
            try:
                return commit_files(state, files, mark=BOOKKEEPING, once=once, is_overwrite=is_overwrite)
            except CommitConflictError:
                if not is_local(path):
                    raise
                for file in files:
                    storage(file).delete(file)
                if is_overwrite:
                    # The rows to write do not have those of the other commit.
                    _refuse_other_rows(open_table(path), state.version)
                # A user's OPTIMIZE, say. delta-rs commits after it.
        with _writing(path) as table:
            if read_version is not None and table.version() != state.version:
                _refuse_other_rows(open_table(path, table.version()), read_version)
            # A table of an older release lacks the newest columns.
            is_older = not set(rows.column_names) <= {field.name for field in table.schema().fields}
            more: dict[str, Any] = {"schema_mode": "merge"} if is_older else {}
            done = None if once is None else Transaction(*once, BOOKKEEPING)
            # Rows that another commit appends in between would stay beside an overwrite: `last_overwrite` misses them.
            at_once = {"max_commit_retries": 0} if mode == "overwrite" else {}
            terms = commit_properties(path, BOOKKEEPING, done, **at_once)
            write_deltalake(table, rows, mode=mode, commit_properties=terms, **more)
            return table.version()


def _refuse_other_rows(state: TableState, read_version: int) -> None:
    """Check that a table has the rows of a version that was read.

    Raises: CommitConflictError.
    """
    is_earlier = state.version < read_version
    if is_earlier or any(each.data_change for each in state.commits_after(read_version)):
        raise other_commit(state.path)


def _has_columns(state: TableState, schema: "pa.Schema") -> bool:
    """Whether a table has columns of these names and types. One of an older release lacks the newest.

    In a folder it has no others: delta-rs refuses rows without them, and makes some of the commits.
    """
    stored = {each["name"]: each["type"] for each in state.fields}
    if is_local(state.path) and len(stored) != len(_types_of(schema)):
        return False
    return all(stored.get(name) == type_ for name, type_ in _types_of(schema).items())


@lru_cache(maxsize=256)
def _types_of(schema: "pa.Schema") -> dict[str, Json]:
    from deltalake import Schema

    return {each["name"]: each["type"] for each in json.loads(Schema.from_arrow(schema).to_json())["fields"]}


def update_rows(path: Location, values: Mapping[str, str], *, where: str) -> None:
    """Set columns (to expressions) in the rows that fulfil a condition, in one commit if any do."""
    with _writing(path) as table:
        table.update(
            updates=dict(values), predicate=where, commit_properties=commit_properties(path, BOOKKEEPING)
        )


def delete_rows(path: Location, *, where: str) -> None:
    """Remove the rows that fulfil a condition, in one marked commit if any do.

    Files with only such rows are not rewritten.
    """
    with own_copy(path) as own:
        if own is not None and not count_rows(own[1], where=where):
            return
    with _writing(path) as table:
        table.delete(where, commit_properties=commit_properties(path, CommitMark("cleanup", "delete")))


def edited_table(path: Location, what: str, **facts: Any) -> StoreError:
    """Return the error for a system table edited by others; `what` is the state that mergerepl never writes."""
    return StoreError(
        f"System table '{path.name}' of replica '{path.parent.parent}' {what}: it was edited or damaged. "
        f"{way_back(path.parent)}.",
        table=str(path),
        **facts,
    )


def way_back(folder: Location) -> str:
    """Return how an edited system table gets its former rows; cleanups remove those of earlier versions (`KEPT`)."""
    return (
        "Restore it to the version before that (RESTORE TABLE) while its files are there, which cleanups remove once they "
        f"have been unused for an hour; or restore the folder '{folder}' from a copy taken together with the tables"
    )


def _python_value(value: Any) -> Any:
    """Return a value with its maps, which Arrow returns as lists of pairs, as dictionaries if their keys allow it."""
    if isinstance(value, dict):
        return {name: _python_value(part) for name, part in value.items()}
    if not isinstance(value, list) or not value:
        return value
    if not isinstance(value[0], tuple):
        return [_python_value(part) for part in value]
    pairs = [(_python_value(name), _python_value(part)) for name, part in value]
    return pairs if isinstance(pairs[0][0], dict | list) else dict(pairs)


def arrow_schema(types: Mapping[str, str]) -> "pa.Schema":
    """Return the Arrow schema of columns with these types in Spark DDL."""
    return _arrow_schema(tuple(types.items()))


@lru_cache(maxsize=256)
def _arrow_schema(types: tuple[tuple[str, str], ...]) -> "pa.Schema":
    import pyarrow as pa
    from deltalake import Schema

    fields = [field(name, json_of(type_)) for name, type_ in types]
    return pa.schema(Schema.from_json(json.dumps({"type": "struct", "fields": fields})).to_arrow())
