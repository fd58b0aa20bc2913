"""Enumerate the changes of closed generations, for articles without filters.

Merge session step: after make_generation, before get_metadata. Reads contents and tombstone; writes nothing.
"""

from collections.abc import Collection, Sequence

from mergerepl.changes import CHANGE_COLUMNS, GENERATION, ROWGUID
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.systables.contents import SEQ
from mergerepl.systables.partitions import ENTERED, REASON


def enum_changes(
    current: DataFrame, *, from_generation_exclusive: int, known_generations: Sequence[int]
) -> DataFrame:
    """Return the rows whose latest change the destination has not seen.

    Only the latest version of a row is sent, so older generations that it was part of do not matter. If that
    version lies in a generation that the destination holds, nothing is sent.

    Reads: current metadata rows (one per rowguid, CHANGES columns). Returns: CHANGES.
    """
    is_unsent = F.col(GENERATION) > query_parameter(from_generation_exclusive, "bigint")
    known = F.array(*(F.lit(number) for number in known_generations)).cast("array<bigint>")
    return current.where(is_unsent & ~F.array_contains(known, F.col(GENERATION))).select(*CHANGE_COLUMNS)


HAD = "had"
HAS = "has"
EVENT_GENERATION = "event_generation"
WHY = "why"
"""Columns of WINDOW after rowguid: whether the subscriber had the row at the start, whether it shall have it, the
generation of the last event, and the reason of the last leave (0: it never left).
"""


def enum_partition_changes(mappings: DataFrame, generations: Collection[int]) -> DataFrame:
    """Return WINDOW: one row for each row with a mapping row for the subscriber in these generations.

    The *first* run shows whether it had the row (a row that stays or leaves was there), the *last* run whether it shall
    have it. Every run has all of a row's mapping rows, so earlier runs are not needed.

    Reads: `partitions.runs.read_mappings`.
    """
    chosen = F.array(*(F.lit(number) for number in sorted(generations))).cast("array<bigint>")
    rows = mappings.where(F.array_contains(chosen, F.col(GENERATION)))
    # Both groupings find the rows of one rowguid together.
    of_run, of_row = _aggregates()
    return rows.repartition(ROWGUID).groupBy(ROWGUID, SEQ).agg(*of_run).groupBy(ROWGUID).agg(*of_row)


@cached
def _aggregates() -> tuple[list[Column], list[Column]]:
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
