"""The insert, update and delete triggers of an article: net changes become rows of MSmerge_contents and MSmerge_tombstone.

Merge session step: capture. Reads net changes and the metadata of their rows; writes nothing (the agent appends). Rules:
merge_replication.md 2.1 and 2.2.
"""

from dataclasses import dataclass

from pyspark.sql.types import StructType

from mergerepl.changes import (
    BASE,
    BORN_GENERATION,
    COLV1,
    DELETED,
    GENERATION,
    LINEAGE,
    PARTCHANGEGEN,
    PRIORITY,
    ROW,
    ROWGUID,
    TOMBSTONE_TYPE,
    UNKNOWN,
)
from mergerepl.delta.feed.net_changes import AFTER, BEFORE, EXISTED, EXISTS
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.model.article import PublishedArticle
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import differing_columns, image_type, no_fields, stored_type
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.systables import contents, tombstone
from mergerepl.systables.contents import LINEAGE_TYPE, SEQ, base_column, row_column
from mergerepl.systables.tombstone import TombstoneType

KNOWN_COLUMNS = (ROWGUID, LINEAGE, COLV1, BORN_GENERATION, TOMBSTONE_TYPE, GENERATION, UNKNOWN)
"""The metadata of a row that a new change continues."""


_KEPT = (ROWGUID, GENERATION, PARTCHANGEGEN, BORN_GENERATION, LINEAGE, COLV1, PRIORITY, UNKNOWN)
"""Columns of CAPTURED that MSmerge_contents has under the same name."""


@dataclass(frozen=True)
class Origin:
    """The origin of changes: the replica's nickname, their priority and the open generation that they join.

    Their versions are above `clock`, which is at or above all versions that the replica knows. Inserts over a tombstone
    of a generation up to `anew_through` begin anew: it was sent, and another row of that key may be outside of the
    replica's partition. `keeps_base`: the published row is kept with its first change, whatever resolver the article has.
    """

    nickname: int
    priority: float
    generation: int
    clock: int
    anew_through: int = 0
    keeps_base: bool = False


GENERATION_OF_ORIGIN, NICKNAME, ORIGIN_PRIORITY, CLOCK = (
    "of_generation",
    "of_nickname",
    "of_priority",
    "of_clock",
)
IS_KNOWN = "is_known"
CHANGED_COLUMNS = "changed_columns"
"""Columns added to net changes: the values of Origin, and the array of fields whose version rises:
those of a live row that its writer set. NULL in row-tracked articles.
"""


@dataclass(frozen=True)
class Written:
    """The Columns that one trigger writes; all three write lineage, generation and priority."""

    row: Column
    born_generation: Column


def insert_trigger() -> Written:
    """MSmerge_ins: the row was inserted. Its generation is noted if the row is new to all other replicas."""
    is_new = F.col("known_lineage").isNull()
    return Written(
        F.col(AFTER), F.when(is_new, F.col(GENERATION_OF_ORIGIN)).otherwise(F.col("known_born_generation"))
    )


def update_trigger() -> Written:
    """MSmerge_upd: the row changed."""
    return Written(F.col(AFTER), F.col("known_born_generation"))


def delete_trigger() -> Written:
    """MSmerge_del: the row was deleted. Its last image goes into the tombstone."""
    return Written(F.col(BEFORE), F.col("known_born_generation"))


def tracked_rows(
    net: DataFrame,
    known: DataFrame | None,
    article: PublishedArticle,
    origin: Origin,
    *,
    is_written_out: bool = False,
    marks_known: bool = False,
) -> DataFrame:
    """Return one CAPTURED row per net change, written by the trigger of its kind; with `base` if it is needed or kept.

    Lineage and colv1 continue the row's known metadata, also that of a deleted row (a re-insert). A row that existed and
    has no metadata is the publication's: {0: 1}. An insert of an unknown key starts from {}. So does one of a key whose
    row left the partition (type 5): that row still exists elsewhere, and this is another one; and see `Origin`.

    Reads: net changes with their rowguid; `known` = KNOWN_COLUMNS of rows as they are now (missing rows count as unknown),
        or None. `is_written_out`: lineages are computed by compiled code, for large numbers of rows. `marks_known` adds
        the column `is_known`: whether `known` has the row.
    """
    described = net.select(
        *(ROWGUID, EXISTED, BEFORE, EXISTS, AFTER),
        query_parameter(origin.generation, "bigint").alias(GENERATION_OF_ORIGIN),
        query_parameter(origin.nickname, "int").alias(NICKNAME),
        query_parameter(origin.priority, "double").alias(ORIGIN_PRIORITY),
        query_parameter(origin.clock, "bigint").alias(CLOCK),
        _changed_columns(article, image_type(net, AFTER)).alias(CHANGED_COLUMNS),
    )
    columns = dict(_columns(is_written_out, article.value_fields if article.column_tracking else ()))
    with_base = article.needs_base or origin.keeps_base
    if with_base:
        columns[BASE] = _published_row()
    if marks_known:
        columns[IS_KNOWN] = F.col(IS_KNOWN).isNotNull()
    # Only the written image is joined with the known metadata: it may have to be shuffled.
    joined = [
        name for name in described.columns if name not in (AFTER, BEFORE) or (name == BEFORE and with_base)
    ]
    written = described.select(*joined, _written_row().alias(ROW))
    rows = _with_known(written, known, query_parameter(origin.anew_through, "bigint"))
    # Under another name, Spark would forget that the join has partitioned the rows by their keys.
    return rows.select(ROWGUID, *(value.alias(name) for name, value in columns.items()))


@cached
def _written_row() -> Column:
    return F.when(~F.col(EXISTS), delete_trigger().row).otherwise(update_trigger().row)


@cached
def _columns(is_written_out: bool, fields: tuple[str, ...]) -> dict[str, Column]:
    unknown = F.when(F.col(EXISTED), lineage.published_lineage()).otherwise(lineage.empty_lineage())
    base = F.coalesce(F.col("known_lineage"), unknown)
    version = lineage.next_version(base, floor=F.col(CLOCK))
    inserted, updated, deleted = insert_trigger(), update_trigger(), delete_trigger()
    is_deleted, is_update = ~F.col(EXISTS), F.col(EXISTED)
    return {
        DELETED: is_deleted,
        TOMBSTONE_TYPE: F.when(is_deleted, F.lit(int(TombstoneType.USER_DELETE))),
        GENERATION: F.col(GENERATION_OF_ORIGIN),
        PARTCHANGEGEN: F.lit(None).cast("bigint"),
        BORN_GENERATION: F.when(is_deleted, deleted.born_generation)
        .when(is_update, updated.born_generation)
        .otherwise(inserted.born_generation),
        LINEAGE: lineage.with_version(base, F.col(NICKNAME), version, is_written_out=is_written_out),
        COLV1: _colv(version, fields),
        PRIORITY: F.col(ORIGIN_PRIORITY),
        # Who writes a row has all columns of the table; who deletes it says no more of them than its last version.
        UNKNOWN: F.when(is_deleted, F.col("known_unknown")),
        ROW: F.col(ROW),
    }


def _changed_columns(article: PublishedArticle, image: StructType) -> Column:
    """Return the fields that a change's writer set: those that differ, or all for an insert."""
    if not article.column_tracking:
        return F.lit(None).cast("array<string>")
    every_column = lineage.field_names(article.value_fields)
    differing = differing_columns(
        BEFORE, AFTER, image, zip(article.value_fields, article.value_fields, strict=True)
    )
    return F.when(F.col(EXISTED), differing).otherwise(every_column)


def _published_row() -> Column:
    """Return the row before its first change; NULL for a later change, whose former row is recorded."""
    return F.when(F.col("known_lineage").isNull() & F.col(EXISTED), F.col(BEFORE))


def _colv(version: Column, fields: tuple[str, ...]) -> Column:
    """Return colv1; a change on top of a version that was made under row tracking stamps every field of `fields`."""
    known, changed = F.coalesce("known_colv1", lineage.empty_colv()), F.col(CHANGED_COLUMNS)
    is_tracked = F.col(EXISTS) & changed.isNotNull()
    if fields:
        is_recorded = F.col("known_lineage").isNotNull()
        changed = lineage.fields_to_stamp(is_recorded, F.col("known_colv1"), changed, fields)
    risen = lineage.with_columns_changed(known, changed, F.col(NICKNAME), version)
    return F.when(is_tracked, risen).otherwise(lineage.no_colv())


def _with_known(named: DataFrame, known: DataFrame | None, anew_through: Column) -> DataFrame:
    if known is None:
        return named.select(
            "*",
            F.lit(None).cast("map<int,bigint>").alias("known_lineage"),
            lineage.no_colv().alias("known_colv1"),
            F.lit(None).cast("bigint").alias("known_born_generation"),
            no_fields().alias("known_unknown"),
        )
    of_left, was_sent = int(TombstoneType.PARTIAL_DELETE), F.col(GENERATION) <= anew_through
    has_left = F.coalesce((F.col(TOMBSTONE_TYPE) == of_left) | was_sent, F.lit(False))
    has_left &= F.col(TOMBSTONE_TYPE).isNotNull()
    earlier = known.select(
        ROWGUID,
        F.when(~has_left, F.col(LINEAGE)).alias("known_lineage"),
        F.when(~has_left, F.col(COLV1)).alias("known_colv1"),
        F.when(~has_left, F.col(BORN_GENERATION)).alias("known_born_generation"),
        F.when(~has_left, F.col(UNKNOWN)).alias("known_unknown"),
        F.lit(True).alias(IS_KNOWN),
    )
    return named.join(earlier, on=ROWGUID, how="left")


def contents_rows(rows: DataFrame, article: PublishedArticle, *, seq: int, marker: str) -> DataFrame:
    """Return the MSmerge_contents rows of live CHANGES rows."""
    run = {
        contents.MARKER: F.lit(marker).alias(contents.MARKER),
        SEQ: query_parameter(seq, "bigint").alias(SEQ),
    }
    values = (_of_contents(article) | run).values()
    return rows.where(~F.col(DELETED)).select(*values, *_base(rows, article))


def _base(rows: DataFrame, article: PublishedArticle) -> list[Column]:
    if BASE not in rows.columns:
        return []
    return [
        F.col(BASE).cast(stored_type(article)).alias(base_column(article.nickname, article.image_version))
    ]


@cached
def _of_contents(article: PublishedArticle) -> dict[str, Column]:
    """Return the columns of MSmerge_contents but those of the run."""
    nothing = F.lit(None)
    values = {
        contents.TABLENICK: F.lit(article.nickname),
        **{name: F.col(name) for name in _KEPT},
        contents.LOGICAL_RECORD_PARENT_ROWGUID: nothing.cast("string"),
        contents.LOGICAL_RECORD_LINEAGE: nothing.cast(LINEAGE_TYPE),
        contents.LOGICAL_RELATION_CHANGE_GEN: nothing.cast("bigint"),
        row_column(article.nickname, article.image_version): F.col(ROW).cast(stored_type(article)),
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
        query_parameter(seq, "bigint").alias(SEQ),
        F.col(ROW).cast(stored_type(article)).alias(row_column(article.nickname, article.image_version)),
        UNKNOWN,
        BORN_GENERATION,
        *_base(rows, article),
    )
