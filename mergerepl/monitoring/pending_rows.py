"""`mergerepl pending --list`: the rows that wait for the next sync (sp_showpendingchanges with @show_rows)."""

from collections.abc import Iterator
from contextlib import nullcontext

from pyspark.sql import DataFrame, SparkSession

from mergerepl.changes import DELETED, GENERATION, PUBLISHER, ROW, ROWGUID, SUBSCRIBER
from mergerepl.delta.engine_choice import embedded_spark
from mergerepl.frames import F, in_process
from mergerepl.model.article import PublishedArticle
from mergerepl.model.tasks import PendingRow
from mergerepl.model.words import text_of
from mergerepl.monitoring.fixed_article import article_pairs, subscribed
from mergerepl.monitoring.fixed_versions import FixedEnd, fixed_ends, moved_rows, sent_rows
from mergerepl.replica.subscription import require_ends
from mergerepl.rows.arrow_values import python_values
from mergerepl.spark.in_memory import Kept, collected
from mergerepl.store.location import Location
from triggers.window import SMALL_ROWS

_DIRECTIONS = {PUBLISHER: "download", SUBSCRIBER: "upload"}
"""The side that sends -> the direction."""


def pending_rows(
    publisher: Location, subscriber: Location, publication: str, *, limit: int
) -> Iterator[PendingRow]:
    """Yield the captured rows that each end has still to send to the other, by article and generation.

    Few changes are read in this process; only those of a filtered article need Spark.

    Raises: as `fixed_ends`; StoreError, EngineError.
    """
    at_publisher, at_subscriber = require_ends(publisher, subscriber)
    pubid = subscribed(at_publisher, at_subscriber, publication)
    ends = fixed_ends(at_publisher, at_subscriber, pubid)
    left = limit
    for here, there in article_pairs(at_publisher, at_subscriber, pubid):
        for side, article in ((SUBSCRIBER, there), (PUBLISHER, here)):
            if article is None or left <= 0 or not ends[side].unsent(article):
                continue
            for generation, rowguid, is_deleted, key in _rows(ends[side], article, left):
                left -= 1
                yield PendingRow(
                    publication,
                    str(subscriber),
                    article.name,
                    _DIRECTIONS[side],
                    rowguid,
                    key,
                    is_deleted,
                    generation,
                )


def _rows(
    end: FixedEnd, article: PublishedArticle, limit: int
) -> list[tuple[int, str, bool, dict[str, str | None]]]:
    is_filtered = end.filtered is not None and article.nickname in end.filtered.tablenicks
    is_here = end.unsent(article) <= SMALL_ROWS and not is_filtered
    kept = Kept()
    try:
        with in_process() if is_here else nullcontext():
            frame = _frame(None if is_here else embedded_spark(), end, article, kept)
            if frame is None:
                return []
            keys = {name: f"k{i}" for i, name in enumerate(article.identity)}
            fields = zip(keys.values(), article.identity_fields, strict=True)
            shown = frame.select(
                GENERATION, ROWGUID, DELETED, *(F.col(f"{ROW}.{field}").alias(name) for name, field in fields)
            )
            shown = shown.orderBy(GENERATION, ROWGUID).limit(limit)
            found = collected(shown) if is_here else shown.toArrow()
    finally:
        if not is_here:
            kept.release()
    columns = {name: python_values(found.column(name)) for name in found.column_names}
    return [
        (
            columns[GENERATION][i],
            columns[ROWGUID][i],
            columns[DELETED][i],
            {name: text_of(columns[k][i]) for name, k in keys.items()},
        )
        for i in range(found.num_rows)
    ]


def _frame(
    spark: SparkSession | None, end: FixedEnd, article: PublishedArticle, kept: Kept
) -> DataFrame | None:
    rows = sent_rows(spark, end, article, kept)
    if spark is None or rows is None:
        return rows
    moved = moved_rows(spark, end, article, kept)
    return rows if moved is None else rows.join(moved.select(ROWGUID), on=ROWGUID, how="left_semi")
