"""An intent: the decided writes, as a file in the transaction's folder. Once it is there, it is always carried out."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from mergerepl.compact.counters import decide, intent_text
from mergerepl.compact.staged_files import Bounds, Counts


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
    """Of an adopted commit, its table."""


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
    """The version of the table that was read: later commits are not known yet."""
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
    """Tracked table to the version up to which it was looked at: the snapshot, but for the tables written."""
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


def write_intent(folder: Path, intent: Intent) -> None:
    """Decide: make the intent durable, in place of an earlier one of the same folder.

    Raises: TransactionConflictError if the transaction was aborted.
    """
    stated = {**asdict(intent), "time": intent.time.isoformat()}
    decide(folder, json.dumps(stated))


def read_intent(folder: Path) -> Intent:
    """Return the intent of a folder that has one."""
    stated = json.loads(intent_text(folder))
    writes = tuple(
        Write(
            **{
                **each,
                "counts": Counts(**each["counts"]),
                "bounds": {k: tuple(v) for k, v in each["bounds"].items()},
            }
        )
        for each in stated["writes"]
    )
    transactions = tuple(
        Planned(**{**each, "tables": tuple(each["tables"])}) for each in stated["transactions"]
    )
    time = datetime.fromisoformat(stated["time"])
    return Intent(time, transactions, writes, stated["versions"], stated["overwritten"])
