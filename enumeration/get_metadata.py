"""Classify each enumerated change against what the other side has to tell of the same row.

Merge session step: after enum_changes of both sides, before conflict detection. Pure. Decision table:
merge_replication.md 2.8.

Only changes the other side has *not* received yet can be concurrent with a change: what it has received is
part of the sender's own version of the row. So the two enumerations are compared with each other, not with
whole tables.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.changes import CHANGE_COLUMNS, LINEAGE, PUBLISHER, ROWGUID, SUBSCRIBER, VERDICT, Verdict
from mergerepl.lineage import columns as lineage

_PAIR_COLUMNS = (ROWGUID, PUBLISHER, SUBSCRIBER, VERDICT)


def get_metadata(at_publisher: DataFrame | None, at_subscriber: DataFrame | None, *, floor: int) -> DataFrame:
    """Return PAIRS: one row per rowguid with each side's change (or NULL) and the verdict.

    A side that knows the other's version (its lineage covers it) is sent; equal lineages are known; neither
    covering the other is a conflict candidate.

    Args:
        at_publisher: CHANGES the subscriber has not seen, None if there are none.
        at_subscriber: CHANGES the publisher has not seen, None if there are none.
        floor: Highest version purged by metadata cleanup; versions up to it count as known to everybody.
    """
    if at_publisher is None and at_subscriber is None:
        raise ValueError("nothing to classify")
    if at_publisher is None or at_subscriber is None:
        one_sided = at_publisher if at_publisher is not None else at_subscriber
        assert one_sided is not None
        side, other = (PUBLISHER, SUBSCRIBER) if at_publisher is not None else (SUBSCRIBER, PUBLISHER)
        told = _as_side(one_sided, side)
        absent = F.lit(None).cast(told.schema[side].dataType)
        only = Verdict.DOWNLOAD if side == PUBLISHER else Verdict.UPLOAD
        return told.withColumns({other: absent, VERDICT: F.lit(only.value)}).select(*_PAIR_COLUMNS)
    joined = _as_side(at_publisher, PUBLISHER).join(
        _as_side(at_subscriber, SUBSCRIBER), on=ROWGUID, how="full_outer"
    )
    of_publisher, of_subscriber = F.col(f"{PUBLISHER}.{LINEAGE}"), F.col(f"{SUBSCRIBER}.{LINEAGE}")
    publisher_knows = lineage.covers(of_publisher, of_subscriber, floor=floor)
    subscriber_knows = lineage.covers(of_subscriber, of_publisher, floor=floor)
    verdict = (
        F.when(F.col(PUBLISHER).isNull(), Verdict.UPLOAD.value)
        .when(F.col(SUBSCRIBER).isNull(), Verdict.DOWNLOAD.value)
        .when(publisher_knows & subscriber_knows, Verdict.KNOWN.value)
        .when(publisher_knows, Verdict.DOWNLOAD.value)
        .when(subscriber_knows, Verdict.UPLOAD.value)
        .otherwise(Verdict.CANDIDATE.value)
    )
    return joined.withColumn(VERDICT, verdict).select(*_PAIR_COLUMNS)


def _as_side(changes: DataFrame, side: str) -> DataFrame:
    told = [name for name in CHANGE_COLUMNS if name != ROWGUID]
    return changes.select(ROWGUID, F.struct(*told).alias(side))
