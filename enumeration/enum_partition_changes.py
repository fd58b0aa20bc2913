"""Enumerate for one partition: for each row, whether the subscriber had it before the session, and is to have it.

Merge session step: after make_generation, for filtered articles, in place of `enum_changes`. Pure. Rules: filters 4.2.
"""

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mergerepl.changes import GENERATION, ROWGUID
from mergerepl.spark.in_memory import in_one_task, is_for_one_task
from mergerepl.spark.made_once import made_once
from mergerepl.systables.contents import SEQ
from mergerepl.systables.partitions import ENTERED, REASON

HAD = "had"
HAS = "has"
EVENT_GENERATION = "event_generation"
WHY = "why"
"""Columns of WINDOW besides rowguid: whether the subscriber had the row at the start, whether it is to have it, the
generation of the last event, and the reason of the last leave (0: it never left)."""


def enum_partition_changes(
    mappings: DataFrame, generations: Collection[int], *, most: int | None = None
) -> DataFrame:
    """Return WINDOW: one row for each row with a mapping row for the subscriber in these generations.

    The *first* run says what it had (a row that stays or leaves was there), the *last* run what it is to have.
    Every run has all of a row's mapping rows, so that none before the first is needed.

    Reads: `partitions.runs.read_mappings`; at most so many rows (`most`), None: unknown.
    """
    chosen = F.array(*(F.lit(number) for number in sorted(generations))).cast("array<bigint>")
    rows = mappings.where(F.array_contains(chosen, F.col(GENERATION)))
    # Both groupings find the rows of one rowguid together.
    together = in_one_task(rows, most) if is_for_one_task(most) else rows.repartition(ROWGUID)
    of_run, of_row = _aggregates()
    return together.groupBy(ROWGUID, SEQ).agg(*of_run).groupBy(ROWGUID).agg(*of_row)


@made_once
def _aggregates() -> tuple[list[Column], list[Column]]:
    """Return what the mapping rows of a row say in one run, and what its runs say."""
    is_in = F.col(ENTERED).isNotNull()
    was_in = ~F.coalesce(ENTERED, F.lit(False))
    of_run = [
        F.max(was_in).alias(HAD),
        F.max(is_in).alias(HAS),
        F.max(GENERATION).alias(GENERATION),
        F.max(F.coalesce(REASON, F.lit(0))).alias(WHY),
    ]
    last_leave: Column = F.max_by(F.when(F.col(WHY) > 0, F.col(WHY)), F.when(F.col(WHY) > 0, F.col(SEQ)))
    of_row = [
        F.min_by(HAD, SEQ).alias(HAD),
        F.max_by(HAS, SEQ).alias(HAS),
        F.max_by(GENERATION, SEQ).alias(EVENT_GENERATION),
        F.coalesce(last_leave, F.lit(0)).alias(WHY),
    ]
    return of_run, of_row
