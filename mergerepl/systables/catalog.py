"""The sysmerge* catalog: publications, articles, subscriptions, filters, schema changes (merge_replication.md 1.3)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import IntEnum
from typing import Annotated, Any, Final

from mergerepl.model.article import PublishedArticle
from mergerepl.model.columns import NOT_NULL, Bigint
from mergerepl.model.definition import (
    FIRST_VERSION,
    Definition,
    definitions_of,
    definitions_text,
    first_definition,
    image_columns,
)
from mergerepl.systables.table import Plane, TypedTable


class ArticleState(IntEnum):
    """sysmergearticles.status."""

    UNSYNCED = 1
    ACTIVE = 2
    ENDING = 3
    """The file no longer has it: the subscriptions in `ends_after` upload once more."""
    ENDED = 4


class SubscriptionState(IntEnum):
    """sysmergesubscriptions.status."""

    INACTIVE = 0
    """The initialisation is incomplete."""
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


_UNITS: Final = (
    timedelta(days=1),
    timedelta(weeks=1),
    timedelta(days=30),
    timedelta(days=365),
    timedelta(hours=1),
)
"""Lengths of retention_period_unit."""


@dataclass(frozen=True, kw_only=True)
class PublicationRow:
    """A row of sysmergepublications."""

    publisher: Annotated[str | None, "replica root of the publisher"] = None
    name: Annotated[str, "publication name"]
    retention: Annotated[int | None, "retention, in units of retention_period_unit"] = None
    publication_type: Annotated[int | None, "0 unfiltered, 1 filtered"] = None
    pubid: Annotated[str, "identity of the publication"]
    conflict_retention: Annotated[int | None, "days that conflicts are kept; 0: for ever"] = None
    centralized_conflicts: Annotated[int, "1: conflicts are kept at the publisher"]
    decentralized_conflicts: Annotated[int, "1: conflicts are kept at the subscriber"]
    status: Annotated[int, "0 inactive, 1 active"]
    snapshot_ready: Annotated[int | None, "0 not ready, 1 ready, 2 new snapshot required"] = None
    publication_number: Annotated[int | None, "short alias of pubid"] = None
    replicate_ddl: Annotated[int | None, "1: schema changes travel"] = None
    retention_period_unit: Annotated[int | None, "0 day, 1 week, 2 month, 3 year, 4 hour"] = None
    automatic_reinitialization_policy: Annotated[int | None, "1: upload before reinitialising"] = None
    definition: Annotated[str | None, "the publication as last applied, as JSON: detects changes"] = None
    publisher_replid: Annotated[str, "identity of the publisher's replica: of this one, where it publishes"]
    dynamic_filters: Annotated[int, "1: a filter uses HOST_NAME() or SUSER_SNAME()"] = 0
    use_partition_groups: Annotated[int, "1: memberships are computed when rows change"] = 0
    dynamic_filters_function_list: Annotated[str | None, "functions of the filters, separated by commas"] = (
        None
    )
    allow_partition_realignment: Annotated[int, "1: a row that leaves a partition is removed there"] = 1
    filters: Annotated[
        str | None,
        "the row filters and joins (JSON) by which the publisher decides; NULL: none, or a subscriber",
    ] = None

    @property
    def keeps(self) -> timedelta | None:
        """The retention; None: for ever."""
        return self.retention * _UNITS[self.retention_period_unit or 0] if self.retention else None

    def is_published_by(self, replid: str) -> bool:
        """Whether this replica is the publisher; every other one is a subscriber."""
        return self.publisher_replid == replid


PUBLICATIONS: Final = TypedTable("sysmergepublications", Plane.CONTROL, PublicationRow)


@dataclass(frozen=True, kw_only=True)
class ArticleRow:
    """A row of sysmergearticles."""

    name: Annotated[str, "article name"]
    type: Annotated[int | None, "10 table"] = None
    artid: Annotated[str, "identity of the article; its triggers are MSmerge_ins_, _upd_ and _del_ with it"]
    pre_creation_command: Annotated[int | None, "for a table that the subscriber has: 0 none, 1 drop"] = None
    pubid: Annotated[str, "publication"]
    nickname: Annotated[int, "article nickname, the same at every replica"]
    column_tracking: Annotated[int, "1: published with conflicts by column; `fields` has what it is now"]
    status: Annotated[int, "1 unsynced, 2 active; at the publisher 3 ending, 4 ended"]
    conflict_table: Annotated[str, "name of the conflict table"]
    article_resolver: Annotated[str, "resolver name"]
    resolver_info: Annotated[
        str | None,
        "what is stated for the resolver, as JSON: columns, delimiter, update_delete; NULL: nothing",
    ] = None
    vertical_partition: Annotated[int, "1: published with some columns only; `fields` has what it is now"]
    maxversion_at_cleanup: Annotated[Bigint, "no version purged by metadata cleanup is higher"] = 0
    processing_order: Annotated[int | None, "0 unordered"] = None
    upload_options: Annotated[int | None, "0 all, 1 and 2 restricted"] = None
    delete_tracking: Annotated[int | None, "1: deletes travel"] = None
    compensate_for_errors: Annotated[int | None, "1: a subscriber undoes changes that are refused"] = None
    source_table: Annotated[str, "table, relative to the replica root"]
    key_columns: Annotated[tuple[str, ...], "identifying columns"]
    key_types: Annotated[tuple[str, ...], "their types"] = ()
    rowguid_column: Annotated[str | None, "existing GUID column used as identity"] = None
    published_columns: Annotated[
        tuple[str, ...],
        "published columns, as `fields` has them in its last version; without it position i is field c<i> of a row image",
    ]
    published_types: Annotated[tuple[str, ...], "their types (DDL)"]
    resolution: Annotated[str, "row: the winner's whole row wins; columns: only conflicting columns are lost"]
    generated_columns: Annotated[
        Mapping[str, str], "published columns that Delta computes, with their expressions"
    ] = field(default_factory=dict)
    partition_options: Annotated[int, "what a subscriber may write outside of its partition (0 to 3)"] = 0
    fields: Annotated[
        str | None,
        "once its columns or tracking changed: by version the published columns with their field numbers and image column, "
        "the tracking, and whether only some columns are published, as JSON",
    ] = None
    ends_after: Annotated[
        tuple[str, ...],
        "of an article that ends: the subscriptions (subid) that upload once more, at the publisher",
    ] = ()

    @property
    def definitions(self) -> Mapping[int, Definition]:
        """The article's definitions by version."""
        if self.fields is None:
            first = first_definition(self.published_columns, self.published_types)
            return {first.version: first}
        return definitions_of(self.fields)

    def is_by_column(self, definition: Definition) -> bool:
        """Whether the article has column tracking in one of its definitions."""
        stated = definition.column_tracking
        return bool(self.column_tracking) if stated is None else stated

    def is_vertical(self, definition: Definition) -> bool:
        """Whether the article has some columns only in one of its definitions."""
        return bool(self.vertical_partition) if definition.vertical is None else definition.vertical

    def with_definition(self, definition: Definition) -> "ArticleRow":
        """Return the row with one more definition, or another one in the place of its version."""
        known = {**self.definitions, definition.version: definition}
        return replace(
            self,
            published_columns=tuple(field.name for field in definition.fields),
            published_types=tuple(field.type for field in definition.fields),
            fields=definitions_text(known.values()),
        )

    def published(self, publication: str, version: int = FIRST_VERSION) -> PublishedArticle:
        """Return the article as the phases know it, in the publication of this name, with a version of its columns."""
        definitions = self.definitions
        definition = definitions[version]
        return PublishedArticle(
            publication=publication,
            pubid=self.pubid,
            name=self.name,
            artid=self.artid,
            nickname=self.nickname,
            table=self.source_table,
            identity=self.key_columns,
            columns=tuple(field.name for field in definition.fields),
            types=tuple(field.type for field in definition.fields),
            column_tracking=self.is_by_column(definition),
            resolution=self.resolution,
            resolver=self.article_resolver,
            conflict_table=self.conflict_table,
            vertical=self.is_vertical(definition),
            rowguid_column=self.rowguid_column,
            generated=tuple(sorted(self.generated_columns.items())),
            resolver_info=self.resolver_info,
            partition_options=self.partition_options,
            compensates=bool(self.compensate_for_errors),
            numbers=() if self.fields is None else tuple(field.number for field in definition.fields),
            version=version,
            images=() if self.fields is None else image_columns(definitions, version),
            root_version=definition.root,
            ends_after=self.ends_after if self.status == ArticleState.ENDING else (),
        )


ARTICLES: Final = TypedTable("sysmergearticles", Plane.CONTROL, ArticleRow)


@dataclass(frozen=True, kw_only=True)
class SubscriptionRow:
    """A row of sysmergesubscriptions: a replica's record of another one, or of itself, in one publication."""

    subscriber_server: Annotated[str, "replica root of the other side (at the subscriber: of the publisher)"]
    db_name: Annotated[str | None, "reserved"] = None
    pubid: Annotated[str, "publication"]
    subid: Annotated[str, "identity of the subscription"]
    replid: Annotated[str, "identity of the other side's replica"]
    replnickname: Annotated[int, "nickname of the other side's replica"]
    replicastate: Annotated[str | None, "changes with every session; both sides hold the same one"] = None
    status: Annotated[int, "0 inactive, 1 active, 2 deleted"]
    subscriber_type: Annotated[int, "1 server, 2 client"]
    subscription_type: Annotated[int | None, "0 push, 1 pull"] = None
    sync_type: Annotated[int | None, "1 automatic, 2 none"] = None
    priority: Annotated[float, "0.00 to 99.99 for server subscriptions, 0.00 for client ones"]
    recgen: Annotated[Bigint, "last generation received from the other side, in its numbering"] = 0
    recguid: Annotated[str | None, "its guid"] = None
    sentgen: Annotated[Bigint, "last generation sent to the other side, in this replica's numbering"] = 0
    sentguid: Annotated[str | None, "its guid"] = None
    schemaversion: Annotated[int, "last schema change received"] = 0
    schemaguid: Annotated[str | None, "its guid"] = None
    last_validated: Annotated[datetime | None, "last validation that found all articles equal"] = None
    attempted_validate: Annotated[datetime | None, "last validation"] = None
    last_sync_date: Annotated[datetime | None, "end of the last session"] = None
    last_sync_status: Annotated[
        int, "0 waiting, 1 starting, 2 succeeded, 3 executing, 4 idle, 5 retrying, 6 failed"
    ] = SyncStatus.WAITING
    last_sync_summary: Annotated[str, "one line about the last session"] = ""
    host_name: Annotated[str | None, "value of HOST_NAME() for this subscription"] = None
    session_number: Annotated[Bigint, "number of the last session of this subscription"] = 0
    suser_sname: Annotated[str | None, "value of SUSER_SNAME() for this subscription"] = None
    partition_id: Annotated[int | None, "the subscriber's partition; NULL without row filters"] = None
    through: Annotated[
        Bigint,
        NOT_NULL,
        "all changes made at the subscriber up to this version have arrived at the publisher; both sides keep it",
    ] = 0
    knows: Annotated[
        Bigint, NOT_NULL, "the subscriber knows all changes up to this version; both sides keep it"
    ] = 0
    settled: Annotated[
        Bigint, NOT_NULL, "in the row about itself: the replica knows all changes up to this version"
    ] = 0
    known: Annotated[
        Bigint, NOT_NULL, "in the row about itself: all replicas know all changes up to this version"
    ] = 0
    expired_at: Annotated[
        datetime | None, "when it expired: it no longer counts, and is not synchronized"
    ] = None
    diverged: Annotated[
        Mapping[int, str],
        "tablenick -> level and time of the validation that found other rows; until it is equal",
    ] = field(default_factory=dict)
    failures: Annotated[int, "rounds that failed one after the other, up to 3"] = 0
    former_partition_id: Annotated[
        int | None, "the partition before its host_name or suser_sname changed; NULL: they never did"
    ] = None
    moved_at_seq: Annotated[
        Bigint,
        NOT_NULL,
        "the run up to which changes of the former partition are its own, later those of the present",
    ] = 0
    last_error_class: Annotated[
        str | None, "class of the error with which the last session failed; NULL after another"
    ] = None
    skipped_changes: Annotated[
        tuple[int, ...], "numbers of schema changes that the subscriber leaves out; both sides keep them"
    ] = ()

    @property
    def is_own(self) -> bool:
        """True for a replica's row about itself: it has the publication's id instead of a subscription's."""
        return self.subid == self.pubid

    @property
    def is_active(self) -> bool:
        """True from the end of the initialisation to the end of the subscription."""
        return self.status == SubscriptionState.ACTIVE

    @property
    def is_live(self) -> bool:
        """True if the publisher waits for the other side: it is active and has not expired."""
        return self.is_active and self.expired_at is None

    @property
    def is_ended(self) -> bool:
        """True if the subscription has ended; its row stays."""
        return self.status == SubscriptionState.DELETED

    @property
    def is_client(self) -> bool:
        """True if the subscriber is a client: its changes become the publisher's on arrival there."""
        return self.subscriber_type == SubscriberKind.CLIENT


def relations(rows: Iterable[SubscriptionRow], pubid: str | None = None) -> list[SubscriptionRow]:
    """Return a replica's rows about the other sides of its subscriptions, also of those that have ended.

    At a publisher they describe its subscribers, at a subscriber its publisher.
    """
    return [row for row in rows if not row.is_own and pubid in (None, row.pubid)]


SUBSCRIPTIONS: Final = TypedTable("sysmergesubscriptions", Plane.CONTROL, SubscriptionRow)


@dataclass(frozen=True, kw_only=True)
class SubsetFilterRow:
    """A row of sysmergesubsetfilters."""

    filtername: Annotated[str | None, "name of the filter"] = None
    join_filterid: Annotated[int | None, "identity"] = None
    pubid: Annotated[str | None, "publication"] = None
    artid: Annotated[str | None, "child article"] = None
    art_nickname: Annotated[int | None, "child article"] = None
    join_articlename: Annotated[str | None, "parent article"] = None
    join_nickname: Annotated[int | None, "parent article"] = None
    join_unique_key: Annotated[int | None, "1: the parent's join column is unique"] = None
    join_filterclause: Annotated[str | None, "join condition"] = None
    filter_type: Annotated[int | None, "1 join filter"] = None


SUBSETFILTERS: Final = TypedTable("sysmergesubsetfilters", Plane.CONTROL, SubsetFilterRow)


@dataclass(frozen=True, kw_only=True)
class SchemaChangeRow:
    """A row of sysmergeschemachange."""

    pubid: Annotated[str | None, "publication"] = None
    artid: Annotated[str | None, "article"] = None
    schemaversion: Annotated[int | None, "rising number"] = None
    schemaguid: Annotated[str | None, "identity of the change"] = None
    schematype: Annotated[int | None, "kind of change (merge_replication.md 1.3)"] = None
    schematext: Annotated[str | None, "the change"] = None
    schemastatus: Annotated[int | None, "0 inactive, 1 active"] = None
    schemasubtype: Annotated[int | None, "kind of DDL"] = None

    @property
    def stated(self) -> dict[str, Any]:
        """The change: `article_version` (the publisher's) and `changes` of columns."""
        return dict(json.loads(self.schematext or "{}"))


SCHEMACHANGE: Final = TypedTable("sysmergeschemachange", Plane.CONTROL, SchemaChangeRow)
