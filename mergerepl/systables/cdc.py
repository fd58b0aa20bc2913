"""The tables of Change Data Capture, in a folder of their own: the schema `cdc` of the original (cdc.md 1 and 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mergerepl.model.cdc import CapturedColumn, DdlEntry, Job
from mergerepl.systables.table import Plane, SystemTable, TypedTable, columns

FOLDER: Final = "_cdc"
"""The folder below a root that holds these tables and the change tables."""

CONSUMERS_FOLDER: Final = "_cdc_consumers"
"""The folder in a table that `cdc apply` keeps: the positions of its consumers."""

APP_ID: Final = "mergerepl-cdc"
"""The Delta transaction application of change tables and of the gate; versions are scan cycles."""

CHANGE_TABLE_SUFFIX: Final = "_CT"

START_LSN: Final = "__$start_lsn"
END_LSN: Final = "__$end_lsn"
SEQVAL: Final = "__$seqval"
OPERATION: Final = "__$operation"
UPDATE_MASK: Final = "__$update_mask"
SCAN_CYCLE: Final = "__$scan_cycle"

RESERVED_PREFIX: Final = "__$"
"""How the names of a change table's own columns begin; captured columns have none such."""

DELETE, INSERT, UPDATE_BEFORE, UPDATE_AFTER = 1, 2, 3, 4
"""Values of `__$operation`."""

LEADING: Final = columns(
    f"""
    {START_LSN} | binary | LSN of the commit
    {END_LSN} | binary | always NULL
    {SEQVAL} | binary | place of the row among those of its LSN; both rows of an update have the same
    {OPERATION} | int | 1 delete, 2 insert, 3 update before, 4 update after
    {UPDATE_MASK} | binary | a bit for each captured column; the last byte has ordinals 1 to 8
    """
)
"""The columns of a change table before the captured ones."""

TRAILING: Final = columns(
    f"""
    {SCAN_CYCLE} | bigint | scan cycle: the first 8 bytes of the LSN, for the bounds of files
    """
)
"""The columns of a change table after the captured ones."""

COMMITS_TYPE: Final = (
    "array<struct<source_object_id:int,from_version:bigint,version:bigint,operation:string,origin:string>>"
)


@dataclass(frozen=True, kw_only=True)
class ChangeTable:
    """A row of `change_tables`: a capture instance."""

    object_id: int
    version: int = 0
    source_object_id: int
    capture_instance: str
    start_lsn: bytes
    end_lsn: bytes | None = None
    supports_net_changes: bool
    has_drop_pending: bool = False
    role_name: str | None = None
    index_name: str | None = None
    filegroup_name: str | None = None
    create_date: datetime
    partition_switch: bool = True
    start_version: int
    on_gap: str = "compare"

    @property
    def folder(self) -> str:
        """The folder of the change table below `_cdc`."""
        return f"{self.capture_instance}{CHANGE_TABLE_SUFFIX}"


CHANGE_TABLES: Final = TypedTable(
    "change_tables",
    Plane.CONTROL,
    columns(
        """
        object_id | int not null | number of the change table
        version | int | always 0
        source_object_id | int not null | number of the source
        capture_instance | string not null | name of the capture instance
        start_lsn | binary not null | low end of the validity interval
        end_lsn | binary | high end of the validity interval while the source is paused, else NULL
        supports_net_changes | boolean not null | whether net changes can be asked for
        has_drop_pending | boolean | whether the source is gone
        role_name | string | gating role; stored and shown only
        index_name | string | name of the key; stored and shown only
        filegroup_name | string | always NULL
        create_date | timestamp not null | when the instance was created
        partition_switch | boolean | always true
        start_version | bigint not null | version of the source just before start_lsn
        on_gap | string | what becomes of a gap in the feed: compare or stop
        """
    ),
    ChangeTable,
)


CAPTURED_COLUMNS: Final = TypedTable(
    "captured_columns",
    Plane.CONTROL,
    columns(
        """
        object_id | int not null | number of the change table
        column_name | string not null | name of the column in the change table
        column_id | int not null | id of the column mapping, else position in the source, from 1
        column_type | string not null | type, as Spark DDL
        column_ordinal | int not null | position among the captured columns, from 1: its bit in the mask
        is_computed | boolean | whether the source generates it
        source_name | string | present name of the column in the source; NULL if it was dropped
        """
    ),
    CapturedColumn,
)


@dataclass(frozen=True, kw_only=True)
class IndexColumn:
    """A row of `index_columns`: a column of the key."""

    object_id: int
    column_name: str
    index_ordinal: int
    column_id: int


INDEX_COLUMNS: Final = TypedTable(
    "index_columns",
    Plane.CONTROL,
    columns(
        """
        object_id | int not null | number of the change table
        column_name | string not null | column of the key
        index_ordinal | int not null | position in the key, from 1
        column_id | int not null | as in captured_columns
        """
    ),
    IndexColumn,
)


@dataclass(frozen=True, kw_only=True)
class LsnTime:
    """A row of `lsn_time_mapping`. Each of `commits` is a dictionary of the fields of its type."""

    start_lsn: bytes
    tran_begin_time: datetime
    tran_end_time: datetime
    tran_id: bytes
    tran_begin_lsn: bytes
    scan_cycle: int
    kind: str
    commits: tuple[Mapping[str, Any], ...] = ()


LSN_TIME_MAPPING: Final = TypedTable(
    "lsn_time_mapping",
    Plane.HISTORY,
    columns(
        f"""
        start_lsn | binary not null | LSN of a transaction
        tran_begin_time | timestamp not null | when it began
        tran_end_time | timestamp not null | when it committed; never falls
        tran_id | binary not null | number of the source (4 bytes) and version (6); zeros where there is no commit
        tran_begin_lsn | binary not null | the same as start_lsn
        scan_cycle | bigint not null | scan cycle: the first 8 bytes of the LSN
        kind | string not null | transaction, ddl (columns changed), net (several commits whose difference was taken),
            begin (an instance begins), dummy (nothing happened)
        commits | {COMMITS_TYPE} | the commits: of a net transaction from from_version to version
        """
    ),
    LsnTime,
)


DDL_HISTORY: Final = TypedTable(
    "ddl_history",
    Plane.HISTORY,
    columns(
        """
        source_object_id | int not null | number of the source
        object_id | int not null | number of the change table
        required_column_update | boolean not null | whether a type of the change table was changed
        ddl_command | string not null | what was done, rebuilt from the difference of the columns
        ddl_lsn | binary not null | LSN of the commit
        ddl_time | timestamp not null | tran_end_time of that LSN
        """
    ),
    DdlEntry,
)


CDC_JOBS: Final = TypedTable(
    "cdc_jobs",
    Plane.CONTROL,
    columns(
        """
        database_id | string not null | identity of the database
        job_type | string not null | capture or cleanup; logreader in place of capture where publications share the log
        job_id | string not null | identity of the job
        maxtrans | int | capture: transactions of a scan cycle at most
        maxscans | int | capture: cycles before it waits
        continuous | boolean | capture: whether it continues after a wait
        pollinginterval | bigint | capture: seconds to wait
        retention | bigint | cleanup: minutes that change rows are kept
        threshold | bigint | cleanup: rows of a statement at most
        requested | string | started or stopped
        schedule | string | cleanup: time of day
        last_run | timestamp | cleanup: when it ran last
        starts | bigint not null | number of times that it was started: a new start takes changed parameters
        """
    ),
    Job,
)

ALL: Final[tuple[SystemTable, ...]] = (
    CHANGE_TABLES,
    CAPTURED_COLUMNS,
    INDEX_COLUMNS,
    LSN_TIME_MAPPING,
    DDL_HISTORY,
    CDC_JOBS,
)

CREATED: Final[tuple[TypedTable[Any], ...]] = (
    CAPTURED_COLUMNS,
    INDEX_COLUMNS,
    LSN_TIME_MAPPING,
    DDL_HISTORY,
    CDC_JOBS,
    CHANGE_TABLES,
)
"""The tables in the order in which `enable_db` makes them: the last one says that the database is enabled."""
