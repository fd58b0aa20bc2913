"""The insert, update and delete triggers of an article: net changes become rows of MSmerge_contents and MSmerge_tombstone.

Merge session step: capture. Reads net changes and what is known of those rows; writes nothing (the agent
appends). Rules: merge_replication.md 2.1 and 2.2.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from mergerepl.changes import (
    BASE,
    BORN_GENERATION,
    CHANGE_COLUMNS,
    COLV1,
    DELETED,
    GENERATION,
    LINEAGE,
    PARTCHANGEGEN,
    PRIORITY,
    ROW,
    ROWGUID,
    TOMBSTONE_TYPE,
)
from mergerepl.engine.made_once import made_once
from mergerepl.engine.passed import passed
from mergerepl.feed.net_changes import AFTER, BEFORE, EXISTED, EXISTS
from mergerepl.lineage import columns as lineage
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import differing_columns, image_type
from mergerepl.rows.sql import struct_type
from mergerepl.systables import contents, tombstone
from mergerepl.systables.contents import LINEAGE_TYPE, SEQ, base_column, row_column
from mergerepl.systables.tombstone import TombstoneType

KNOWN_COLUMNS = (ROWGUID, LINEAGE, COLV1, BORN_GENERATION, TOMBSTONE_TYPE)
"""The metadata of a row that a new change continues."""


_KEPT = (ROWGUID, GENERATION, PARTCHANGEGEN, BORN_GENERATION, LINEAGE, COLV1, PRIORITY)
"""Columns of CAPTURED that MSmerge_contents has under the same name."""


@dataclass(frozen=True)
class Origin:
    """The origin of changes: the replica's nickname, their priority and the open generation that they join."""

    nickname: int
    priority: float
    generation: int


@dataclass(frozen=True)
class Written:
    """The Columns that one trigger writes; all three write lineage, generation and priority.

    `changed` is the array of columns whose version rises; None if the row has no columns any more.
    """

    row: Column
    born_generation: Column
    changed: Column | None


def insert_trigger(article: PublishedArticle, generation: Column) -> Written:
    """MSmerge_ins: the row was inserted. Every value column is its writer's.

    Its generation is noted if no other replica can know the row from before.
    """
    born = F.when(F.col("known_lineage").isNull(), generation)
    every_column = F.array(*(F.lit(name) for name in article.value_columns)).cast("array<string>")
    return Written(F.col(AFTER), born, every_column)


def update_trigger(article: PublishedArticle, image: StructType) -> Written:
    """MSmerge_upd: the row changed. The columns that differ are its writer's."""
    changed = differing_columns(BEFORE, AFTER, image, _value_names(article))
    return Written(F.col(AFTER), F.col("known_born_generation"), changed)


def delete_trigger() -> Written:
    """MSmerge_del: the row was deleted. Its last image goes into the tombstone."""
    return Written(F.col(BEFORE), F.lit(None).cast("bigint"), None)


def tracked_rows(
    net: DataFrame, known: DataFrame | None, article: PublishedArticle, origin: Origin
) -> DataFrame:
    """Return one CAPTURED row per net change, as the trigger of its kind writes it; with `base` if the article needs it.

    Lineage and colv1 continue what is known of the row, also of a deleted one (a re-insert). A row that existed
    and has no metadata is the publication's: {0: 1}. An insert of an unknown key starts from {}. So does one of a key
    whose row left the partition (type 5), above its versions: that row still exists elsewhere, and this is another one.

    Reads: net changes with their rowguid; `known` = KNOWN_COLUMNS of at least these rows as they are now, None if
    there is none at all.
    """
    with_known = _with_known(net.select(ROWGUID, EXISTED, BEFORE, EXISTS, AFTER), known)
    unknown = F.when(F.col(EXISTED), lineage.published_lineage()).otherwise(lineage.empty_lineage())
    base = F.coalesce(F.col("known_lineage"), unknown)
    floor = F.coalesce(F.col("known_floor"), F.lit(article.maxversion_at_cleanup).cast("bigint"))
    version = lineage.next_version(base, floor=floor)
    generation, nickname = passed(origin.generation, "bigint"), passed(origin.nickname, "int")
    inserted = insert_trigger(article, generation)
    updated = update_trigger(article, image_type(net, AFTER))
    deleted = delete_trigger()
    is_deleted, is_update = ~F.col(EXISTS), F.col(EXISTED)
    rows = with_known.select(
        ROWGUID,
        is_deleted.alias(DELETED),
        F.when(is_deleted, F.lit(int(TombstoneType.USER_DELETE))).alias(TOMBSTONE_TYPE),
        generation.alias(GENERATION),
        F.lit(None).cast("bigint").alias(PARTCHANGEGEN),
        F.when(is_deleted, deleted.born_generation)
        .when(is_update, updated.born_generation)
        .otherwise(inserted.born_generation)
        .alias(BORN_GENERATION),
        lineage.with_version(base, nickname, version).alias(LINEAGE),
        _colv(article, inserted, updated, nickname, version).alias(COLV1),
        passed(origin.priority, "double").alias(PRIORITY),
        F.when(is_deleted, deleted.row).otherwise(updated.row).alias(ROW),
        *([_published_row().alias(BASE)] if article.needs_base else ()),
    )
    return rows.select(*CHANGE_COLUMNS, *([BASE] if article.needs_base else ()))


def _published_row() -> Column:
    """Return the row before its first change; NULL for a later change, whose former row is recorded."""
    return F.when(F.col("known_lineage").isNull() & F.col(EXISTED), F.col(BEFORE))


def _colv(
    article: PublishedArticle, inserted: Written, updated: Written, nickname: Column, version: Column
) -> Column:
    if not article.column_tracking:
        return lineage.no_colv()
    changed = F.when(F.col(EXISTED), updated.changed).otherwise(inserted.changed)
    known = F.coalesce(F.col("known_colv1"), lineage.empty_colv())
    return F.when(F.col(EXISTS), lineage.with_columns_changed(known, changed, nickname, version))


def _with_known(named: DataFrame, known: DataFrame | None) -> DataFrame:
    if known is None:
        return named.select(
            "*",
            F.lit(None).cast("map<int,bigint>").alias("known_lineage"),
            lineage.no_colv().alias("known_colv1"),
            F.lit(None).cast("bigint").alias("known_born_generation"),
            F.lit(None).cast("bigint").alias("known_floor"),
        )
    has_left = F.coalesce(F.col(TOMBSTONE_TYPE) == int(TombstoneType.PARTIAL_DELETE), F.lit(False))
    earlier = known.select(
        ROWGUID,
        F.when(~has_left, F.col(LINEAGE)).alias("known_lineage"),
        F.when(~has_left, F.col(COLV1)).alias("known_colv1"),
        F.when(~has_left, F.col(BORN_GENERATION)).alias("known_born_generation"),
        F.when(has_left, F.array_max(F.map_values(LINEAGE))).alias("known_floor"),
    )
    return named.join(earlier, on=ROWGUID, how="left")


def _value_names(article: PublishedArticle) -> list[tuple[str, str]]:
    field_of = dict(zip(article.columns, article.fields, strict=True))
    return [(name, field_of[name]) for name in article.value_columns]


def contents_rows(rows: DataFrame, article: PublishedArticle, *, seq: int, marker: str) -> DataFrame:
    """Return the MSmerge_contents rows of live CHANGES rows."""
    run = {contents.MARKER: F.lit(marker).alias(contents.MARKER), SEQ: passed(seq, "bigint").alias(SEQ)}
    values = (_of_contents(article) | run).values()
    return rows.where(f"not {DELETED}").select(*values, *_base(rows, article))


def _base(rows: DataFrame, article: PublishedArticle) -> list[Column]:
    if BASE not in rows.columns:
        return []
    return [F.col(BASE).cast(struct_type(article.types)).alias(base_column(article.nickname))]


@made_once
def _of_contents(article: PublishedArticle) -> dict[str, Column]:
    """Return the columns of MSmerge_contents but those of the run."""
    nothing = F.lit(None)
    values = {
        contents.TABLENICK: F.lit(article.nickname),
        **{name: F.col(name) for name in _KEPT},
        contents.LOGICAL_RECORD_PARENT_ROWGUID: nothing.cast("string"),
        contents.LOGICAL_RECORD_LINEAGE: nothing.cast(LINEAGE_TYPE),
        contents.LOGICAL_RELATION_CHANGE_GEN: nothing.cast("bigint"),
        row_column(article.nickname): F.col(ROW).cast(struct_type(article.types)),
    }
    return {name: value.alias(name) for name, value in values.items()}


def tombstone_rows(rows: DataFrame, article: PublishedArticle, *, seq: int, marker: str) -> DataFrame:
    """Return the MSmerge_tombstone rows of deleted CHANGES rows."""
    nothing = F.lit(None)
    return rows.where(DELETED).select(
        ROWGUID,
        F.lit(article.nickname).alias(contents.TABLENICK),
        F.col(TOMBSTONE_TYPE).alias(tombstone.TYPE),
        LINEAGE,
        GENERATION,
        nothing.cast("string").alias(contents.LOGICAL_RECORD_PARENT_ROWGUID),
        nothing.cast(LINEAGE_TYPE).alias(contents.LOGICAL_RECORD_LINEAGE),
        PRIORITY,
        F.lit(marker).alias(contents.MARKER),
        passed(seq, "bigint").alias(SEQ),
        F.col(ROW).cast(struct_type(article.types)).alias(row_column(article.nickname)),
        *_base(rows, article),
    )
