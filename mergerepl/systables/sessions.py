"""MSmerge_sessions, MSmerge_articlehistory and MSmerge_history: what the agent did (merge_replication.md 1.5)."""

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Final

from mergerepl.systables.table import Plane, TypedTable, columns


@dataclass(frozen=True, kw_only=True)
class SessionRow:
    """A row of MSmerge_sessions."""

    session_id: str
    agent_id: str | None = None
    publication: str
    subscriber: str
    start_time: datetime
    end_time: datetime
    duration: float = 0.0
    upload_time: float | None = None
    download_time: float | None = None
    delivery_rate: float | None = None
    percent_complete: float | None = None
    upload_inserts: int = 0
    upload_updates: int = 0
    upload_deletes: int = 0
    upload_conflicts: int = 0
    upload_conflicts_resolved: int = 0
    upload_rows_retried: int = 0
    download_inserts: int = 0
    download_updates: int = 0
    download_deletes: int = 0
    download_conflicts: int = 0
    download_conflicts_resolved: int = 0
    download_rows_retried: int = 0
    schema_changes: int = 0
    metadata_rows_cleanedup: int = 0
    runstatus: int | None = None
    late_changes: int = 0


@dataclass(frozen=True, kw_only=True)
class ArticleHistoryRow:
    """A row of MSmerge_articlehistory."""

    session_id: str | None = None
    phase_id: int
    article_name: str
    start_time: datetime | None = None
    duration: float | None = None
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    conflicts: int = 0
    conflicts_resolved: int = 0
    rows_retried: int = 0
    percent_complete: float | None = None


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """A row of MSmerge_history."""

    session_id: str | None = None
    agent_id: str | None = None
    comments: str = ""
    error_id: str | None = None
    timestamp: datetime | None = None


SESSIONS: Final = TypedTable(
    "MSmerge_sessions",
    Plane.HISTORY,
    columns(
        """
        session_id | string not null | identity of the session
        agent_id | string | identity of the subscription it ran for
        publication | string not null | publication name
        subscriber | string not null | replica root of the subscriber
        start_time | timestamp not null | start
        end_time | timestamp not null | end
        duration | double | seconds
        upload_time | double | reserved: seconds
        download_time | double | reserved: seconds
        delivery_rate | double | changes a second
        percent_complete | double | 0 to 100
        upload_inserts | bigint | rows inserted at the publisher
        upload_updates | bigint | rows updated at the publisher
        upload_deletes | bigint | rows deleted at the publisher
        upload_conflicts | bigint | conflicts met while uploading
        upload_conflicts_resolved | bigint | of them resolved
        upload_rows_retried | bigint | changes that had to be tried again
        download_inserts | bigint | rows inserted at the subscriber
        download_updates | bigint | rows updated at the subscriber
        download_deletes | bigint | rows deleted at the subscriber
        download_conflicts | bigint | conflicts met while downloading
        download_conflicts_resolved | bigint | of them resolved
        download_rows_retried | bigint | changes that had to be tried again
        schema_changes | int | schema changes applied
        metadata_rows_cleanedup | bigint | metadata rows removed
        runstatus | int | 1 start, 2 succeed, 3 in progress, 4 idle, 5 retry, 6 fail
        late_changes | bigint | user changes that landed while the session applied
        """
    ),
    SessionRow,
)

ARTICLEHISTORY: Final = TypedTable(
    "MSmerge_articlehistory",
    Plane.HISTORY,
    columns(
        """
        session_id | string | session
        phase_id | int not null | 1 upload, 2 download
        article_name | string not null | article
        start_time | timestamp | start
        duration | double | seconds
        inserts | bigint | rows inserted
        updates | bigint | rows updated
        deletes | bigint | rows deleted
        conflicts | bigint | conflicts met
        conflicts_resolved | bigint | of them resolved
        rows_retried | bigint | changes that had to be tried again
        percent_complete | double | 0 to 100
        """
    ),
    ArticleHistoryRow,
)

HISTORY: Final = TypedTable(
    "MSmerge_history",
    Plane.HISTORY,
    columns(
        """
        session_id | string | session
        agent_id | string | identity of the subscription
        comments | string | what happened, one line
        error_id | string | reserved
        timestamp | timestamp | when
        """
    ),
    HistoryRow,
)


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
