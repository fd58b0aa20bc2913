"""MSmerge_tombstone: one row per deleted row (merge_replication.md 1.1). Append-only, see `contents`.

The image column of a tombstone is the last known version of the deleted row: it has the key by which the delete is
applied, and the losing row if an update wins over the delete.
"""

from enum import IntEnum
from typing import Final

from mergerepl.systables.contents import LINEAGE_TYPE
from mergerepl.systables.table import Plane, SystemTable, columns

NAME: Final = "MSmerge_tombstone"

TYPE: Final = "type"


class TombstoneType(IntEnum):
    """MSmerge_tombstone.type (sp_getmergedeletetype)."""

    USER_DELETE = 1
    """A user deleted the row."""
    PARTIAL_DELETE = 5
    """The row left the subscriber's partition."""
    SYSTEM_DELETE = 6
    """The product deleted the row, to compensate."""


TABLE: Final = SystemTable(
    NAME,
    Plane.DATA,
    columns(
        f"""
        rowguid | string | row identity, the same at every replica
        tablenick | int | article nickname
        type | int | 1 user delete, 5 left the partition, 6 system delete
        lineage | {LINEAGE_TYPE} | the version deleted and the updates known then
        generation | bigint | generation of the delete, local number
        logical_record_parent_rowguid | string | reserved: logical record of the deleted row
        logical_record_lineage | {LINEAGE_TYPE} | reserved: lineage of the logical record
        priority | double | priority of the replica that deleted the row
        marker | string | merge session or capture that wrote the row
        seq | bigint | number of the appended run; the highest one of a row counts
        unknown | array<string> | fields (c<number>) of which the row says nothing, as its writer's table lacked them
        born_generation | bigint | generation of the deleted row's insert, as in MSmerge_contents
        """
    ),
)
