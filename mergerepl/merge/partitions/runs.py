"""Runs of MSmerge_current_partition_mappings and MSmerge_past_partition_mappings, appended with a run of contents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from mergerepl.changes import GENERATION, ROWGUID, TABLENICK
from mergerepl.delta import appended
from mergerepl.delta.tables import Transaction
from mergerepl.failpoints import failpoint
from mergerepl.frames import Column, DataFrame, F
from mergerepl.replica.replica import Replica
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.store.location import Location
from mergerepl.systables import partitions
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.contents import SEQ
from mergerepl.systables.partitions import ENTERED, EVERYBODY, PARTITION_ID, REASON, addressed_to
from triggers.partition_mappings import current_mappings, generation_mappings, past_mappings

_MAPPING = (TABLENICK, ROWGUID, PARTITION_ID, GENERATION, SEQ)


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
    rows = _rows(events, transaction.version)
    failpoint("run.before_mappings")
    for table in partitions.MAPPINGS:
        appended.append(rows[table.name], replica.folder / table.name, transaction)
        failpoint(f"run.after_{table.name}")


def _rows(events: Sequence[Events], seq: int) -> dict[str, DataFrame]:
    """Return the rows of each mapping table."""

    def rows_of(mappings: Callable[..., DataFrame]) -> DataFrame:
        return appended.union_all(
            [mappings(e.rows, number=e.number, tablenick=e.tablenick, seq=seq) for e in events]
        )

    counted = [
        generation_mappings([e.rows for e in events if e.number == number], number=number, seq=seq)
        for number in sorted({e.number for e in events})
    ]
    return {
        partitions.CURRENT.name: rows_of(current_mappings),
        partitions.PAST.name: rows_of(past_mappings),
        partitions.GENERATION_PARTITIONS.name: appended.union_all(counted),
    }


def read_mappings(
    spark: SparkSession,
    folder: Location,
    tablenick: int,
    subscription: SubscriptionRow,
    *,
    from_seq_inclusive: int,
    through_seq_inclusive: int,
) -> DataFrame:
    """Return the mapping rows of one article for a subscriber's partition and for everybody, from a run on.

    `subscription` is the publisher's row about the subscriber. If its partition changed, up to that run the rows of the
    former partition count, in it those that are addressed to the subscriber.

    Returns: rowguid, partition_id, generation, entered (NULL: it left), reason, seq.
    """
    ids = [each for each in (subscription.partition_id, subscription.former_partition_id) if each is not None]
    if subscription.former_partition_id is not None:
        ids.append(addressed_to(subscription.replnickname))

    def of(table: str) -> DataFrame:
        bounds = {SEQ: (from_seq_inclusive - 1, through_seq_inclusive)}
        is_current = table == partitions.CURRENT.name
        asked = [*_MAPPING, ENTERED if is_current else REASON]
        among = {TABLENICK: [tablenick], PARTITION_ID: [EVERYBODY, *ids]}
        rows = appended.read(spark, folder / table, bounds, columns=asked, among=among)
        rows = appended.within(rows, bounds, lambda run: query_parameter(run, "bigint"))
        mine = F.col(PARTITION_ID).isin(EVERYBODY) | _is_of(subscription)
        return rows.where((F.col(TABLENICK) == tablenick) & mine).select(
            ROWGUID,
            PARTITION_ID,
            GENERATION,
            (F.col(ENTERED) if is_current else F.lit(None).cast("boolean")).alias(ENTERED),
            (F.lit(None).cast("int") if is_current else F.col(REASON)).alias(REASON),
            SEQ,
        )

    return of(partitions.CURRENT.name).unionByName(of(partitions.PAST.name))


def _is_of(subscription: SubscriptionRow) -> Column:
    """True for a mapping row of the partition that a subscriber has, or had when the run was appended."""
    present = F.col(PARTITION_ID) == query_parameter(subscription.partition_id or 0, "int")
    former = subscription.former_partition_id
    if former is None:
        return present
    at = query_parameter(subscription.moved_at_seq, "bigint")
    own = F.col(PARTITION_ID) == query_parameter(addressed_to(subscription.replnickname), "int")
    return (
        (present & (F.col(SEQ) > at))
        | ((F.col(PARTITION_ID) == query_parameter(former, "int")) & (F.col(SEQ) <= at))
        | (own & (F.col(SEQ) == at))
    )
