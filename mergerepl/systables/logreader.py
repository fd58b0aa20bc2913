"""The tables of the log reader, in a folder of their own (cdc.md 1 and 9). Change Data Capture and transactional
replication share its positions and LSNs.

An LSN has 10 bytes, compared as unsigned bytes: scan cycle (8: epoch 4, cycle 4), slot (2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from mergerepl.model.cdc import ScanError, ScanSession
from mergerepl.systables.table import Plane, SystemTable, TypedTable, columns

FOLDER: Final = "_logreader"
"""The folder below a root that holds these tables and `plan.json`."""

SCHEMA_VERSION: Final = 1

DATABASE: Final = 0
"""The source_object_id of the row that describes the database."""


@dataclass(frozen=True, kw_only=True)
class LogReaderRow:
    """A row of `log_reader`: a source, or (source_object_id 0) the database."""

    source_object_id: int
    source_schema: str = ""
    source_name: str = ""
    source_path: str = ""
    table_id: str = ""
    position: int = -1
    position_commit: str | None = None
    seen: int = -1
    columns: str = ""
    status: str = "active"
    error_number: int | None = None
    reason: str | None = None
    database_id: str = ""
    root: str = ""
    epoch: int = 0
    cycle: int = 0
    last_lsn: bytes | None = None
    last_time: datetime | None = None
    next_object_id: int = 1
    waiting: Mapping[str, datetime] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    consumers: tuple[str, ...] = ()
    file_retention: int | None = None


LOG_READER: Final = TypedTable(
    "log_reader",
    Plane.CONTROL,
    columns(
        """
        source_object_id | int not null | number of the source; 0 is the row of the database
        source_schema | string | folder of the source below the root, `dbo` for the root itself
        source_name | string | folder of the source
        source_path | string | path of the source below the root
        table_id | string | Delta's id of the source
        position | bigint | version through which the source was read
        position_commit | string | that version and a hash of its commit
        seen | bigint | highest version that a listing has seen: a commit that was put off once is taken the next time
        columns | string | columns at the position, as JSON of Delta's schema
        status | string | active, paused (its changes cannot be determined) or gone
        error_number | int | number of the error that paused it
        reason | string | why it was paused, and what to do
        database_id | string | identity of the database; this column and the next eight are of row 0 alone
        root | string | folder of the database: another one is a copy
        epoch | int | minutes from 2020-01-01 to when the database was enabled, above every earlier epoch
        cycle | bigint | last scan cycle that wrote: epoch * 2^32 + its number
        last_lsn | binary | highest LSN given out
        last_time | timestamp | tran_end_time of that LSN
        next_object_id | int | number that the next source or change table gets
        waiting | map<string,timestamp> | since when a unit waits for its other members
        schema_version | int | version of these tables
        consumers | array<string> | who is served from this source: cdc, transactional
        file_retention | bigint | of row 0: seconds that removed files of sources are kept at least
        """
    ),
    LogReaderRow,
)


SCAN_SESSIONS: Final = TypedTable(
    "scan_sessions",
    Plane.HISTORY,
    columns(
        """
        session_id | int not null | number of the session
        start_time | timestamp not null | when the cycle began
        end_time | timestamp | when it ended; NULL if it did not
        duration | bigint | seconds
        scan_phase | string | last phase that it reached; Done at the end
        error_count | int | sources that were paused, and other errors
        start_lsn | binary | first LSN of the cycle
        current_lsn | binary | LSN that was being written
        end_lsn | binary | last LSN of the cycle
        tran_count | bigint | transactions
        last_commit_lsn | binary | LSN of the last transaction
        last_commit_time | timestamp | its tran_end_time
        log_record_count | bigint | commits that were read
        schema_change_count | int | commits that changed columns
        command_count | bigint | rows that were written to change tables
        first_begin_cdc_lsn | binary | first LSN that changes were written under
        last_commit_cdc_lsn | binary | last LSN that changes were written under
        last_commit_cdc_time | timestamp | its tran_end_time
        latency | int | seconds from last_commit_cdc_time to end_time
        empty_scan_count | int | scans before this one that found nothing
        failed_sessions_count | int | cycles before this one that failed
        """
    ),
    ScanSession,
)


ERRORS: Final = TypedTable(
    "errors",
    Plane.HISTORY,
    columns(
        """
        session_id | int not null | session in which it occurred
        phase_number | int | phase of the scan
        entry_time | timestamp not null | when it was recorded
        error_number | int not null | number of the error
        error_severity | int | 10 is a notice, 16 an error
        error_state | int | always 1
        error_message | string | what failed, on which source, why, and what to do next
        start_lsn | binary | first LSN concerned
        begin_lsn | binary | first LSN of its transaction
        sequence_value | binary | always NULL
        """
    ),
    ScanError,
)

ALL: Final[tuple[SystemTable, ...]] = (LOG_READER, SCAN_SESSIONS, ERRORS)
