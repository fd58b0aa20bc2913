"""Runs of the partition mappings: appended with a run of contents and tombstones, under its number and its transaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.changes import GENERATION, ROWGUID, TABLENICK
from mergerepl.delta import appended
from mergerepl.delta.transactions import Transaction
from mergerepl.engine.passed import passed
from mergerepl.failpoints import failpoint
from mergerepl.store.replica import Replica
from mergerepl.systables import partitions
from mergerepl.systables.contents import SEQ
from mergerepl.systables.partitions import (
    ENTERED,
    EVERYBODY,
    PARTITION_ID,
    REASON,
)
from triggers.partition_mappings import current_mappings, generation_mappings, past_mappings


@dataclass(frozen=True)
class Events:
    """EVENTS of one article, and the number of its publication."""

    number: int
    tablenick: int
    rows: DataFrame


def append_events(replica: Replica, events: Sequence[Events], transaction: Transaction) -> None:
    """Append EVENTS to the mapping tables; the run's number is the transaction's version.

    Raises: As `delta.appended.append`.
    """
    seq = transaction.version

    def rows_of(mappings: Callable[..., DataFrame]) -> list[DataFrame]:
        return [mappings(e.rows, number=e.number, tablenick=e.tablenick, seq=seq) for e in events]

    current, past = rows_of(current_mappings), rows_of(past_mappings)
    counted = [
        generation_mappings([e.rows for e in events if e.number == number], number=number, seq=seq)
        for number in sorted({e.number for e in events})
    ]
    failpoint("run.before_mappings")
    tables = (
        (partitions.CURRENT, appended.union_all(current)),
        (partitions.PAST, appended.union_all(past)),
        (partitions.GENERATION_PARTITIONS, appended.union_all(counted)),
    )
    for table, rows in tables:
        appended.append(rows, replica.folder / table.name, transaction)
        failpoint(f"run.after_{table.name}")


def read_mappings(
    spark: SparkSession,
    folder: Path,
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
        rows = appended.within(rows, bounds, lambda run: passed(run, "bigint"))
        mine = F.col(PARTITION_ID).isin(EVERYBODY) | (F.col(PARTITION_ID) == passed(partition_id, "int"))
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
