"""Give a subscriber the rows of one moment, without a lock (transactional.md 10)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.batch_end import LeftAt, left_at
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY, DEFAULT_EXPRESSION
from mergerepl.delta.properties import retention_properties, set_properties
from mergerepl.delta.tables import (
    NewTable,
    Transaction,
    create_table,
    head_version,
    is_delta_table,
    open_table,
    overwrite,
    read_commit,
    read_version,
    transaction_version,
)
from mergerepl.failpoints import failpoint
from mergerepl.filters.columns import holds
from mergerepl.filters.parse import parse_stored
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.positions import read_state
from mergerepl.logreader.sources import begun
from mergerepl.publish.snapshot import by_partition, replica_table
from mergerepl.rows.sql import quote
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables.logreader import LogReaderRow
from mergerepl.systables.transactional import (
    ACTIVE,
    QUEUED,
    SUBSCRIBED,
    SYNC_NONE,
    PositionRow,
    SubscriptionRow,
)
from mergerepl.transactional.agents import held, proved_spark, read_log, works_again
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.catalog import DistributionStore, SubscriberStore
from mergerepl.transactional.position import (
    DISTRIBUTE,
    app_id,
    begin_writing,
    fence_article,
    redo_log,
    refuse_copy,
    stored_position,
    with_tables_at,
)
from mergerepl.transactional.queued_edits import queue_row
from mergerepl.transactional.refusals import TransactionalUsageError

FILES_KEPT = timedelta(days=7)
"""How long removed files of tables whose log is read are kept at least."""


def _first_number(root: Location) -> int:
    """Return the lowest number of a snapshot or a batch."""
    return 0 if is_local(root) else 1


def is_ours(table: Location, guid: str) -> bool:
    """True if a snapshot of this subscription that died left the table."""
    # In a store a fence has the number 0 for an application that has not written yet.
    if transaction_version(table, app_id(guid)) >= _first_number(table):
        return True
    try:
        mark = read_commit(table, 0).mark
    except Exception:
        return False
    return mark is not None and mark.session == guid


def initialise(
    distributor: DistributionStore,
    reader: LogReader,
    row: SubscriptionRow,
    publication: str,
    *,
    verify: bool = True,
    replaces: bool = False,
    equal: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> PositionRow:
    """Give a subscriber its rows as of an LSN, then its position. The caller holds the subscriber.

    The log is read first: then each source's position is its version at the last LSN. No lock, no gap, no overlap. An
    existing table gets its rows in one commit: readers never see it empty, and `read` shows the earlier rows. Until the
    position is written, the subscription counts as uninitialised: no command is applied to a partial snapshot. `equal` are
    articles with the versions of source and table that were compared already. `replaces`: copy rows also with `sync_type:
    none`.
    """
    refuse_copy(distributor, row, stored_position(distributor, row))
    read_log(reader)
    with held(reader, "snapshot"):
        state = read_state(reader.control)
        seqno = bytes(state.database.last_lsn or bytes(10))
        versions = {number: source.position for number, source in state.sources.items()}
    articles = distributor.articles(row.publication_id)
    subscriber = distributor.subscriber(row)
    spark = proved_spark(reader.spark, distributor.root, subscriber.root)()
    is_copied = replaces or row.sync_type != SYNC_NONE
    begin_writing(distributor, row)
    left = {}
    if not is_copied:
        for article in articles:
            source, version = distributor.root / article.source_object, versions[article.source_object_id]
            table = subscriber.table(row, article)
            head = head_version(table)
            # Later changes by other writers are noticed.
            left[article.article] = left_at(table, head)
            if verify and equal.get(article.article) != (version, head):
                check_equal(spark, source, version, table, head, article)
    # Cleanup keeps the commands after `snapshot_seqno`.
    distributor.change_subscription(row.subscription_guid, status=SUBSCRIBED, snapshot_seqno=seqno)
    failpoint("transactional.before_copy")
    redo_log(subscriber.root, row.subscription_guid).finish()
    number = _next_number(subscriber, row, articles)
    mark = CommitMark(row.subscription_guid, f"{DISTRIBUTE}:snapshot:{number}")
    if is_copied:
        for article in articles:
            source, version = distributor.root / article.source_object, versions[article.source_object_id]
            transaction = Transaction(app_id(row.subscription_guid), number, mark)
            table = subscriber.table(row, article)
            if not is_delta_table(table):
                create_table(table, subscriber_table(source, version, article, table), mark)
            # An agent that was displaced may have made it a moment ago.
            fence_article(table, row.subscription_guid)
            # A table that the user made may have other columns, too, and other partitions.
            is_users = row.sync_type == SYNC_NONE
            copied = _copy(spark, source, version, table, article, transaction, keeps_columns=is_users)
            left[article.article] = left_at(table, copied)
            failpoint("transactional.after_copy")
    position = PositionRow(
        publisher=str(distributor.root),
        publication=publication,
        subscription_guid=row.subscription_guid,
        time=datetime.now(UTC),
        transaction_timestamp=seqno,
        batch=number,
    )
    position = with_tables_at(position, left)
    if row.update_mode == QUEUED:
        _begin_queue(subscriber, row, articles, left, reader, mark)
    subscriber.save(position)
    failpoint("transactional.after_snapshot")
    distributor.change_subscription(
        row.subscription_guid, status=ACTIVE, last_xact_seqno=seqno, is_equal=is_copied or verify
    )
    works_again(distributor, row)
    return position


def _begin_queue(
    subscriber: SubscriberStore,
    row: SubscriptionRow,
    articles: Sequence[Shape],
    left: Mapping[str, LeftAt],
    reader: LogReader,
    mark: CommitMark,
) -> None:
    """Let the edits of the tables be read from the snapshot on; those of an earlier one that were not sent yet, too."""
    known = subscriber.queue(row.subscription_guid)
    new = []
    for article in articles:
        table = subscriber.table(row, article)
        state = open_table(table)
        missing = {} if state.metadata.change_data_feed else {CDF_PROPERTY: "true"}
        missing |= retention_properties(state.properties, FILES_KEPT)
        set_properties(reader.spark, state, missing, replace(mark, step=f"{DISTRIBUTE}:setup"))
        at = known.get(article.article_id)
        if at is None or at.table_id != state.metadata.table_id:
            begins = LogReaderRow(source_object_id=article.article_id)
            at_snapshot = open_table(table, left[article.article].version)
            new.append(queue_row(row.subscription_guid, 0, begun(begins, at_snapshot)))
    if new:
        subscriber.save_queue(*new)
    failpoint("transactional.after_queue")


def _next_number(subscriber: SubscriberStore, row: SubscriptionRow, articles: Sequence[Shape]) -> int:
    """Return the number of a snapshot, unused so far, so that its commits are not mistaken for finished ones."""
    known = subscriber.position(row.subscription_guid)
    tables = (subscriber.table(row, each) for each in articles)
    app = app_id(row.subscription_guid)
    done = [transaction_version(table, app) for table in tables if is_delta_table(table)]
    return max([known.batch if known else -1, *done, _first_number(subscriber.root) - 1]) + 1


def rows_at(spark: SparkSession, source: Location, version: int, article: Shape) -> Any:
    """Return the rows of an article in a version of its source: its columns, those that fulfil the filter."""
    rows = read_version(spark, source, version)
    if article.filter_clause is not None:
        rows = rows.where(
            holds(parse_stored(article.filter_clause), column=lambda column: F.col(quote(column.name)))
        )
    return rows.select(*(F.col(quote(name)) for name in article.columns))


def subscriber_table(source: Location, version: int, article: Shape, table: Location) -> NewTable:
    """Return the table to create at a subscriber for an article of a version of its source."""
    state = open_table(source, version)
    new = replica_table(
        state,
        article.columns,
        {},
        clustering=(),
        is_computable=lambda expression: len(article.columns) == len(state.fields),
    )
    # The table feature of defaults keeps fences away.
    left_out = {"delta.generationExpression", *(() if table.is_local else (DEFAULT_EXPRESSION,))}
    fields = [
        {**each, "metadata": {k: v for k, v in each["metadata"].items() if k not in left_out}}
        for each in new.fields
    ]
    return replace(new, fields=fields)


def _copy(
    spark: SparkSession,
    source: Location,
    version: int,
    table: Location,
    article: Shape,
    transaction: Transaction,
    *,
    keeps_columns: bool,
) -> int:
    """Give a table the rows of an article in one commit, and return its version."""
    partitions = subscriber_table(source, version, article, table).partition_columns
    rows = by_partition(rows_at(spark, source, version, article), partitions)
    return overwrite(rows, table, transaction, partition_columns=partitions, keeps_columns=keeps_columns)


def check_equal(
    spark: SparkSession, source: Location, source_version: int, table: Location, version: int, article: Shape
) -> None:
    """Check that a subscriber's table has the publisher's rows.

    Raises: TransactionalUsageError naming the number of differing keys.
    """
    from mergerepl.transactional.validation import compared, differing

    rows = compared(
        rows_at(spark, source, source_version, article),
        read_version(spark, table, version),
        article,
        open_table(table, version),
    )
    found = differing(rows, article)
    if found.count:
        raise TransactionalUsageError(
            f"'{table}' has not the rows of '{source}': {found.count} keys differ, such as {found.shown}. Its subscription "
            "has not begun. Correct the table, or state `verify: false` if the difference is wanted.",
            article=article.article,
        )
