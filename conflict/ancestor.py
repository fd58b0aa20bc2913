"""The common ancestor of two changes: the row before either side's separate change.

Merge session step: before detect, for articles whose resolver reads it. Pure. Each side keeps its versions of a row in
order, beginning with the published row. The later of both sides' last versions that the other side's change includes is
the ancestor. Both sides are needed: after a session of one direction, the other side may hold a later version that both
include.
"""

from mergerepl.changes import BASE, DELETED, LINEAGE, ROW, ROWGUID
from mergerepl.frames import Column, DataFrame, F
from mergerepl.rows import lineage_columns as lineage

ANCESTOR = "ancestor"
"""Struct (deleted, row) of a row's ancestor, or NULL."""

ORDER = "version_order"
_PUBLISHED_FIRST = -1
_OF_PUBLISHER, _OF_SUBSCRIBER = "publisher_lineage", "subscriber_lineage"


def versions(recorded: DataFrame, order: str) -> DataFrame:
    """Return the versions of rows that a side recorded, beginning with the published row.

    Reads: CAPTURED columns with `base`, and a column with the order in which versions came. Returns: rowguid,
    version_order, deleted, lineage, row.
    """
    later = recorded.select(ROWGUID, F.col(order).cast("bigint").alias(ORDER), DELETED, LINEAGE, ROW)
    first = recorded.where(F.col(BASE).isNotNull()).select(
        ROWGUID,
        F.lit(_PUBLISHED_FIRST).cast("bigint").alias(ORDER),
        F.lit(False).alias(DELETED),
        lineage.published_lineage().alias(LINEAGE),
        F.col(BASE).alias(ROW),
    )
    return later.unionByName(first)


def ancestors(
    at_publisher: DataFrame,
    at_subscriber: DataFrame,
    publisher_versions: DataFrame,
    subscriber_versions: DataFrame,
    *,
    floor: int,
) -> DataFrame:
    """Return the ancestors of the rows that both sides have changed.

    Args:
        at_publisher: The publisher's changes: rowguid, lineage.
        at_subscriber: The subscriber's changes.
        publisher_versions: As `versions` returns them, of at least these rows.
        subscriber_versions: The subscriber's.
        floor: Versions up to it count as known to all replicas.

    Returns: rowguid, ancestor.
    """
    both = at_publisher.select(ROWGUID, F.col(LINEAGE).alias(_OF_PUBLISHER)).join(
        at_subscriber.select(ROWGUID, F.col(LINEAGE).alias(_OF_SUBSCRIBER)), on=ROWGUID, how="inner"
    )
    at_p = _last_known(publisher_versions, both, _OF_SUBSCRIBER, floor).withColumnRenamed(
        "last", "at_publisher"
    )
    at_s = _last_known(subscriber_versions, both, _OF_PUBLISHER, floor).withColumnRenamed(
        "last", "at_subscriber"
    )
    found = at_p.join(at_s, on=ROWGUID, how="full_outer")
    return found.select(ROWGUID, _later().alias(ANCESTOR))


def _last_known(of_side: DataFrame, both: DataFrame, other: str, floor: int) -> DataFrame:
    """Return for each row the last version that the other side's change includes: rowguid, last."""
    included = of_side.join(both, on=ROWGUID, how="inner").where(
        lineage.covers(F.col(other), F.col(LINEAGE), floor=floor)
    )
    return included.groupBy(ROWGUID).agg(F.max_by(F.struct(LINEAGE, DELETED, ROW), ORDER).alias("last"))


def _later() -> Column:
    publisher, subscriber = F.col("at_publisher"), F.col("at_subscriber")
    is_subscribers = publisher.isNull() | lineage.covers(subscriber[LINEAGE], publisher[LINEAGE], floor=0)
    chosen = F.when(F.coalesce(is_subscribers, F.lit(False)), subscriber).otherwise(publisher)
    return F.when(chosen.isNotNull(), F.struct(chosen[DELETED].alias(DELETED), chosen[ROW].alias(ROW)))
