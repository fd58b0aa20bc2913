"""The INSERT, UPDATE and DELETE triggers: net changes become rows of MSmerge_contents and MSmerge_tombstone.

Merge session step: capture. Reads net changes and what is known of those rows; writes nothing (the agent
appends). Rules: merge_replication.md 2.1 and 2.2.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mergerepl.changes import (
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
from mergerepl.engine.passed import passed
from mergerepl.lineage import columns as lineage
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.images import differing_columns, image_type
from mergerepl.systables.tombstone import TombstoneType
from triggers.net_changes import AFTER, BEFORE, EXISTED, EXISTS

KNOWN_COLUMNS = (ROWGUID, LINEAGE, COLV1, PARTCHANGEGEN)
"""What continuing a row's metadata needs to know of it."""


@dataclass(frozen=True)
class Origin:
    """Who makes the changes: the replica's nickname, the priority they get and the open generation they join."""

    nickname: int
    priority: float
    generation: int


def tracked_rows(
    net: DataFrame, known: DataFrame | None, article: PublishedArticle, origin: Origin
) -> DataFrame:
    """Return one CAPTURED row per net change.

    Lineage and colv1 continue what is known of the row, also of a deleted one (a re-insert); a row nothing is
    known of starts from the snapshot's {}. An insert sets colv1 of every value column, an update of the
    changed ones.

    Reads: net changes with their rowguid; `known` = KNOWN_COLUMNS of at least these rows as they are now, None if
    there is none at all.
    """
    with_known = _with_known(net.select(ROWGUID, EXISTED, BEFORE, EXISTS, AFTER), known)
    base = F.coalesce(F.col("known_lineage"), lineage.empty_lineage())
    next_version = lineage.next_version(base, floor=article.maxversion_at_cleanup)
    is_insert = F.col(EXISTS) & ~F.col(EXISTED)
    is_unheard_of = F.col("known_lineage").isNull()
    generation, nickname = passed(origin.generation, "bigint"), passed(origin.nickname, "int")
    rows = with_known.select(
        ROWGUID,
        (~F.col(EXISTS)).alias(DELETED),
        F.when(~F.col(EXISTS), F.lit(int(TombstoneType.USER_DELETE))).alias(TOMBSTONE_TYPE),
        generation.alias(GENERATION),
        # A negated generation says: inserted then, and nobody can have heard of the row before (trigger rule,
        # 1.1).
        F.when(is_insert & is_unheard_of, -generation)
        .when(F.col(EXISTS) & F.col(EXISTED), F.col("known_partchangegen"))
        .alias(PARTCHANGEGEN),
        lineage.with_version(base, nickname, next_version).alias(LINEAGE),
        _colv(net, article, nickname, version=next_version).alias(COLV1),
        passed(origin.priority, "double").alias(PRIORITY),
        F.when(F.col(EXISTS), F.col(AFTER)).otherwise(F.col(BEFORE)).alias(ROW),
    )
    return rows.select(*CHANGE_COLUMNS)


def _with_known(named: DataFrame, known: DataFrame | None) -> DataFrame:
    if known is None:
        return named.select(
            "*",
            F.lit(None).cast("map<int,bigint>").alias("known_lineage"),
            lineage.no_colv().alias("known_colv1"),
            F.lit(None).cast("bigint").alias("known_partchangegen"),
        )
    earlier = known.select(
        ROWGUID,
        F.col(LINEAGE).alias("known_lineage"),
        F.col(COLV1).alias("known_colv1"),
        F.col(PARTCHANGEGEN).alias("known_partchangegen"),
    )
    return named.join(earlier, on=ROWGUID, how="left")


def _value_names(article: PublishedArticle) -> list[tuple[str, str]]:
    field_of = dict(zip(article.columns, article.fields, strict=True))
    return [(name, field_of[name]) for name in article.value_columns]


def _colv(net: DataFrame, article: PublishedArticle, nickname: Column, *, version: Column) -> Column:
    if not article.column_tracking:
        return lineage.no_colv()
    every_column = F.array(*(F.lit(name) for name in article.value_columns)).cast("array<string>")
    changed = F.when(
        F.col(EXISTED) & F.col(EXISTS),
        differing_columns(BEFORE, AFTER, image_type(net, AFTER), _value_names(article)),
    ).otherwise(every_column)
    known = F.coalesce(F.col("known_colv1"), lineage.empty_colv())
    return F.when(F.col(EXISTS), lineage.with_columns_changed(known, changed, nickname, version))
