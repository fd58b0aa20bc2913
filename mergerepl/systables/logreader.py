"""The tables of the log reader, in a folder of their own (cdc.md 1 and 9). Change Data Capture and transactional
replication share its positions and LSNs.

An LSN has 10 bytes, compared as unsigned bytes: scan cycle (8: epoch 4, cycle 4), slot (2).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from mergerepl.model.cdc import ScanError, ScanSession
from mergerepl.model.columns import Bigint
from mergerepl.roots import LOG_READER_FOLDER
from mergerepl.systables.table import Plane, SystemTable, TypedTable

FOLDER: Final = LOG_READER_FOLDER
"""The folder below a root that holds these tables and `plan.json`."""

SCHEMA_VERSION: Final = 2

DATABASE: Final = 0
"""The source_object_id of the row that describes the database."""


@dataclass(frozen=True, kw_only=True)
class LogReaderRow:
    """A row of `log_reader`: a source, or (source_object_id 0) the database."""

    source_object_id: Annotated[int, "number of the source; 0 is the row of the database"]
    source_schema: Annotated[str, "folder of the source below the root, `dbo` for the root itself"] = ""
    source_name: Annotated[str, "folder of the source"] = ""
    source_path: Annotated[str, "path of the source below the root"] = ""
    table_id: Annotated[str, "Delta's id of the source"] = ""
    position: Annotated[Bigint, "version through which the source was read"] = -1
    position_commit: Annotated[str | None, "that version and a hash of its commit"] = None
    seen: Annotated[
        Bigint,
        "highest version that a listing has seen: a commit that was put off once is taken the next time",
    ] = -1
    columns: Annotated[str, "columns at the position, as JSON of Delta's schema"] = ""
    status: Annotated[str, "active, paused (its changes cannot be determined) or gone"] = "active"
    error_number: Annotated[int | None, "number of the error that paused it"] = None
    reason: Annotated[str | None, "why it was paused, and what to do"] = None
    database_id: Annotated[str, "identity of the database; this column and the next eight are of row 0"] = ""
    root: Annotated[str, "folder of the database: another one is a copy"] = ""
    epoch: Annotated[int, "minutes from 2020-01-01 to the enabling of the database, above earlier epochs"] = 0
    cycle: Annotated[Bigint, "last scan cycle that wrote: epoch * 2^32 + its number"] = 0
    last_lsn: Annotated[bytes | None, "highest LSN given out"] = None
    last_time: Annotated[datetime | None, "tran_end_time of that LSN"] = None
    next_object_id: Annotated[int, "number that the next source or change table gets"] = 1
    waiting: Annotated[Mapping[str, datetime], "since when a unit waits for its other members"] = field(
        default_factory=dict
    )
    schema_version: Annotated[int, "version of these tables"] = SCHEMA_VERSION
    consumers: Annotated[tuple[str, ...], "who is served from this source: cdc, transactional"] = ()
    file_retention: Annotated[Bigint | None, "of row 0: seconds that removed files are kept at least"] = None


LOG_READER: Final = TypedTable("log_reader", Plane.CONTROL, LogReaderRow)


SCAN_SESSIONS: Final = TypedTable("scan_sessions", Plane.HISTORY, ScanSession)


ERRORS: Final = TypedTable("errors", Plane.HISTORY, ScanError)

ALL: Final[tuple[SystemTable, ...]] = (LOG_READER, SCAN_SESSIONS, ERRORS)
