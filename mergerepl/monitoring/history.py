"""`mergerepl history`: the last merge sessions, their articles and their messages."""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from mergerepl.errors import ConfigurationError
from mergerepl.model.results import ArticleCounts, PhaseCounts, SessionRecord
from mergerepl.monitoring.parties import subscriber_root
from mergerepl.store.control import Row, read_rows, text_literal, timestamp_literal
from mergerepl.store.replica import Replica
from mergerepl.systables import sessions
from mergerepl.systables.sessions import Phase, RunStatus
from mergerepl.systables.table import SystemTable

_RUNSTATUS = {
    RunStatus.START: "started",
    RunStatus.SUCCEED: "succeeded",
    RunStatus.IN_PROGRESS: "in progress",
    RunStatus.IDLE: "idle",
    RunStatus.RETRY: "retrying",
    RunStatus.FAIL: "failed",
}


def session_history(
    root: Path, *, limit: int = 20, subscriber: str | None = None
) -> tuple[SessionRecord, ...]:
    """Return the last sessions a replica took part in, newest first; one recorded twice is told once.

    `subscriber` is the root of one of them, free of links; the replica may know it by one.

    Raises: ConfigurationError if the folder is no replica or knows no such subscriber; StoreError if a table
        of it cannot be read.
    """
    replica = Replica(root).require()
    chosen = _last_sessions(replica, limit, subscriber)
    if not chosen:
        if subscriber is not None:
            _require_known(replica, subscriber)
        return ()
    ids = [row["session_id"] for row in chosen]
    since = min(row["start_time"] for row in chosen)
    articles = _by_session(
        _rows_of(replica, sessions.ARTICLEHISTORY, ids, f"start_time >= {timestamp_literal(since)}")
    )
    messages = _by_session(
        _rows_of(replica, sessions.HISTORY, ids, f"timestamp >= {timestamp_literal(since)}")
    )
    return tuple(_record(row, articles[row["session_id"]], messages[row["session_id"]]) for row in chosen)


def _require_known(replica: Replica, subscriber: str) -> None:
    """Refuse a subscriber without sessions that the replica has never heard of: the name is a mistake."""
    info = replica.info()
    known = {
        subscriber_root(replica, info, row) for row in replica.subscriptions() if row["replid"] != info.replid
    }
    if subscriber not in map(os.path.realpath, known):
        raise ConfigurationError(
            f"Replica '{replica.root}' knows no subscriber '{subscriber}'. Known: {', '.join(sorted(known)) or 'none'}. "
            "Name one of them, or add the subscription to the file and run `mergerepl apply FILE`.",
            replica=str(replica.root),
            subscriber=subscriber,
        )


def _last_sessions(replica: Replica, limit: int, subscriber: str | None) -> list[Row]:
    table = replica.control.path(sessions.SESSIONS.name)
    where = None if subscriber is None else _ran_for(replica, subscriber)
    known = sessions.SESSIONS
    # A session is recorded by the run that carried it out, and again by each that finished it after another had died.
    most = 2 * limit
    while True:
        order = f"order by start_time desc, end_time desc limit {most}"
        rows = read_rows(table, known.names, where=where, order_limit=order, required=known.required)
        unique: dict[str, Row] = {}
        for row in rows:
            unique.setdefault(row["session_id"], row)
        if len(unique) >= limit or len(rows) < most:
            return list(unique.values())[:limit]
        most *= 2


def _ran_for(replica: Replica, subscriber: str) -> str:
    """Return the condition of a subscriber's sessions: also of those that it had before it was moved to its root."""
    info = replica.info()
    subids = {
        row["subid"]
        for row in replica.subscriptions()
        if row["replid"] != info.replid
        and os.path.realpath(subscriber_root(replica, info, row)) == subscriber
    }
    conditions = [f"subscriber = {text_literal(subscriber)}"]
    if subids:
        conditions.append(f"agent_id in ({', '.join(text_literal(subid) for subid in sorted(subids))})")
    return " or ".join(conditions)


def _rows_of(replica: Replica, table: SystemTable, ids: Sequence[str], since: str) -> list[Row]:
    chosen = ", ".join(text_literal(session_id) for session_id in ids)
    return replica.control.rows(table, where=f"{since} and session_id in ({chosen})")


def _by_session(rows: Iterable[Row]) -> defaultdict[str, list[Row]]:
    grouped: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        grouped[row["session_id"]].append(row)
    return grouped


def _record(row: Row, articles: list[Row], messages: list[Row]) -> SessionRecord:
    told = sorted(messages, key=lambda message: message["timestamp"], reverse=True)
    return SessionRecord(
        row["session_id"],
        row["publication"],
        row["subscriber"],
        row["start_time"],
        row["end_time"],
        float(row["duration"] or 0.0),
        _RUNSTATUS.get(row["runstatus"], str(row["runstatus"])),
        _counts(row, "upload_"),
        _counts(row, "download_"),
        _articles(articles),
        tuple(dict.fromkeys(message["comments"] for message in told if message["comments"])),
    )


def _articles(rows: list[Row]) -> tuple[ArticleCounts, ...]:
    phases: dict[str, dict[int, PhaseCounts]] = {}
    for row in rows:
        phases.setdefault(row["article_name"], {})[row["phase_id"]] = _counts(row, "")
    none = PhaseCounts()
    return tuple(
        ArticleCounts(name, counts.get(Phase.UPLOAD, none), counts.get(Phase.DOWNLOAD, none))
        for name, counts in sorted(phases.items())
    )


def _counts(row: Row, prefix: str) -> PhaseCounts:
    names = ("inserts", "updates", "deletes", "conflicts")
    return PhaseCounts(*(int(row[f"{prefix}{name}"] or 0) for name in names))
