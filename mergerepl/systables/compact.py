"""The system tables of Compact change tracking, in a folder of their own (compact.md 2).

Names that begin with `__sys` are those of SQL Server Compact; columns named `mr_` are ours, at the end.
BSN and CSN are unsigned, big-endian, 8 bytes: the order of the bytes is the order of the numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from mergerepl.model.tracking import CommittedTransaction, ConsumerState
from mergerepl.systables.table import Plane, RowT, SystemTable, TypedTable, columns

FOLDER: Final = "_tracking"
"""The folder below a root that holds these tables, the counters and the open transactions."""

SCHEMA_VERSION: Final = 1

CHANGE_BSN: Final = "__sysChangeTxBsn"
INSERT_BSN: Final = "__sysInsertTxBsn"
CONTEXT: Final = "__sysTrackingContext"
ROW_COLUMNS: Final = ((CHANGE_BSN, "binary"), (INSERT_BSN, "binary"), (CONTEXT, "string"))
"""The columns that tracking appends to a table, with their types."""

SYSTEM_PREFIX: Final = "__sys"
"""How the names of the runtime's columns and tables begin; users have none such."""

TABLE_NAME: Final = "__sysTN"
DELETE_BSN: Final = "__sysDeleteTxBsn"
ROW_KEY: Final = "__sysRK"
DELETED_TIME: Final = "__sysDeletedTime"
DELETE_CSN: Final = "mr_delete_csn"
INSERT_CSN: Final = "mr_insert_csn"
TX_BSN: Final = "__sysTxBsn"
TX_CSN: Final = "__sysTxCsn"
COMMIT_TIME: Final = "__sysCommitTime"


class _ByPosition(TypedTable[RowT]):
    """A table whose columns have names that no field can have: field i of a row is column i."""

    def read(self, stored: Mapping[str, Any]) -> RowT:
        """Return the row of these stored values; NULL is the field's default."""
        given = zip((field.name for field in fields(self.row)), self.names, strict=True)
        return self.row(**{name: stored[column] for name, column in given if stored.get(column) is not None})

    def values(self, row: RowT) -> dict[str, Any]:
        """Return a row's values by column, as they are stored."""
        return {
            column: getattr(row, field.name) for column, field in zip(self.names, fields(row), strict=True)
        }


@dataclass(frozen=True)
class KeyColumn:
    """A row of `__sysOCSTrackedObjects`: a tracked table and a column of its key."""

    table: str
    options: int
    key_type: int
    place: int
    column: str
    column_type: str
    table_id: str
    enabled_version: int
    foreign: str
    enabled_at: datetime
    enabled_csn: int | None = None


@dataclass(frozen=True)
class OutOfSequence:
    """A row of `__sysTxCommitSequence`."""

    bsn: bytes
    csn: bytes
    commit_time: datetime


TRACKED_OBJECTS: Final = _ByPosition(
    "__sysOCSTrackedObjects",
    Plane.CONTROL,
    columns(
        """
        __sysTName | string not null | name of the tracked table
        __sysTrackOpt | int | what is tracked: 1 inserts, 2 updates, 4 deletes, added up
        __sysTrackType | int | 1 key columns, 2 a GUID column
        __sysTrackColOrd | int | position of mr_key_column in the key, from 1
        mr_key_column | string | a column of the key
        mr_key_type | string | its type, by which the keys of deleted rows are packed; `guid` for a GUID column
        mr_table_id | string | Delta's id of the table
        mr_enabled_version | bigint | version of the table from which on changes are tracked
        mr_foreign | string | adopt or refuse: how commits outside of transactions are handled
        mr_enabled_at | timestamp | when tracking was enabled, or began to track more
        mr_enabled_csn | bigint | CSN of the transaction that this took; NULL while the database had neither numbers
            nor consumers
        """
    ),
    KeyColumn,
)

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

COMMIT_SEQUENCE: Final = _ByPosition(
    "__sysTxCommitSequence",
    Plane.HISTORY,
    columns(
        f"""
        {TX_BSN} | binary | BSN of a transaction whose CSN is another number
        {TX_CSN} | binary | CSN of the transaction
        {COMMIT_TIME} | timestamp | when it committed
        """
    ),
    OutOfSequence,
)

COMMITS: Final = TypedTable(
    "tracking_commits",
    Plane.HISTORY,
    columns(
        """
        csn | bigint not null | commit sequence number
        bsn | bigint not null | begin sequence number
        commit_time | timestamp not null | when it committed
        nonce | string not null | distinguishes this transaction from another one under the same number
        tracking_context | string | context of all its changes; NULL if they had none, or several
        versions | map<string,bigint> | table to its version after the transaction
        foreign_version | bigint | version of the foreign commit that was adopted
        changes | map<string,bigint> | table to the rows that were changed
        """
    ),
    CommittedTransaction,
)

CONSUMERS: Final = TypedTable(
    "tracking_consumers",
    Plane.CONTROL,
    columns(
        """
        name | string not null | name of the consumer
        lbsn | bigint not null | EBSN of the last acknowledged window
        lcsn | bigint not null | ECSN of the last acknowledged window
        nonce | string | nonce of the last transaction below lcsn
        received_anchor | binary | anchor of the consumer's own, as it gave it
        last_time | timestamp | when it last acknowledged a window
        """
    ),
    ConsumerState,
)

ALL: Final[tuple[SystemTable, ...]] = (TRACKED_OBJECTS, DELETED_ROWS, COMMIT_SEQUENCE, COMMITS, CONSUMERS)
