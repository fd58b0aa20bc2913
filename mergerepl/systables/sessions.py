"""MSmerge_sessions, MSmerge_articlehistory and MSmerge_history: the agent's history (merge_replication.md 1.5)."""

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Annotated, Final

from mergerepl.model.columns import Bigint
from mergerepl.systables.table import Plane, TypedTable


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """A row of MSmerge_sessions."""

    session_id: Annotated[str, "identity of the session"]
    agent_id: Annotated[str | None, "identity of the subscription it ran for"] = None
    publication: Annotated[str, "publication name"]
    subscriber: Annotated[str, "replica root of the subscriber"]
    start_time: Annotated[datetime, "start"]
    end_time: Annotated[datetime, "end"]
    duration: Annotated[float, "seconds"] = 0.0
    upload_time: Annotated[float | None, "seconds that writing at the publisher took"] = None
    download_time: Annotated[float | None, "seconds that writing at the subscriber took"] = None
    delivery_rate: Annotated[float | None, "changes a second"] = None
    percent_complete: Annotated[float | None, "0 to 100"] = None
    upload_inserts: Annotated[Bigint, "rows inserted at the publisher"] = 0
    upload_updates: Annotated[Bigint, "rows updated at the publisher"] = 0
    upload_deletes: Annotated[Bigint, "rows deleted at the publisher"] = 0
    upload_conflicts: Annotated[Bigint, "conflicts met while uploading"] = 0
    upload_conflicts_resolved: Annotated[Bigint, "of them resolved"] = 0
    download_inserts: Annotated[Bigint, "rows inserted at the subscriber"] = 0
    download_updates: Annotated[Bigint, "rows updated at the subscriber"] = 0
    download_deletes: Annotated[Bigint, "rows deleted at the subscriber"] = 0
    download_conflicts: Annotated[Bigint, "conflicts met while downloading"] = 0
    download_conflicts_resolved: Annotated[Bigint, "of them resolved"] = 0
    schema_changes: Annotated[int, "schema changes applied"] = 0
    metadata_rows_cleanedup: Annotated[Bigint, "metadata rows removed"] = 0
    runstatus: Annotated[int | None, "1 start, 2 succeed, 3 in progress, 4 idle, 5 retry, 6 fail"] = None
    late_changes: Annotated[Bigint, "user changes that landed while the session applied"] = 0


@dataclass(frozen=True, kw_only=True)
class ArticleHistoryRow:
    """A row of MSmerge_articlehistory."""

    session_id: Annotated[str | None, "session"] = None
    phase_id: Annotated[int, "1 upload, 2 download, 3 validation"]
    article_name: Annotated[str, "article"]
    start_time: Annotated[datetime | None, "start"] = None
    duration: Annotated[float | None, "seconds"] = None
    inserts: Annotated[Bigint, "rows inserted"] = 0
    updates: Annotated[Bigint, "rows updated"] = 0
    deletes: Annotated[Bigint, "rows deleted"] = 0
    conflicts: Annotated[Bigint, "conflicts met"] = 0
    conflicts_resolved: Annotated[Bigint, "of them resolved"] = 0
    percent_complete: Annotated[float | None, "0 to 100"] = None
    level: Annotated[str | None, "validation: rowcount, touched or checksum"] = None
    result: Annotated[
        str | None,
        "validation: equal, different, uncertain (equal but for what was left out) or not_compared",
    ] = None
    publisher_version: Annotated[Bigint | None, "validation: version of the publisher's table"] = None
    subscriber_version: Annotated[Bigint | None, "validation: version of the subscriber's table"] = None
    publisher_rows: Annotated[Bigint | None, "validation: rows compared at the publisher"] = None
    subscriber_rows: Annotated[Bigint | None, "validation: rows compared at the subscriber"] = None
    differing_rows: Annotated[Bigint | None, "validation: keys that differ"] = None
    unsent_at_publisher: Annotated[Bigint | None, "validation: changes left out, as they wait"] = None
    unsent_at_subscriber: Annotated[Bigint | None, "validation: changes left out, as they wait"] = None
    uncaptured_at_publisher: Annotated[Bigint | None, "validation: commits after the version"] = None
    uncaptured_at_subscriber: Annotated[Bigint | None, "validation: commits after the version"] = None


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """A row of MSmerge_history."""

    session_id: Annotated[str | None, "session"] = None
    agent_id: Annotated[str | None, "identity of the subscription"] = None
    comments: Annotated[str, "what happened, one line"] = ""
    error_id: Annotated[str | None, "class of the error that ended the session"] = None
    timestamp: Annotated[datetime | None, "when"] = None
    phase: Annotated[str | None, "step in which it failed: recover, capture, stage, apply"] = None


SESSIONS: Final = TypedTable("MSmerge_sessions", Plane.HISTORY, SessionRow)

ARTICLEHISTORY: Final = TypedTable("MSmerge_articlehistory", Plane.HISTORY, ArticleHistoryRow)

HISTORY: Final = TypedTable("MSmerge_history", Plane.HISTORY, HistoryRow)


class RunStatus(IntEnum):
    """MSmerge_sessions.runstatus."""

    START = 1
    SUCCEED = 2
    IN_PROGRESS = 3
    IDLE = 4
    RETRY = 5
    FAIL = 6


class Phase(IntEnum):
    """MSmerge_articlehistory.phase_id."""

    UPLOAD = 1
    DOWNLOAD = 2
    VALIDATION = 3
