"""MSmerge_replinfo: one row with this replica's identity and the progress of its own bookkeeping.

Every update is one commit. `captured` and `last_seq` together are the commit point of a capture and of an apply: a run
of MSmerge_contents or MSmerge_tombstone with a higher `seq` is the leftover of a crash.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

from mergerepl.model.columns import NOT_NULL, Bigint
from mergerepl.systables.table import Plane, TypedTable

NAME: Final = "MSmerge_replinfo"

SCHEMA_VERSION: Final = 4
"""Version of the whole set of system tables; migrations lead from one to the next."""

FIRST_CLOCK: Final = 1
"""The clock of a new publisher: its rows have the lineage {0: 1}."""


@dataclass(frozen=True, kw_only=True)
class ReplicaInfo:
    """The one row of MSmerge_replinfo."""

    repid: Annotated[str, "identity of this replica"]
    replnickname: Annotated[int, "short id, unique among the replicas that know each other"]
    root: Annotated[str, "where the replica was when it was last written: a copy is elsewhere"]
    schema_version: Annotated[int, NOT_NULL, "version of the set of system tables"] = SCHEMA_VERSION
    last_seq: Annotated[Bigint, NOT_NULL, "the last committed run of contents and tombstone"] = 0
    last_generation: Annotated[Bigint, NOT_NULL, "the last generation number given out"] = 0
    captured: Annotated[
        Mapping[int, Bigint], "tablenick -> table version up to which the feed is captured"
    ] = field(default_factory=dict)
    table_ids: Annotated[Mapping[int, str], "tablenick -> Delta table id, to notice a re-created table"] = (
        field(default_factory=dict)
    )
    session_number: Annotated[
        Bigint, "number of the last session staged here: the txnVersion of its writes"
    ] = 0
    captured_commits: Annotated[
        Mapping[int, str], "tablenick -> captured version and hash of its log file, to notice an older copy"
    ] = field(default_factory=dict)
    clock: Annotated[Bigint, NOT_NULL, "no version that is known here is higher; each new one is"] = (
        FIRST_CLOCK
    )
    cleaned: Annotated[
        Mapping[int, Bigint], "tablenick -> generation up to which metadata of rows was cleaned up"
    ] = field(default_factory=dict)
    last_time: Annotated[datetime | None, "the latest time at which it was written"] = None
    article_versions: Annotated[
        Mapping[int, int], "tablenick -> version of the article's columns here; 1 where it is missing"
    ] = field(default_factory=dict)

    @property
    def replid(self) -> str:
        """The replica's identity, under its name in the other tables."""
        return self.repid

    @property
    def nickname(self) -> int:
        """The replica's nickname in lineages."""
        return self.replnickname


TABLE: Final = TypedTable(NAME, Plane.CONTROL, ReplicaInfo)
