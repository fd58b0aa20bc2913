"""The publisher's versions of rows of a filtered article: their metadata, or else the rows as published."""

from collections.abc import Callable, Mapping

import pyarrow.compute as pc
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
from mergerepl.delta.commit_files import frame_here, rows_having
from mergerepl.delta.tables import open_table, read_version
from mergerepl.frames import Column, DataFrame, F, is_in_process
from mergerepl.merge.partitions.membership import with_rowguid
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import PUBLISHER_PRIORITY
from mergerepl.replica.runs import ArticleRuns
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import no_fields, stored_image
from mergerepl.rows.key_bounds import bounds_of, same_key
from mergerepl.spark.in_memory import Kept, broadcast_if_few, collected, in_one_task
from mergerepl.store.location import Location


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
        UNKNOWN: no_fields(),
    }


def with_metadata(runs: ArticleRuns, rows: DataFrame, *, count: int, kept: Kept) -> DataFrame:
    """Return CHANGES of live rows (rowguid, row): their known metadata, or else that of published rows."""
    state = published_state(runs.article)
    if runs.through_seq_inclusive == 0:
        return rows.select(ROWGUID, *(value.alias(name) for name, value in state.items()), ROW)
    known = runs.latest_of(rows.select(ROWGUID), rows=count, columns=(ROWGUID, *state), kept=kept)
    known = known.select(ROWGUID, F.struct(*state).alias("known"))
    metadata = [
        F.when(F.col("known").isNotNull(), F.col(f"known.{name}")).otherwise(value).alias(name)
        for name, value in state.items()
    ]
    return rows.join(known, on=ROWGUID, how="left").select(ROWGUID, *metadata, ROW).select(*CHANGE_COLUMNS)


TableRows = Callable[[DataFrame], DataFrame]
"""Gives the rows of a table that may have the keys (image fields) of a frame; others may be among them."""


def table_rows(spark: SparkSession, path: Location, version: int, article: PublishedArticle) -> TableRows:
    """Return a reader of an article's table at one version."""

    def here(keys: DataFrame) -> DataFrame:
        found, is_guid = collected(keys), article.rowguid_column is not None
        named = zip(article.identity, article.identity_fields, strict=True)
        wanted = {name: found[field].combine_chunks() for name, field in named}
        if is_guid:
            wanted = {name: pc.utf8_lower(values) for name, values in wanted.items()}
        table = open_table(path, version)
        return frame_here(rows_having(table, article.columns, wanted, is_guid=is_guid), table)

    return here if is_in_process() else lambda _: read_version(spark, path, version)


def versions_of(runs: ArticleRuns, table: TableRows, sent: DataFrame, *, rows: int, kept: Kept) -> DataFrame:
    """Return CHANGES of the rows that a subscriber sends and the publisher knows, whether or not they are enumerated.

    A comparison with the enumerated rows is not enough: a newer version, or another row of the key, may lie outside of
    the subscriber's partition. `sent` are the `rows` CHANGES of the subscriber; `table` gives rows of the publisher's table
    at its captured version.
    """
    article = runs.article
    wanted = kept.keep(broadcast_if_few(sent.select(ROWGUID, ROW), rows))
    keys = wanted.select(*(F.col(f"{ROW}.{name}").alias(name) for name in article.identity_fields)).alias("s")
    bounds = bounds_of(in_one_task(wanted, rows), article, lambda name: F.col(f"{ROW}.{name}"))
    of_keys = same_key(article, bounds)
    there = table(keys).alias("t").join(broadcast_if_few(keys, rows), on=of_keys, how="left_semi")
    image = stored_image(article).alias(ROW)
    state = published_state(article)
    published = with_rowguid(there.select(image), article).select(
        ROWGUID, *(value.alias(name) for name, value in state.items()), ROW
    )
    if runs.through_seq_inclusive == 0:
        return kept.keep(published.select(*CHANGE_COLUMNS))
    known = runs.latest_of(wanted.select(ROWGUID), rows=rows, columns=CHANGE_COLUMNS, kept=kept)
    known = kept.keep(known.select(*CHANGE_COLUMNS))
    others = published.join(known.select(ROWGUID), on=ROWGUID, how="left_anti")
    return kept.keep(known.unionByName(others.select(*CHANGE_COLUMNS)))
