"""The agents of a publisher: the log reader agent, the distribution agents one after the other, and why they stopped.

Spark is loaded only for new commits and pending commands. Each agent's run is wrapped once (`stops_recorded`), so every way
to stop is recorded, in errors, in history and for `status`: a command, a lost table, the engine, a procedure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mergerepl.delta.store_proof import prove_callers
from mergerepl.delta.tables import tables_kept_open, trust_heads
from mergerepl.errors import LeaseError, MergeReplError, OutOfReachError, Transient
from mergerepl.failpoints import failpoint
from mergerepl.logreader.log_reader import LogReader
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state, save_state
from mergerepl.logreader.scan import checked_state, look_ahead, scan
from mergerepl.model.delivery import DistributionResult, LogReaderResult, QueueResult, SkippedTransaction
from mergerepl.spark.plain import plain_errors
from mergerepl.store.lease import LOG_READER_LOCK, lease, leases, record_jvm
from mergerepl.store.location import Location
from mergerepl.store.register import looking, noting_unknown, register_of
from mergerepl.store.rehearsal import is_rehearsal
from mergerepl.store.storage import is_folder, is_local
from mergerepl.systables.transactional import (
    ACTIVE,
    CONSUMER,
    ERRORS,
    FAILED,
    HISTORY,
    LOG_READER_AGENT,
    QUEUED,
    STOPS,
    SUCCEEDED,
    ErrorRow,
    HistoryRow,
    StopRow,
    SubscriptionRow,
)
from mergerepl.transactional.catalog import DistributionStore, required
from mergerepl.transactional.position import app_id, begun_plan, position_of, redo_log, waiting_after
from mergerepl.transactional.refusals import (
    LogReaderBusyError,
    TransactionalError,
    TransactionalUsageError,
    skipped_numbers,
    to_run,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

MOST_TRANSACTIONS = 10_000
"""Transactions of a scan cycle at most."""


def run_agent(
    distributor: DistributionStore,
    publication: str,
    subscription: SubscriptionRow,
    spark: Callable[[], SparkSession],
    *,
    streams: int | None = None,
    skip_errors: Sequence[int] | None = None,
    lock_wait_s: float = 0.0,
) -> DistributionResult:
    """Run the distribution agent of one subscription until nothing is new; without a JVM where nothing is.

    Why it stopped is recorded.

    Raises: TransactionalError where a command cannot be applied; OutOfReachError; LeaseError if the subscriber is held.
    """
    root, guid = Location.of(subscription.subscriber), subscription.subscription_guid
    nothing = DistributionResult(publication, subscription.subscriber)
    # Edits that cannot be sent are not overwritten either.
    read_queue(distributor, publication, subscription, spark, lock_wait_s=lock_wait_s)
    with (
        tables_kept_open(distributor.root, root),
        stops_recorded(distributor, subscription),
        plain_errors("commands were distributed"),
        looked_at(root),
    ):
        _require_there(publication, root)
        skip = skipped_numbers(skip_errors if skip_errors is not None else subscription.skip_errors)
        if not redo_log(root, guid).is_pending and not waiting_after(
            distributor, subscription, position_of(distributor, subscription)
        ):
            return nothing
        from mergerepl.transactional.distribution import Agent

        recorded = proved_spark(spark, distributor.root, root)
        with ends_held(distributor.root, root, "transactional distribute", lock_wait_s):
            # Another process may have restarted or removed the subscription before we held its subscriber.
            now = distributor.subscription(guid)
            if now is None:
                return nothing
            at_once = streams or now.subscription_streams
            return Agent(distributor, now, recorded, publication, skip, at_once).run()


def read_queue(
    distributor: DistributionStore,
    publication: str,
    subscription: SubscriptionRow,
    spark: Callable[[], SparkSession],
    *,
    lock_wait_s: float = 0.0,
) -> QueueResult:
    """Send the edits of a subscriber that writes to the publisher; without a JVM where its tables have no new commit.

    Why it stopped is recorded.

    Raises: TransactionalError where edits cannot be read or taken; OutOfReachError; LeaseError if an end is held.
    """
    root, guid = Location.of(subscription.subscriber), subscription.subscription_guid
    nothing = QueueResult(publication, subscription.subscriber)
    if subscription.update_mode != QUEUED or subscription.status != ACTIVE:
        return nothing
    with (
        tables_kept_open(distributor.root, root),
        # Distribution follows, and may stop for the reason that is recorded.
        stops_recorded(distributor, subscription, is_whole=False),
        plain_errors("edits of a subscriber were sent"),
    ):
        _require_there(publication, root)
        from mergerepl.transactional.queue_reader import QueueReader, may_have_edits

        if not may_have_edits(distributor, subscription):
            return nothing
        purpose = "transactional queue"
        with (
            lease(distributor.root, purpose=purpose, wait_s=lock_wait_s),
            lease(root, purpose=purpose, wait_s=lock_wait_s),
        ):
            now = distributor.subscription(guid)
            if now is None:
                return nothing
            return QueueReader(
                distributor, now, proved_spark(spark, distributor.root, root), publication
            ).run()


@contextmanager
def looked_at(root: Location) -> Iterator[None]:
    """Read the system tables of a root in a store by what this process knows of them, if it is still true."""
    with looking(root):
        trust_heads(root)
        yield


@contextmanager
def publisher_held(root: Location, wait_s: float | None = None) -> Iterator[None]:
    """Hold a publisher in a store from the reading of its log to the last batch; in folders each part holds what it needs.

    Raises: as `lease`.
    """
    if is_local(root):
        yield
        return
    with looked_at(root):
        required(root)
        with lease(root, purpose="transactional sync", wait_s=wait_s, file=LOG_READER_LOCK):
            yield
            # Another agent that took over may have done all that this one found to do.
            register_of(root).check()


@contextmanager
def ends_held(
    publisher: Location, subscriber: Location, purpose: str, wait_s: float | None = None
) -> Iterator[None]:
    """Hold a subscription: its subscriber; if an end is in a store, the publisher first, until the end (decision 0169).

    Raises: LeaseError naming the holder if one is still held after the time to wait.
    """
    is_plain = is_local(publisher) and is_local(subscriber)
    with (
        leases(*([subscriber] if is_plain else [publisher, subscriber]), purpose=purpose, wait_s=wait_s),
        # A run of all agents, which holds the publisher, goes on after the error of one.
        noting_unknown(publisher),
    ):
        yield


def _require_there(publication: str, root: Location) -> None:
    if not is_folder(root):
        raise OutOfReachError(
            f"Subscriber '{root}' of '{publication}' is not there: is it mounted? Run again when it is.",
            subscriber=str(root),
        )


def proved_spark(spark: Callable[[], SparkSession], *roots: Location) -> Callable[[], SparkSession]:
    """Return a function that returns the session, proved to stores once, and records its JVM with the holder of folders."""
    proved: list[SparkSession] = []

    def recorded() -> SparkSession:
        from mergerepl.spark import session as engine

        found = spark()
        if not proved:
            prove_callers(found, *roots)
            proved.append(found)
        for root in roots:
            record_jvm(root, engine.jvm_pid())
        return found

    return recorded


def spark_of(given: SparkSession | None) -> Callable[[], SparkSession]:
    """Return a function that returns the Spark session: the given one, the running one or an embedded one."""

    def session() -> SparkSession:
        from mergerepl.spark import session as engine

        return engine.usable(given) if given is not None else engine.session()

    return session


@contextmanager
def held(reader: LogReader, purpose: str) -> Iterator[None]:
    """Hold the log for one cycle, or one command.

    Raises: LogReaderBusyError (18752) if another process holds it.
    """
    try:
        with reader.held(purpose):
            yield
    except LeaseError as error:
        raise LogReaderBusyError(
            f"18752: {error.message} Only one log reader agent may read a database's log at a time.",
            number=LogReaderBusyError.number,
        ) from error


def read_log(reader: LogReader) -> LogReaderResult:
    """Run cycles until nothing is new."""
    cycles = transactions = commands = 0
    last: str | None = None
    paused: dict[str, str] = {}
    while True:
        with plain_errors("the log was read"), held(reader, "transactional logreader"):
            done = scan(reader, maxtrans=MOST_TRANSACTIONS)
        if done.scan_cycle is not None:
            cycles += 1
        transactions, commands = transactions + done.transactions, commands + done.rows
        last = str(done.last_lsn) if done.last_lsn else last
        paused |= done.paused
        if not done.has_more:
            return LogReaderResult(cycles, transactions, commands, last, paused)


def resume_source(reader: LogReader, distributor: DistributionStore, article: str) -> bool:
    """Resume the paused source of an article. Returns False if it was not paused.

    Raises: As `Distributor.resume`.
    """
    (row,) = distributor.articles_named(article)
    with plain_errors("a source was resumed"), held(reader, "transactional resume"):
        state = checked_state(reader)
        source = state.sources[row.source_object_id]
        if set(source.consumers) != {CONSUMER}:
            raise TransactionalUsageError(
                f"The table '{source.source_path}' of article '{article}' is captured, too. Nothing was changed. "
                "Resume its capture instance: `mergerepl resume INSTANCE -f PUBLISHER`; the publication is read on "
                "with it.",
                article=article,
            )
        if source.status == "active":
            return False
        active = replace(source, status="active", error_number=None, reason=None)
        look = look_ahead(reader, state, active)
        if look.paused is not None:
            raise TransactionalError.paused(reader.root, article, look.paused.reason, is_captured=False)
        save_state(reader.control, state.with_source(active))
    return True


def require_read(distributor: DistributionStore, publication: str | None = None) -> None:
    """Check that all sources of a publication (None: of all publications) are read.

    Raises: TransactionalError.
    """
    sources = read_state(distributor.log).sources
    for row in distributor.publications():
        if publication in (None, row.publication):
            for article in distributor.articles(row.publication_id):
                source = sources.get(article.source_object_id)
                if source is not None and source.status != "active":
                    is_captured = set(source.consumers) != {CONSUMER}
                    raise TransactionalError.paused(
                        distributor.root, article.article, str(source.reason), is_captured=is_captured
                    )


@contextmanager
def stops_recorded(
    distributor: DistributionStore, subscription: SubscriptionRow | None = None, *, is_whole: bool = True
) -> Iterator[None]:
    """Record why the run of an agent stopped: that of a subscription, or the log reader (None).

    An agent that waits for another one has not stopped. The end of a whole run shows that it works again.
    """
    try:
        yield
    except LeaseError:
        raise
    # Includes errors of custom procedures and unexpected ones: all are raised again unchanged.
    except Exception as error:
        if is_rehearsal():
            raise
        try:
            _record(distributor, subscription, error)
        except MergeReplError as unrecorded:
            log.warning("%s: that an agent stopped was not recorded: %s", distributor.root, unrecorded)
        raise
    if is_whole:
        works_again(distributor, subscription)


def works_again(distributor: DistributionStore, subscription: SubscriptionRow | None = None) -> None:
    """Remove the note of an agent, if it exists, and record in history that it works."""
    if forget_stop(distributor, subscription):
        with distributor.writing():
            distributor.control.append(HISTORY, [_history(subscription, SUCCEEDED, "It works again.")])


def forget_stop(distributor: DistributionStore, subscription: SubscriptionRow | None = None) -> bool:
    """Remove the note of an agent; return False without a note."""
    if stop_of(distributor, subscription) is None:
        return False
    with distributor.writing():
        distributor.control.remove_where(STOPS, agent_id=_number(subscription))
    return True


def stop_of(distributor: DistributionStore, subscription: SubscriptionRow | None = None) -> StopRow | None:
    """Return the note of an agent that stopped, None if it works."""
    stops = distributor.control.rows(STOPS) if distributor.is_there else []
    return next((row for row in stops if row.agent_id == _number(subscription)), None)


def _record(distributor: DistributionStore, subscription: SubscriptionRow | None, error: Exception) -> None:
    if not distributor.is_there:
        return
    text = error.message if isinstance(error, MergeReplError) else f"{type(error).__name__}: {error}"
    code, command = (error.number, error.command) if isinstance(error, TransactionalError) else (None, None)
    met: dict[str, Any] = {"time": distributor.present, "error_code": code, "error_text": text}
    stop = StopRow(agent_id=_number(subscription), is_transient=isinstance(error, Transient), **met)
    guid = subscription.subscription_guid if subscription else ""
    row = ErrorRow(subscription_guid=guid, **met, **(vars(command) if command else {}))
    with distributor.writing():
        known = stop_of(distributor, subscription)
        # Each run may meet it again, perhaps every five seconds: it is recorded once.
        if known is None or known.error_text != text:
            distributor.control.append(ERRORS, [row])
            distributor.control.append(HISTORY, [_history(subscription, FAILED, text)])
            distributor.control.replace_where(STOPS, [stop], agent_id=stop.agent_id)


def _number(subscription: SubscriptionRow | None) -> int:
    return subscription.agent_id if subscription else LOG_READER_AGENT


def _history(subscription: SubscriptionRow | None, runstatus: int, comments: str) -> HistoryRow:
    return HistoryRow(
        agent_id=_number(subscription),
        time=datetime.now(UTC),
        runstatus=runstatus,
        comments=comments,
        xact_seqno=(subscription.last_xact_seqno if subscription else None) or bytes(10),
    )


def skip(
    distributor: DistributionStore, publication: str, row: SubscriptionRow, seqno: Lsn, *, dry_run: bool
) -> SkippedTransaction:
    """Skip one transaction of a subscription. The caller holds the subscriber.

    Raises: As `Distributor.skip`.
    """

    def refusal(why: str) -> TransactionalUsageError:
        return TransactionalUsageError(
            f"Transaction {seqno} cannot be skipped at '{row.subscriber}': it {why}. Nothing was changed.",
            subscriber=row.subscriber,
            xact_seqno=str(seqno),
        )

    position, xact, guid = position_of(distributor, row), bytes(seqno), row.subscription_guid
    if xact <= position.transaction_timestamp:
        is_it = f"subscription_guid = '{guid}' and xact_seqno = X'{xact.hex()}'"
        if not distributor.control.rows(ERRORS, where=f"{is_it} and command_id is null and is_skipped"):
            raise refusal("has been passed already: it was applied, or has nothing for this subscription")
        if not dry_run:
            distributor.change_subscription(guid, last_xact_seqno=position.transaction_timestamp)
            forget_stop(distributor, row)
        return SkippedTransaction(publication, row.subscriber, str(seqno), is_done=False)
    waiting = distributor.meant_for(row.publication_id, waiting_after(distributor, row, position))
    next_one = waiting[0] if waiting else None
    if next_one is None or next_one.xact_seqno != xact:
        is_known = any(each.xact_seqno == xact for each in waiting)
        why = "is not the next one" if is_known else "is not waiting"
        then = f"the next one is {Lsn(next_one.xact_seqno)}" if next_one else "none waits"
        see = to_run("browse", distributor.root)
        raise refusal(f"{why}; {then}. Only the next one can be skipped. To see commands: {see}")
    if next_one.kind == "schema":
        reinit = to_run("reinit", distributor.root, at=row.subscriber)
        raise refusal(
            f"changes columns ({next_one.schema_text}): later ones need them. Begin again: {reinit}"
        )
    if begun_plan(distributor, row, position) is not None:
        finish = to_run("sync", distributor.root, at=row.subscriber)
        raise refusal(f"is part of a batch that some tables have already. Finish it: {finish}")
    names = {each.article_id: each.article for each in distributor.articles(row.publication_id)}
    commands = {names[each]: n for each, n in next_one.commands.items() if each in names}
    skipped = SkippedTransaction(publication, row.subscriber, str(seqno), commands, is_done=not dry_run)
    if dry_run:
        return skipped
    now, number = distributor.present, position.batch + 1
    counted = ", ".join(f"{name} {n:,}" for name, n in commands.items())
    text = f"Transaction {seqno} was skipped by hand (commands: {counted})."
    stop = stop_of(distributor, row)
    known: dict[str, Any] = {"time": now, "xact_seqno": xact}
    code = stop.error_code if stop else None
    error = ErrorRow(
        **known, error_code=code, error_text=text, subscription_guid=guid, is_skipped=True, batch=number
    )
    run = HistoryRow(**known, agent_id=row.agent_id, comments=text, skipped=sum(commands.values()))
    # Before the position: a skip that dies is not lost, and is recorded once.
    once = (f"{app_id(guid)}-skip", number)
    with distributor.writing():
        distributor.control.append(ERRORS, [error], once=once)
        distributor.control.append(HISTORY, [run], once=once)
    distributor.change_subscription(guid, is_equal=False)
    failpoint("transactional.before_skip")
    subscriber = distributor.subscriber(row)
    subscriber.save(replace(position, time=now, transaction_timestamp=xact, batch=number))
    failpoint("transactional.after_skip")
    distributor.change_subscription(guid, last_xact_seqno=xact)
    forget_stop(distributor, row)
    return skipped
