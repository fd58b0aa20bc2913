"""Present and imminent problems of publications and their subscribers (transactional.md 13). Without Spark."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from mergerepl.delta.tables import head_version, is_delta_table, written_ns
from mergerepl.errors import StoreError
from mergerepl.logreader.plan import moment_of_ns
from mergerepl.logreader.positions import read_state
from mergerepl.model.cdc import CRITICAL, LATENCY, WARNING, StatusWarning
from mergerepl.store.location import Location
from mergerepl.store.storage import is_folder
from mergerepl.systables.logreader import LogReaderRow
from mergerepl.systables.transactional import (
    INACTIVE,
    LOG_READER_AGENT,
    STOPS,
    SUBSCRIBED,
    StopRow,
    SubscriptionRow,
)
from mergerepl.transactional.catalog import DistributionStore, Root, SubscriberStore, required
from mergerepl.transactional.position import delivered_through, since_last_batch
from mergerepl.transactional.refusals import to_run

EXPIRATION = 0.8
"""The share of the longest retention after which waiting commands count as about to expire."""


def warnings_of(root: Root, now: datetime) -> list[StatusWarning]:
    """Return the problems of the published tables and of the subscribers. Starts no JVM.

    Warnings: commands that wait longer than 30 seconds, or four fifths of the longest retention; a subscriber that is
    missing, not initialised, or not known to be equal; an agent that stopped for a reason that may pass. Critical: a
    paused table, an agent that stopped for another reason, a subscriber that is inactive or whose commands are above the
    longest retention.

    Raises: TransactionalUsageError if nothing is published there.
    """
    distributor = required(root)
    stops = {row.agent_id: row for row in distributor.control.rows(STOPS)}
    published = {row.source_object_id for row in distributor.articles()}
    found = [
        StatusWarning(row.source_path, level, text)
        for number, row in sorted(read_state(distributor.log).sources.items())
        if number in published
        for level, text in _of_source(distributor.root / row.source_path, row, now)
    ]
    if (stop := stops.get(LOG_READER_AGENT)) is not None:
        found.append(StatusWarning(str(distributor.root), *_of_stop("Its log reader", stop)))
    return found + [
        StatusWarning(row.subscriber, level, text)
        for row in distributor.subscriptions()
        for level, text in _of_subscription(distributor, row, stops.get(row.agent_id), now)
    ]


def _of_stop(who: str, stop: StopRow) -> tuple[str, str]:
    level = WARNING if stop.is_transient else CRITICAL
    return level, f"{who} stopped on {stop.time:%Y-%m-%d %H:%M}Z: {stop.error_text}"


def _of_source(table: Location, row: LogReaderRow, now: datetime) -> Iterator[tuple[str, str]]:
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
    distributor: DistributionStore, row: SubscriptionRow, stop: StopRow | None, now: datetime
) -> Iterator[tuple[str, str]]:
    reinit = to_run("reinit", distributor.root, at=row.subscriber)
    if row.status == INACTIVE:
        yield CRITICAL, f"It is inactive: commands that it lacks were removed. Run {reinit}."
        return
    is_there = is_folder(Location.of(row.subscriber))
    if not is_there:
        yield WARNING, "It is not there: is it mounted?"
    if row.status == SUBSCRIBED:
        yield (
            WARNING,
            f"Its snapshot is not done. Run {reinit if row.snapshot_seqno else '`mergerepl apply`'}.",
        )
        return
    position = delivered_through(row)
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
    if stop is not None and is_there:
        yield _of_stop("Its agent", stop)
    if not row.is_equal:
        validate = to_run("validate", distributor.root, at=row.subscriber)
        yield (
            WARNING,
            "It is not known to be equal: rows were not compared, commands were skipped or others wrote. Run "
            f"{validate}; `repair` brings the publisher's rows back.",
        )
    if is_there:
        yield from _of_tables(distributor, row)


def _of_tables(distributor: DistributionStore, row: SubscriptionRow) -> Iterator[tuple[str, str]]:
    """Yield the changes by other writers to the tables of a subscriber since its last batch."""
    at = SubscriberStore(Location.of(row.subscriber)).position(row.subscription_guid)
    if at is None:
        return
    try:
        found = since_last_batch(distributor, row, at)
    except StoreError as error:
        yield CRITICAL, f"The tables of '{row.subscriber}' cannot be checked: {error.message}"
        return
    for name, (_, table, since) in found.items():
        if since.reason is not None:
            repair = to_run("repair", distributor.root, at=row.subscriber)
            yield CRITICAL, f"'{table}' is not as the last batch left it: {since.reason}. Run {repair}."
        elif since.foreign:
            validate = to_run("validate", distributor.root, at=row.subscriber)
            versions = ", ".join(map(str, since.foreign[:3])) + (", …" if len(since.foreign) > 3 else "")
            yield (
                WARNING,
                f"Others changed rows of article '{name}' since the last batch (versions {versions} of '{table}'). Run "
                f"{validate}; `repair` brings the publisher's rows back.",
            )
