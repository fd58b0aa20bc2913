"""An intent: the decided writes, as a file in the transaction's folder. Once it exists, it is always carried out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from mergerepl.store.location import Location
from mergerepl.store.redo import RedoLog

Bounds = Mapping[str, tuple[str, str]]
"""Staged key column to its lowest and highest value, as text."""


@dataclass(frozen=True)
class Counts:
    """Rows of a staged folder by operation."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    reborn: int = 0

    @property
    def changes(self) -> int:
        """Return the number of changed keys."""
        return self.inserts + self.updates + self.deletes


@dataclass(frozen=True)
class Planned:
    """A transaction that will be published."""

    bsn: int
    csn: int
    nonce: str
    context: str | None
    changes: Mapping[str, int]
    foreign_version: int | None = None
    tables: tuple[str, ...] = ()
    """The table of an adopted commit."""


@dataclass(frozen=True)
class Write:
    """One commit to a user's table: the net changes of a transaction, or the stamps of adopted rows."""

    table: str
    csn: int
    folder: str
    """Below the transaction's folder: staged rows."""
    schema: Any
    """Their schema, as Spark's JSON."""
    options: int
    from_version: int
    """The version of the table that was read; later commits are unknown."""
    counts: Counts
    """In an adoption: only rows to stamp, as updates."""
    bounds: Bounds = field(default_factory=dict)
    adopts: bool = False
    """Whether it only stamps rows that foreign commits wrote."""


@dataclass(frozen=True)
class Intent:
    """The transactions that are published together, in CSN order, and their writes."""

    time: datetime
    transactions: tuple[Planned, ...]
    writes: tuple[Write, ...]
    versions: Mapping[str, int]
    """Tracked table to the version up to which its log was read: the snapshot, but for the tables written."""
    overwritten: Mapping[str, int] = field(default_factory=dict)

    @property
    def last_csn(self) -> int:
        """The highest CSN."""
        return self.transactions[-1].csn

    def tables_of(self, csn: int) -> tuple[str, ...]:
        """Return the tables that a transaction writes."""
        return tuple(write.table for write in self.writes if write.csn == csn)

    def extended(self, other: "Intent") -> "Intent":
        """Return the intent joined with another one, published together."""
        return replace(
            self,
            transactions=(*self.transactions, *other.transactions),
            writes=(*self.writes, *other.writes),
            overwritten={**self.overwritten, **other.overwritten},
        )


def redo_log(folder: Location) -> RedoLog[Intent]:
    """Return the redo log of a transaction, in its folder."""
    return RedoLog(folder, Intent, "tracking", "intent", "The transaction", owns_folder=True)


def read_intent(folder: Location) -> Intent:
    """Return the intent of a folder that has one."""
    intent = redo_log(folder).pending()
    assert intent is not None
    return intent
