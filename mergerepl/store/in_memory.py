"""Rows that a session reads more than once stay in memory (on disk where that is short) until they are let go.

Spark's cache would turn the rows into columns and back again, a twelfth of all that a session of 100,000 changes costs;
and where contents are read through Delta (a deletion vector, say), an append to them makes Spark compute anew what the
cache was filled from. A local checkpoint keeps the rows as they are.
"""

from typing import Any

from pyspark.sql import DataFrame


def keep_in_memory(frame: DataFrame, *, now: bool = False) -> DataFrame:
    """Return the frame, its rows kept: from the first time they are computed, or computed now.

    Its plan ends here: Spark plans what follows by itself.
    """
    return frame.localCheckpoint(eager=now)


def let_go(frame: DataFrame) -> None:
    """Free the memory of a frame that `keep_in_memory` returned; it cannot be read afterwards."""
    plan: Any = frame._jdf.queryExecution().logical()
    plan.rdd().unpersist(False)
