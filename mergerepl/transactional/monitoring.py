"""The state of publications, subscriptions and agents. Without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mergerepl.delta.tables import is_delta_table
from mergerepl.errors import StoreError
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.systables.transactional import (
    ACTIVE,
    ERRORS,
    FAILED,
    HISTORY,
    INACTIVE,
    LOG_READER_AGENT,
    STOPS,
    SubscriptionRow,
)
from mergerepl.transactional.catalog import DistributionStore, Root, required, subscriptions_of
from mergerepl.transactional.position import delivered_through, since_last_batch, stored_position

LOG_READER = "log reader"
"""The log reader among the subscribers, as lists name it."""


@dataclass(frozen=True)
class Pending:
    """The commands that a subscription still lacks. `seconds` is estimated by the last deliveries; None without any."""

    publication: str
    subscriber: str
    transactions: int
    commands: int
    seconds: float | None
    unread_commits: int


def pending(root: Root) -> tuple[Pending, ...]:
    """Return the undistributed commands of each subscription, by the gate, and the unread commits. No JVM."""
    return tuple(each for _, each in _pending(required(root)).values())


def _pending(distributor: DistributionStore) -> dict[str, tuple[bytes, Pending]]:
    """Return the position and the pending commands of each subscription, by GUID."""
    from mergerepl.delta.tables import head_version

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
        position = delivered_through(row)
        waiting = distributor.meant_for(row.publication_id, distributor.transactions_after(position))
        commands = sum(n for each in waiting for article, n in each.commands.items() if article in mine)
        rate = _rate(distributor, row)
        found[row.subscription_guid] = (
            position,
            Pending(
                name,
                row.subscriber,
                len(waiting),
                commands,
                round(commands / rate, 1) if rate else None,
                sum(unread.get(each.source_object_id, 0) for each in articles),
            ),
        )
    return found


def has_foreign_commits(distributor: DistributionStore, row: SubscriptionRow) -> bool:
    """True if other writers changed rows of a subscriber's tables since its last batch, or a table's log cannot be read."""
    at = stored_position(row)
    try:
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


def history(root: Root, *, limit: int = 20) -> list[Mapping[str, Any]]:
    """Return the last batches of all distribution agents and why agents stopped, newest first. Starts no JVM."""
    distributor = required(root)
    agents = {row.agent_id: row.subscriber for row in distributor.subscriptions()}
    agents[LOG_READER_AGENT] = LOG_READER
    rows = distributor.control.rows(HISTORY, order_limit=f"order by time desc limit {int(limit)}")
    return [
        {
            "subscriber": agents.get(row.agent_id, f"agent {row.agent_id}"),
            "time": row.time,
            "status": "failed" if row.runstatus == FAILED else "succeeded",
            "transactions": row.delivered_transactions,
            "commands": row.delivered_commands,
            "inserts": row.inserts,
            "updates": row.updates,
            "deletes": row.deletes,
            "skipped": row.skipped,
            "seconds": row.duration,
            "latency_ms": row.delivery_latency,
            "xact_seqno": str(Lsn(row.xact_seqno)),
            "comments": row.comments,
        }
        for row in rows
    ]


def errors(root: Root, *, limit: int = 20) -> list[Mapping[str, Any]]:
    """Return why agents stopped, and the commands that were skipped, newest first. Starts no JVM."""
    distributor = required(root)
    agents = {row.subscription_guid: row.subscriber for row in distributor.subscriptions()}
    agents[""] = LOG_READER
    rows = distributor.control.rows(
        ERRORS, order_limit=f"order by time desc, xact_seqno desc limit {int(limit)}"
    )
    return [
        {
            "time": row.time,
            "number": row.error_code,
            "text": row.error_text,
            "xact_seqno": None if row.xact_seqno is None else str(Lsn(row.xact_seqno)),
            "command_id": row.command_id,
            "subscriber": agents.get(row.subscription_guid, row.subscription_guid),
            "skipped": row.is_skipped,
        }
        for row in rows
    ]


def status(root: Root) -> Mapping[str, Any]:
    """Return the state of a publisher's publications and subscriptions. Starts no JVM."""
    distributor = required(root)
    found = _pending(distributor)
    stops = {row.agent_id: row.time for row in distributor.control.rows(STOPS)}
    statuses = {INACTIVE: "inactive", ACTIVE: "active"}
    return {
        "root": str(distributor.root),
        "publications": [
            {
                "publication": row.publication,
                "articles": [
                    {
                        "article": each.article,
                        "table": each.source_object,
                        "columns": list(each.columns),
                        "filter": each.filter_clause,
                        "ins_cmd": each.ins_cmd,
                        "upd_cmd": each.upd_cmd,
                        "del_cmd": each.del_cmd,
                        "schema_version": each.schema_version,
                    }
                    for each in distributor.articles(row.publication_id)
                ],
                "subscriptions": [
                    {
                        "subscriber": each.subscriber,
                        "status": statuses.get(each.status, "subscribed"),
                        "xact_seqno": str(Lsn(position)),
                        "transactions_waiting": waiting.transactions,
                        "commands_waiting": waiting.commands,
                        "unread_commits": waiting.unread_commits,
                        "is_known_to_be_equal": each.is_equal and not has_foreign_commits(distributor, each),
                        "stopped_since": stops.get(each.agent_id),
                    }
                    for each in distributor.subscriptions(row.publication_id)
                    for position, waiting in [found[each.subscription_guid]]
                ],
            }
            for row in distributor.publications()
        ],
    }
