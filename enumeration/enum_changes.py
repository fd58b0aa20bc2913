"""Enumerate the changes of closed generations, for articles without filters.

Merge session step: after make_generation, before get_metadata. Reads contents and tombstone; writes nothing.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.changes import CHANGE_COLUMNS, GENERATION
from mergerepl.spark.passed import passed


def enum_changes(
    current: DataFrame, *, from_generation_exclusive: int, known_generations: Sequence[int]
) -> DataFrame:
    """Return the rows whose latest change the destination has not seen.

    Only the latest version of a row is sent, so older generations that it was part of do not matter. If that
    version lies in a generation that the destination holds, nothing is sent.

    Reads: current metadata rows (one per rowguid, CHANGES columns). Returns: CHANGES.
    """
    is_unsent = F.col(GENERATION) > passed(from_generation_exclusive, "bigint")
    known = F.array(*(F.lit(number) for number in known_generations)).cast("array<bigint>")
    return current.where(is_unsent & ~F.array_contains(known, F.col(GENERATION))).select(*CHANGE_COLUMNS)
