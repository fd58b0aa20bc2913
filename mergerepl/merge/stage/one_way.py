"""What the side that decides holds of rows that an article rejects of the other: it stands in the place of a change."""

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import (
    CHANGE_COLUMNS,
    COLV1,
    DELETED,
    GENERATION,
    LINEAGE,
    OTHER_SIDE,
    PUBLISHER,
    ROWGUID,
    SUBSCRIBER,
    TOMBSTONE_TYPE,
)
from mergerepl.merge.partitions.versions import versions_of
from mergerepl.merge.stage.article import Enumerated
from mergerepl.merge.stage.decision import Changed
from mergerepl.rows import lineage_columns as lineage
from mergerepl.spark.in_memory import Kept
from mergerepl.systables.tombstone import TombstoneType


def with_held(
    spark: SparkSession,
    changed: Changed,
    sides: Mapping[str, Enumerated],
    versions: Mapping[str, int],
    kept: Kept,
    *,
    rejects: str | None,
) -> Changed:
    """Return what both sides send, with the deciding side's version of each row that the other one sends.

    Args:
        spark: Session.
        changed: What both sides send of an article.
        sides: Both sides of it.
        versions: The captured versions of both sides' tables.
        kept: Holds what is read.
        rejects: The side whose changes are not taken; None: there is none.
    """
    at = {PUBLISHER: changed.at_publisher, SUBSCRIBER: changed.at_subscriber}
    sent = at.get(rejects) if rejects is not None else None
    if rejects is None or sent is None:
        return changed
    side = OTHER_SIDE[rejects]
    holder, own = sides[side], at[side]
    known = versions_of(
        spark,
        holder.replica,
        holder.article,
        sent,
        rows=sides[rejects].rows,
        version=versions[side],
        through_seq_inclusive=holder.through_seq_inclusive,
        kept=kept,
    )
    if own is not None:
        # What it sends is newer than its runs.
        others = known.join(own.select(ROWGUID), on=ROWGUID, how="left_anti")
        known = own.select(*CHANGE_COLUMNS).unionByName(others)
    never_there = {
        DELETED: F.lit(True),
        TOMBSTONE_TYPE: F.lit(int(TombstoneType.USER_DELETE)),
        GENERATION: F.lit(0).cast("bigint"),
        LINEAGE: lineage.empty_lineage(),
        COLV1: lineage.no_colv(),
    }
    absent = sent.join(known.select(ROWGUID), on=ROWGUID, how="left_anti").withColumns(never_there)
    held = kept.keep(known.unionByName(absent.select(*CHANGE_COLUMNS)))
    return replace(
        changed,
        at_publisher=held if side == PUBLISHER else sent,
        at_subscriber=held if side == SUBSCRIBER else sent,
    )
