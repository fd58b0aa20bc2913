"""MSmerge_genhistory: one row per generation a replica knows (merge_replication.md 1.1)."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from typing import Final

from mergerepl.systables.table import Plane, TypedTable, columns

NAME: Final = "MSmerge_genhistory"


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

    guidsrc: str
    pubid: str
    generation: int
    art_nick: int
    nicknames: tuple[int, ...]
    coldate: datetime | None = None
    genstatus: int
    changecount: int

    @property
    def is_open(self) -> bool:
        """True while it collects changes; it is never sent then."""
        return self.genstatus == GenStatus.OPEN

    def closed(self) -> "Generation":
        """Return the generation closed: later changes join another one."""
        return replace(self, genstatus=GenStatus.CLOSED) if self.is_open else self


TABLE: Final = TypedTable(
    NAME,
    Plane.CONTROL,
    columns(
        """
        guidsrc | string not null | the generation's identity, the same at every replica that holds it
        pubid | string not null | publication
        generation | bigint not null | local number; differs from replica to replica
        art_nick | int not null | the one article the generation belongs to
        nicknames | array<int> not null | replicas that hold it, or will when the session that notes it is finished
        coldate | timestamp | when it came to be here
        genstatus | int not null | 0 open, 1 closed, 2 closed and from elsewhere
        changecount | bigint not null | changes in it when it was last added to
        """
    ),
    Generation,
)
