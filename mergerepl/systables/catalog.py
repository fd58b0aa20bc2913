"""The sysmerge* catalog: publications, articles, subscriptions, filters, schema changes (merge_replication.md 1.3)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final

from mergerepl.model.article import PublishedArticle
from mergerepl.systables.table import Plane, TypedTable, columns


class ArticleState(IntEnum):
    """sysmergearticles.status."""

    UNSYNCED = 1
    ACTIVE = 2


class SubscriptionState(IntEnum):
    """sysmergesubscriptions.status."""

    INACTIVE = 0
    """Not initialised to the end."""
    ACTIVE = 1
    DELETED = 2


class SubscriberKind(IntEnum):
    """sysmergesubscriptions.subscriber_type."""

    SERVER = 1
    CLIENT = 2


class SyncKind(IntEnum):
    """sysmergesubscriptions.sync_type."""

    AUTOMATIC = 1
    NONE = 2


class SyncStatus(IntEnum):
    """sysmergesubscriptions.last_sync_status."""

    WAITING = 0
    STARTING = 1
    SUCCEEDED = 2
    EXECUTING = 3
    IDLE = 4
    RETRYING = 5
    FAILED = 6


@dataclass(frozen=True, kw_only=True)
class PublicationRow:
    """A row of sysmergepublications."""

    publisher: str | None = None
    publisher_db: str | None = None
    name: str
    description: str | None = None
    retention: int | None = None
    publication_type: int | None = None
    pubid: str
    parentid: str | None = None
    conflict_retention: int | None = None
    centralized_conflicts: int
    decentralized_conflicts: int
    status: int
    snapshot_ready: int | None = None
    publication_number: int | None = None
    replicate_ddl: int | None = None
    retention_period_unit: int | None = None
    generation_leveling_threshold: int | None = None
    automatic_reinitialization_policy: int | None = None
    definition: str | None = None
    publisher_replid: str
    dynamic_filters: int = 0
    use_partition_groups: int = 0
    dynamic_filters_function_list: str | None = None
    allow_partition_realignment: int = 1
    filters: str | None = None

    def is_published_by(self, replid: str) -> bool:
        """Return whether this replica is the publisher; every other one is a subscriber."""
        return self.publisher_replid == replid


PUBLICATIONS: Final = TypedTable(
    "sysmergepublications",
    Plane.CONTROL,
    columns(
        """
        publisher | string | replica root of the publisher
        publisher_db | string | reserved
        name | string not null | publication name
        description | string | free text
        retention | int | retention, in units of retention_period_unit
        publication_type | int | 0 unfiltered, 1 filtered
        pubid | string not null | identity of the publication
        parentid | string | parent publication in a hierarchy
        conflict_retention | int | days that conflicts are kept; 0: for ever
        centralized_conflicts | int not null | 1: conflicts are kept at the publisher
        decentralized_conflicts | int not null | 1: conflicts are kept at the subscriber
        status | int not null | 0 inactive, 1 active
        snapshot_ready | int | 0 not ready, 1 ready, 2 new snapshot required
        publication_number | int | short alias of pubid
        replicate_ddl | int | 1: schema changes travel
        retention_period_unit | int | 0 day, 1 week, 2 month, 3 year, 4 hour
        generation_leveling_threshold | int | changes above which a generation may be split
        automatic_reinitialization_policy | int | 1: upload before an automatic reinitialisation
        definition | string | the publication as last applied (JSON), to detect a changed file
        publisher_replid | string not null | identity of the publisher's replica: of this one, where it publishes
        dynamic_filters | int | 1: a filter uses HOST_NAME() or SUSER_SNAME()
        use_partition_groups | int | 1: memberships are computed when rows change
        dynamic_filters_function_list | string | the functions that the filters use, with commas between
        allow_partition_realignment | int | 1: a row that leaves a subscriber's partition is removed there
        filters | string | the row filters and joins (JSON) by which the publisher decides; NULL: none, or a subscriber
        """
    ),
    PublicationRow,
)


@dataclass(frozen=True, kw_only=True)
class ArticleRow:
    """A row of sysmergearticles."""

    name: str
    type: int | None = None
    artid: str
    description: str | None = None
    pre_creation_command: int | None = None
    pubid: str
    nickname: int
    column_tracking: int
    status: int
    conflict_table: str
    article_resolver: str
    resolver_info: str | None = None
    subset_filterclause: str | None = None
    vertical_partition: int
    gen_cur: int | None = None
    maxversion_at_cleanup: int = 0
    processing_order: int | None = None
    upload_options: int | None = None
    delete_tracking: int | None = None
    compensate_for_errors: int | None = None
    source_table: str
    key_columns: tuple[str, ...]
    key_types: tuple[str, ...] = ()
    rowguid_column: str | None = None
    published_columns: tuple[str, ...]
    published_types: tuple[str, ...]
    resolution: str
    generated_columns: Mapping[str, str] = field(default_factory=dict)
    partition_options: int = 0

    def published(self, publication: str) -> PublishedArticle:
        """Return the article as the phases know it, in the publication of this name."""
        return PublishedArticle(
            publication=publication,
            pubid=self.pubid,
            name=self.name,
            artid=self.artid,
            nickname=self.nickname,
            table=self.source_table,
            identity=self.key_columns,
            columns=self.published_columns,
            types=self.published_types,
            column_tracking=bool(self.column_tracking),
            resolution=self.resolution,
            resolver=self.article_resolver,
            conflict_table=self.conflict_table,
            vertical=bool(self.vertical_partition),
            rowguid_column=self.rowguid_column,
            maxversion_at_cleanup=self.maxversion_at_cleanup,
            generated=tuple(sorted(self.generated_columns.items())),
            resolver_info=self.resolver_info,
            partition_options=self.partition_options,
            compensates=bool(self.compensate_for_errors),
        )


ARTICLES: Final = TypedTable(
    "sysmergearticles",
    Plane.CONTROL,
    columns(
        """
        name | string not null | article name
        type | int | 10 table
        artid | string not null | identity of the article; its triggers are MSmerge_ins_, _upd_ and _del_ followed by it
        description | string | free text
        pre_creation_command | int | what to do with a table already at the subscriber: 0 none, 1 drop
        pubid | string not null | publication
        nickname | int not null | article nickname, the same at every replica
        column_tracking | int not null | 1: conflicts are detected by column
        status | int not null | 1 unsynced, 2 active
        conflict_table | string not null | name of the conflict table
        article_resolver | string not null | resolver name
        resolver_info | string | what is stated for the resolver, as JSON: columns, delimiter, update_delete; NULL: nothing
        subset_filterclause | string | row filter
        vertical_partition | int not null | 1: only some columns are published
        gen_cur | bigint | reserved
        maxversion_at_cleanup | bigint | no version purged by metadata cleanup is higher
        processing_order | int | 0 unordered
        upload_options | int | 0 all, 1 and 2 restricted
        delete_tracking | int | 1: deletes travel
        compensate_for_errors | int | 1: a subscriber's change that the publisher's table refuses is undone there
        source_table | string not null | table, relative to the replica root
        key_columns | array<string> not null | identifying columns
        key_types | array<string> | their types
        rowguid_column | string | existing GUID column used as identity
        published_columns | array<string> not null | published columns in their stored order:
            position i is field c<i> of a row image
        published_types | array<string> not null | their types (DDL)
        resolution | string not null | row: the winner's whole row wins; columns: only conflicting columns are lost
        generated_columns | map<string,string> | published columns that Delta computes, with their expressions
        partition_options | int | what a subscriber may write outside of its partition (0 to 3)
        """
    ),
    ArticleRow,
)


@dataclass(frozen=True, kw_only=True)
class SubscriptionRow:
    """A row of sysmergesubscriptions: what a replica knows of another one, or of itself, in one publication."""

    subscriber_server: str
    db_name: str | None = None
    pubid: str
    subid: str
    replid: str
    replnickname: int
    replicastate: str | None = None
    status: int
    subscriber_type: int
    subscription_type: int | None = None
    sync_type: int | None = None
    priority: float
    recgen: int = 0
    recguid: str | None = None
    sentgen: int = 0
    sentguid: str | None = None
    schemaversion: int = 0
    schemaguid: str | None = None
    last_validated: datetime | None = None
    attempted_validate: datetime | None = None
    last_sync_date: datetime | None = None
    last_sync_status: int = SyncStatus.WAITING
    last_sync_summary: str = ""
    host_name: str | None = None
    session_number: int = 0
    suser_sname: str | None = None
    partition_id: int | None = None

    @property
    def is_own(self) -> bool:
        """True for the row of a replica about itself: it has the publication's id instead of a subscription's."""
        return self.subid == self.pubid

    @property
    def is_active(self) -> bool:
        """True from the end of the initialisation to the end of the subscription."""
        return self.status == SubscriptionState.ACTIVE

    @property
    def is_ended(self) -> bool:
        """True when the subscription has ended; its row stays."""
        return self.status == SubscriptionState.DELETED

    @property
    def is_client(self) -> bool:
        """True when the subscriber is a client: its changes become the publisher's once they are there."""
        return self.subscriber_type == SubscriberKind.CLIENT


def relations(rows: Iterable[SubscriptionRow], pubid: str | None = None) -> list[SubscriptionRow]:
    """Return a replica's rows about the other sides of its subscriptions, also of those that have ended.

    At a publisher they speak of its subscribers, at a subscriber of its publisher.
    """
    return [row for row in rows if not row.is_own and pubid in (None, row.pubid)]


SUBSCRIPTIONS: Final = TypedTable(
    "sysmergesubscriptions",
    Plane.CONTROL,
    columns(
        """
        subscriber_server | string not null | replica root of the other side (at the subscriber: of the publisher)
        db_name | string | reserved
        pubid | string not null | publication
        subid | string not null | identity of the subscription
        replid | string not null | identity of the other side's replica
        replnickname | int not null | nickname of the other side's replica
        replicastate | string | changes with every completed session; both sides hold the same one
        status | int not null | 0 inactive, 1 active, 2 deleted
        subscriber_type | int not null | 1 server, 2 client
        subscription_type | int | 0 push, 1 pull
        sync_type | int | 1 automatic, 2 none
        priority | double not null | 0.00 to 99.99 for server subscriptions, 0.00 for client ones
        recgen | bigint | last generation received from the other side, in its numbering
        recguid | string | its guid
        sentgen | bigint | last generation sent to the other side, in this replica's numbering
        sentguid | string | its guid
        schemaversion | int | last schema change received
        schemaguid | string | its guid
        last_validated | timestamp | reserved: last successful validation
        attempted_validate | timestamp | reserved: last attempted validation
        last_sync_date | timestamp | end of the last session
        last_sync_status | int | 0 waiting, 1 starting, 2 succeeded, 3 executing, 4 idle, 5 retrying, 6 failed
        last_sync_summary | string | one line about the last session
        host_name | string | value of HOST_NAME() for this subscription
        session_number | bigint | number of the last session of this subscription
        suser_sname | string | value of SUSER_SNAME() for this subscription
        partition_id | int | the subscriber's partition (MSmerge_partition_groups); NULL without row filters
        """
    ),
    SubscriptionRow,
)


@dataclass(frozen=True, kw_only=True)
class SubsetFilterRow:
    """A row of sysmergesubsetfilters."""

    filtername: str | None = None
    join_filterid: int | None = None
    pubid: str | None = None
    artid: str | None = None
    art_nickname: int | None = None
    join_articlename: str | None = None
    join_nickname: int | None = None
    join_unique_key: int | None = None
    join_filterclause: str | None = None
    filter_type: int | None = None


SUBSETFILTERS: Final = TypedTable(
    "sysmergesubsetfilters",
    Plane.CONTROL,
    columns(
        """
        filtername | string | name of the filter
        join_filterid | int | identity
        pubid | string | publication
        artid | string | child article
        art_nickname | int | child article
        join_articlename | string | parent article
        join_nickname | int | parent article
        join_unique_key | int | 1: the parent's join column is unique
        join_filterclause | string | join condition
        filter_type | int | 1 join filter
        """
    ),
    SubsetFilterRow,
)


@dataclass(frozen=True, kw_only=True)
class SchemaChangeRow:
    """A row of sysmergeschemachange."""

    pubid: str | None = None
    artid: str | None = None
    schemaversion: int | None = None
    schemaguid: str | None = None
    schematype: int | None = None
    schematext: str | None = None
    schemastatus: int | None = None
    schemasubtype: int | None = None


SCHEMACHANGE: Final = TypedTable(
    "sysmergeschemachange",
    Plane.CONTROL,
    columns(
        """
        pubid | string | publication
        artid | string | article
        schemaversion | int | rising number
        schemaguid | string | identity of the change
        schematype | int | kind of change (merge_replication.md 1.3)
        schematext | string | the change
        schemastatus | int | 0 inactive, 1 active
        schemasubtype | int | kind of DDL
        """
    ),
    SchemaChangeRow,
)
