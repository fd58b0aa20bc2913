"""Remove old sessions of MSmerge_sessions with their articles and messages; the last ones of each subscription stay."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from mergerepl.delta.sql_text import text_literals, time_before, timestamp_literal
from mergerepl.delta.tables import count_rows
from mergerepl.errors import MergeReplError
from mergerepl.replica.replica import Replica
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.systables import sessions
from mergerepl.systables.sessions import SessionRow
from mergerepl.systables.table import TypedTable

log = logging.getLogger(__name__)

HISTORY_RETENTION: Final = timedelta(days=30)
KEPT_SESSIONS: Final = 100
"""The last sessions of each subscription, which stay however old they are."""

_TIME_OF: Final[dict[TypedTable[Any], str]] = {
    sessions.ARTICLEHISTORY: "start_time",
    sessions.HISTORY: "timestamp",
    sessions.SESSIONS: "start_time",
}
"""Sessions go last: a clean-up that died is completed by the next one."""


@dataclass(frozen=True)
class PurgedHistory:
    """The rows that were removed of MSmerge_sessions, and of the tables of their articles and messages."""

    sessions: int
    others: int


def purge_history(
    root: Location, *, older_than: timedelta = HISTORY_RETENTION, dry_run: bool = False
) -> PurgedHistory:
    """Remove the history before a time at one replica; `dry_run` only counts. Starts no engine.

    Raises: ConfigurationError if the folder is not a replica; LeaseError, StoreError.
    """
    with lease(root, purpose="mergerepl cleanup"):
        replica = Replica(root).require()
        return _purge(replica, time_before(replica.present(), older_than), dry_run=dry_run)


def purge_history_of(replicas: Iterable[Replica]) -> None:
    """Remove the history past its retention at held replicas. A failure is only logged: the session is complete."""
    from deltalake.exceptions import DeltaError

    for replica in replicas:
        try:
            _purge(replica, time_before(replica.present(), HISTORY_RETENTION), dry_run=False)
        except (MergeReplError, DeltaError, OSError) as error:
            log.warning("%s: its old history could not be removed: %s", replica.root, error)


def _purge(replica: Replica, before: datetime, *, dry_run: bool) -> PurgedHistory:
    moment = timestamp_literal(before)
    path = replica.control.path(sessions.SESSIONS.name)
    if not count_rows(path, where=f"start_time < {moment}"):
        # Articles and messages have the times of their sessions.
        return PurgedHistory(0, 0)
    kept = sorted({row.session_id for row in _newest(replica) if row.start_time < before})
    removed = []
    for table, time in _TIME_OF.items():
        where = f"{time} < {moment}"
        if kept:
            where += f" and (session_id is null or session_id not in ({text_literals(kept)}))"
        rows = count_rows(replica.control.path(table.name), where=where)
        removed.append(rows)
        if rows and not dry_run:
            replica.control.delete(table, where=where)
    *others, of_sessions = removed
    return PurgedHistory(of_sessions, sum(others))


def _newest(replica: Replica) -> list[SessionRow]:
    """Return the last sessions of each subscription."""
    found: list[SessionRow] = []
    for subid in sorted({row.subid for row in replica.relations()}):
        found += replica.control.rows(
            sessions.SESSIONS,
            where=f"agent_id in ({text_literals([subid])})",
            order_limit=f"order by start_time desc limit {KEPT_SESSIONS}",
        )
    return found
