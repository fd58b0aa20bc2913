"""The state of publications, subscriptions and agents. Without Spark."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from mergerepl.delta.sql_text import text_literal, text_literals
from mergerepl.delta.tables import count_rows, head_version, is_delta_table, open_table, written_ns
from mergerepl.delta.vacuum import lag_of, moment_of_ns
from mergerepl.errors import StoreError
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.model.alerts import DEFAULT, EXPIRATION, Alerts
from mergerepl.model.cdc import CRITICAL, LATENCY, WARNING, StatusWarning
from mergerepl.model.delivery import AgentError, ArticleState, Batch, DeliveryState, DistributorStatus
from mergerepl.model.products import TRANSACTIONAL
from mergerepl.model.results import ArticleCounts, PhaseCounts
from mergerepl.model.tasks import Pending
from mergerepl.store.location import Location
from mergerepl.systables.logreader import LogReaderRow
from mergerepl.systables.transactional import (
    ACTIVE,
    ERRORS,
    FAILED,
    HISTORY,
    INACTIVE,
    LOG_READER_AGENT,
    QUEUED,
    STOPS,
    SUBSCRIBED,
    HistoryRow,
    PublicationRow,
    StopRow,
    SubscriptionRow,
)
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.catalog import DistributionStore, Root, required, subscriptions_of
from mergerepl.transactional.position import delivered_through, in_reach, since_last_batch, stored_position
from mergerepl.transactional.queued_edits import UnreadableQueueError, look, source_row, unsent_commits
from mergerepl.transactional.refusals import to_run

_LAG, _LAG_GRAVE = 0.5, 0.8
"""Parts of the shorter of file and log retention from which on an unsent edit is a warning, or critical."""

LOG_READER = "log reader"
"""The log reader among the subscribers, as lists name it."""


def pending(root: Root) -> tuple[Pending, ...]:
    """Return the undistributed commands of each subscription, by the gate, and the unread commits. No JVM.

    A subscriber that writes has a row for each article with the commits whose edits were not sent, too.
    """
    distributor = required(root)
    found = [each for _, each in _pending(distributor).values()]
    for name, row in subscriptions_of(distributor):
        found += unsent_edits(distributor, name, row)
    return tuple(found)


def unsent_edits(distributor: DistributionStore, publication: str, row: SubscriptionRow) -> list[Pending]:
    """Return the edits that wait in the queue of a subscription, by article; [] if it does not write. No JVM."""
    return [
        Pending(
            *(TRANSACTIONAL, publication, row.subscriber, each.article.article, "upload"),
            uncaptured_commits=len(each.commits),
            problem=each.problem,
        )
        for each in _queues(distributor, row)
    ]


@dataclass(frozen=True)
class _Queue:
    """The queue of an article: its table, the versions with unsent edits, and why they cannot be read."""

    article: Shape
    table: Location
    commits: Sequence[int] = ()
    problem: str | None = None


def _queues(distributor: DistributionStore, row: SubscriptionRow) -> Iterator[_Queue]:
    if row.update_mode != QUEUED or row.status == SUBSCRIBED:
        return
    subscriber, guid = distributor.subscriber(row), row.subscription_guid
    is_there = in_reach(subscriber.root)
    known = subscriber.queue(guid) if is_there else {}
    for article in distributor.articles(row.publication_id):
        queue = _Queue(article, subscriber.table(row, article))
        if not is_there:
            yield replace(queue, problem=f"'{subscriber.root}' is not there: is it mounted?")
            continue
        try:
            if article.article_id not in known:
                raise UnreadableQueueError("it is not known how far they were sent")
            path = row.destination.get(article.article, article.destination_object)
            found = look(subscriber.root, source_row(known[article.article_id], path))
            yield replace(queue, commits=unsent_commits(found, guid))
        except (UnreadableQueueError, StoreError) as error:
            why = str(error).rstrip(".")
            text = f"The edits of article '{article.article}' at '{subscriber.root}' cannot be read: {why}."
            yield replace(queue, problem=text)


def _pending(distributor: DistributionStore) -> dict[str, tuple[bytes, Pending]]:
    """Return the position and the pending commands of each subscription, by GUID."""
    state = read_state(distributor.log)
    unread = {
        number: head_version(distributor.root / row.source_path) - row.position
        for number, row in state.sources.items()
        if is_delta_table(distributor.root / row.source_path)
    }
    found = {}
    for name, row in subscriptions_of(distributor):
        articles = distributor.articles(row.publication_id)
        mine = {each.article_id for each in articles}
        position = delivered_through(distributor, row)
        waiting = distributor.meant_for(row.publication_id, distributor.transactions_after(position))
        commands = sum(n for each in waiting for article, n in each.commands.items() if article in mine)
        rate = _rate(distributor, row)
        found[row.subscription_guid] = (
            position,
            Pending(
                *(TRANSACTIONAL, name, row.subscriber, "", "download"),
                changes=commands,
                units=len(waiting),
                uncaptured_commits=sum(unread.get(each.source_object_id, 0) for each in articles),
                seconds=round(commands / rate, 1) if rate else None,
            ),
        )
    return found


def waiting_commands(distributor: DistributionStore, subscription: SubscriptionRow) -> list[ArticleCounts]:
    """Return the captured commands that a subscription lacks, by article. Starts no JVM."""
    position, gate = delivered_through(distributor, subscription), distributor.gate_cycle
    found: dict[str, PhaseCounts] = {}
    for shape in distributor.shapes():
        table = distributor.commands_table(shape)
        if shape.publication_id != subscription.publication_id or not is_delta_table(table):
            continue
        later = f"xact_seqno > X'{position.hex()}' and scan_cycle <= {gate}"
        counts = (
            count_rows(table, where=f"{later} and operation = {text_literal(each.value)}")
            for each in (Operation.INSERT, Operation.UPDATE, Operation.DELETE)
        )
        found[shape.article] = found.get(shape.article, PhaseCounts()) + PhaseCounts(*counts)
    return [ArticleCounts(name, PhaseCounts(), each) for name, each in found.items() if each.total]


def has_foreign_commits(distributor: DistributionStore, row: SubscriptionRow) -> bool:
    """True if other writers changed rows of a subscriber's tables since its last batch, or a table's log cannot be read."""
    try:
        at = stored_position(distributor, row)
        found = since_last_batch(distributor, row, at).values() if at is not None else ()
    except StoreError:
        # `checks` names the fault.
        return True
    return any(since.foreign or since.reason for _, _, since in found)


def _rate(distributor: DistributionStore, row: SubscriptionRow) -> float | None:
    rows = distributor.control.rows(
        HISTORY,
        where=f"agent_id = {row.agent_id} and duration > 0",
        order_limit="order by time desc limit 10",
    )
    seconds = sum(each.duration for each in rows)
    return sum(each.delivered_commands for each in rows) / seconds if seconds else None


def history(root: Root, *, limit: int = 20, subscriber: str | None = None) -> tuple[Batch, ...]:
    """Return the last batches of all agents, or of one folder's, and why they stopped, newest first. Starts no JVM."""
    distributor = required(root)
    agents, where = _agents(distributor, subscriber)
    rows = distributor.control.rows(
        HISTORY, where=where, order_limit=f"order by time desc limit {int(limit)}"
    )
    return tuple(
        Batch(
            agents.get(row.agent_id, f"agent {row.agent_id}"),
            row.time,
            _outcome(row),
            row.delivered_transactions,
            row.delivered_commands,
            row.inserts,
            row.updates,
            row.deletes,
            row.skipped,
            row.duration,
            row.delivery_latency,
            str(Lsn(row.xact_seqno)),
            row.comments,
        )
        for row in rows
    )


def _outcome(row: HistoryRow) -> str:
    return "failed" if row.runstatus == FAILED else "succeeded"


def errors(root: Root, *, limit: int = 20, subscriber: str | None = None) -> tuple[AgentError, ...]:
    """Return why agents, or those of one folder, stopped, and skipped commands, newest first. Starts no JVM."""
    distributor = required(root)
    agents, where = _guids(distributor, subscriber)
    rows = distributor.control.rows(
        ERRORS, where=where, order_limit=f"order by time desc, xact_seqno desc limit {int(limit)}"
    )
    return tuple(
        AgentError(
            row.time,
            row.error_code,
            row.error_text,
            None if row.xact_seqno is None else str(Lsn(row.xact_seqno)),
            row.command_id,
            agents.get(row.subscription_guid, row.subscription_guid),
            row.is_skipped,
        )
        for row in rows
    )


def count_runs(root: Root, *, failed: bool, subscriber: str | None) -> int:
    """Return the number of rows that `history`, or with `failed` `errors`, lists without a limit. Starts no JVM."""
    distributor = required(root)
    _, where = (_guids if failed else _agents)(distributor, subscriber)
    return count_rows(distributor.control.path((ERRORS if failed else HISTORY).name), where=where)


def _agents(distributor: DistributionStore, subscriber: str | None) -> tuple[dict[int, str], str | None]:
    """Return the folder of each agent by its number, and the condition of the rows of one folder."""
    agents = {row.agent_id: row.subscriber for row in distributor.subscriptions()} | {
        LOG_READER_AGENT: LOG_READER
    }
    wanted = [str(number) for number, folder in agents.items() if folder == subscriber]
    return agents, _among("agent_id", ", ".join(wanted), subscriber)


def _guids(distributor: DistributionStore, subscriber: str | None) -> tuple[dict[str, str], str | None]:
    """Return the folder of each subscription by its GUID, and the condition of the rows of one folder."""
    agents = {row.subscription_guid: row.subscriber for row in distributor.subscriptions()} | {"": LOG_READER}
    wanted = [guid for guid, folder in agents.items() if folder == subscriber]
    return agents, _among("subscription_guid", text_literals(wanted), subscriber)


def _among(column: str, wanted: str, subscriber: str | None) -> str | None:
    if subscriber is None:
        return None
    return f"{column} in ({wanted})" if wanted else "false"


def status(root: Root) -> DistributorStatus:
    """Return the state of a publisher's publications and subscriptions. Starts no JVM."""
    distributor = required(root)
    found = _pending(distributor)
    stops = {row.agent_id: row.time for row in distributor.control.rows(STOPS)}
    publications = distributor.publications()
    articles = (
        ArticleState(
            row.publication,
            each.article,
            each.source_object,
            each.columns,
            each.filter_clause,
            each.ins_cmd,
            each.upd_cmd,
            each.del_cmd,
            each.schema_version,
        )
        for row in publications
        for each in distributor.articles(row.publication_id)
    )
    now = datetime.now(UTC)
    deliveries = (
        _delivery(distributor, row, each, found[each.subscription_guid], stops.get(each.agent_id), now)
        for row in publications
        for each in distributor.subscriptions(row.publication_id)
    )
    return DistributorStatus(str(distributor.root), tuple(articles), tuple(deliveries))


_STATUSES = {INACTIVE: "inactive", ACTIVE: "active"}


def _delivery(
    distributor: DistributionStore,
    publication: PublicationRow,
    row: SubscriptionRow,
    waits: tuple[bytes, Pending],
    stopped_since: datetime | None,
    now: datetime,
) -> DeliveryState:
    position, waiting = waits
    queued = unsent_edits(distributor, publication.publication, row)
    oldest = next(
        iter(distributor.meant_for(row.publication_id, distributor.transactions_after(position))), None
    )
    since = None if oldest is None else oldest.commit_time
    last = distributor.control.rows(
        HISTORY, where=f"agent_id = {row.agent_id}", order_limit="order by time desc limit 1"
    )
    return DeliveryState(
        publication=publication.publication,
        subscriber=row.subscriber,
        status=_STATUSES.get(row.status, "subscribed"),
        xact_seqno=str(Lsn(position)),
        upload=0 if queued and not any(each.problem for each in queued) else None,
        download=waiting.changes,
        transactions_waiting=waiting.units,
        uncaptured_commits=waiting.uncaptured_commits + sum(each.uncaptured_commits for each in queued),
        waiting_since=since,
        retention_used=retention_used(since, publication, now),
        last_sync_date=last[0].time if last else None,
        last_sync_status=_outcome(last[0]) if last else "",
        is_reachable=in_reach(Location.of(row.subscriber)),
        is_known_to_be_equal=row.is_equal and not has_foreign_commits(distributor, row),
        stopped_since=stopped_since,
    )


def retention_used(since: datetime | None, publication: PublicationRow, now: datetime) -> float | None:
    """Return the part of the longest retention that commands have waited; None if none wait."""
    if since is None or not publication.max_distretention:
        return None
    return round(max((now - since) / timedelta(hours=publication.max_distretention), 0.0), 3)


def warnings_of(root: Root, now: datetime, alerts: Alerts = DEFAULT) -> list[StatusWarning]:
    """Return the problems of the published tables and of the subscribers. Starts no JVM.

    Warnings: commands that wait longer than 30 seconds, or four fifths of the longest retention; edits that wait half of
    what Delta keeps them; a subscriber that is
    missing, not initialised, or not known to be equal; an agent that stopped for a reason that may pass. Critical: a
    paused table, an agent that stopped for another reason, a subscriber that is inactive or whose commands are above the
    longest retention. `alerts` has the thresholds that a file states.

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
        for level, text in _of_subscription(distributor, row, stops.get(row.agent_id), now, alerts)
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
    distributor: DistributionStore, row: SubscriptionRow, stop: StopRow | None, now: datetime, alerts: Alerts
) -> Iterator[tuple[str, str]]:
    reinit = to_run("reinit", distributor.root, at=row.subscriber)
    if row.status == INACTIVE:
        yield CRITICAL, f"It is inactive: commands that it lacks were removed. Run {reinit}."
        return
    is_there = in_reach(Location.of(row.subscriber))
    if not is_there:
        yield WARNING, "It is not there: is it mounted?"
    if row.status == SUBSCRIBED:
        if not alerts.uninitialized:
            return
        yield (
            WARNING,
            f"Its snapshot is not done. Run {reinit if row.snapshot_seqno else '`mergerepl apply`'}.",
        )
        return
    position = delivered_through(distributor, row)
    waiting = distributor.meant_for(row.publication_id, distributor.transactions_after(position))
    if waiting:
        oldest = waiting[0].commit_time
        retention = timedelta(hours=distributor.publication_of(row.publication_id).max_distretention)
        text = f"Transactions that wait: {len(waiting):,}, the oldest of {oldest:%Y-%m-%d %H:%M}Z."
        age = now - oldest
        if age > (alerts.expiration or EXPIRATION) * retention:
            expires = f"{text} Commands are removed after {retention}: run the distribution agent before."
            yield CRITICAL if age > retention else WARNING, expires
        elif age > (LATENCY if alerts.pending_hours is None else timedelta(hours=alerts.pending_hours)):
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
        yield from _of_queues(distributor, row, now, alerts)


def _of_queues(
    distributor: DistributionStore, row: SubscriptionRow, now: datetime, alerts: Alerts
) -> Iterator[tuple[str, str]]:
    """Yield the edits that cannot be sent, or not for long: Delta removes what the queue reader needs."""
    for queue in _queues(distributor, row):
        if queue.problem is not None:
            yield CRITICAL, f"{queue.problem} Run `mergerepl sync`: it names the way out."
        if not queue.commits or (lag := lag_of(open_table(queue.table), queue.commits[0])) is None:
            continue
        if (used := lag.used(now)) >= (alerts.capture_lag or _LAG):
            yield (
                CRITICAL if used >= _LAG_GRAVE else WARNING,
                f"Edits of '{queue.table}' since {lag.since:%Y-%m-%d %H:%M}Z were not sent. From "
                f"{lag.since + lag.retention:%Y-%m-%d %H:%M}Z on Delta may remove files or log entries that the queue "
                "reader needs. Run `mergerepl sync` before.",
            )


def _of_tables(distributor: DistributionStore, row: SubscriptionRow) -> Iterator[tuple[str, str]]:
    """Yield the changes by other writers to the tables of a subscriber since its last batch."""
    at = distributor.subscriber(row).position(row.subscription_guid)
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
