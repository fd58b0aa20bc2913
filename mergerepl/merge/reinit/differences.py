"""The rows in which the two tables of an article differ, and those of which the publisher has metadata."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mergerepl.changes import (
    BASE,
    COLV1,
    DELETED,
    LINEAGE,
    METADATA_COLUMNS,
    PUBLISHER,
    ROW,
    ROWGUID,
    TOMBSTONE_TYPE,
)
from mergerepl.delta.differing_rows import differing_rows
from mergerepl.delta.engine_choice import MOST_IN_PROCESS, NeedsSparkError, TooLargeForArrowError
from mergerepl.delta.small_writer import article_problem
from mergerepl.delta.tables import TableState, is_delta_table, open_table, read_columns
from mergerepl.frames import DataFrame, F, is_in_process
from mergerepl.merge.partitions.filtered import FilteredPublication
from mergerepl.merge.partitions.membership import base_rows, subscribed_rows, with_rowguid
from mergerepl.merge.partitions.versions import published_state
from mergerepl.merge.repair.differing import compared, refuse_duplicates, with_images, without_equal
from mergerepl.merge.session.sides import SideState
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.compare_tables import row_count
from mergerepl.publish.snapshot import EXTRA
from mergerepl.replica.runs import SEQ, ArticleRuns, current_rows
from mergerepl.rows import lineage_columns as lineage
from mergerepl.spark.in_memory import Kept, frame_of
from mergerepl.spark.session import require_utc
from mergerepl.systables import contents, tombstone
from mergerepl.systables.tombstone import TombstoneType
from triggers.schema_checks import require_columns

log = logging.getLogger(__name__)

_MANY = 100_000
"""From this number of rows in each table on, Spark finds the few rows to compare by one more query (`without_equal`)."""

STATE = "state"
"""The publisher's version of a row, as METADATA_COLUMNS; `is_recorded`: it has metadata of it."""


@dataclass(frozen=True)
class ReinitArticle:
    """One article, as both sides captured it, and the terms of its reinitialisation.

    `generations` has its new generation at each side. `void` is the subscriber's last generation that does not count any
    more: rows without metadata at the publisher get it. `clock` is that of both sides. `unsent` are the subscriber's
    generations with changes that the publisher lacks, those after `start`; none is taken if it is empty. `keeps_rows`: the
    article is upload_only, so the subscriber gets versions from the publisher but no rows. `uses_arrow`: Arrow may compare
    the tables.
    """

    sides: Mapping[str, SideState]
    nickname: int
    generations: Mapping[str, int]
    void: int
    clock: int
    start: int
    unsent: frozenset[int]
    keeps_rows: bool = False
    uses_arrow: bool = False

    @property
    def article(self) -> PublishedArticle:
        """The article at the publisher."""
        return self.sides[PUBLISHER].articles[self.nickname]

    @property
    def partition(self) -> FilteredPublication | None:
        """The filters, if the subscriber gets a part of the publisher's rows."""
        filtered = self.sides[PUBLISHER].filtered
        return filtered if filtered is not None and self.nickname in filtered.tablenicks else None

    @property
    def versions(self) -> dict[str, int]:
        """The captured versions of its tables."""
        return {name: side.info.captured[self.nickname] for name, side in self.sides.items()}


def decided_rows(spark: SparkSession, of: ReinitArticle, kept: Kept) -> DataFrame:
    """Return the rows that differ between both tables, and those of which the publisher has metadata; kept in memory.

    With row filters those of the subscriber's partition count, and rows of the subscriber outside of it.

    Columns: rowguid, `state`, `is_recorded`, `row`, and as compared `ours`, `theirs`, `kind` (NULL: equal).

    Raises: PublicationError if a key has several rows; SchemaMismatchError; EngineError; NeedsSparkError in process.
    """
    article, tables = of.article, {}
    for name, side in of.sides.items():
        table = open_table(side.replica.table(side.articles[of.nickname]), of.versions[name])
        if not is_in_process():
            require_utc(spark, article.name, table.path, table.metadata.timestamp_partitions)
        require_columns(article, table.path, [field["name"] for field in table.fields])
        tables[name] = table
    if of.partition is not None and is_in_process():
        raise NeedsSparkError("rows of a partition are compared")
    seen = _seen(spark, of, of.partition, kept) if of.partition is not None else None
    rows = _rows_by_arrow(spark, of, tables) if seen is None else None
    if rows is None:
        rows = _rows_by_spark(spark, article, tables, seen, kept)
    differ = kept.keep(compared(rows, article).where(F.col("kind").isNotNull()))
    refuse_duplicates(
        differ, differ, article, done="reinitialised", remedy="Nothing was changed. Remove the duplicates."
    )
    images = with_images(differ, article).select(
        ROWGUID, "ours", "theirs", "kind", F.col(ROW).alias("either")
    )
    known = known_rows(spark, of.sides[PUBLISHER], of.nickname)
    if known is not None and seen is not None:
        known = _known_here(known, seen, images, article)
    published = published_state(article)
    if known is None:
        joined = images.withColumn("known", F.lit(None).cast(f"struct<{DELETED}:boolean>"))
        of_known = {name: F.lit(None) for name in (*METADATA_COLUMNS, ROW)}
    else:
        recorded = known.select(ROWGUID, F.struct(*METADATA_COLUMNS, ROW).alias("known"))
        joined = images.join(recorded, on=ROWGUID, how="full_outer")
        of_known = {name: F.col(f"known.{name}") for name in (*METADATA_COLUMNS, ROW)}
    is_recorded = F.col("known").isNotNull()
    is_gone = F.when(F.col("kind").isNotNull(), F.col("ours").isNull()).otherwise(of_known[DELETED])
    gone = {
        DELETED: F.lit(True),
        TOMBSTONE_TYPE: F.lit(int(TombstoneType.USER_DELETE)),
        LINEAGE: lineage.empty_lineage(),
        COLV1: lineage.no_colv(),
    }
    state = {
        name: F.when(is_recorded, of_known[name])
        .when(is_gone, gone.get(name, published[name]))
        .otherwise(published[name])
        for name in METADATA_COLUMNS
    } | {DELETED: is_gone}
    return kept.keep(
        joined.select(
            ROWGUID,
            F.struct(*(value.alias(name) for name, value in state.items())).alias(STATE),
            is_recorded.alias("is_recorded"),
            F.coalesce("ours", of_known[ROW], "either").alias(ROW),
            "ours",
            "theirs",
            "kind",
        )
    )


def _rows_by_arrow(
    spark: SparkSession, of: ReinitArticle, tables: Mapping[str, TableState]
) -> dict[str, DataFrame] | None:
    """Return the rows in which both tables differ, by side; None if Spark has to find them.

    Raises: NeedsSparkError, in process instead.
    """
    article = of.article
    try:
        if not of.uses_arrow:
            raise NeedsSparkError("the engine is Spark alone")
        for table in tables.values():
            if (problem := article_problem(table, article)) is not None:
                raise NeedsSparkError(problem, table.path)
        is_guid = article.rowguid_column is not None
        found = differing_rows([*tables.values()], article.columns, article.identity, is_guid=is_guid)
        if is_in_process() and max(each.num_rows for each in found) > MOST_IN_PROCESS:
            raise TooLargeForArrowError("many rows differ")
    except NeedsSparkError as error:
        if is_in_process():
            raise
        log.info("Spark compares '%s': %s", article.name, error)
        return None
    frames = {}
    for (name, table), rows in zip(tables.items(), found, strict=True):
        types = {each.name: each for each in table.schema}
        frames[name] = frame_of(spark, rows, StructType([types[each] for each in article.columns]))
    return frames


def _rows_by_spark(
    spark: SparkSession,
    article: PublishedArticle,
    tables: Mapping[str, TableState],
    seen: DataFrame | None,
    kept: Kept,
) -> dict[str, DataFrame]:
    """Return the rows of both tables, by side; of large ones without most equal rows.

    `seen` are the publisher's rows of the partition.
    """
    rows = {
        name: read_columns(spark, table.path, table.version, article.columns)
        for name, table in tables.items()
    }
    if seen is not None:
        named = zip(article.fields, article.columns, strict=True)
        rows[PUBLISHER] = seen.select(*(F.col(f"{ROW}.{field}").alias(name) for field, name in named))
    counts = [row_count(table.path, table.version) for table in tables.values()]
    return without_equal(rows, article, count=sum(counts), kept=kept) if min(counts) >= _MANY else rows


def _seen(spark: SparkSession, of: ReinitArticle, publication: FilteredPublication, kept: Kept) -> DataFrame:
    """Return the publisher's rows of the subscriber's partition, as images; kept in memory."""
    publisher = of.sides[PUBLISHER]
    base = base_rows(spark, publisher.replica, publication.articles, publisher.info.captured)
    partition_id = publisher.other.partition_id
    return kept.keep(subscribed_rows(spark, publication, partition_id, base, of.article.name, kept))


def _known_here(known: DataFrame, seen: DataFrame, images: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return the publisher's metadata of rows of the partition, and of deleted rows that the subscriber still has.

    Of other rows the subscriber learns nothing: one that it has left its partition.
    """
    live = known.where(~F.col(DELETED))
    live = live.join(with_rowguid(seen, article).select(ROWGUID), on=ROWGUID, how="left_semi")
    held = images.where(F.col("kind") == EXTRA).select(ROWGUID)
    return live.unionByName(known.where(DELETED).join(held, on=ROWGUID, how="left_semi"))


def known_rows(spark: SparkSession, side: SideState, nickname: int) -> DataFrame | None:
    """Return CHANGES: the latest recorded version of an article's rows at a side, with those just captured; or None.

    Raises: NeedsSparkError in process, if rows are too many.
    """
    if is_in_process():
        _require_few_recorded(side)
    captured = side.captured_article(nickname)
    runs = []
    if side.info.last_seq:
        runs.append(ArticleRuns.of(spark, side.replica, side.articles[nickname], side.info.last_seq).read())
    if captured is not None and captured.rows is not None:
        rows = captured.rows.select(*(name for name in captured.rows.columns if name != BASE))
        runs.append(rows.withColumn(SEQ, F.lit(side.info.last_seq + 1).cast("bigint")))
    if not runs:
        return None
    return current_rows(runs[0] if len(runs) == 1 else runs[0].unionByName(runs[1]))


def _require_few_recorded(side: SideState) -> None:
    for table in (contents.TABLE, tombstone.TABLE):
        path = side.replica.control.path(table.name)
        if is_delta_table(path) and row_count(path) > MOST_IN_PROCESS:
            raise TooLargeForArrowError("many rows have metadata", path)
