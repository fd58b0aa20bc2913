"""The reports of the agents of transactional publications: commands, deliveries, and their states."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from mergerepl.model.relation import Relation


@dataclass(frozen=True)
class LogReaderResult:
    """The outcome of the log reader: transactions and commands now at the distributor, its last LSN (`0x…`)."""

    cycles: int = 0
    transactions: int = 0
    commands: int = 0
    last_lsn: str | None = None
    paused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A command: its transaction (`0x…`), its number, its article, its text (`{CALL [sp_MSdel_dboorders] (7)}`)."""

    xact_seqno: str
    command_id: int
    article: str
    operation: str
    command: str


@dataclass(frozen=True)
class SkippedTransaction:
    """A transaction left out at one subscription. `commands`: article to number of commands.

    `is_done` is False for a dry run, and if the transaction had been skipped before.
    """

    publication: str
    subscriber: str
    xact_seqno: str
    commands: Mapping[str, int] = field(default_factory=dict)
    is_done: bool = True


@dataclass(frozen=True)
class QueueResult:
    """The edits of one subscription that writes which the publisher took, and those that lost (`conflicts`)."""

    publication: str
    subscriber: str
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    conflicts: int = 0


@dataclass(frozen=True)
class DistributionResult:
    """The outcome of the distribution agent for one subscription. `latency_s`: from the last commit to its arrival."""

    publication: str
    subscriber: str
    transactions: int = 0
    commands: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    skipped: int = 0
    batches: int = 0
    latency_s: float | None = None
    xact_seqno: str | None = None


@dataclass(frozen=True)
class ArticleState:
    """An article of a publication: its table, and how its commands are sent."""

    publication: str
    article: str
    table: str
    columns: tuple[str, ...]
    filter: str | None
    ins_cmd: str
    upd_cmd: str
    del_cmd: str
    schema_version: int


@dataclass(frozen=True, kw_only=True)
class DeliveryState(Relation):
    """The progress of a transactional subscription: the last transaction it has, since when its agent is stopped.

    `download` counts the commands that wait, `transactions_waiting` their transactions.
    """

    xact_seqno: str
    transactions_waiting: int
    is_known_to_be_equal: bool
    stopped_since: datetime | None


@dataclass(frozen=True)
class DistributorStatus:
    """The publications of a folder, by article and by subscription."""

    root: str
    articles: tuple[ArticleState, ...]
    subscriptions: tuple[DeliveryState, ...]


@dataclass(frozen=True)
class Batch:
    """A batch that an agent delivered, or why it stopped; `subscriber` may be `log reader`."""

    subscriber: str
    time: datetime
    status: str
    transactions: int
    commands: int
    inserts: int
    updates: int
    deletes: int
    skipped: int
    seconds: float
    latency_ms: int
    xact_seqno: str
    comments: str | None


@dataclass(frozen=True)
class AgentError:
    """Why an agent stopped, or a command that was skipped; None where it did not stop at a command."""

    time: datetime
    number: int | None
    text: str
    xact_seqno: str | None
    command_id: int | None
    subscriber: str
    skipped: bool
