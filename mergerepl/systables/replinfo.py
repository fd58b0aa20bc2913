"""MSmerge_replinfo: one row, who this replica is and how far its own bookkeeping is.

Everything here moves in one commit. `captured` and `last_seq` together are the commit point of a capture and of
an apply: a run of MSmerge_contents or MSmerge_tombstone with a higher `seq` is the leftover of a crash.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mergerepl.systables.table import Plane, TypedTable, columns

NAME: Final = "MSmerge_replinfo"

SCHEMA_VERSION: Final = 2
"""Version of the whole set of system tables; migrations lead from one to the next."""


@dataclass(frozen=True, kw_only=True)
class ReplicaInfo:
    """The one row of MSmerge_replinfo."""

    repid: str
    replnickname: int
    root: str
    schema_version: int = SCHEMA_VERSION
    last_seq: int = 0
    last_generation: int = 0
    captured: Mapping[int, int] = field(default_factory=dict)
    table_ids: Mapping[int, str] = field(default_factory=dict)
    session_number: int = 0
    captured_commits: Mapping[int, str] = field(default_factory=dict)

    @property
    def replid(self) -> str:
        """The replica's identity by the name that it has in the other tables."""
        return self.repid

    @property
    def nickname(self) -> int:
        """The replica's nickname, by which lineages name it."""
        return self.replnickname


TABLE: Final = TypedTable(
    NAME,
    Plane.CONTROL,
    columns(
        """
        repid | string not null | identity of this replica
        replnickname | int not null | short id, unique among the replicas that know each other
        root | string not null | where the replica was when it was last written: it distinguishes a copy from the original
        schema_version | int not null | version of the set of system tables
        last_seq | bigint not null | the last committed run of contents and tombstone
        last_generation | bigint not null | the last generation number given out
        captured | map<int,bigint> | tablenick -> table version up to which the feed is captured
        table_ids | map<int,string> | tablenick -> Delta table id, to notice a re-created table
        session_number | bigint | number of the last session staged here; the txnVersion of its writes follows it
        captured_commits | map<int,string> | tablenick -> captured version and hash of its log file, to notice an older copy
        """
    ),
    ReplicaInfo,
)
