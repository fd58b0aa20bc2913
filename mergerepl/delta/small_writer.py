"""MERGE of up to 100,000 rows by delta-rs: the second writer of users' tables (decision 0015).

A Spark MERGE takes 1.3 to 2.6 s for any number of rows; this one takes milliseconds for few rows, 0.1 s for 60,000. It
makes no decision: the staged rows state each row's final state. Readers see the same as after Spark's MERGE: the same
mark, transaction, rows and change feed. Tables with features that the tables below do not list are left to Spark, as is
everything that delta-rs refuses.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mergerepl.changes import DATA_ACTIONS, Action
from mergerepl.delta.engine_choice import (
    NeedsSparkError,
    TooLargeForArrowError,
    arrow_refusals,
    require_texts,
)
from mergerepl.delta.footers import footer_problem, read_footer
from mergerepl.delta.log import recent_head
from mergerepl.delta.metadata import CONSTRAINT_PREFIX
from mergerepl.delta.parquet_files import parquet_dataset
from mergerepl.delta.reads import may_hold, plain_files
from mergerepl.delta.table import TableState, open_table, reason_of
from mergerepl.delta.transactions import Transaction, commit_properties, is_done
from mergerepl.delta.types import Json, ddl_of, has_not_null_parts, inner_types, json_of, leaf_types
from mergerepl.delta.writes import add_files
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.key_bounds import KeyBounds
from mergerepl.store.location import Location

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import PostCommitHookProperties, WriterProperties

logger = logging.getLogger(__name__)

MOST_ROWS = 100_000
"""The most rows of one MERGE; this process holds them in memory."""

MOST_BYTES_REWRITTEN = 256 * 1024 * 1024
"""The most bytes of the files with such rows: delta-rs rewrites a touched file here, batch by batch."""

MOST_FILES = 100

_COMMITS_OF_CHECKPOINT = 10
"""A table in a store gets a checkpoint at every tenth version, as by Spark's MERGE; delta-rs then removes expired log
files. It reads each commit since the last checkpoint twice, and itself writes one after a hundred commits.
"""

ACTION = "action"

_FEATURES = frozenset(
    {"appendOnly", "invariants", "changeDataFeed", "checkConstraints", "generatedColumns", "timestampNtz"}
)
"""Writer features that a table may have. It may list CHECK, generated columns and invariants, but not use them."""

_OLDER_PROTOCOL = 4
"""Up to this writer version the features are those above."""

COLUMN_PROPERTIES = frozenset({"comment"})
"""Properties that a column may have. char(n), defaults, identities, collations and mapped names are others."""

_NUMBERS = frozenset({"byte", "short", "integer", "long"})
_FLOATS = frozenset({"float", "double"})
_PLAIN = _NUMBERS | _FLOATS | {"string", "date", "boolean", "binary", "timestamp", "timestamp_ntz"}
_DECIMAL = re.compile(r"decimal\(\d+,\s*-?\d+\)")
"""Types of columns, and of parts of arrays and structs. delta-rs compares maps by the order of their keys."""

_WITH_STATISTICS = _NUMBERS | {"string", "date"}
"""Types that commits state bounds of. Those of delta-rs are wrong for NaN and rounded for decimals."""

KEY_TYPES = _NUMBERS | {"string", "date"}
"""Types of key columns."""

_NAME = re.compile(r"[^`\".\\]+")


@dataclass(frozen=True)
class SmallRows:
    """Rows to merge: columns `action` (insert, update, delete) and image fields c0…; and each field's type (DDL)."""

    rows: "pa.Table"
    types: Mapping[str, str]

    def bounds(self, article: PublishedArticle) -> KeyBounds:
        """Return the bounds of the identity fields that are numbers, and have values."""
        import pyarrow.compute as pc

        numbers = [field for field in article.identity_fields if json_of(self.types[field]) in _NUMBERS]
        ends = {field: pc.min_max(self.rows[field]).as_py() for field in numbers}
        return {
            field: (str(each["min"]), str(each["max"]))
            for field, each in ends.items()
            if each["min"] is not None
        }


def reason_for_spark(
    table: TableState, article: PublishedArticle, actions: Mapping[str, int], bounds: KeyBounds
) -> NeedsSparkError | None:
    """Return why Spark must merge these rows into a table; None if delta-rs may.

    The table is at its head. `actions`: rows by action. `bounds`: image field -> (lowest, highest) key, as literal
    texts.
    """
    if sum(actions.get(each.value, 0) for each in DATA_ACTIONS) > MOST_ROWS:
        return TooLargeForArrowError(f"more than {MOST_ROWS} rows")
    for field in table.fields:
        if not field["nullable"] and field["name"] not in article.columns:
            return NeedsSparkError(f"column '{field['name']}' is NOT NULL, and not of the article")
    if (problem := article_problem(table, article)) is not None:
        return NeedsSparkError(problem)
    return _file_problem(table, article, bounds)


def article_problem(table: TableState, article: PublishedArticle) -> str | None:
    """Return, as a clause, why Arrow may not hold a table's rows as Spark does; None if it may."""
    if (problem := written_problem(table)) is not None:
        return problem
    for name, type_ in zip(article.columns, article.types, strict=True):
        found = table.field(name)
        if found is None or ddl_of(found["type"]) != type_:
            return f"column '{name}' is not as published"
    for name in article.identity:
        if not isinstance(kind := _type(table, name), str) or kind not in KEY_TYPES:
            return f"key column '{name}'"
    return None


def written_problem(table: TableState) -> str | None:
    """Return, as a clause, why delta-rs may not write a table's rows as Spark does; None if it may."""
    return rows_problem(table) or constraint_problem(table)


def rows_problem(table: TableState) -> str | None:
    """Return, as a clause, why Arrow may not read a table's rows as Spark does; None if it may."""
    if (problem := feature_problem(table)) is not None:
        return problem
    if table.metadata.partition_columns:
        # A file need not hold its partition columns, and delta-rs does not write them.
        return "partitions"
    for field in table.fields:
        problem = type_problem(field["type"])
        if not _NAME.fullmatch(field["name"]):
            problem = "its name"
        elif others := set(field["metadata"]) - COLUMN_PROPERTIES:
            problem = f"its properties {', '.join(sorted(others))}"
        if problem is not None:
            return f"column '{field['name']}': {problem}"
    return None


def feature_problem(table: TableState) -> str | None:
    """Return, as a clause, the features under which a table's rows may not be those of its files; None without such."""
    others = table.features - _FEATURES
    if others or (not table.features and table.writer_version > _OLDER_PROTOCOL):
        return f"table features {', '.join(sorted(others)) or table.writer_version}"
    return None


def constraint_problem(table: TableState) -> str | None:
    """Return, as a clause, the rules of a table that only Spark checks when it writes; None for a table without such."""
    if any(name.startswith(CONSTRAINT_PREFIX) for name in table.properties):
        return "CHECK constraints"
    return None


def type_problem(type_: Json) -> str | None:
    """Return, as a clause, why Arrow may not hold values of a type as Spark does; None if it may."""
    if _has_map(type_) or has_not_null_parts(type_):
        return "its type"
    if others := {each for each in leaf_types(type_) if each not in _PLAIN and not _DECIMAL.fullmatch(each)}:
        return f"its type {', '.join(sorted(others))}"
    return None


def _has_map(type_: Json) -> bool:
    return (not isinstance(type_, str) and type_["type"] == "map") or any(map(_has_map, inner_types(type_)))


def _touched(table: TableState, article: PublishedArticle, bounds: KeyBounds) -> dict[Location, int] | None:
    """Return the files that may hold rows within some bounds, with their sizes; None if rows are not those of files."""
    ranges = {
        name: (int(bounds[field][0]) - 1, int(bounds[field][1]))
        for name, field in zip(article.identity, article.identity_fields, strict=True)
        if field in bounds and _type(table, name) in _NUMBERS
    }
    files = plain_files(table, bounded=tuple(ranges))
    if files is None:
        return None
    return {table.path / each["path"]: each["size_bytes"] for each in files if may_hold(each, ranges)}


def _file_problem(table: TableState, article: PublishedArticle, bounds: KeyBounds) -> NeedsSparkError | None:
    if (touched := _touched(table, article, bounds)) is None:
        return NeedsSparkError("its rows are not those of its files")
    try:
        if len(touched) > MOST_FILES or sum(touched.values()) > MOST_BYTES_REWRITTEN:
            return TooLargeForArrowError(
                f"more than {MOST_FILES} files or {MOST_BYTES_REWRITTEN >> 20} MiB to rewrite"
            )
        for file in touched:
            if (problem := footer_problem(read_footer(file), table.names)) is not None:
                return NeedsSparkError(problem)
    except (OSError, ValueError) as error:
        return NeedsSparkError(f"a file cannot be read: {error}")
    return None


def holds_inserts(rows: SmallRows, table: Location, article: PublishedArticle) -> bool:
    """Whether a table has the key of a row that is to be inserted.

    Raises: NeedsSparkError if Spark has to read the table.
    """
    return bool(_keys_met(rows, table, article, [Action.INSERT]).num_rows)


def holds_twice(rows: SmallRows, table: Location, article: PublishedArticle) -> bool:
    """Whether a table has the key of a row that is to be inserted or updated more than once. Raises: as `holds_inserts`."""
    met = _keys_met(rows, table, article, [Action.INSERT, Action.UPDATE])
    return bool(met.group_by(list(article.identity)).aggregate([]).num_rows < met.num_rows)


@arrow_refusals()
def _keys_met(
    rows: SmallRows, table: Location, article: PublishedArticle, actions: Sequence[Action]
) -> "pa.Table":
    """Return the keys of a table's rows that have the key of a row with one of some actions."""
    import pyarrow.dataset as ds

    state, bounds = open_table(table), rows.bounds(article)
    if (refused := reason_for_spark(state, article, {}, bounds)) is not None:
        raise refused
    names = list(article.identity)
    keys = rows.rows.filter(ds.field(ACTION).isin([each.value for each in actions]))
    keys = keys.select(article.identity_fields).rename_columns(names)
    if not keys.num_rows or not (files := [*(_touched(state, article, bounds) or ())]):
        return keys.slice(0, 0)
    known = parquet_dataset(files).to_table(columns=names)
    return known.join(keys.cast(known.schema), keys=names, join_type="left semi")


def merge_by_delta_rs(
    rows_of: Callable[[], SmallRows],
    table: Location,
    article: PublishedArticle,
    *,
    actions: Mapping[str, int],
    bounds: KeyBounds,
    transaction: Transaction,
    at: int | None = None,
) -> None:
    """Bring a table to the final state of some rows, in one MERGE of delta-rs, unless it holds the transaction already.

    `at` is the version that the rows were made from, if they hold values of the table; the merge follows no other one.

    Raises: NeedsSparkError if Spark has to merge; CommitFailedError if another writer committed after the table was
    read (a commit never follows one that was not read).
    """
    # A later commit makes this one fail, and the next attempt opens the table at its head.
    state = open_table(table, recent_head(table) if at is None else at)
    if (refused := reason_for_spark(state, article, actions, bounds)) is not None:
        raise refused
    if not is_done(state, transaction):
        _merge(rows_of(), state, article, bounds, transaction)


@arrow_refusals()
def _merge(
    staged: SmallRows,
    state: TableState,
    article: PublishedArticle,
    bounds: KeyBounds,
    transaction: Transaction,
) -> None:
    """Merge rows into a table.

    Raises: NeedsSparkError; CommitFailedError if another writer committed since the table was opened.
    """
    import pyarrow as pa

    columns = dict(zip(article.columns, article.fields, strict=True))
    types = {name: ddl_of(_type(state, name)) for name in columns}
    for name, field in columns.items():
        if staged.types.get(field) != types[name]:
            raise NeedsSparkError(
                f"column '{name}' is {types[name]}, and the rows have {staged.types.get(field)}"
            )
    is_guid = article.rowguid_column is not None
    is_delete = f"s.{ACTION} = '{Action.DELETE.value}'"
    with state.writing() as log:
        stored = pa.schema(log.schema().to_arrow())
        target = [
            (ACTION, pa.string()),
            *((field, stored.field(name).type) for name, field in columns.items()),
        ]
        rows = staged.rows.select([name for name, _ in target]).cast(pa.schema(target))
        require_texts(rows)
        found = set(rows[ACTION].unique().to_pylist())
        merge = log.merge(
            rows,
            " AND ".join(_same_key(state, article, bounds)),
            source_alias="s",
            target_alias="t",
            writer_properties=_writer_properties(state),
            # Another writer's commit always ends this one: delta-rs compares files and predicates, Spark rows.
            commit_properties=commit_properties(
                state.path, transaction.mark, transaction, max_commit_retries=0
            ),
            post_commithook_properties=_hooks(state),
        )
        if Action.DELETE in found:
            merge = merge.when_matched_delete(is_delete)
        if found - {Action.DELETE.value}:
            # As in Spark's MERGE, an insert that finds its row updates it, and an identical row is left alone.
            updated = {n: f for n, f in columns.items() if is_guid or n not in article.identity}
            if updated:
                differs = " OR ".join(
                    _differs(f"t.`{name}`", f"s.{f}", types[name]) for name, f in updated.items()
                )
                merge = merge.when_matched_update({f"`{n}`": f"s.{f}" for n, f in updated.items()}, differs)
            values = {f"`{name}`": f"s.{field}" for name, field in columns.items()}
            merge = merge.when_not_matched_insert(values, f"NOT ({is_delete})")
        merge.execute()
        written = log.version()
    if written == state.version:
        # Without changes delta-rs commits nothing; Spark's MERGE leaves its transaction.
        add_files(open_table(state.path), {}, transaction)
    elif not state.path.is_local and written % _COMMITS_OF_CHECKPOINT == 0:
        _write_checkpoint(open_table(state.path, written))


def _write_checkpoint(state: TableState) -> None:
    """Write a checkpoint, which only saves time."""
    from deltalake.exceptions import DeltaError

    try:
        state.checkpoint()
    except (DeltaError, OSError) as error:
        logger.info("no checkpoint of '%s': %s", state.path, reason_of(error))


def _hooks(state: TableState) -> "PostCommitHookProperties":
    """Return what delta-rs does after a commit. To remove expired log files, it lists the whole log."""
    from deltalake import PostCommitHookProperties

    cleans = None if state.path.is_local or state.version % _COMMITS_OF_CHECKPOINT == 0 else False
    return PostCommitHookProperties(cleanup_expired_logs=cleans)


def _same_key(state: TableState, article: PublishedArticle, bounds: KeyBounds) -> Iterator[str]:
    """Yield the terms of the condition that a row of the table (`t`) has the key of a row (`s`)."""
    for name, field in zip(article.identity, article.identity_fields, strict=True):
        column = f"t.`{name}`"
        if article.rowguid_column is not None:
            yield f"lower({column}) = lower(s.{field})"
            continue
        yield f"{column} = s.{field}"
        if field in bounds and _type(state, name) in _NUMBERS:
            lowest, highest = (int(each) for each in bounds[field])
            yield f"{column} >= {lowest} AND {column} <= {highest}"


def _differs(one: str, other: str, type_: str) -> str:
    """Return SQL for whether the bits of two values differ; DataFusion takes 0.0 for -0.0."""
    if type_ in _FLOATS:
        one, other = (f"arrow_cast({each}, 'Utf8')" for each in (one, other))
    return f"({one} IS DISTINCT FROM {other})"


def _writer_properties(state: TableState) -> "WriterProperties":
    from deltalake import ColumnProperties, WriterProperties

    bounded = [
        each["name"]
        for each in state.fields
        if isinstance(kind := each["type"], str) and kind in _WITH_STATISTICS
    ]
    return WriterProperties(
        compression="SNAPPY",
        statistics_truncate_length=64,
        default_column_properties=ColumnProperties(statistics_enabled="NONE"),
        column_properties={name: ColumnProperties(statistics_enabled="CHUNK") for name in bounded},
    )


def _type(state: TableState, name: str) -> Json:
    field = state.field(name)
    assert field is not None
    return field["type"]
