"""Rows that changed only in their membership: their known metadata, for the run that moves them."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

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
)
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import PUBLISHER_PRIORITY
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import latest_of
from mergerepl.rows import lineage_columns as lineage
from mergerepl.spark.in_memory import Kept


def published_state(article: PublishedArticle) -> Mapping[str, Column]:
    """Return the metadata of a row that is unchanged since it was published, by column of CHANGES."""
    return {
        DELETED: F.lit(False),
        TOMBSTONE_TYPE: F.lit(None).cast("int"),
        GENERATION: F.lit(0).cast("bigint"),
        PARTCHANGEGEN: F.lit(None).cast("bigint"),
        BORN_GENERATION: F.lit(None).cast("bigint"),
        LINEAGE: lineage.published_lineage(),
        COLV1: lineage.empty_colv() if article.column_tracking else lineage.no_colv(),
        PRIORITY: F.lit(PUBLISHER_PRIORITY),
    }


def with_metadata(
    spark: SparkSession,
    replica: Replica,
    article: PublishedArticle,
    rows: DataFrame,
    *,
    count: int,
    through_seq_inclusive: int,
    kept: Kept,
) -> DataFrame:
    """Return CHANGES of live rows (rowguid, row): their known metadata, or else that of published rows."""
    state = published_state(article)
    if through_seq_inclusive == 0:
        return rows.select(ROWGUID, *(value.alias(name) for name, value in state.items()), ROW)
    known = latest_of(
        spark,
        replica.folder,
        article,
        rows.select(ROWGUID),
        rows=count,
        through_seq_inclusive=through_seq_inclusive,
        columns=(ROWGUID, *state),
        kept=kept,
    )
    known = known.select(ROWGUID, F.struct(*state).alias("known"))
    metadata = [
        F.when(F.col("known").isNotNull(), F.col(f"known.{name}")).otherwise(value).alias(name)
        for name, value in state.items()
    ]
    return rows.join(known, on=ROWGUID, how="left").select(ROWGUID, *metadata, ROW).select(*CHANGE_COLUMNS)
