"""New versions of rows that are as they should be, recorded as captured changes: no users' table gets a commit.

The next sessions send them like any other change. `repair` and `touch` write such runs.
"""

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from mergerepl.changes import (
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
    UNKNOWN,
)
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.frames import Column, DataFrame, F
from mergerepl.merge.capture.capture import CapturedArticle, commit_changes, open_generation, remove_leftovers
from mergerepl.merge.capture.partitions import Capturing, filtered_publications, with_memberships
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import PhaseCounts
from mergerepl.publish.snapshot import DIFFERENT
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import ArticleRuns
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import differing_columns, image_type, no_fields, stored_type
from mergerepl.spark.in_memory import Kept
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.tombstone import TombstoneType
from triggers.tracked_rows import Origin
from triggers.window import CaptureWindow

OWN, OTHER = "own_known", "other_known"
"""Columns of `with_known`: the metadata of a row at this replica and at the other one; NULL: none."""

CHANGED_COLUMNS = "changed_columns"
IS_NEW = "is_new"
_KNOWN = (LINEAGE, COLV1, BORN_GENERATION)


def stamped_article(
    replica: Replica,
    article: PublishedArticle,
    version: int,
    generation: Generation,
    rows: DataFrame,
    counts: PhaseCounts,
    images: DataFrame | None,
) -> CapturedArticle:
    """Return CHANGES rows as a capture does: `counts` are new rows, changed ones and deleted ones.

    `images` (rowguid, before, after) say where the rows belong, in a publication with row filters.
    """
    counted = replace(generation, changecount=generation.changecount + counts.total)
    of = counts.inserts, counts.updates, counts.deletes
    return CapturedArticle(_window(replica, article, version), rows, counted, *of, images=images)


def with_known(
    spark: SparkSession,
    rows: DataFrame,
    replica: Replica,
    article: PublishedArticle,
    info: ReplicaInfo,
    kept: Kept,
    *,
    count: int,
    name: str,
) -> DataFrame:
    """Add the metadata of rows (with `rowguid`, `count` of them) at a replica, as the struct column `name`."""
    runs = ArticleRuns.of(spark, replica, article, info.last_seq)
    if info.last_seq == 0:
        types = "struct<lineage:map<int,bigint>,colv1:map<string,struct<nickname:int,version:bigint>>,"
        return rows.withColumn(name, F.lit(None).cast(f"{types}born_generation:bigint>"))
    known = runs.latest_of(rows.select(ROWGUID), rows=count, columns=(ROWGUID, *_KNOWN), kept=kept)
    known = known.select(ROWGUID, F.struct(*_KNOWN).alias(name))
    return rows.join(known, on=ROWGUID, how="left")


def stamped(rows: DataFrame, article: PublishedArticle, origin: Origin) -> DataFrame:
    """Return CHANGES with one more version of each row, by this replica, above the clock of both.

    Reads: rowguid, deleted, row, `own_known` and `other_known` of `with_known`, `own_exists` and `other_exists` (whether
    the tables have the row), `is_new` (the other replica lacks it), `changed_columns` (of a row-tracked article NULL).
    """

    def known_lineage(known: str, exists: str) -> Column:
        published = F.when(F.col(exists), lineage.published_lineage()).otherwise(lineage.empty_lineage())
        return F.coalesce(F.col(f"{known}.{LINEAGE}"), published)

    base = lineage.merge(known_lineage(OWN, "own_exists"), known_lineage(OTHER, "other_exists"))
    merged = rows.withColumn("merged", base)
    version = lineage.next_version(F.col("merged"), floor=origin.clock)
    nickname = F.lit(origin.nickname)
    is_live = ~F.col(DELETED)
    is_recorded = F.col(f"{OWN}.{LINEAGE}").isNotNull()
    changed = lineage.fields_to_stamp(
        is_recorded, F.col(f"{OWN}.{COLV1}"), F.col(CHANGED_COLUMNS), article.value_fields
    )
    colv = lineage.with_columns_changed(
        F.coalesce(f"{OWN}.{COLV1}", lineage.empty_colv()), changed, nickname, version
    )
    generation = F.lit(origin.generation).cast("bigint")
    values = {
        ROWGUID: F.col(ROWGUID),
        DELETED: F.col(DELETED),
        TOMBSTONE_TYPE: F.when(F.col(DELETED), F.lit(int(TombstoneType.USER_DELETE))),
        GENERATION: generation,
        PARTCHANGEGEN: F.lit(None).cast("bigint"),
        BORN_GENERATION: F.when(is_live & F.col(IS_NEW), generation).otherwise(
            F.col(f"{OWN}.{BORN_GENERATION}")
        ),
        LINEAGE: lineage.with_version(F.col("merged"), nickname, version),
        COLV1: F.when(is_live & F.col(CHANGED_COLUMNS).isNotNull(), colv).otherwise(lineage.no_colv()),
        PRIORITY: F.lit(origin.priority),
        UNKNOWN: no_fields(),
        ROW: F.col(ROW).cast(stored_type(article)),
    }
    return merged.select(*(values[name].alias(name) for name in CHANGE_COLUMNS))


def all_columns(article: PublishedArticle) -> Column:
    """Return the fields of colv1 that a change of the whole row sets; NULL in a row-tracked article."""
    if not article.column_tracking:
        return F.lit(None).cast("array<string>")
    return lineage.field_names(article.value_fields)


def changed_fields(rows: DataFrame, article: PublishedArticle) -> Column:
    """Return the fields whose versions rise: those that differ, all of a row that a side lacks; as `all_columns`.

    Reads `ours`, `theirs` and `kind` of compared rows.
    """
    if not article.column_tracking:
        return all_columns(article)
    names = zip(article.value_fields, article.value_fields, strict=True)
    differ = differing_columns("ours", "theirs", image_type(rows, "ours"), names)
    return F.when(F.col("kind") == DIFFERENT, differ).otherwise(all_columns(article))


def open_generations_of(
    genhistory: Sequence[Generation], articles: Sequence[PublishedArticle], info: ReplicaInfo
) -> list[Generation]:
    """Return the open generation of each article; new ones are numbered in turn."""
    number, found = info.last_generation + 1, []
    for article in articles:
        generation = open_generation(genhistory, article, info, number)
        number += generation.generation == number
        found.append(generation)
    return found


def record(
    spark: SparkSession,
    replica: Replica,
    info: ReplicaInfo,
    genhistory: Sequence[Generation],
    captured: Sequence[CapturedArticle],
) -> None:
    """Append the rows as one run; MSmerge_replinfo makes it count. The caller holds the replica."""
    pubids = list(dict.fromkeys(each.article.pubid for each in captured))
    filtered = filtered_publications(replica, pubids)
    joined: list[CapturedArticle] = []
    try:
        if filtered:
            # The articles that rows of these follow must be there, too.
            there = {item.article.nickname for item in captured}
            followed = (each for publication in filtered for each in publication.articles.values())
            captured = [
                *captured,
                *(
                    CapturedArticle(_window(replica, each, info.captured[each.nickname]), None, None)
                    for each in followed
                    if each.nickname not in there
                ),
            ]
            at = Capturing(replica, genhistory, info, EngineChoice(uses_arrow=False, spark_of=lambda: spark))
            joined = list(with_memberships(at, filtered, captured))
        remove_leftovers(replica, info)
        commit_changes(replica, joined or captured, genhistory, info)
    finally:
        for item in joined:
            item.release()


def _window(replica: Replica, article: PublishedArticle, version: int) -> CaptureWindow:
    """Return an empty window: the captured version stays."""
    return CaptureWindow(article, replica.table(article), version, version)
