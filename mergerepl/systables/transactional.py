"""The tables of transactional replication: the original's distribution database (transactional.md 2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from mergerepl.systables.cdc import COMMITS_TYPE
from mergerepl.systables.table import Plane, SystemTable, TypedTable, columns

FOLDER: Final = "_transactional"
"""The folder below a root that holds these tables: the distributor's, and at a subscriber its position."""

APP_ID: Final = "mergerepl-distribution"
"""The Delta transaction application of commands and of the gate; versions are scan cycles."""

PAUSES_APP_ID: Final = "mergerepl-paused"
"""The Delta transaction application of notes on paused sources; versions are scan cycles."""

CONSUMER: Final = "transactional"
"""The name under which the log reader serves publications."""

SCHEMA_VERSION: Final = 2

ACTIVE, SUBSCRIBED, INACTIVE = 2, 1, 0
"""Values of `MSsubscriptions.status`."""

SYNC_AUTOMATIC, SYNC_NONE = 1, 2
"""Values of `MSsubscriptions.sync_type`."""


@dataclass(frozen=True, kw_only=True)
class PublicationRow:
    """A row of `MSpublications`."""

    publisher_database_id: int = 1
    publication_id: int
    publication: str
    retention: int = 336
    publisher_root: str
    min_distretention: int = 0
    max_distretention: int = 72
    replicate_ddl: bool = True
    status: int = 1
    removed_through: bytes = bytes(10)
    schema_version: int = SCHEMA_VERSION


PUBLICATIONS: Final = TypedTable(
    "MSpublications",
    Plane.CONTROL,
    columns(
        """
        publisher_database_id | int | always 1: the publisher's root is the distributor
        publication_id | int not null | number of the publication
        publication | string not null | its name
        retention | int | hours after which a subscription that was not served expires; stored only
        publisher_root | string not null | folder of the publisher
        min_distretention | int | hours that delivered commands are kept at least
        max_distretention | int | hours that commands are kept at most
        replicate_ddl | boolean | whether added columns are carried over
        status | int | always 1, active
        removed_through | binary not null | last transaction of the publication that cleanup removed
        schema_version | int | version of these tables
        """
    ),
    PublicationRow,
)


@dataclass(frozen=True, kw_only=True)
class ArticleRow:
    """A row of `MSarticles`: an article in one shape."""

    publication_id: int
    article_id: int
    article: str
    source_object: str
    destination_object: str
    ins_cmd: str
    upd_cmd: str
    del_cmd: str
    filter_clause: str | None = None
    pre_creation_cmd: int = 0
    key_columns: tuple[str, ...]
    columns: tuple[str, ...]
    types: tuple[str, ...]
    schema_version: int = 1
    text_columns: tuple[str, ...] = ()
    source_object_id: int
    first_seqno: bytes
    has_all_columns: bool = True
    singleton_key_updates: bool = True
    schema_text: str | None = None
    is_additive: bool = True


ARTICLES: Final = TypedTable(
    "MSarticles",
    Plane.CONTROL,
    columns(
        """
        publication_id | int not null | number of the publication
        article_id | int not null | number of the article
        article | string not null | its name
        source_object | string not null | path of the table below the publisher
        destination_object | string not null | path of the table below a subscriber, unless its subscription says another
        ins_cmd | string not null | how inserts are sent: a command type
        upd_cmd | string not null | how updates are sent
        del_cmd | string not null | how deletes are sent
        filter_clause | string | static row filter; NULL is all rows
        pre_creation_cmd | int | always 0: a table that is there is refused
        key_columns | array<string> not null | the primary key
        columns | array<string> not null | c1 to cn
        types | array<string> not null | their types, as Spark DDL
        schema_version | int not null | number of this shape of the article, from 1
        text_columns | array<string> | columns whose old values XCALL does not send
        source_object_id | int not null | number of the source in log_reader
        first_seqno | binary not null | LSN from which on this shape holds
        has_all_columns | boolean | whether new columns of the source belong to the article
        singleton_key_updates | boolean | whether a single changed key is sent as an update
        schema_text | string | what changed the columns
        is_additive | boolean | whether the change only added columns
        """
    ),
    ArticleRow,
)


@dataclass(frozen=True, kw_only=True)
class SubscriptionRow:
    """A row of `MSsubscriptions`."""

    publication_id: int
    agent_id: int
    subscriber: str
    subscription_type: int = 0
    sync_type: int = 1
    status: int = SUBSCRIBED
    update_mode: int = 0
    snapshot_seqno: bytes | None = None
    last_xact_seqno: bytes | None = None
    skip_errors: tuple[str, ...] = ()
    subscription_streams: int = 1
    destination: Mapping[str, str] = field(default_factory=dict)
    subscription_guid: str
    is_equal: bool = True


SUBSCRIPTIONS: Final = TypedTable(
    "MSsubscriptions",
    Plane.CONTROL,
    columns(
        """
        publication_id | int not null | number of the publication
        agent_id | int not null | number of the distribution agent
        subscriber | string not null | folder of the subscriber
        subscription_type | int | always 0, push
        sync_type | int | 1 automatic, 2 none: the rows were there
        status | int | 0 inactive, 1 subscribed, 2 active
        update_mode | int | always 0, read-only
        snapshot_seqno | binary | LSN of the snapshot
        last_xact_seqno | binary | last transaction that is known to have been applied; may lag
        skip_errors | array<string> | numbers of errors that are skipped
        subscription_streams | int | articles of a batch that are worked on at a time
        destination | map<string,string> | article to its table below the subscriber, where it is another path
        subscription_guid | string not null | identity of the subscription
        is_equal | boolean | false if rows were not compared, commands skipped or others wrote, until a validation is equal
        """
    ),
    SubscriptionRow,
)


@dataclass(frozen=True, kw_only=True)
class TransactionRow:
    """A row of `MSrepl_transactions`."""

    publisher_database_id: int = 1
    xact_id: bytes
    xact_seqno: bytes
    entry_time: datetime
    scan_cycle: int
    commit_time: datetime
    kind: str
    commands: Mapping[int, int] = field(default_factory=dict)
    commits: tuple[Mapping[str, Any], ...] = ()
    schema_text: str | None = None


TRANSACTIONS: Final = TypedTable(
    "MSrepl_transactions",
    Plane.HISTORY,
    columns(
        f"""
        publisher_database_id | int | always 1
        xact_id | binary not null | number of the source (4 bytes) and version (6)
        xact_seqno | binary not null | LSN of the transaction
        entry_time | timestamp not null | when the log reader wrote it
        scan_cycle | bigint not null | scan cycle: the first 8 bytes of the LSN
        commit_time | timestamp not null | tran_end_time of the LSN
        kind | string not null | transaction, schema (columns of an article changed), dummy (a cycle without commands)
        commands | map<int,bigint> | article to number of commands
        commits | {COMMITS_TYPE} | the commits of the transaction
        schema_text | string | what changed the columns
        """
    ),
    TransactionRow,
)


@dataclass(frozen=True, kw_only=True)
class ErrorRow:
    """A row of `MSrepl_errors`."""

    time: datetime
    error_code: int | None = None
    error_text: str
    xact_seqno: bytes | None = None
    command_id: int | None = None
    subscription_guid: str
    article_id: int | None = None
    is_skipped: bool = False
    batch: int | None = None


ERRORS: Final = TypedTable(
    "MSrepl_errors",
    Plane.HISTORY,
    columns(
        """
        time | timestamp not null | when the agent met it
        error_code | int | number in the original, such as 20598; NULL where the original has none
        error_text | string | the message; of a command that was skipped: which row, by its key
        xact_seqno | binary | the transaction; NULL if the agent did not stop at one
        command_id | bigint | the command; NULL if the agent did not stop at one
        subscription_guid | string not null | the subscription; empty for the log reader
        article_id | int | the article; NULL if it is not one article's
        is_skipped | boolean not null | whether the agent went on
        batch | bigint | number of the batch that skipped it
        """
    ),
    ErrorRow,
)


LOG_READER_AGENT: Final = 0
"""The `agent_id` of the log reader. Those of distribution agents begin with 1."""

SUCCEEDED, FAILED = 2, 6
"""Values of `MSdistribution_history.runstatus`."""


@dataclass(frozen=True, kw_only=True)
class StopRow:
    """A row of `MSstopped_agents`."""

    agent_id: int
    time: datetime
    error_code: int | None = None
    error_text: str
    is_transient: bool = False


STOPS: Final = TypedTable(
    "MSstopped_agents",
    Plane.CONTROL,
    columns(
        """
        agent_id | int not null | number of the distribution agent; 0 for the log reader
        time | timestamp not null | when it stopped first
        error_code | int | number in the original, such as 20598; NULL where the original has none
        error_text | string not null | why
        is_transient | boolean not null | whether the next run may well work without a change
        """
    ),
    StopRow,
)


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """A row of `MSdistribution_history`."""

    agent_id: int
    time: datetime
    runstatus: int = SUCCEEDED
    comments: str = ""
    xact_seqno: bytes
    delivered_transactions: int = 0
    delivered_commands: int = 0
    delivery_latency: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    skipped: int = 0
    duration: float = 0.0


HISTORY: Final = TypedTable(
    "MSdistribution_history",
    Plane.HISTORY,
    columns(
        """
        agent_id | int not null | number of the distribution agent; 0 for the log reader
        time | timestamp not null | when the batch was applied, or the agent stopped
        runstatus | int | 2 succeeded, 6 stopped
        comments | string | what happened
        xact_seqno | binary not null | last transaction of the batch
        delivered_transactions | int not null | transactions of the batch
        delivered_commands | int not null | commands of the batch
        delivery_latency | int | milliseconds from the last commit to now
        inserts | int | rows that were inserted
        updates | int | rows that were updated
        deletes | int | rows that were deleted
        skipped | int | commands that were skipped
        duration | double | seconds that the batch took
        """
    ),
    HistoryRow,
)


@dataclass(frozen=True, kw_only=True)
class PositionRow:
    """A row of `MSreplication_subscriptions`, at the subscriber."""

    publisher: str
    publication: str
    subscription_guid: str
    time: datetime
    transaction_timestamp: bytes
    batch: int = 0
    table_versions: Mapping[str, int] = field(default_factory=dict)
    left_at: Mapping[str, str] = field(default_factory=dict)
    by_procedure: tuple[str, ...] = ()


POSITIONS: Final = TypedTable(
    "MSreplication_subscriptions",
    Plane.CONTROL,
    columns(
        """
        publisher | string not null | folder of the publisher
        publication | string not null | name of the publication
        subscription_guid | string not null | identity of the subscription
        time | timestamp not null | when the last batch was applied
        transaction_timestamp | binary not null | last transaction that was applied
        batch | bigint not null | number of the last batch
        table_versions | map<string,bigint> | article to the version of its table after the last batch
        left_at | map<string,string> | article to the commit that the last batch or equal validation left its table at
        by_procedure | array<string> | article_id:operation whose rows a procedure made without `call.default()`
        """
    ),
    PositionRow,
)

COMMANDS: Final = SystemTable(
    "MSrepl_commands_<article_id>_<schema_version>",
    Plane.DATA,
    columns(
        """
        xact_seqno | binary | LSN of the transaction
        command_id | bigint | phase (0 delete, 1 update, 2 insert) * 2^60 + 60 bits of a hash of the key
        article_id | int | number of the article
        hashkey | int | 31 bits of the same hash
        operation | string | ins, upd, del
        key_change | boolean | whether an update changes the key
        old | struct<c1,…> | the old row; NULL where the method does not send it
        new | struct<c1,…> | the new row; NULL where the method does not send it, columns that SCALL does not send are NULL
        pk | struct<pkc1,…> | the old key; NULL where the method does not send it
        bitmap | binary | which columns changed; SCALL and MCALL only
        scan_cycle | bigint | scan cycle: the first 8 bytes of the LSN
        """
    ),
)

AT_DISTRIBUTOR: Final[tuple[TypedTable[Any], ...]] = (
    ARTICLES,
    SUBSCRIPTIONS,
    TRANSACTIONS,
    ERRORS,
    HISTORY,
    STOPS,
    PUBLICATIONS,
)
"""In the order in which they are made: the last one says that there is a distributor."""

ALL: Final[tuple[SystemTable, ...]] = (*AT_DISTRIBUTOR, COMMANDS, POSITIONS)


def commands_table(article_id: int, schema_version: int) -> str:
    """Return the name of the table of an article's commands."""
    return f"MSrepl_commands_{article_id}_{schema_version}"
