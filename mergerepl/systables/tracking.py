"""The system tables of Compact change tracking, in a folder of their own (compact.md 2).

Names that begin with `__sys` are those of SQL Server Compact; columns named `mr_` are ours, at the end.
BSN and CSN are unsigned, big-endian, 8 bytes: the order of the bytes is the order of the numbers.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from mergerepl.model.columns import Bigint, Named
from mergerepl.model.tracking import CommittedTransaction, ConsumerState
from mergerepl.roots import TRACKING_FOLDER
from mergerepl.systables.table import Plane, SystemTable, TypedTable, columns

FOLDER: Final = TRACKING_FOLDER
"""The folder below a root that holds these tables, the counters and the open transactions."""

SCHEMA_VERSION: Final = 1

CHANGE_BSN: Final = "__sysChangeTxBsn"
INSERT_BSN: Final = "__sysInsertTxBsn"
CONTEXT: Final = "__sysTrackingContext"
ROW_COLUMNS: Final = ((CHANGE_BSN, "binary"), (INSERT_BSN, "binary"), (CONTEXT, "string"))
"""The columns that tracking appends to a table, with their types."""


def app_id(database_id: str) -> str:
    """Return the application of the Delta transactions of a database; their versions are CSNs."""
    return f"mergerepl-tracking-{database_id}"


TABLE_NAME: Final = "__sysTN"
DELETE_BSN: Final = "__sysDeleteTxBsn"
ROW_KEY: Final = "__sysRK"
DELETED_TIME: Final = "__sysDeletedTime"
DELETE_CSN: Final = "mr_delete_csn"
INSERT_CSN: Final = "mr_insert_csn"
TX_BSN: Final = "__sysTxBsn"
TX_CSN: Final = "__sysTxCsn"
COMMIT_TIME: Final = "__sysCommitTime"


@dataclass(frozen=True)
class KeyColumn:
    """A row of `__sysOCSTrackedObjects`: a tracked table and a column of its key."""

    table: Annotated[str, Named("__sysTName"), "name of the tracked table"]
    options: Annotated[
        int, Named("__sysTrackOpt"), "what is tracked: 1 inserts, 2 updates, 4 deletes, summed"
    ]
    key_type: Annotated[int, Named("__sysTrackType"), "1 key columns, 2 a GUID column"]
    place: Annotated[int, Named("__sysTrackColOrd"), "position of mr_key_column in the key, from 1"]
    column: Annotated[str, Named("mr_key_column"), "a column of the key"]
    column_type: Annotated[
        str,
        Named("mr_key_type"),
        "its type, by which the keys of deleted rows are packed; `guid` for a GUID column",
    ]
    table_id: Annotated[str, Named("mr_table_id"), "Delta's id of the table"]
    enabled_version: Annotated[
        Bigint, Named("mr_enabled_version"), "version from which on changes are tracked"
    ]
    foreign: Annotated[str, Named("mr_foreign"), "adopt or refuse: what commits of others are"]
    enabled_at: Annotated[datetime, Named("mr_enabled_at"), "when tracking was enabled, or tracked more"]
    enabled_csn: Annotated[
        Bigint | None,
        Named("mr_enabled_csn"),
        "CSN of the transaction that this took; NULL while the database had neither numbers nor consumers",
    ] = None


@dataclass(frozen=True)
class OutOfSequence:
    """A row of `__sysTxCommitSequence`."""

    bsn: Annotated[bytes, Named(TX_BSN), "BSN of a transaction whose CSN is another number"]
    csn: Annotated[bytes, Named(TX_CSN), "CSN of the transaction"]
    commit_time: Annotated[datetime, Named(COMMIT_TIME), "when it committed"]


TRACKED_OBJECTS: Final = TypedTable("__sysOCSTrackedObjects", Plane.CONTROL, KeyColumn)

DELETED_ROWS: Final = SystemTable(
    "__sysOCSDeletedRows",
    Plane.DATA,
    columns(
        f"""
        {TABLE_NAME} | string | table from which the row was deleted
        {DELETE_BSN} | binary | BSN of the deleting transaction
        {INSERT_BSN} | binary | BSN of the transaction that inserted the row; NULL where that is not known
        {ROW_KEY} | binary | key of the row, packed
        {DELETED_TIME} | timestamp | when the delete ran
        {CONTEXT} | string | context of the deleting transaction
        {DELETE_CSN} | bigint | CSN of the deleting transaction: a number, because Delta keeps no bounds of binary columns
        {INSERT_CSN} | bigint | CSN of the inserting transaction
        """
    ),
)

COMMIT_SEQUENCE: Final = TypedTable("__sysTxCommitSequence", Plane.HISTORY, OutOfSequence)

COMMITS: Final = TypedTable("tracking_commits", Plane.HISTORY, CommittedTransaction)

CONSUMERS: Final = TypedTable("tracking_consumers", Plane.CONTROL, ConsumerState)

ALL: Final[tuple[SystemTable, ...]] = (TRACKED_OBJECTS, DELETED_ROWS, COMMIT_SEQUENCE, COMMITS, CONSUMERS)
