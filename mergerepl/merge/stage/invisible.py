"""A subscriber's changes in nothing but columns that ended: they are not sent, so that they win no conflict.

The values of such columns were logged when they ended (`merge.schema.dropped`). The other columns of the row are as the
publisher has them, or as it changed them since. (decisions/0166)
"""

from collections.abc import Collection

from mergerepl.changes import BASE, DELETED, GENERATION, LINEAGE, ROW, ROWGUID
from mergerepl.frames import DataFrame, F
from mergerepl.replica.runs import ENDED, SEQ, ArticleRuns
from mergerepl.rows.images import image_type, same_image
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.spark.in_memory import Kept
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import FIRST_CLOCK

_SENT, _FIRST, _NOW = "sent_version", "first_version", "version_now"


def without_invisible(
    changes: DataFrame,
    runs: ArticleRuns,
    genhistory: Collection[Generation],
    nickname: int,
    *,
    from_generation_exclusive: int,
    kept: Kept,
) -> DataFrame:
    """Return the changes that a subscriber sends without rows whose columns are as they were when they were last sent.

    Only rows whose last change was recorded while they had a column that ended since are looked at. A row stays if its
    former version is unknown (an insert, a change of many rows at once, cleaned up metadata), or if it was merged or
    resolved since: then the publisher has another row.

    Args:
        changes: CHANGES of one article.
        runs: The subscriber's.
        genhistory: All generations of the subscriber.
        nickname: The subscriber's.
        from_generation_exclusive: The publisher has the row's version of this generation, or an earlier one.
        kept: Holds the frames.
    """
    start = from_generation_exclusive
    if any(row.waits_for is not None and row.generation > start for row in genhistory):
        # The publisher refused a version before the start.
        return changes
    recorded = runs.read(from_generation_exclusive=start, with_base=True).where(ENDED)
    in_doubt = kept.keep_if_any(recorded.select(ROWGUID).distinct())
    if in_doubt is None:
        return changes
    sent = max((row.maxversion or 0 for row in genhistory if row.generation <= start), default=0)
    sent = max(sent, FIRST_CLOCK)
    versions = runs.read(with_base=True).join(in_doubt, on=ROWGUID, how="left_semi")
    is_sent = F.col(GENERATION) <= query_parameter(start, "bigint")
    known = versions.groupBy(ROWGUID).agg(
        F.max_by(F.struct(DELETED, ROW), F.when(is_sent, F.col(SEQ))).alias(_SENT),
        F.max_by(F.struct(BASE), F.when(F.col(BASE).isNotNull(), F.col(SEQ))).alias(_FIRST),
        F.max_by(F.struct(ENDED), SEQ).alias(_NOW),
    )
    former = F.when(F.col(_SENT).isNull(), F.col(f"{_FIRST}.{BASE}")).when(
        ~F.col(f"{_SENT}.{DELETED}"), F.col(f"{_SENT}.{ROW}")
    )
    known = known.select(ROWGUID, former.alias(BASE), F.col(f"{_NOW}.{ENDED}").alias(ENDED))
    others = F.map_filter(LINEAGE, lambda writer, version: (version > sent) & (writer != nickname))
    is_same = F.col(ENDED) & F.col(BASE).isNotNull() & same_image(ROW, BASE, image_type(changes, ROW))
    is_invisible = ~F.col(DELETED) & is_same & (F.size(others) == 0)
    found = changes.join(known, on=ROWGUID, how="left")
    return found.where(~F.coalesce(is_invisible, F.lit(False))).select(*changes.columns)
