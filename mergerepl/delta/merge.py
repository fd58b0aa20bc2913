"""Bring a user's table to the final state of staged rows: one marked MERGE, exactly once."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

from delta.tables import DeltaMergeBuilder, DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NullType

from mergerepl.changes import DATA_ACTIONS, ROW, Action
from mergerepl.delta.commits import Commit
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.delta.reads import read_version
from mergerepl.delta.small_writer import SmallRows, merge_by_delta_rs
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.transactions import (
    Transaction,
    analysis_session,
    commit_once,
    lost_commits,
    marked_session,
)
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import all_true, same_value
from mergerepl.rows.key_bounds import KeyBounds, numbered_key, same_key
from mergerepl.rows.nested import as_declared
from mergerepl.rows.sql import quote
from mergerepl.spark.errors import gone_reason
from mergerepl.spark.in_memory import keep_in_memory, release
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import worker_threads

log = logging.getLogger(__name__)

_OF_VECTORS = "deletionvectorid"
"""A column that a MERGE adds to a table's own when it writes deletion vectors, but not when it rewrites files."""

MOST_RANGES = 32

_BUCKETS = 1024

_ROWS_PER_CHANGE, _ROWS = 4, 100_000
"""With fewer rows or keys between the bounds than these, per change and in all, reading them costs less than a query."""

_LOGS_AT_ONCE = 2


def merge_rows(
    spark_of: Callable[[], SparkSession],
    staged: Callable[[SparkSession], DataFrame],
    table: Location,
    article: PublishedArticle,
    *,
    action: str,
    actions: Mapping[str, int],
    bounds: KeyBounds,
    transaction: Transaction,
    from_version_exclusive: int,
    generated_columns: Collection[str] = (),
    left_out_columns: Sequence[str] = (),
    small_rows: Callable[[], SmallRows] | None = None,
    choice: EngineChoice | None = None,
    check: Callable[[], None] = lambda: None,
) -> Commit:
    """Bring a table to the staged final state of the rows with an action, in one MERGE that happens once.

    The MERGE gets a session of its own in the JVM of `spark_of()`. `staged` gives the staged rows (RESOLVED columns) in a
    session, `action` names their action column. `actions`: rows by action, to leave out clauses without rows. `bounds`:
    image field -> (lowest, highest) key, as literal texts: prunes files of the table. Our own commit is searched after
    `from_version_exclusive`.

    `generated_columns` are columns that Delta computes. Two merged halves of a row may give a value that neither side
    sent; Delta refuses any other. `left_out_columns` are columns of the table that the article leaves out. A row that
    was deleted after `from_version_exclusive` and is inserted now gets its former values of these columns back.

    `small_rows` gives the rows to delta-rs, which merges them if it may; otherwise, and by default, Spark merges.
    `choice` counts the table if delta-rs may not. `check` is called before each attempt.

    Returns: Our commit; it changes no data if the table already was in the final state.

    Raises: CommitConflictError if other writers won the commit too often, or ours is not in the log.
    """
    chosen = _chosen(actions)
    ranges: list[KeyBounds] | None = None

    def merge() -> None:
        nonlocal small_rows, ranges
        check()
        if small_rows is not None:
            try:
                merge_by_delta_rs(
                    small_rows, table, article, actions=actions, bounds=bounds, transaction=transaction
                )
            except NeedsSparkError as error:
                (choice or EngineChoice(uses_arrow=True)).fall_back(table, error)
                small_rows = None
            else:
                return
        if ranges is None:
            count = sum(actions.get(each, 0) for each in DATA_ACTIONS)
            ranges = key_ranges(
                lambda: _source(staged(spark_of()), action, chosen), open_table(table), article, bounds, count
            )
        with marked_session(spark_of(), transaction, table) as session:
            source = _source(staged(session), action, chosen)
            wanted = left_out_columns if Action.INSERT in chosen else ()
            with with_left_out(source, table, article, bounds, from_version_exclusive - 1, wanted) as (
                source,
                left_out,
            ):
                _merge(session, source, table, article, chosen, bounds, ranges, generated_columns, left_out)

    # If another writer changed rows that were read, everything is read and decided again; its rows are captured late.
    lost = lost_commits(
        f"Article '{article.name}' at '{table}'",
        "the merge",
        "Its changeset stays staged; run again.",
        article=article.name,
        table=str(table),
    )
    return commit_once(merge, table, transaction, from_version_exclusive=from_version_exclusive, lost=lost)


def analyse_merge(
    spark: SparkSession,
    staged: Callable[[SparkSession], DataFrame],
    table: Location,
    article: PublishedArticle,
    *,
    action: str,
    actions: Mapping[str, int],
    bounds: KeyBounds,
    generated_columns: Collection[str] = (),
) -> None:
    """Let Spark and Delta analyse the MERGE that `merge_rows` will execute with these arguments; no commit.

    Raises: PySparkException or Py4JJavaError if the MERGE is impossible for any rows.
    """
    chosen = _chosen(actions)
    with analysis_session(spark, table) as session:
        source = _source(staged(session), action, chosen)
        _merge(session, source, table, article, chosen, bounds, (), generated_columns, {})


@contextmanager
def merges_prepared(spark: SparkSession, tables: Iterable[Location]) -> Iterator[None]:
    """Let Delta on Spark read the logs of some tables in parallel, for the MERGEs that follow; no commit.

    While Spark plans one query, it may run another. A faulty table is reported by its MERGE.
    """
    with worker_threads(_LOGS_AT_ONCE) as pool:
        for table in tables:
            pool.submit(_read_log, spark, table)
        yield


def _read_log(spark: SparkSession, table: Location) -> None:
    try:
        with analysis_session(spark, table) as session:
            into = f"MERGE INTO delta.{quote(table.spark_uri)} AS t USING (SELECT 1 AS one) AS s ON false"
            session.sql(f"{into} WHEN MATCHED THEN DELETE")
    except (PySparkException, Py4JJavaError) as error:
        log.info("the log of %s is read by its MERGE: %s", table, error)


def _chosen(actions: Mapping[str, int]) -> list[Action]:
    chosen = [name for name in (Action.INSERT, Action.UPDATE, Action.DELETE) if actions.get(name)]
    if actions.get(Action.LEAVE) and Action.DELETE not in chosen:
        chosen.append(Action.DELETE)
    return chosen


def _source(staged: DataFrame, action: str, chosen: Collection[Action]) -> DataFrame:
    named: Column = F.col(action)
    if Action.DELETE in chosen:
        # At the table, a row that leaves is deleted.
        named = F.when(named == Action.LEAVE.value, Action.DELETE.value).otherwise(named)
    rows = staged.select(named.alias("action"), f"{ROW}.*")
    return rows.where(F.col("action").isin([name.value for name in chosen]))


def merge_into(
    session: SparkSession, source: DataFrame, table: Location, on: Column
) -> tuple[DeltaMergeBuilder, dict[str, DataType]]:
    """Return a MERGE of a source (`s`) into a table (`t`), and the types of the table's columns.

    The session comes from `marked_session` and is used for this MERGE alone.
    """
    target = DeltaTable.forPath(session, Location.of(table).spark_uri).alias("t")
    # If a column is missing, Delta's error names it.
    types = {field.name: field.dataType for field in target.toDF().schema}
    if _OF_VECTORS in map(str.lower, types):
        session.conf.set("spark.databricks.delta.merge.deletionVectors.persistent.enabled", "false")
    return target.merge(source.alias("s"), on), types


def _merge(
    session: SparkSession,
    source: DataFrame,
    table: Location,
    article: PublishedArticle,
    chosen: Collection[Action],
    bounds: KeyBounds,
    ranges: Sequence[KeyBounds],
    generated_columns: Collection[str],
    left_out: Mapping[str, str],
) -> None:
    merge, types = merge_into(session, source, table, same_key(article, bounds, ranges))
    columns = {
        name: field
        for name, field in zip(article.columns, article.fields, strict=True)
        if name not in generated_columns
    }
    inserted = {**columns, **left_out}
    values: dict[str, str | Column] = {
        quote(name): as_declared(session, F.col(f"s.{field}"), types.get(name, NullType()))
        for name, field in inserted.items()
    }
    if Action.DELETE in chosen:
        merge = merge.whenMatchedDelete(condition=F.col("s.action") == Action.DELETE.value)
    if Action.UPDATE in chosen or Action.INSERT in chosen:
        # An insert that finds its row (sent again, or inserted by a user in between and captured late) updates it. A
        # GUID in another case is the same row, and its text must be the same everywhere too.
        is_guid = article.rowguid_column is not None
        kept_equal = [name for name in columns if is_guid or name not in article.identity]
        if kept_equal:
            changed = {quote(name): values[quote(name)] for name in kept_equal}
            # An identical row (only its lineage is new) is neither rewritten nor counted.
            same = [
                same_value(F.col(f"t.{quote(name)}"), F.col(f"s.{field}"), source.schema[field].dataType)
                for name, field in columns.items()
                if name in kept_equal
            ]
            differs = ~all_true(same)
            merge = merge.whenMatchedUpdate(condition=differs, set=changed)
        not_deleted = F.col("s.action") != Action.DELETE.value
        merge = (
            merge.whenNotMatchedInsert(condition=not_deleted, values=values)
            if Action.DELETE in chosen
            else merge.whenNotMatchedInsert(values=values)
        )
    merge.execute()


@contextmanager
def with_left_out(
    source: DataFrame,
    table: Location,
    article: PublishedArticle,
    bounds: KeyBounds,
    version: int,
    wanted: Sequence[str],
) -> Iterator[tuple[DataFrame, dict[str, str]]]:
    """Yield the source with the columns that the article leaves out, valued as of a version; name -> field.

    If that version can no longer be read, yield the source alone: the session must finish.
    """
    held = None
    left_out: dict[str, str] = {}
    if wanted:
        try:
            before = read_version(source.sparkSession, table, version)
            left_out = {name: f"left_out_{i}" for i, name in enumerate(wanted) if name in before.columns}
            if left_out:
                held = keep_in_memory(_held_then(before, source, article, bounds, left_out), now=True)
        except (PySparkException, Py4JJavaError) as error:
            if gone_reason(error) is None:
                # For example a full disk or memory: the version exists, and the next run may read it.
                raise
            log.warning(
                "%s: rows come back from a delete without the columns %s: version %s cannot be read: %s",
                *(table, ", ".join(wanted), version, error),
            )
    if held is None:
        yield source, {}
        return
    try:
        yield source.join(held, on=list(article.identity_fields), how="left"), left_out
    finally:
        release(held)


def _held_then(
    before: DataFrame,
    source: DataFrame,
    article: PublishedArticle,
    bounds: KeyBounds,
    left_out: Mapping[str, str],
) -> DataFrame:
    """For rows to be inserted, return the former values of left-out columns: identity fields, fields of `left_out`.

    Each key has one row: a user may have added a second row with it, and Delta would insert both.
    """
    inserted = source.where(F.col("action") == Action.INSERT.value)
    then = before.alias("t").join(inserted.alias("s"), on=same_key(article, bounds))
    return then.select(
        *(F.col(f"s.{field}") for field in article.identity_fields),
        *(F.col(f"t.{quote(name)}").alias(field) for name, field in left_out.items()),
    ).dropDuplicates(list(article.identity_fields))


def key_ranges(
    rows: Callable[[], DataFrame],
    table: TableState,
    article: PublishedArticle,
    bounds: KeyBounds,
    changed: int,
) -> list[KeyBounds]:
    """Return up to MOST_RANGES bounds of the first key column; empty if the bounds of all keys serve as well.

    `rows` gives the changed rows (image fields), and is called only if ranges may help. `bounds` are those of all their
    keys, `changed` is their number.
    """
    field, column = article.identity_fields[0], article.identity[0]
    number = numbered_key(article, field)
    if number is None or field not in bounds or not _has_rows_between(table, column, *bounds[field], changed):
        return []
    lowest, highest = (F.lit(end).cast(article.types[article.fields.index(field)]) for end in bounds[field])
    found = (
        rows()
        .groupBy(_bucket(number(F.col(field)), number(lowest), number(highest)))
        .agg(
            F.min(number(F.col(field))),
            F.max(number(F.col(field))),
            F.min(field).cast("string"),
            F.max(field).cast("string"),
        )
    )
    buckets = sorted((row[1], row[2], row[3], row[4]) for row in found.collect() if row[1] is not None)
    ranges = join_buckets(buckets)
    return [{field: each} for each in ranges] if len(ranges) > 1 else []


def join_buckets(
    buckets: Sequence[tuple[int, int, str, str]], most: int = MOST_RANGES
) -> list[tuple[str, str]]:
    """Join sorted buckets into ranges, split at the widest gaps.

    A bucket is its lowest and highest key, as numbers and as texts; a range is its lowest and highest key as texts.
    """
    gaps = sorted(
        (one[1] - other[0], place)
        for place, (one, other) in enumerate(pairwise(buckets), 1)
        if other[0] - one[1] > 1
    )
    starts = [0, *sorted(place for _, place in gaps[: most - 1])] if buckets else []
    return [(buckets[start][2], buckets[end - 1][3]) for start, end in pairwise([*starts, len(buckets)])]


def _bucket(number: Column, lowest: Column, highest: Column) -> Column:
    """Return the bucket of a number, among about _BUCKETS equal parts from the lowest to the highest."""
    from_lowest, length = (end.cast("double") - lowest.cast("double") for end in (number, highest))
    return F.floor(from_lowest / F.greatest(length, F.lit(1.0)) * _BUCKETS)


def _has_rows_between(table: TableState, column: str, lowest: str, highest: str, changed: int) -> bool:
    """Whether many more keys than changes, and enough rows in files, lie between two keys.

    False as well if Arrow does not know the bounds of the files, or for a day such as -0044-03-15.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        files = table.files().select([f"min.{column}", f"max.{column}", "num_records"])
        type_ = files.schema[0].type
        least, most = (pa.scalar(end).cast(type_) for end in (lowest, highest))
        number = pa.int32() if pa.types.is_date32(type_) else pa.int64()
        keys: int = most.cast(number).as_py() - least.cast(number).as_py()
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    between = files.filter(pc.and_(pc.less_equal(files[0], most), pc.greater_equal(files[1], least)))
    rows: int = pc.sum(between["num_records"]).as_py() or 0
    return between.num_rows > 1 and rows >= _ROWS and min(keys, rows) >= _ROWS_PER_CHANGE * changed
