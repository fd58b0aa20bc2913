"""Agents that stopped: a row in errors and in history, and a note for `status` until the agent works again.

Each agent's run is wrapped once, so every way to stop is recorded: a command, a lost table, the engine, a procedure.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from mergerepl.errors import LeaseError, MergeReplError, Transient
from mergerepl.systables.transactional import (
    ERRORS,
    FAILED,
    HISTORY,
    LOG_READER_AGENT,
    STOPS,
    SUCCEEDED,
    ErrorRow,
    HistoryRow,
    StopRow,
    SubscriptionRow,
)
from mergerepl.transactional.catalog import Distributor
from mergerepl.transactional.refusals import TransactionalError

log = logging.getLogger(__name__)


@contextmanager
def stops_recorded(distributor: Distributor, subscription: SubscriptionRow | None = None) -> Iterator[None]:
    """Record why the run of an agent stopped: that of a subscription, or the log reader (None).

    An agent that waits for another one has not stopped.
    """
    try:
        yield
    except LeaseError:
        raise
    # Includes errors of custom procedures and unexpected ones: all are raised again unchanged.
    except Exception as error:
        try:
            _record(distributor, subscription, error)
        except MergeReplError as unrecorded:
            log.warning("%s: that an agent stopped was not recorded: %s", distributor.root, unrecorded)
        raise
    works_again(distributor, subscription)


def works_again(distributor: Distributor, subscription: SubscriptionRow | None = None) -> None:
    """Remove the note of an agent, if it exists, and record in history that it works."""
    if forget_stop(distributor, subscription):
        with distributor.writing():
            distributor.control.append(HISTORY, [_history(subscription, SUCCEEDED, "It works again.")])


def forget_stop(distributor: Distributor, subscription: SubscriptionRow | None = None) -> bool:
    """Remove the note of an agent; return False without a note."""
    if stop_of(distributor, subscription) is None:
        return False
    with distributor.writing():
        distributor.control.remove_where(STOPS, agent_id=_number(subscription))
    return True


def stop_of(distributor: Distributor, subscription: SubscriptionRow | None = None) -> StopRow | None:
    """Return the note of an agent that stopped, None if it works."""
    stops = distributor.control.rows(STOPS) if distributor.is_there else []
    return next((row for row in stops if row.agent_id == _number(subscription)), None)


def _record(distributor: Distributor, subscription: SubscriptionRow | None, error: Exception) -> None:
    if not distributor.is_there:
        return
    text = error.message if isinstance(error, MergeReplError) else f"{type(error).__name__}: {error}"
    code = error.number if isinstance(error, TransactionalError) else None
    command = error.command if isinstance(error, TransactionalError) else None
    now = datetime.now(UTC)
    stop = StopRow(
        agent_id=_number(subscription),
        time=now,
        error_code=code,
        error_text=text,
        is_transient=isinstance(error, Transient),
    )
    row = ErrorRow(
        time=now,
        error_code=code,
        error_text=text,
        xact_seqno=command.xact_seqno if command else None,
        command_id=command.command_id if command else None,
        subscription_guid=subscription.subscription_guid if subscription else "",
        article_id=command.article_id if command else None,
    )
    with distributor.writing():
        known = stop_of(distributor, subscription)
        if known is not None and known.error_text == text:
            # Each run may meet it again, perhaps every five seconds: it is recorded once.
            return
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
