"""A subscription gets another HOST_NAME() or SUSER_SNAME(): its subscriber changes to another partition.

`apply` stores the new values; the next session of the subscriber makes the partition if it is missing, and moves rows
before it enumerates. One run of mapping rows is addressed to this subscriber alone: a leave of each row of the former
partition that the new one lacks, an enter of each row that only the new one has. The session sends them like any other
move of rows, after the changes of the subscriber.
"""

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import SparkSession

from mergerepl.changes import GENERATION, ROW, ROWGUID
from mergerepl.failpoints import failpoint
from mergerepl.frames import DataFrame, F
from mergerepl.merge.partitions.filtered import FilteredPublication, filtered_publication
from mergerepl.merge.partitions.membership import base_rows, group_rows, partition_rows, with_rowguid
from mergerepl.merge.session.capture_replica import capture_held
from mergerepl.merge.session.moved_rows import MovedRows, commit_moves
from mergerepl.model.progress import Progress
from mergerepl.publish.partitions import add_partition, values_of_group
from mergerepl.replica.partition_generations import is_moving
from mergerepl.replica.replica import Replica
from mergerepl.spark.in_memory import Kept
from mergerepl.systables import catalog
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.partitions import PARTITION_ID, REASON, PartitionGroup, Reason, addressed_to
from triggers.partition_mappings import KIND, Kind


def follow_partition(
    publisher: Replica,
    subscription: SubscriptionRow,
    spark_of: Callable[[], SparkSession],
    progress: Progress,
) -> bool:
    """Move a subscriber to the partition of its present values; return True if it was in another one.

    The caller holds the publisher. `subscription` is the publisher's row about the subscriber.

    Raises: as a capture of the publisher.
    """
    publication = filtered_publication(publisher, subscription.pubid)
    if publication is None or not _is_elsewhere(publication, subscription):
        return False
    if is_moving(publisher, publication.number, subscription, from_generation_exclusive=subscription.sentgen):
        # Its last move is not sent yet. The session after that one moves it again.
        return False
    values = {each: getattr(subscription, each.lower()) for each in publication.filters.functions}
    add_partition(publisher, subscription.pubid, values)
    failpoint("partition.after_group")
    # From here on, captures compute memberships in both partitions.
    publisher = publisher.reread()
    capture_held(publisher, subscription.pubid, progress=progress, spark_of=spark_of)
    publisher = publisher.reread()
    publication = filtered_publication(publisher, subscription.pubid)
    assert publication is not None
    group = next(
        each for each in publication.groups if values_of_group(each, publication.filters.functions) == values
    )
    progress.step("partition")
    moved_at = _append_moves(publisher, publication, subscription, group, spark_of)
    failpoint("partition.before_row")
    change = {
        "partition_id": group.partition_id,
        "former_partition_id": subscription.partition_id,
        "moved_at_seq": moved_at,
    }
    publisher.control.change_where(catalog.SUBSCRIPTIONS, change, subid=subscription.subid)
    failpoint("partition.after_row")
    return True


def _is_elsewhere(publication: FilteredPublication, subscription: SubscriptionRow) -> bool:
    functions = publication.filters.functions
    group = next((g for g in publication.groups if g.partition_id == subscription.partition_id), None)
    wanted = {each: getattr(subscription, each.lower()) for each in functions}
    return group is not None and values_of_group(group, functions) != wanted


def _append_moves(
    publisher: Replica,
    publication: FilteredPublication,
    subscription: SubscriptionRow,
    group: PartitionGroup,
    spark_of: Callable[[], SparkSession],
) -> int:
    """Append the run of moves at the captured versions; return its number, or that of the last run if no row moves."""
    spark, info = spark_of(), publisher.info()
    former = next(each for each in publication.groups if each.partition_id == subscription.partition_id)
    kept, found = Kept(), {}
    try:
        was, is_ = (_rows_of(spark, publisher, publication, each, kept) for each in (former, group))
        for article in publication.articles.values():
            if article.nickname not in publication.tablenicks:
                continue
            moved = kept.keep(_moved(was[article.name], is_[article.name]))
            count = moved.count()
            if count:
                events = partial(_events, moved, subscription)
                found[article.name] = MovedRows(moved.select(ROWGUID, ROW), count, events)
        return commit_moves(spark, publisher, publication, found, info, kept).last_seq
    finally:
        kept.release()


def _events(moved: DataFrame, subscription: SubscriptionRow, generation: int) -> DataFrame:
    """Return the EVENTS of moved rows, addressed to a subscriber."""
    return moved.select(
        ROWGUID,
        F.lit(addressed_to(subscription.replnickname)).alias(PARTITION_ID),
        KIND,
        F.when(F.col(KIND) == Kind.LEAVE.value, F.lit(int(Reason.HOST_NAME))).alias(REASON),
        F.lit(generation).cast("bigint").alias(GENERATION),
    )


def _rows_of(
    spark: SparkSession,
    publisher: Replica,
    publication: FilteredPublication,
    group: PartitionGroup,
    kept: Kept,
) -> Mapping[str, DataFrame]:
    """Return the rows (rowguid, row) of the articles in a partition, or in everybody's, by article name."""
    articles = publication.articles
    base = base_rows(spark, publisher, articles, publisher.info().captured)
    found = partition_rows(publication, group_rows(spark, [group]), base, kept, list(articles))
    return {name: with_rowguid(rows, articles[name]).select(ROWGUID, ROW) for name, rows in found.items()}


def _moved(was: DataFrame, is_: DataFrame) -> DataFrame:
    """Return rowguid, row and kind of the rows that are in one of both only."""

    def only_in(one: DataFrame, other: DataFrame, kind: Kind) -> DataFrame:
        rows = one.join(other.select(ROWGUID), on=ROWGUID, how="left_anti")
        return rows.withColumn(KIND, F.lit(kind.value))

    return only_in(was, is_, Kind.LEAVE).unionByName(only_in(is_, was, Kind.ENTER))
