"""The partition tables of a publisher with row filters (merge_replication.md 1.2); at a subscriber they stay empty.

MSmerge_partition_groups says which partitions there are. The three others are append-only runs, as contents are. Each run
that changes a row, or its membership, writes for that row one mapping row for *every* partition that it was or is in:
*enter* and *stay* in MSmerge_current_partition_mappings, *leave* in MSmerge_past_partition_mappings. Of all rows of one
(tablenick, rowguid, partition_id) in both tables the one with the highest `seq` counts: a leave supersedes the current
mapping, an enter the past one. (docs/decisions/0013)
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mergerepl.systables.table import Plane, SystemTable, TypedTable, columns

EVERYBODY: Final = -1
"""partition_id of what every subscriber has: the rows that a static filter selects."""

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
    """A row changed that it follows through a join filter."""


class PartitionStatus(IntEnum):
    """MSmerge_partition_groups.status."""

    ACTIVE = 1
    DROPPED = 2


@dataclass(frozen=True, kw_only=True)
class PartitionGroup:
    """A row of MSmerge_partition_groups: one combination of the values of a publication's functions."""

    partition_id: int
    publication_number: int
    maxgen_whenadded: int
    using_partition_groups: int = 1
    HOST_NAME_FN: str | None = None
    SUSER_SNAME_FN: str | None = None
    status: int = PartitionStatus.ACTIVE
    is_explicit: int = 0

    @property
    def is_active(self) -> bool:
        """Whether memberships are computed for it."""
        return self.status == PartitionStatus.ACTIVE


PARTITION_GROUPS: Final = TypedTable(
    "MSmerge_partition_groups",
    Plane.CONTROL,
    columns(
        """
        partition_id | int not null | identity of the partition; never used again
        publication_number | int not null | publication (sysmergepublications.publication_number)
        maxgen_whenadded | bigint not null | the publisher's last generation when the partition was added
        using_partition_groups | int not null | 1: its mappings are computed when rows change
        HOST_NAME_FN | string | value of HOST_NAME(); NULL where the publication does not use it
        SUSER_SNAME_FN | string | value of SUSER_SNAME(); NULL where the publication does not use it
        status | int not null | 1 active, 2 dropped
        is_explicit | int not null | 1: added by `mergerepl partition add`, 0: by its first subscription
        """
    ),
    PartitionGroup,
)

CURRENT: Final = SystemTable(
    "MSmerge_current_partition_mappings",
    Plane.DATA,
    columns(
        """
        publication_number | int | publication
        tablenick | int | article nickname
        rowguid | string | row identity
        partition_id | int | partition that the row is in; -1: everybody
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
        partition_id | int | partition that the row left; -1: everybody
        generation | bigint | generation in which it left, at the publisher
        reason | int | 1 deleted, 2 its own columns changed, 3 a row that it follows changed
        seq | bigint | number of the appended run; the highest one of a row and a partition counts
        """
    ),
)


@dataclass(frozen=True, kw_only=True)
class GenerationPartition:
    """A row of MSmerge_generation_partition_mappings: a generation has changes for a partition."""

    publication_number: int
    generation: int
    partition_id: int
    changecount: int
    first_seq: int
    seq: int


GENERATION_PARTITIONS: Final = TypedTable(
    "MSmerge_generation_partition_mappings",
    Plane.DATA,
    columns(
        """
        publication_number | int not null | publication
        generation | bigint not null | generation at the publisher
        partition_id | int not null | partition for which the generation has changes; -1: everybody
        changecount | bigint not null | so many; several rows of one pair are summed
        first_seq | bigint not null | the first run with such a change
        seq | bigint not null | number of the appended run
        """
    ),
    GenerationPartition,
)

MAPPINGS: Final[tuple[SystemTable, ...]] = (CURRENT, PAST, GENERATION_PARTITIONS)
"""The appended ones: a run of contents and tombstones has its rows here too."""
