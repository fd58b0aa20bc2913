"""Rows that a session reads more than once are kept in memory (on disk if memory is short) until released.

Spark's cache would convert the rows to columns and back, a twelfth of the cost of a session of 100,000 changes; and if
contents are read through Delta (a deletion vector, for example), an append to them makes Spark recompute the source of
the cache. A local checkpoint keeps the rows unchanged.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.sql import DataFrame as SparkFrame
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mergerepl.frames import DataFrame, F, in_process_frames, is_in_process
from mergerepl.spark.cluster import is_on_cluster
from mergerepl.spark.confs import ADAPTIVE
from mergerepl.spark.session import copy_of, in_session

if TYPE_CHECKING:
    import pyarrow as pa

_FEW_ROWS = 100_000

_SMALL_BYTES = 64 << 20

_ROWS_OF_ONE_TASK = 10_000
"""This many rows are read, compared and written faster in one task than Spark plans and runs a further job for them."""


_MOST_ROWS = 2**31 - 1


def keep_in_memory(frame: DataFrame, *, now: bool = False) -> DataFrame:
    """Return the frame with its rows kept: from their first computation, or computed now.

    Its plan ends here: Spark plans the following steps separately. On a cluster two executors keep each row, so that the
    end of one loses none.
    """
    if is_in_process():
        return frame
    level = StorageLevel.MEMORY_AND_DISK_2 if is_on_cluster(frame.sparkSession) else None
    return frame.localCheckpoint(eager=now, storageLevel=level)


def keep_for_joins(frame: DataFrame) -> DataFrame:
    """Return the frame with its rows kept and computed now; Spark knows the columns by which a join partitioned them.

    Joined by the same columns with rows kept like this, they are neither shuffled nor sorted. For a query planned
    adaptively, Spark does not know this.
    """
    if is_in_process():
        return frame
    spark = frame.sparkSession
    try:
        copy = copy_of(spark, {ADAPTIVE: "false"})
    except Py4JError:
        return keep_in_memory(frame, now=True)
    return in_session(keep_in_memory(in_session(frame, copy), now=True), spark)


def frame_of(spark: SparkSession | None, rows: "pa.Table", schema: StructType | None = None) -> DataFrame:
    """Return Arrow rows as a frame: in process, or of a session, which does not become the active one.

    Spark silently drops the rows after an empty chunk.
    """
    if is_in_process():
        here: DataFrame = in_process_frames().frame_of(rows, schema)
        return here
    assert spark is not None
    whole = rows.combine_chunks()
    # `SparkSession.createDataFrame` makes its session the active one of all threads, then calls this.
    create = super(SparkSession, spark).createDataFrame
    return create(whole) if schema is None else create(whole, schema)


def frame_of_tuples(
    spark: SparkSession | None, rows: Iterable[tuple[object, ...]], schema: StructType
) -> DataFrame:
    """Return tuples of Python's values as a frame, as `frame_of`."""
    if is_in_process():
        here: DataFrame = in_process_frames().frame_of_tuples(rows, schema)
        return here
    assert spark is not None
    return spark._create_dataframe(rows, schema, None, True)


def collected(frame: DataFrame) -> "pa.Table":
    """Collect few rows in this process' memory, with Arrow's types for the frame's, whatever the session's confs: instants
    are in UTC.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    if is_in_process():
        here: pa.Table = in_process_frames().collected(frame)
        return here
    return frame.toArrow().cast(to_arrow_schema(frame.schema, timezone="UTC"))


def release(frame: DataFrame) -> None:
    """Free the memory of a frame that `keep_in_memory` returned; it cannot be read afterwards."""
    if isinstance(frame, SparkFrame):
        plan: Any = frame._jdf.queryExecution().logical()
        plan.rdd().unpersist(False)


@dataclass
class Kept:
    """Frames kept in memory until a step of the session is done.

    Each also ends a plan: without these breaks the expressions of merging and resolving are inlined into each other,
    and planning them takes longer than all rows.
    """

    frames: list[DataFrame] = field(default_factory=list)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return the frame, to be held in memory once it is computed."""
        self.frames.append(keep_in_memory(frame))
        return self.frames[-1]

    def keep_if_any(self, frame: DataFrame | None) -> DataFrame | None:
        """Return the frame, computed now and held in memory; None if it is None or has no row."""
        if frame is None:
            return None
        frame = self.keep(frame)
        return frame if frame.count() else None

    def keep_for_joins(self, frame: DataFrame) -> DataFrame:
        """Return the frame, computed now and held in memory (`keep_for_joins`)."""
        self.frames.append(keep_for_joins(frame))
        return self.frames[-1]

    def release(self) -> None:
        """Free the memory."""
        for frame in self.frames:
            release(frame)


@contextmanager
def released_on_error(kept: DataFrame | Kept) -> Iterator[None]:
    """Free the memory of kept frames if this block fails."""
    try:
        yield
    except BaseException:
        if isinstance(kept, Kept):
            kept.release()
        else:
            release(kept)
        raise


def is_for_one_task(rows: int | None) -> bool:
    """Whether this number of rows is small enough for one task; None means unknown."""
    return rows is not None and rows <= _ROWS_OF_ONE_TASK


def in_one_task(frame: DataFrame, rows: int | None, *, join: str = "merge") -> DataFrame:
    """Return the frame, for one task if all frames it is joined with have few rows.

    Frames of one task each are joined and grouped in place: without a job for a broadcast or a shuffle. `join` is the
    join hint for Spark: `shuffle_hash` if this frame has much fewer rows than the other one.
    """
    if is_in_process() or not is_for_one_task(rows):
        return frame
    # Spark assumes an endless size for kept rows, and would shuffle such a task. No task reaches this limit.
    return frame.coalesce(1).limit(_MOST_ROWS).hint(join)


def are_few(rows: int) -> bool:
    """Whether this number of rows may go to every task."""
    return rows <= _FEW_ROWS


def broadcast_if_few(keys: DataFrame, rows: int) -> DataFrame:
    """Return keys, sent to every task if they are few, so that the rows they are looked up in need not be shuffled.

    Spark itself does not know the number of kept rows.
    """
    return F.broadcast(keys) if are_few(rows) and not is_in_process() else keys


def is_small(kept: DataFrame) -> bool:
    """Whether computed kept rows take little memory, which Spark does not check."""
    plan: Any = kept._jdf.queryExecution().logical()
    context: Any = kept.sparkSession.sparkContext._jsc
    stored = [each for each in context.sc().getRDDStorageInfo() if each.id() == plan.rdd().id()]
    return bool(stored) and stored[0].memSize() + stored[0].diskSize() <= _SMALL_BYTES


def broadcast_if_small(kept: DataFrame) -> DataFrame:
    """Return computed kept rows, sent to every task if they take little memory."""
    return F.broadcast(kept) if not is_in_process() and is_small(kept) else kept
