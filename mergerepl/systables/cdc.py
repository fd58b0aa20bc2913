"""The tables of Change Data Capture, in a folder of their own: the schema `cdc` of the original (cdc.md 1 and 2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

from mergerepl.model.cdc import CapturedColumn, DdlEntry, Job
from mergerepl.model.columns import Bigint, Ddl
from mergerepl.roots import CDC_FOLDER
from mergerepl.systables.table import Plane, TypedTable, columns

FOLDER: Final = CDC_FOLDER
"""The folder below a root that holds these tables and the change tables."""

CONSUMERS_FOLDER: Final = "_cdc_consumers"
"""The folder in a table that `cdc load` keeps: the positions of its consumers."""

APP_ID: Final = "mergerepl-cdc"
"""The Delta transaction application of change tables and of the gate; versions are scan cycles."""

COLUMNS_APP_ID: Final = f"{APP_ID}-columns"
"""The application of rewritten change tables, whose columns got other types."""

CHANGE_TABLE_SUFFIX: Final = "_CT"

START_LSN: Final = "__$start_lsn"
END_LSN: Final = "__$end_lsn"
SEQVAL: Final = "__$seqval"
OPERATION: Final = "__$operation"
UPDATE_MASK: Final = "__$update_mask"
SCAN_CYCLE: Final = "__$scan_cycle"

RESERVED_PREFIX: Final = "__$"
"""Prefix of the names of a change table's own columns; captured columns never have it."""

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

Commits: TypeAlias = Annotated[
    tuple[Mapping[str, Any], ...],
    Ddl(
        "array<struct<source_object_id:int,from_version:bigint,version:bigint,operation:string,origin:string>>"
    ),
]
"""Commits of sources; each is a dictionary of these fields."""


@dataclass(frozen=True, kw_only=True)
class ChangeTable:
    """A row of `change_tables`: a capture instance."""

    object_id: Annotated[int, "number of the change table"]
    version: Annotated[int, "always 0"] = 0
    source_object_id: Annotated[int, "number of the source"]
    capture_instance: Annotated[str, "name of the capture instance"]
    start_lsn: Annotated[bytes, "low end of the validity interval"]
    end_lsn: Annotated[bytes | None, "high end of the validity interval of a paused source, else NULL"] = None
    supports_net_changes: Annotated[bool, "whether net changes can be asked for"]
    has_drop_pending: Annotated[bool, "whether the source is gone"] = False
    role_name: Annotated[str | None, "gating role; stored and shown only"] = None
    index_name: Annotated[str | None, "name of the key; stored and shown only"] = None
    filegroup_name: Annotated[str | None, "always NULL"] = None
    create_date: Annotated[datetime, "when the instance was created"]
    partition_switch: Annotated[bool, "always true"] = True
    start_version: Annotated[Bigint, "version of the source just before start_lsn"]
    on_gap: Annotated[str, "what becomes of a gap in the feed: compare or stop"] = "compare"

    @property
    def folder(self) -> str:
        """The folder of the change table below `_cdc`."""
        return f"{self.capture_instance}{CHANGE_TABLE_SUFFIX}"

    @property
    def numbered_folder(self) -> str:
        """The folder of the change table below `_cdc` in a store."""
        return f"{self.capture_instance}_{self.object_id}{CHANGE_TABLE_SUFFIX}"


CHANGE_TABLES: Final = TypedTable("change_tables", Plane.CONTROL, ChangeTable)


CAPTURED_COLUMNS: Final = TypedTable("captured_columns", Plane.CONTROL, CapturedColumn)


@dataclass(frozen=True, kw_only=True)
class IndexColumn:
    """A row of `index_columns`: a column of the key."""

    object_id: Annotated[int, "number of the change table"]
    column_name: Annotated[str, "column of the key"]
    index_ordinal: Annotated[int, "position in the key, from 1"]
    column_id: Annotated[int, "as in captured_columns"]


INDEX_COLUMNS: Final = TypedTable("index_columns", Plane.CONTROL, IndexColumn)


@dataclass(frozen=True, kw_only=True)
class LsnTime:
    """A row of `lsn_time_mapping`. Each of `commits` is a dictionary of the fields of its type."""

    start_lsn: Annotated[bytes, "LSN of a transaction"]
    tran_begin_time: Annotated[datetime, "when it began"]
    tran_end_time: Annotated[datetime, "when it committed; never falls"]
    tran_id: Annotated[
        bytes, "number of the source (4 bytes) and version (6); zeros without a commit and for several"
    ]
    tran_begin_lsn: Annotated[bytes, "the same as start_lsn"]
    scan_cycle: Annotated[Bigint, "scan cycle: the first 8 bytes of the LSN"]
    kind: Annotated[
        str,
        "transaction, ddl (columns changed), net (several commits whose difference was taken), "
        "begin (an instance begins), dummy (nothing happened)",
    ]
    commits: Annotated[Commits, "the commits: of a net transaction from from_version to version"] = ()


LSN_TIME_MAPPING: Final = TypedTable("lsn_time_mapping", Plane.HISTORY, LsnTime)


DDL_HISTORY: Final = TypedTable("ddl_history", Plane.HISTORY, DdlEntry)


CDC_JOBS: Final = TypedTable("cdc_jobs", Plane.CONTROL, Job)

ALL: Final[tuple[TypedTable[Any], ...]] = (
    CAPTURED_COLUMNS,
    INDEX_COLUMNS,
    LSN_TIME_MAPPING,
    DDL_HISTORY,
    CDC_JOBS,
    CHANGE_TABLES,
)
"""The tables in the order in which they are made: the last one shows that the database is enabled."""
