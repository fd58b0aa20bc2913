"""Partition mappings that the triggers of a filtered article write: an enter, a stay or a leave for each partition.

Merge session step: capture, and staging of a session's writes at the publisher. Pure. Rules: filters section 3 (INSERT,
UPDATE, DELETE; rows that follow a changed row); `systables.partitions` reads the rows.

EVENTS: one row per (rowguid, partition_id) of one article.
    rowguid, partition_id, kind (enter, stay, leave, data), reason (of a leave), generation
*data*: the row's own change, in a generation of another replica, belongs to the partition: it is counted, without a
mapping.
"""

from enum import StrEnum
from functools import reduce

from mergerepl.changes import GENERATION, ROWGUID, TABLENICK
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.systables.contents import SEQ
from mergerepl.systables.partitions import (
    CHANGECOUNT,
    ENTERED,
    FIRST_SEQ,
    PARTITION_ID,
    PUBLICATION_NUMBER,
    REASON,
    Reason,
)

KIND = "kind"


class Kind(StrEnum):
    """The effect of a change on a row in one partition."""

    ENTER = "enter"
    STAY = "stay"
    LEAVE = "leave"
    DATA = "data"


def has_events() -> Column:
    """True if a row of MEMBERSHIPS needs a mapping."""
    return F.col("written") | is_touched()


def is_touched() -> Column:
    """True if only the membership of the row changed."""
    return ~F.col("written") & (F.col("was") != F.col("is"))


def partition_events(memberships: DataFrame, *, generation: int) -> DataFrame:
    """Return the EVENTS of an article's MEMBERSHIPS, of one generation."""
    of_row, of_partition = _events()
    rows = memberships.where(has_events()).select(*of_row)
    return rows.select(*of_partition, query_parameter(generation, "bigint").alias(GENERATION))


@cached
def _events() -> tuple[list[Column | str], list[Column | str]]:
    """Return the columns of EVENTS without the generation, in two steps: each row's partitions, and its change in each."""
    of_row: list[Column | str] = [
        ROWGUID,
        F.explode(F.array_union("was", "is")).alias(PARTITION_ID),
        "was",
        "is",
        F.when(~F.col("written"), int(Reason.PARENT))
        .when(F.col("after").isNull(), int(Reason.DELETED))
        .otherwise(int(Reason.OWN_COLUMNS))
        .alias("why"),
    ]
    was, is_ = (F.array_contains(side, F.col(PARTITION_ID)) for side in ("was", "is"))
    kind = F.when(was & is_, Kind.STAY.value).when(is_, Kind.ENTER.value).otherwise(Kind.LEAVE.value)
    return of_row, [ROWGUID, PARTITION_ID, kind.alias(KIND), F.when(~is_, F.col("why")).alias(REASON)]


def data_events(memberships: DataFrame, generations: DataFrame) -> DataFrame:
    """Return EVENTS that count the data of rows for the partitions that they are in.

    Reads: MEMBERSHIPS of an article; rowguid, generation of the rows whose data is in another generation than their
    mappings.
    """
    rows = memberships.select(ROWGUID, F.explode("is").alias(PARTITION_ID))
    return rows.join(generations, on=ROWGUID).select(
        ROWGUID,
        PARTITION_ID,
        F.lit(Kind.DATA.value).alias(KIND),
        F.lit(None).cast("int").alias(REASON),
        GENERATION,
    )


def current_mappings(events: DataFrame, *, number: int, tablenick: int, seq: int) -> DataFrame:
    """Return the rows of MSmerge_current_partition_mappings that an article's EVENTS are."""
    is_in = F.col(KIND).isin(Kind.ENTER.value, Kind.STAY.value)
    return events.where(is_in).select(
        *_keys(number, tablenick),
        GENERATION,
        (F.col(KIND) == Kind.ENTER.value).alias(ENTERED),
        query_parameter(seq, "bigint").alias(SEQ),
    )


def past_mappings(events: DataFrame, *, number: int, tablenick: int, seq: int) -> DataFrame:
    """Return the rows of MSmerge_past_partition_mappings that an article's EVENTS are."""
    return events.where(F.col(KIND) == Kind.LEAVE.value).select(
        *_keys(number, tablenick), GENERATION, REASON, query_parameter(seq, "bigint").alias(SEQ)
    )


def _keys(number: int, tablenick: int) -> list[Column | str]:
    return [F.lit(number).alias(PUBLICATION_NUMBER), F.lit(tablenick).alias(TABLENICK), ROWGUID, PARTITION_ID]


def generation_mappings(events: list[DataFrame], *, number: int, seq: int) -> DataFrame:
    """Return the rows of MSmerge_generation_partition_mappings for EVENTS of articles."""
    all_events = reduce(DataFrame.unionByName, (each.select(GENERATION, PARTITION_ID) for each in events))
    counted = all_events.groupBy(GENERATION, PARTITION_ID).agg(F.count("*").alias(CHANGECOUNT))
    return counted.select(
        F.lit(number).alias(PUBLICATION_NUMBER),
        GENERATION,
        PARTITION_ID,
        CHANGECOUNT,
        F.lit(seq).cast("bigint").alias(FIRST_SEQ),
        F.lit(seq).cast("bigint").alias(SEQ),
    )
