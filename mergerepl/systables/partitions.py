"""The partition tables of a publisher with row filters (merge_replication.md 1.2); at a subscriber they stay empty.

MSmerge_partition_groups lists the partitions. The three others are append-only runs, as contents are. Each run that
changes a row, or its membership, writes for that row one mapping row for *every* partition that it was or is in:
*enter* and *stay* in MSmerge_current_partition_mappings, *leave* in MSmerge_past_partition_mappings. Among all rows of
one (tablenick, rowguid, partition_id) in both tables the one with the highest `seq` counts: a leave supersedes the
current mapping, an enter the past one. (docs/decisions/0013)
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from mergerepl.model.columns import NOT_NULL, Bigint
from mergerepl.systables.table import Plane, SystemTable, TypedTable, columns

EVERYBODY: Final = -1
"""partition_id of the rows that every subscriber has: those that a static filter selects."""


def addressed_to(nickname: int) -> int:
    """Return the partition_id of moves that one subscriber alone gets: those of its own change of partition."""
    return EVERYBODY - nickname


PUBLICATION_NUMBER: Final = "publication_number"
PARTITION_ID: Final = "partition_id"
ENTERED: Final = "entered"
REASON: Final = "reason"
CHANGECOUNT: Final = "changecount"
FIRST_SEQ: Final = "first_seq"


class Reason(IntEnum):
    """MSmerge_past_partition_mappings.reason: why a row left a partition."""

    DELETED = 1
    """The row was deleted."""
    OWN_COLUMNS = 2
    """Its own columns changed."""
    PARENT = 3
    """A parent row changed that it follows through a join filter."""
    HOST_NAME = 4
    """The subscriber's HOST_NAME() or SUSER_SNAME() changed."""
    FILTER = 5
    """The row filter or a join of its article changed."""


class PartitionStatus(IntEnum):
    """MSmerge_partition_groups.status."""

    ACTIVE = 1
    DROPPED = 2


@dataclass(frozen=True, kw_only=True)
class PartitionGroup:
    """A row of MSmerge_partition_groups: one combination of the values of a publication's functions."""

    partition_id: Annotated[int, "identity of the partition; never used again"]
    publication_number: Annotated[int, "publication (sysmergepublications.publication_number)"]
    maxgen_whenadded: Annotated[Bigint, "the publisher's last generation when the partition was added"]
    using_partition_groups: Annotated[int, NOT_NULL, "1: its mappings are computed when rows change"] = 1
    HOST_NAME_FN: Annotated[str | None, "value of HOST_NAME(); NULL if the publication does not use it"] = (
        None
    )
    SUSER_SNAME_FN: Annotated[str | None, "value of SUSER_SNAME(); NULL if the filters do not use it"] = None
    status: Annotated[int, NOT_NULL, "1 active, 2 dropped"] = PartitionStatus.ACTIVE
    is_explicit: Annotated[int, NOT_NULL, "1: added by `partitions add`, 0: by its first subscription"] = 0

    @property
    def is_active(self) -> bool:
        """Whether memberships are computed for it."""
        return self.status == PartitionStatus.ACTIVE


PARTITION_GROUPS: Final = TypedTable("MSmerge_partition_groups", Plane.CONTROL, PartitionGroup)

CURRENT: Final = SystemTable(
    "MSmerge_current_partition_mappings",
    Plane.DATA,
    columns(
        """
        publication_number | int | publication
        tablenick | int | article nickname
        rowguid | string | row identity
        partition_id | int | partition that the row is in; -1: everybody; below: a subscriber alone (-1 - its nickname)
        generation | bigint | generation of this change, at the publisher
        entered | boolean | true: the row came in with this change; false: it was in, and stays
        seq | bigint | number of the appended run; the highest one of a row and a partition counts
        """
    ),
)

PAST: Final = SystemTable(
    "MSmerge_past_partition_mappings",
    Plane.DATA,
    columns(
        """
        publication_number | int | publication
        tablenick | int | article nickname
        rowguid | string | row identity
        partition_id | int | partition that the row left; -1: everybody; below: a subscriber alone (-1 - its nickname)
        generation | bigint | generation in which it left, at the publisher
        reason | int | 1 deleted, 2 its own columns changed, 3 a row that it follows changed, 4 host_name changed, 5 filters
        seq | bigint | number of the appended run; the highest one of a row and a partition counts
        """
    ),
)


@dataclass(frozen=True, kw_only=True)
class GenerationPartition:
    """A row of MSmerge_generation_partition_mappings: a generation has changes for a partition."""

    publication_number: Annotated[int, "publication"]
    generation: Annotated[Bigint, "generation at the publisher"]
    partition_id: Annotated[
        int, "partition for which the generation has changes; -1: everybody; below: a subscriber alone"
    ]
    changecount: Annotated[Bigint, "so many; several rows of one pair are summed"]
    first_seq: Annotated[Bigint, "the first run with such a change"]
    seq: Annotated[Bigint, "number of the appended run"]


GENERATION_PARTITIONS: Final = TypedTable(
    "MSmerge_generation_partition_mappings", Plane.DATA, GenerationPartition
)

MAPPINGS: Final[tuple[SystemTable, ...]] = (CURRENT, PAST, GENERATION_PARTITIONS)
"""The appended ones: a run of contents and tombstones has its rows here too."""
