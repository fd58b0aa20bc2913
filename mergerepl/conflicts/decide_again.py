"""The new rows of conflicts that are resolved by hand, with the conflicts' outcomes and the table's rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import DELETED, LINEAGE, ROW, ROWGUID, Action
from mergerepl.conflicts.kept_columns import KeptColumns
from mergerepl.delta import appended
from mergerepl.delta.tables import read_version
from mergerepl.errors import ConfigurationError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.conflict_filter import Choice, Wish
from mergerepl.model.conflicts import RetryResult
from mergerepl.monitoring.parties import article_named, in_reach
from mergerepl.monitoring.waiting import is_all_captured
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import SEQ, ArticleRuns, newest
from mergerepl.replica.subscription import refuse_staged
from mergerepl.rows.images import (
    all_true,
    differing_columns,
    image_type,
    rowguid_of_image,
    same_value,
    stored_image,
    stored_type,
)
from mergerepl.rows.key_bounds import bounds_of, within_bounds
from mergerepl.spark.in_memory import Kept, frame_of
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.systables import conflicts_info, contents
from mergerepl.systables.conflicts_info import ConflictRow, ConflictType

if TYPE_CHECKING:
    import pyarrow as pa

_LOSER, _HELD, _BEFORE, _KNOWN, _OUTCOME = "loser_row", "held_row", "before_row", "known", "outcome"
NEW, ACTION = "new_row", "action"
_UNSAID, _VERSION = "unsaid", "of_version"


def decide_again(
    spark: SparkSession,
    replica: Replica,
    article: PublishedArticle,
    rows: Sequence[ConflictRow],
    wish: Wish,
    head: int,
    kept: Kept,
) -> DataFrame:
    """Decide each row: conflict_id, rowguid, is_unchanged, differs, set_to, action (None: no write), new_row.

    A row is unchanged if the table has the outcome of its conflict, even if it changed in between. `differs` are the
    columns that changed since, `set_to` those that an update writes.
    """
    columns = KeptColumns.of(replica, article)
    conflicts = F.broadcast(frame_of(spark, _listed(rows, columns)))
    lost = appended.read(spark, replica.folder / article.conflict_table)
    losing = F.struct(*(columns.losing_field(each, F.col(_VERSION)).alias(each) for each in article.fields))
    losers = lost.join(conflicts.select("conflict_id", _VERSION), on="conflict_id").select(
        "conflict_id", losing.cast(stored_type(article)).alias(_LOSER)
    )
    conflicts = conflicts.drop(_VERSION)
    known = _known(spark, replica, article, conflicts)
    info = replica.info()
    captured = info.captured.get(article.nickname, head)
    # A refused change that was not undone cannot be decided again.
    has_undone = any(row.conflict_type in conflicts_info.FAILED_CHANGES for row in rows)
    if has_undone:
        known = _with_unrecorded(known, conflicts, losers)
    known = kept.keep(known)
    held = _held(spark, replica, article, known, head)
    before = held
    if has_undone and not is_all_captured(replica, article, info):
        before = _held(spark, replica, article, known, captured)
    joined = (
        conflicts.join(losers, on="conflict_id", how="left")
        .join(known, on=ROWGUID, how="left")
        .join(held, on=ROWGUID, how="left")
        .join(before.select(ROWGUID, F.col(_HELD).alias(_BEFORE)), on=ROWGUID, how="left")
    )
    image = image_type(joined, _HELD)
    known_row, is_held = F.col(f"{_KNOWN}.{ROW}"), F.col(_HELD).isNotNull()
    written = article.written_fields
    is_unrecorded = F.col(_KNOWN).isNotNull() & F.col(f"{_KNOWN}.{LINEAGE}").isNull()
    # An unrecorded row was never captured as changed: it was as in the table's captured version.
    unrecorded = F.struct(F.col(_BEFORE).isNull().alias(DELETED), F.col(_BEFORE).alias(ROW))
    joined = joined.withColumn(_OUTCOME, F.when(is_unrecorded, unrecorded).otherwise(F.col(_OUTCOME)))

    def same(one: str, other: str) -> Column:
        terms = (same_value(F.col(f"{one}.{f}"), F.col(f"{other}.{f}"), image[f].dataType) for f in written)
        return all_true(list(terms))

    is_outcome = F.when(F.col(f"{_OUTCOME}.{DELETED}"), ~is_held).otherwise(
        is_held & same(_HELD, f"{_OUTCOME}.{ROW}")
    )
    was_held = F.col(f"{_OUTCOME}.{ROW}").isNotNull() & ~F.col(f"{_OUTCOME}.{DELETED}")
    with_new = joined.withColumn(NEW, _new_row(spark, article, wish, known_row))
    is_gone = F.col("is_deleted")
    action = (
        F.when(is_gone & is_held, Action.DELETE.value)
        .when(is_gone, F.lit(None))
        .when(~is_held, Action.INSERT.value)
        .when(~same(_HELD, NEW), Action.UPDATE.value)
    )
    kind = F.col("conflict_type")
    rejected = (int(ConflictType.RESOLUTION), int(ConflictType.UPLOAD_DELETE_FAILED))
    is_rejected_delete = kind.isin(*rejected) & F.col(_LOSER).isNull()
    is_delete = F.lit(wish.choice is Choice.LOSER) & (
        (kind == int(ConflictType.UPDATE_WINS_DELETE)) | is_rejected_delete
    )
    names = list(zip(article.columns, article.fields, strict=True))
    sent = [(name, field) for name, field in names if field in written]
    return (
        with_new.withColumn("is_deleted", is_delete)
        .withColumn(ACTION, action)
        .withColumn("is_unchanged", F.coalesce(is_outcome, F.lit(False)))
        .withColumn(
            "differs", F.when(is_held & was_held, differing_columns(_HELD, f"{_OUTCOME}.{ROW}", image, names))
        )
        .withColumn("set_to", F.when(is_held & ~is_gone, differing_columns(_HELD, NEW, image, sent)))
        .select("conflict_id", ROWGUID, "is_unchanged", "differs", "set_to", ACTION, NEW)
    )


def _with_unrecorded(known: DataFrame, conflicts: DataFrame, losers: DataFrame) -> DataFrame:
    """Add undone rows without records here, with the key of the losing row.

    The publisher does not record what it undoes, and may have no earlier record of that row.
    """
    is_undone = F.col("conflict_type").isin(*conflicts_info.FAILED_CHANGES)
    lost = conflicts.where(is_undone).join(losers, on="conflict_id")
    fields = image_type(known, _KNOWN)
    version = F.struct(
        *((F.col(_LOSER) if f.name == ROW else F.lit(None)).cast(f.dataType).alias(f.name) for f in fields)
    )
    others = lost.join(known, on=ROWGUID, how="left_anti").dropDuplicates([ROWGUID])
    outcome = F.lit(None).cast(known.schema[_OUTCOME].dataType).alias(_OUTCOME)
    return known.unionByName(others.select(ROWGUID, version.alias(_KNOWN), outcome))


def _listed(rows: Sequence[ConflictRow], kept: KeptColumns) -> "pa.Table":
    import pyarrow as pa

    def unsaid(row: ConflictRow) -> list[str]:
        return sorted({*row.unknown} | kept.lacking(row.article_version))

    named = [list(kept.present_names(row.article_version, row.columns)) for row in rows]
    columns = {
        "conflict_id": pa.array([row.conflict_id for row in rows], pa.string()),
        "rowguid": pa.array([row.rowguid for row in rows], pa.string()),
        "conflict_type": pa.array([row.conflict_type for row in rows], pa.int32()),
        "columns": pa.array(named, pa.list_(pa.string())),
        _VERSION: pa.array([row.article_version for row in rows], pa.int32()),
        "session_id": pa.array([row.session_id for row in rows], pa.string()),
        _UNSAID: pa.array([unsaid(row) for row in rows], pa.list_(pa.string())),
        "winning": pa.array(
            [list(row.winning_lineage.items()) for row in rows], pa.map_(pa.int32(), pa.int64())
        ),
    }
    return pa.table(columns)


def _entries(lineage: Column) -> Column:
    return F.array_sort(F.map_entries(lineage))


def _new_row(spark: SparkSession, article: PublishedArticle, wish: Wish, known_row: Column) -> Column:
    """Return the row to write.

    The losing row, the outcome with the losing columns (conflict by columns), or the edited row.
    """
    field_of = dict(zip(article.columns, article.fields, strict=True))
    now = F.coalesce(F.col(_HELD), F.col(_LOSER), known_row)
    if wish.choice is Choice.EDITED:
        types = dict(zip(article.columns, article.types, strict=True))
        edited = {
            field_of[name]: _value(spark, article, name, text, types[name])
            for name, text in wish.values.items()
        }
        return F.struct(*(edited.get(f, now[f]).alias(f) for f in article.fields))
    losing = F.coalesce(F.col(_LOSER), known_row)
    # Of a column that its writer's table lacked the losing row says nothing: unknown is not NULL.
    said = {
        field: F.when(F.array_contains(_UNSAID, field), now[field]).otherwise(losing[field])
        for field in article.fields
    }
    loser = F.struct(*(value.alias(field) for field, value in said.items()))
    if wish.whole_rows:
        return loser
    by_column = (F.col("conflict_type") == int(ConflictType.COLUMN_UPDATE)) & F.col(_HELD).isNotNull()
    parts = (
        F.when(by_column & ~F.array_contains("columns", name), now[field])
        .otherwise(loser[field])
        .alias(field)
        for name, field in field_of.items()
    )
    return F.struct(*parts)


def _value(spark: SparkSession, article: PublishedArticle, name: str, text: str | None, type_: str) -> Column:
    """Return a value as the column's type.

    Raises: ConfigurationError if the text does not fit the type.
    """
    value = F.lit(text).try_cast(type_)
    try:
        is_value = text is None or spark.range(1).select(value.isNotNull().alias("is_value")).collect()[0][0]
    except AnalysisException:
        is_value = False
    if not is_value:
        raise ConfigurationError(
            f"Article '{article.name}': column '{name}' is {type_}, and {text!r} is no such value.",
            article=article.name,
        )
    return value


def _known(
    spark: SparkSession, replica: Replica, article: PublishedArticle, conflicts: DataFrame
) -> DataFrame:
    """Return the records of each row: rowguid, known (the newest version: deleted, lineage, row), outcome.

    `outcome` is the version in which the session left the row; NULL if not recorded.
    """
    runs = ArticleRuns.of(spark, replica, article, replica.info().last_seq).read(with_marker=True)
    runs = runs.join(conflicts.select(ROWGUID, "session_id", "winning"), on=ROWGUID)
    is_outcome = (F.col(contents.MARKER) == F.col("session_id")) | (
        _entries(F.col(LINEAGE)) == _entries(F.col("winning"))
    )
    return runs.groupBy(ROWGUID).agg(
        newest(DELETED, LINEAGE, ROW).alias(_KNOWN),
        newest(DELETED, ROW, by=F.when(is_outcome, F.col(SEQ))).alias(_OUTCOME),
    )


def _held(
    spark: SparkSession, replica: Replica, article: PublishedArticle, known: DataFrame, head: int
) -> DataFrame:
    """Return the rows as the table has them: rowguid, held_row. Skips files whose keys lie outside."""
    bounds = bounds_of(known, article, lambda field: F.col(f"{_KNOWN}.{ROW}.{field}"))
    rows = read_version(spark, replica.table(article), head).where(within_bounds(article, bounds))
    images = rows.select(stored_image(article).alias(_HELD))
    rowguid = rowguid_of_image(
        _HELD, image_type(images, _HELD), article.identity_fields, existing=article.rowguid_column is not None
    )
    return images.select(rowguid.alias(ROWGUID), _HELD).join(F.broadcast(known.select(ROWGUID)), on=ROWGUID)


def retry_failed(
    root: Location, *, publication: str | None = None, article: str | None = None
) -> RetryResult:
    """Mark the refused changes that wait at a replica, and those that wait for it at the replicas in reach.

    Starts no engine.

    Raises: ConfigurationError if the folder is not a replica or a name is unknown; ConflictError if a session is
    interrupted; LeaseError, StoreError.
    """
    replica = Replica(root).require()
    replid = replica.info().replid
    pubid = None if publication is None else replica.publication(publication).pubid
    artid = None if article is None else article_named(replica, article, publication).artid
    marked: dict[str, int] = {}
    sources = [*in_reach(replica)]
    for source in sources:
        refuse_staged(source)
    for source in sources:
        with lease(source.root, purpose="mergerepl conflicts retry"):
            refuse_staged(source)
            named = {each.nickname for each in source.articles if artid in (None, each.artid)}
            waiting = [
                row
                for row in source.waiting_generations()
                if (source is replica or row.waits_for == replid)
                and row.art_nick in named
                and pubid in (None, row.pubid)
            ]
            if waiting:
                source.ask_again([row.guidsrc for row in waiting])
                marked[str(source.root)] = sum(row.changecount for row in waiting)
    return RetryResult(sum(marked.values()), marked)
