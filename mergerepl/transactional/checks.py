"""What is wrong with publications and their subscribers, or soon will be (transactional.md 13). Without Spark."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from mergerepl.delta.log import head_version, is_delta_table, written_ns
from mergerepl.errors import StoreError
from mergerepl.logreader.cut import moment_of_ns
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.model.cdc import CRITICAL, WARNING, StatusWarning
from mergerepl.store.folders import is_folder
from mergerepl.systables.logreader import LogReaderRow
from mergerepl.systables.transactional import ERRORS, INACTIVE, SUBSCRIBED, SubscriptionRow
from mergerepl.transactional.catalog import Distributor, Root, required
from mergerepl.transactional.monitoring import position_of

LATENCY = timedelta(seconds=30)
"""Commits that are not read, and commands that are not applied, may be this old without a warning."""

EXPIRATION = 0.8
"""The share of the longest retention after which commands that wait are said to expire."""


def warnings_of(root: Root, now: datetime) -> list[StatusWarning]:
    """Return the problems of the published tables and of the subscribers. Starts no JVM.

    A warning: what waits for longer than 30 seconds, or for four fifths of the longest retention; a subscriber that is not
    there, not initialised, or not known to be equal. Critical: a paused table, an agent that stopped at a command, a
    subscriber that is inactive or whose commands are above the longest retention.

    Raises: TransactionalUsageError if nothing is published there.
    """
    distributor = required(root)
    published = {row.source_object_id for row in distributor.articles()}
    found = [
        StatusWarning(row.source_path, level, text)
        for number, row in sorted(read_state(distributor.log).sources.items())
        if number in published
        for level, text in _of_source(distributor.root / row.source_path, row, now)
    ]
    return found + [
        StatusWarning(row.subscriber, level, text)
        for row in distributor.subscriptions()
        for level, text in _of_subscription(distributor, row, now)
    ]


def _of_source(table: Path, row: LogReaderRow, now: datetime) -> Iterator[tuple[str, str]]:
    if row.status != "active":
        yield CRITICAL, str(row.reason)
        return
    try:
        unread = head_version(table) - row.position if is_delta_table(table) else 0
        oldest = moment_of_ns(written_ns(table, row.position + 1)) if unread > 0 else now
    except (StoreError, FileNotFoundError) as error:
        yield WARNING, f"Its log cannot be read: {error}"
        return
    if now - oldest > LATENCY:
        yield (
            WARNING,
            f"Commits that are not read: {unread:,}, the oldest of {oldest:%Y-%m-%d %H:%M}Z. Run the log reader.",
        )


def _of_subscription(
    distributor: Distributor, row: SubscriptionRow, now: datetime
) -> Iterator[tuple[str, str]]:
    if row.status == INACTIVE:
        yield (
            CRITICAL,
            "It is inactive: commands that it lacks were removed. Run `mergerepl transactional reinit`.",
        )
        return
    if not is_folder(Path(row.subscriber)):
        yield WARNING, "It is not there: is it mounted?"
    if row.status == SUBSCRIBED:
        yield (
            WARNING,
            "Its snapshot is not done. Run `mergerepl apply FILE` or `mergerepl transactional reinit`.",
        )
        return
    position = position_of(row)
    waiting = distributor.meant_for(row.publication_id, distributor.transactions_after(position))
    if waiting:
        oldest = waiting[0].commit_time
        retention = timedelta(hours=distributor.publication_of(row.publication_id).max_distretention)
        text = f"Transactions that wait: {len(waiting):,}, the oldest of {oldest:%Y-%m-%d %H:%M}Z."
        age = now - oldest
        if age > EXPIRATION * retention:
            expires = f"{text} Commands are removed after {retention}: run the distribution agent before."
            yield CRITICAL if age > retention else WARNING, expires
        elif age > LATENCY:
            yield WARNING, f"{text} Run the distribution agent."
    stops = distributor.control.rows(
        ERRORS,
        where=f"subscription_guid = '{row.subscription_guid}' and not is_skipped",
        order_limit="order by time desc limit 1",
    )
    if stops and stops[0].xact_seqno > position:
        yield CRITICAL, f"Its agent stopped at transaction {Lsn(stops[0].xact_seqno)}: {stops[0].error_text}"
    if not row.is_equal:
        yield WARNING, "It is not known to be equal: commands were skipped. Run `mergerepl validate`."
