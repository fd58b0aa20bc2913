"""The nouns of Compact change tracking: tables, transactions, numbers, and the result of `tracking status`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from mergerepl.model.columns import NOT_NULL, Bigint
from mergerepl.model.listing import HtmlResult
from mergerepl.model.tracking_options import Foreign, TrackingKeyType, TrackingOptions


@dataclass(frozen=True)
class TrackedTable:
    """A tracked table, as in `__sysOCSTrackedObjects`."""

    name: str
    options: TrackingOptions
    """1 insert, 2 update, 4 delete, added up."""
    key_type: TrackingKeyType
    """1 key columns, 2 a GUID column."""
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    """The types of the key's columns (Spark DDL), which determine the packing of their values; `guid` for a GUID column."""
    table_id: str
    enabled_version: int
    """The version of the table from which on changes are tracked."""
    foreign: Foreign
    enabled_at: datetime
    enabled_csn: int | None
    """CSN of the transaction that enabling took; None if the database had neither numbers nor consumers."""


@dataclass(frozen=True)
class CommittedTransaction:
    """A row of `tracking_commits`: a published transaction."""

    csn: Annotated[Bigint, "commit sequence number"]
    bsn: Annotated[Bigint, "begin sequence number"]
    commit_time: Annotated[datetime, "when it committed"]
    nonce: Annotated[str, "distinguishes this transaction from another one under the same number"]
    tracking_context: Annotated[str | None, "context of its changes; NULL for none or several"] = None
    versions: Annotated[Mapping[str, Bigint], "table to its version after the transaction"] = field(
        default_factory=dict
    )
    foreign_version: Annotated[Bigint | None, "version of the foreign commit that was adopted"] = None
    changes: Annotated[Mapping[str, Bigint], "table to the rows that were changed"] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class TransactionResult(HtmlResult):
    """The outcome of a commit."""

    bsn: int
    csn: int
    changes: Mapping[str, int]
    """Table name to the number of rows inserted, updated or deleted."""
    overwritten: Mapping[str, int] = field(default_factory=dict)
    """Table name to the number of rows that a foreign commit changed while this one overwrote them."""


@dataclass(frozen=True)
class Anchors:
    """The bounds of an enumeration. A window holds the transactions with lcsn <= CSN < ecsn."""

    lbsn: int
    lcsn: int
    ebsn: int
    ecsn: int


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that has begun but not ended."""

    bsn: int
    since: datetime
    owner: str
    """Process and host."""
    state: str
    """open, committing, aborted or dead."""


@dataclass(frozen=True)
class ConsumerState:
    """A registered consumer."""

    name: Annotated[str, "name of the consumer"]
    lbsn: Annotated[Bigint, NOT_NULL, "EBSN of the last acknowledged window"] = 0
    lcsn: Annotated[Bigint, NOT_NULL, "ECSN of the last acknowledged window"] = 0
    nonce: Annotated[str | None, "nonce of the last transaction below lcsn"] = None
    received_anchor: Annotated[bytes | None, "anchor of the consumer's own, as it gave it"] = None
    last_time: Annotated[datetime | None, "when it last acknowledged a window"] = None


@dataclass(frozen=True)
class ForeignCommit:
    """A commit to a tracked table that is not adopted yet."""

    table: str
    version: int
    operation: str
    writer: str


@dataclass(frozen=True)
class TrackingStatus(HtmlResult):
    """The result of `mergerepl status`."""

    path: str
    database_id: str
    last_bsn: int
    last_csn: int
    last_committed_csn: int
    tables: tuple[TrackedTable, ...]
    open_transactions: tuple[OpenTransaction, ...]
    consumers: tuple[ConsumerState, ...]
    foreign_commits: tuple[ForeignCommit, ...]
    purged_through: Mapping[str, int]
    """Table name, or `__sysTxCommitSequence`, to the lowest LCSN that is still served exactly."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Table name to the reason why it cannot be read further; the other tables go on."""


@dataclass(frozen=True)
class Purged(HtmlResult):
    """The rows that a purge removed, and those that the slowest consumer held back."""

    target: str
    removed: int
    held_back: int
    bound_csn: int | None
    """The lowest LCSN of all consumers; None without consumers."""
    dry_run: bool = False


@dataclass(frozen=True)
class EnumerationQueries:
    """The queries that enumerate the changes of a table: exact ones, and those that SQL Server Compact's pages print."""

    exact: str
    documented_inserts: str
    documented_updates: str
    documented_deletes: str
