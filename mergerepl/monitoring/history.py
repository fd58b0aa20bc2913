"""`mergerepl history`: the last merge sessions, their articles and their messages."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from mergerepl import roots
from mergerepl.delta.sql_text import text_literal, text_literals, timestamp_literal
from mergerepl.delta.tables import read_rows
from mergerepl.model.replica_status import SessionRecord
from mergerepl.model.results import ArticleCounts, PhaseCounts
from mergerepl.monitoring.parties import subscriber_root
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import sessions
from mergerepl.systables.sessions import ArticleHistoryRow, HistoryRow, Phase, RunStatus, SessionRow
from mergerepl.systables.table import RowT, TypedTable

_RUNSTATUS: dict[int | None, str] = {
    RunStatus.START: "started",
    RunStatus.SUCCEED: "succeeded",
    RunStatus.IN_PROGRESS: "in progress",
    RunStatus.IDLE: "idle",
    RunStatus.RETRY: "retrying",
    RunStatus.FAIL: "failed",
}


def session_history(
    root: Location, *, limit: int = 20, subscriber: str | None = None, failed: bool = False
) -> tuple[SessionRecord, ...]:
    """Return the last sessions a replica took part in, newest first; one recorded twice is returned once.

    `subscriber` is a subscriber's root without links; the replica may know it by a path with a link. `failed`: only
    those that failed.

    Raises: ConfigurationError if the folder is not a replica; StoreError if one of its tables cannot be read.
    """
    replica = Replica(root).require()
    chosen = _last_sessions(replica, limit, _conditions(replica, subscriber, failed=failed))
    if not chosen:
        return ()
    ids = [row.session_id for row in chosen]
    since = timestamp_literal(min(row.start_time for row in chosen))
    articles = _rows_of(replica, sessions.ARTICLEHISTORY, ids, f"start_time >= {since}")
    messages = _rows_of(replica, sessions.HISTORY, ids, f"timestamp >= {since}")
    return tuple(
        _record(
            row,
            [each for each in articles if each.session_id == row.session_id],
            [each for each in messages if each.session_id == row.session_id],
        )
        for row in chosen
    )


def recent_sessions(root: Location, since: datetime, *, limit: int) -> tuple[SessionRecord, ...]:
    """Return the sessions since a time, newest first, without their articles; only those that failed have messages.

    Raises: as `session_history`.
    """
    replica = Replica(root).require()
    chosen = _last_sessions(replica, limit, f"start_time >= {timestamp_literal(since)}")
    failed = [row.session_id for row in chosen if row.runstatus in (RunStatus.FAIL, RunStatus.RETRY)]
    earliest = timestamp_literal(since)
    messages = _rows_of(replica, sessions.HISTORY, failed, f"timestamp >= {earliest}") if failed else []
    return tuple(
        _record(row, (), [each for each in messages if each.session_id == row.session_id]) for row in chosen
    )


def count_sessions(root: Location, *, subscriber: str | None = None, failed: bool = False) -> int:
    """Return the number of sessions that `session_history` lists without a limit.

    Raises: as `session_history`.
    """
    replica = Replica(root).require()
    path = replica.control.path(sessions.SESSIONS.name)
    rows = read_rows(path, ("session_id",), where=_conditions(replica, subscriber, failed=failed))
    return len({row["session_id"] for row in rows})


def _conditions(replica: Replica, subscriber: str | None, *, failed: bool) -> str | None:
    conditions = [] if subscriber is None else [f"({_ran_for(replica, subscriber)})"]
    if failed:
        conditions.append(f"runstatus in ({int(RunStatus.FAIL)}, {int(RunStatus.RETRY)})")
    return " and ".join(conditions) or None


def _last_sessions(replica: Replica, limit: int, where: str | None) -> list[SessionRow]:
    # The run that carried a session out records it; so does each run that finished it after another had died.
    most = 2 * limit
    while True:
        order = f"order by start_time desc, end_time desc limit {most}"
        rows = replica.control.rows(sessions.SESSIONS, where=where, order_limit=order)
        unique: dict[str, SessionRow] = {}
        for row in rows:
            unique.setdefault(row.session_id, row)
        if len(unique) >= limit or len(rows) < most:
            return list(unique.values())[:limit]
        most *= 2


def _ran_for(replica: Replica, subscriber: str) -> str:
    """SQL condition of a subscriber's sessions, including those before it was moved to its root."""
    subids = {
        row.subid
        for row in replica.relations()
        if roots.resolved(subscriber_root(replica, row)) == subscriber
    }
    conditions = [f"subscriber = {text_literal(subscriber)}"]
    if subids:
        conditions.append(f"agent_id in ({text_literals(sorted(subids))})")
    return " or ".join(conditions)


def _rows_of(replica: Replica, table: TypedTable[RowT], ids: Sequence[str], since: str) -> list[RowT]:
    return replica.control.rows(table, where=f"{since} and session_id in ({text_literals(ids)})")


def _record(
    row: SessionRow, articles: Iterable[ArticleHistoryRow], messages: Iterable[HistoryRow]
) -> SessionRecord:
    newest_first = sorted(messages, key=lambda message: message.timestamp or row.start_time, reverse=True)
    return SessionRecord(
        row.session_id,
        row.publication,
        row.subscriber,
        row.start_time,
        row.end_time,
        row.duration,
        _RUNSTATUS.get(row.runstatus, str(row.runstatus)),
        PhaseCounts(row.upload_inserts, row.upload_updates, row.upload_deletes, row.upload_conflicts),
        PhaseCounts(row.download_inserts, row.download_updates, row.download_deletes, row.download_conflicts),
        _articles(articles),
        tuple(dict.fromkeys(message.comments for message in newest_first if message.comments)),
        next((message.error_id for message in newest_first if message.error_id), ""),
        next((message.phase for message in newest_first if message.phase), ""),
    )


def _articles(rows: Iterable[ArticleHistoryRow]) -> tuple[ArticleCounts, ...]:
    phases: dict[str, dict[int, PhaseCounts]] = {}
    for row in rows:
        counts = PhaseCounts(row.inserts, row.updates, row.deletes, row.conflicts)
        phases.setdefault(row.article_name, {})[row.phase_id] = counts
    none = PhaseCounts()
    return tuple(
        ArticleCounts(name, counts.get(Phase.UPLOAD, none), counts.get(Phase.DOWNLOAD, none))
        for name, counts in sorted(phases.items())
    )
