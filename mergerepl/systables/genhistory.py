"""MSmerge_genhistory: the generations a replica knows (merge_replication.md 1.1).

On disk the table is append-only, as contents are: a generation that changes is appended again. Among the rows of one
guid the one with the highest `seq` counts; one beyond `last_seq` of MSmerge_replinfo is the leftover of a crash. So a
session reads and writes only new rows (docs/decisions/0012).
"""

import secrets
import time
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from typing import Annotated, Final
from uuid import UUID

from mergerepl.model.columns import NOT_NULL, Bigint
from mergerepl.systables.table import Plane, TypedTable

NAME: Final = "MSmerge_genhistory"

ASKED_AGAIN: Final = "again:"
"""Prefix of `refused_by` if the user lets the next session resend a generation."""


def new_guid() -> str:
    """Return a guid that rises with time (version 7), so that a file's bounds show which guids it may hold."""
    moment = time.time_ns() // 1_000_000
    bits = (moment << 80) | (7 << 76) | (secrets.randbits(12) << 64) | (2 << 62) | secrets.randbits(62)
    return str(UUID(int=bits))


class GenStatus(IntEnum):
    """MSmerge_genhistory.genstatus."""

    OPEN = 0
    """Local and still collecting changes; never sent."""
    CLOSED = 1
    """Closed, made here."""
    CLOSED_ELSEWHERE = 2
    """Closed, made at another replica and applied here."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A row of MSmerge_genhistory: one article's changes that travel together."""

    guidsrc: Annotated[str, "the generation's identity, the same at every replica that holds it"]
    pubid: Annotated[str, "publication"]
    generation: Annotated[Bigint, "local number; differs from replica to replica"]
    art_nick: Annotated[int, "the one article the generation belongs to"]
    nicknames: Annotated[
        tuple[int, ...], "replicas that held it when this one made or received it, and this one"
    ]
    coldate: Annotated[datetime | None, "when it was made or received here"] = None
    genstatus: Annotated[int, "0 open, 1 closed, 2 closed and from elsewhere"]
    changecount: Annotated[Bigint, "changes in it when it was last added to"]
    waits_for: Annotated[
        str | None,
        "replica id of the only one that it is for: its table refuses these rows, which wait here; "
        "NULL: it is for all",
    ] = None
    refused_by: Annotated[
        str | None,
        "hash of that table's rules for rows then: the rows are sent again when it has changed; "
        "with `again:` before it once `conflicts retry` was run",
    ] = None
    seq: Annotated[Bigint, NOT_NULL, "number of the appended run; the highest one of a guid counts"] = 0
    maxversion: Annotated[
        Bigint | None, "no version of its rows is higher; NULL: unknown, higher than every known one"
    ] = None

    def is_for(self, replid: str) -> bool:
        """True unless it holds changes that wait for another replica."""
        return self.waits_for in (None, replid)

    @property
    def was_refused_by(self) -> str | None:
        """The `row_constraints` of the table that refused its rows, also if they are to be resent."""
        return None if self.refused_by is None else self.refused_by.removeprefix(ASKED_AGAIN)

    @property
    def is_open(self) -> bool:
        """True while it collects changes; an open generation is never sent."""
        return self.genstatus == GenStatus.OPEN

    def closed(self) -> "Generation":
        """Return the generation closed: later changes join another one."""
        return replace(self, genstatus=GenStatus.CLOSED) if self.is_open else self


TABLE: Final = TypedTable(NAME, Plane.HISTORY, Generation)
