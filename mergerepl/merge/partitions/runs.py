"""Runs of MSmerge_current_partition_mappings and MSmerge_past_partition_mappings, appended with a run of contents."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from mergerepl.changes import GENERATION, ROWGUID, TABLENICK
from mergerepl.delta import appended
from mergerepl.delta.tables import Transaction, typed_rows
from mergerepl.failpoints import failpoint
from mergerepl.frames import DataFrame, F
from mergerepl.replica.replica import Replica
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.spark.in_memory import collected, frame_of, in_one_task, is_for_one_task
from mergerepl.store.location import Location
from mergerepl.systables import partitions
from mergerepl.systables.contents import SEQ
from mergerepl.systables.partitions import (
    CHANGECOUNT,
    ENTERED,
    EVERYBODY,
    FIRST_SEQ,
    PARTITION_ID,
    PUBLICATION_NUMBER,
    REASON,
)
from triggers.partition_mappings import KIND, Kind, current_mappings, generation_mappings, past_mappings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Events:
    """EVENTS of one article, as a frame or a small Arrow table, and the number of its publication."""

    number: int
    tablenick: int
    rows: "DataFrame | pa.Table"


def collected_events(
    events: Mapping[int, DataFrame], counts: Mapping[int, int], *, partitions: int
) -> "dict[int, pa.Table] | None":
    """Return EVENTS by article in memory, all computed in one job; None if they may be many.

    `events` are EVENTS by tablenick, `counts` the number of rows that have any.
    """
    import pyarrow.compute as pc

    most = sum(counts[nickname] for nickname in events) * (partitions + 1)
    if not is_for_one_task(most):
        return None
    frames = [
        in_one_task(rows, most).select(F.lit(nickname).alias(TABLENICK), "*")
        for nickname, rows in events.items()
    ]
    rows = collected(reduce(DataFrame.unionByName, frames).coalesce(1)) if frames else None
    return {
        nickname: rows.filter(pc.equal(rows[TABLENICK], nickname)).drop_columns([TABLENICK])
        for nickname in events
        if rows is not None
    }


def append_events(replica: Replica, events: Sequence[Events], transaction: Transaction) -> None:
    """Append EVENTS to the mapping tables; the run's number is the transaction's version.

    Raises: As `delta.appended.append`.
    """
    are_few = not any(isinstance(each.rows, DataFrame) for each in events)
    rows = _few_rows(events, transaction.version) if are_few else _rows(events, transaction.version)
    failpoint("run.before_mappings")
    for table in partitions.MAPPINGS:
        appended.append(rows[table.name], replica.folder / table.name, transaction)
        failpoint(f"run.after_{table.name}")


def _rows(events: Sequence[Events], seq: int) -> "dict[str, DataFrame | pa.Table]":
    """Return the rows of each mapping table; one publication may have few EVENTS and another one many."""
    spark = next(each.rows.sparkSession for each in events if isinstance(each.rows, DataFrame))
    frames = [
        (each, each.rows if isinstance(each.rows, DataFrame) else frame_of(spark, each.rows))
        for each in events
    ]

    def rows_of(mappings: Callable[..., DataFrame]) -> DataFrame:
        return appended.union_all(
            [mappings(rows, number=e.number, tablenick=e.tablenick, seq=seq) for e, rows in frames]
        )

    counted = [
        generation_mappings([rows for e, rows in frames if e.number == number], number=number, seq=seq)
        for number in sorted({e.number for e in events})
    ]
    return {
        partitions.CURRENT.name: rows_of(current_mappings),
        partitions.PAST.name: rows_of(past_mappings),
        partitions.GENERATION_PARTITIONS.name: appended.union_all(counted),
    }


def _few_rows(events: Sequence[Events], seq: int) -> "dict[str, DataFrame | pa.Table]":
    """`_rows` of few EVENTS in memory."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def repeated(value: int, count: int, type_: "pa.DataType") -> "pa.Array[Any]":
        return pa.repeat(pa.scalar(value, type_), count)

    parts = []
    for each in events:
        assert not isinstance(each.rows, DataFrame)
        keys = {PUBLICATION_NUMBER: each.number, TABLENICK: each.tablenick}
        columns = {name: repeated(value, each.rows.num_rows, pa.int32()) for name, value in keys.items()}
        parts.append(
            pa.table({**columns, **dict(zip(each.rows.column_names, each.rows.columns, strict=True))})
        )
    rows = pa.concat_tables(parts)
    rows = rows.append_column(ENTERED, pc.equal(rows[KIND], Kind.ENTER.value))
    is_in = pc.is_in(rows[KIND], pa.array([Kind.ENTER.value, Kind.STAY.value]))
    has_left = pc.equal(rows[KIND], Kind.LEAVE.value)
    of_generation = [PUBLICATION_NUMBER, GENERATION, PARTITION_ID]
    counted = rows.group_by(of_generation).aggregate([([], "count_all")])
    counted = counted.rename_columns({"count_all": CHANGECOUNT})
    of_mapping = [PUBLICATION_NUMBER, TABLENICK, ROWGUID, PARTITION_ID, GENERATION]
    found = {
        partitions.CURRENT.name: rows.filter(is_in).select([*of_mapping, ENTERED]),
        partitions.PAST.name: rows.filter(has_left).select([*of_mapping, REASON]),
        partitions.GENERATION_PARTITIONS.name: counted.append_column(
            FIRST_SEQ, repeated(seq, counted.num_rows, pa.int64())
        ),
    }
    return {
        name: each.append_column(SEQ, repeated(seq, each.num_rows, pa.int64()))
        for name, each in found.items()
    }


def read_mappings(
    spark: SparkSession,
    folder: Location,
    tablenick: int,
    partition_id: int,
    *,
    from_seq_inclusive: int,
    through_seq_inclusive: int,
) -> DataFrame:
    """Return the mapping rows of one article for a partition and for everybody, from a run on.

    Returns: rowguid, partition_id, generation, entered (NULL: it left), reason, seq.
    """

    def of(table: str) -> DataFrame:
        bounds = {SEQ: (from_seq_inclusive - 1, through_seq_inclusive)}
        rows = appended.read(spark, folder / table, bounds)
        rows = appended.within(rows, bounds, lambda run: query_parameter(run, "bigint"))
        mine = F.col(PARTITION_ID).isin(EVERYBODY) | (
            F.col(PARTITION_ID) == query_parameter(partition_id, "int")
        )
        is_current = table == partitions.CURRENT.name
        return rows.where((F.col(TABLENICK) == tablenick) & mine).select(
            ROWGUID,
            PARTITION_ID,
            GENERATION,
            (F.col(ENTERED) if is_current else F.lit(None).cast("boolean")).alias(ENTERED),
            (F.lit(None).cast("int") if is_current else F.col(REASON)).alias(REASON),
            SEQ,
        )

    return of(partitions.CURRENT.name).unionByName(of(partitions.PAST.name))


def few_mappings(
    folder: Location,
    generations: Collection[int],
    partition_id: int,
    *,
    from_seq_inclusive: int,
    through_seq_inclusive: int,
) -> "pa.Table":
    """`read_mappings` by delta-rs, for these generations of any articles, with the tablenick."""
    import pyarrow as pa

    where = (
        f"{GENERATION} in ({', '.join(map(str, generations))}) and {PARTITION_ID} in ({EVERYBODY}, {partition_id}) "
        f"and {SEQ} >= {from_seq_inclusive} and {SEQ} <= {through_seq_inclusive}"
    )
    types = {
        TABLENICK: pa.int32(),
        ROWGUID: pa.string(),
        PARTITION_ID: pa.int32(),
        GENERATION: pa.int64(),
        ENTERED: pa.bool_(),
        REASON: pa.int32(),
        SEQ: pa.int64(),
    }
    tables = (partitions.CURRENT, partitions.PAST)
    return pa.concat_tables([typed_rows(folder / table.name, types, where=where) for table in tables])
