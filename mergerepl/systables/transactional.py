"""The tables of transactional replication: the original's distribution database (transactional.md 2)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final

from mergerepl.model.columns import NOT_NULL, Bigint
from mergerepl.model.publication import DEFAULT_CONFLICT_RETENTION
from mergerepl.roots import TRANSACTIONAL_FOLDER
from mergerepl.systables.cdc import Commits
from mergerepl.systables.table import Plane, SystemTable, TypedTable, columns

FOLDER: Final = TRANSACTIONAL_FOLDER
"""The folder below a root that holds these tables: the distributor's, and at a subscriber its position."""

APP_ID: Final = "mergerepl-distribution"
"""The Delta transaction application of commands and of the gate; versions are scan cycles."""

PAUSES_APP_ID: Final = "mergerepl-paused"
"""The Delta transaction application of notes on paused sources; versions are scan cycles."""

CONSUMER: Final = "transactional"
"""The log reader's consumer name for publications."""

SCHEMA_VERSION: Final = 3

WRITE_WAIT_S: Final = 60.0
"""How long a write to these tables waits for another process."""

OLDEST_TRANSACTION: Final = "order by xact_seqno asc limit 1"
NEWEST_TRANSACTION: Final = "order by xact_seqno desc limit 1"
"""Chooses the transaction from whose time ages count."""

ACTIVE, SUBSCRIBED, INACTIVE = 2, 1, 0
"""Values of `MSsubscriptions.status`."""

SYNC_AUTOMATIC, SYNC_NONE = 1, 2
"""Values of `MSsubscriptions.sync_type`."""

READ_ONLY, QUEUED = 0, 2
"""Values of `MSsubscriptions.update_mode`."""


@dataclass(frozen=True, kw_only=True)
class PublicationRow:
    """A row of `MSpublications`."""

    publisher_database_id: Annotated[int, "always 1: the publisher's root is the distributor"] = 1
    publication_id: Annotated[int, "number of the publication"]
    publication: Annotated[str, "its name"]
    retention: Annotated[int, "hours after which a subscription not served expires; stored only"] = 336
    publisher_root: Annotated[str, "folder of the publisher"]
    min_distretention: Annotated[int, "hours that delivered commands are kept at least"] = 0
    max_distretention: Annotated[int, "hours that commands are kept at most"] = 72
    replicate_ddl: Annotated[bool, "whether added columns are carried over"] = True
    status: Annotated[int, "always 1, active"] = 1
    removed_through: Annotated[bytes, NOT_NULL, "last transaction that cleanup removed"] = bytes(10)
    schema_version: Annotated[int, "version of these tables"] = SCHEMA_VERSION
    conflict_retention: Annotated[int, "days that conflicts of queued edits are kept; 0: for ever"] = (
        DEFAULT_CONFLICT_RETENTION
    )


PUBLICATIONS: Final = TypedTable("MSpublications", Plane.CONTROL, PublicationRow)


@dataclass(frozen=True, kw_only=True)
class ArticleRow:
    """A row of `MSarticles`: an article in one shape."""

    publication_id: Annotated[int, "number of the publication"]
    article_id: Annotated[int, "number of the article"]
    article: Annotated[str, "its name"]
    source_object: Annotated[str, "path of the table below the publisher"]
    destination_object: Annotated[
        str, "path of the table below a subscriber, unless its subscription has another"
    ]
    ins_cmd: Annotated[str, "how inserts are sent: a command type"]
    upd_cmd: Annotated[str, "how updates are sent"]
    del_cmd: Annotated[str, "how deletes are sent"]
    filter_clause: Annotated[str | None, "static row filter; NULL is all rows"] = None
    pre_creation_cmd: Annotated[int, "always 0: a table that is there is refused"] = 0
    key_columns: Annotated[tuple[str, ...], "the primary key"]
    columns: Annotated[tuple[str, ...], "c1 to cn"]
    types: Annotated[tuple[str, ...], "their types, as Spark DDL"]
    schema_version: Annotated[int, NOT_NULL, "number of this shape of the article, from 1"] = 1
    text_columns: Annotated[tuple[str, ...], "columns whose old values XCALL does not send"] = ()
    source_object_id: Annotated[int, "number of the source in log_reader"]
    first_seqno: Annotated[bytes, "LSN from which on this shape holds"]
    has_all_columns: Annotated[bool, "whether new columns of the source belong to the article"] = True
    singleton_key_updates: Annotated[bool, "whether a single changed key is sent as an update"] = True
    schema_text: Annotated[str | None, "what changed the columns or methods"] = None
    former: Annotated[
        tuple[str, ...],
        "names of the columns in the shape before, empty for a new one; none in the first shape",
    ] = ()


ARTICLES: Final = TypedTable("MSarticles", Plane.CONTROL, ArticleRow)


@dataclass(frozen=True, kw_only=True)
class SubscriptionRow:
    """A row of `MSsubscriptions`."""

    publication_id: Annotated[int, "number of the publication"]
    agent_id: Annotated[int, "number of the distribution agent"]
    subscriber: Annotated[str, "folder of the subscriber"]
    subscription_type: Annotated[int, "always 0, push"] = 0
    sync_type: Annotated[int, "1 automatic, 2 none: the rows were there"] = 1
    status: Annotated[int, "0 inactive, 1 subscribed, 2 active"] = SUBSCRIBED
    update_mode: Annotated[int, "0 read-only, 2 queued updating: the subscriber writes"] = READ_ONLY
    snapshot_seqno: Annotated[bytes | None, "LSN of the snapshot"] = None
    last_xact_seqno: Annotated[bytes | None, "last transaction known to have been applied; may lag"] = None
    skip_errors: Annotated[tuple[str, ...], "numbers of errors that are skipped"] = ()
    subscription_streams: Annotated[int, "articles of a batch that are worked on at a time"] = 1
    destination: Annotated[
        Mapping[str, str], "article to its table below the subscriber, where it is another path"
    ] = field(default_factory=dict)
    subscription_guid: Annotated[str, "identity of the subscription"]
    is_equal: Annotated[bool, "false if rows were not compared, commands skipped or others wrote"] = True
    procedures: Annotated[
        Mapping[str, str], "procedure that an article calls to the one that this subscriber has in its place"
    ] = field(default_factory=dict)


SUBSCRIPTIONS: Final = TypedTable("MSsubscriptions", Plane.CONTROL, SubscriptionRow)


@dataclass(frozen=True, kw_only=True)
class TransactionRow:
    """A row of `MSrepl_transactions`."""

    publisher_database_id: Annotated[int, "always 1"] = 1
    xact_id: Annotated[
        bytes, "number of the source (4 bytes) and version (6); zeros for commits of several tables"
    ]
    xact_seqno: Annotated[bytes, "LSN of the transaction"]
    entry_time: Annotated[datetime, "when the log reader wrote it"]
    scan_cycle: Annotated[Bigint, "scan cycle: the first 8 bytes of the LSN"]
    commit_time: Annotated[datetime, "tran_end_time of the LSN"]
    kind: Annotated[
        str, "transaction, schema (an article's columns or methods changed), dummy (a cycle without commands)"
    ]
    commands: Annotated[Mapping[int, Bigint], "article to number of commands"] = field(default_factory=dict)
    commits: Annotated[Commits, "the commits of the transaction"] = ()
    schema_text: Annotated[str | None, "what changed the columns or methods"] = None


TRANSACTIONS: Final = TypedTable("MSrepl_transactions", Plane.HISTORY, TransactionRow)


@dataclass(frozen=True, kw_only=True)
class ErrorRow:
    """A row of `MSrepl_errors`."""

    time: Annotated[datetime, "when the agent met it"]
    error_code: Annotated[int | None, "number in the original, such as 20598; NULL if it has none"] = None
    error_text: Annotated[str, "the message; of a command that was skipped: which row, by its key"]
    xact_seqno: Annotated[bytes | None, "the transaction; NULL if the agent did not stop at one"] = None
    command_id: Annotated[Bigint | None, "the command; NULL if the agent did not stop at one"] = None
    subscription_guid: Annotated[str, "the subscription; empty for the log reader"]
    article_id: Annotated[int | None, "the article; NULL if it is not one article's"] = None
    is_skipped: Annotated[bool, NOT_NULL, "whether the agent went on"] = False
    batch: Annotated[Bigint | None, "number of the batch that skipped it"] = None


ERRORS: Final = TypedTable("MSrepl_errors", Plane.HISTORY, ErrorRow)


LOG_READER_AGENT: Final = 0
"""The `agent_id` of the log reader. Those of distribution agents begin with 1."""

SUCCEEDED, FAILED = 2, 6
"""Values of `MSdistribution_history.runstatus`."""


@dataclass(frozen=True, kw_only=True)
class StopRow:
    """A row of `MSstopped_agents`."""

    agent_id: Annotated[int, "number of the distribution agent; 0 for the log reader"]
    time: Annotated[datetime, "when it stopped first"]
    error_code: Annotated[int | None, "number in the original, such as 20598; NULL if it has none"] = None
    error_text: Annotated[str, "why"]
    is_transient: Annotated[bool, NOT_NULL, "whether the next run may well work without a change"] = False


STOPS: Final = TypedTable("MSstopped_agents", Plane.CONTROL, StopRow)


@dataclass(frozen=True, kw_only=True)
class HistoryRow:
    """A row of `MSdistribution_history`."""

    agent_id: Annotated[int, "number of the distribution agent; 0 for the log reader"]
    time: Annotated[datetime, "when the batch was applied, or the agent stopped"]
    runstatus: Annotated[int, "2 succeeded, 6 stopped"] = SUCCEEDED
    comments: Annotated[str, "what happened"] = ""
    xact_seqno: Annotated[bytes, "last transaction of the batch"]
    delivered_transactions: Annotated[int, NOT_NULL, "transactions of the batch"] = 0
    delivered_commands: Annotated[int, NOT_NULL, "commands of the batch"] = 0
    delivery_latency: Annotated[int, "milliseconds from the last commit to now"] = 0
    inserts: Annotated[int, "rows that were inserted"] = 0
    updates: Annotated[int, "rows that were updated"] = 0
    deletes: Annotated[int, "rows that were deleted"] = 0
    skipped: Annotated[int, "commands that were skipped"] = 0
    duration: Annotated[float, "seconds that the batch took"] = 0.0


HISTORY: Final = TypedTable("MSdistribution_history", Plane.HISTORY, HistoryRow)


@dataclass(frozen=True, kw_only=True)
class PositionRow:
    """A row of `MSreplication_subscriptions`, at the subscriber."""

    publisher: Annotated[str, "folder of the publisher"]
    publication: Annotated[str, "name of the publication"]
    subscription_guid: Annotated[str, "identity of the subscription"]
    time: Annotated[datetime, "when the last batch was applied"]
    transaction_timestamp: Annotated[bytes, "last transaction that was applied"]
    batch: Annotated[Bigint, NOT_NULL, "number of the last batch"] = 0
    table_versions: Annotated[
        Mapping[str, Bigint], "article to the version of its table after the last batch"
    ] = field(default_factory=dict)
    left_at: Annotated[
        Mapping[str, str], "article to the commit that the last batch or equal validation left its table at"
    ] = field(default_factory=dict)
    by_procedure: Annotated[tuple[str, ...], "article_id:operation of rows that a procedure made itself"] = ()


POSITIONS: Final = TypedTable("MSreplication_subscriptions", Plane.CONTROL, PositionRow)


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """A row of `MSreplication_queue`, at a subscriber that writes."""

    subscription_guid: Annotated[str, "identity of the subscription"]
    article_id: Annotated[int, "number of the article"]
    number: Annotated[Bigint, "number of the last reading that sent edits"] = 0
    table_id: Annotated[str, "Delta's id of the table"]
    position: Annotated[Bigint, "version of the table through which its edits were sent"]
    position_commit: Annotated[str | None, "that version and a hash of its commit"] = None
    columns: Annotated[str, "columns at the position, as JSON of Delta's schema"]


QUEUE: Final = TypedTable("MSreplication_queue", Plane.CONTROL, QueueRow)

CONFLICTS_PREFIX: Final = "conflict_"

CONFLICTS: Final = SystemTable(
    "conflict_<article_id>_<first_seqno>",
    Plane.DATA,
    columns(
        """
        conflict_id | string | identity of the conflict
        publication | string | name of the publication
        article | string | name of the article
        subscriber | string | folder of the subscriber whose edit lost
        subscription_guid | string | identity of the subscription
        conflict_type | int | 1 update, 3 update lost to a delete, 4 delete lost to an update
        reason_text | string | the conflict in words
        created | timestamp | when the edit was read
        queue_number | bigint | number of the reading
        rowkey | map<string,string> | key columns as text, for people
        columns | array<string> | columns that differ; none if one side had deleted the row
        names | array<string> | names of c1, c2, …
        old | struct<c1,…> | the row that the edit was made on; NULL for an insert
        losing | struct<c1,…> | the row that lost; NULL for a delete
        winning | struct<c1,…> | the publisher's row; NULL where it had none
        """
    ),
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
        old_version | binary | 8 bytes of a hash of the row before; VCALL only
        new_version | binary | 8 bytes of a hash of the row after; VCALL only
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
"""In the order in which they are made: the last one shows that the folder has a distributor."""

ALL: Final[tuple[SystemTable, ...]] = (*AT_DISTRIBUTOR, COMMANDS, CONFLICTS, POSITIONS, QUEUE)


def conflicts_table(article_id: int, first_seqno: bytes) -> str:
    """Return the name of the table of an article's losers in one shape. LSNs never come again."""
    return f"{CONFLICTS_PREFIX}{article_id}_{first_seqno.hex()}"


def commands_table(article_id: int, schema_version: int) -> str:
    """Return the name of the table of an article's commands."""
    return f"MSrepl_commands_{article_id}_{schema_version}"
