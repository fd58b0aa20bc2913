"""Rows of the sysmerge* catalog and of MSmerge_replinfo as `apply` writes them."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from mergerepl.delta.tables import TableState, commit_text
from mergerepl.delta.types import ddl_of
from mergerepl.filters.publication_filters import NO_FILTERS, PublicationFilters
from mergerepl.model.publication import (
    PUBLISHER_PRIORITY,
    Article,
    ConflictLogging,
    Publication,
    SubscriberType,
    Subscription,
)
from mergerepl.publish.check_article import published_fields
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables import replinfo
from mergerepl.systables.catalog import (
    ArticleRow,
    ArticleState,
    PublicationRow,
    SubscriberKind,
    SubscriptionRow,
    SubscriptionState,
    SyncKind,
)
from mergerepl.systables.conflicts_info import conflict_table_name
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.table import RowT, TypedTable

PUBLISHER_NICKNAME = 1

Columns = dict[str, Any]
"""Values of some columns of a system table, by name."""

_DAYS, _HOURS = 0, 4
_TABLE_ARTICLE = 10


def definition(publication: Publication, *, with_subscriptions: bool = True) -> str:
    """Return the publication as canonical JSON, as sysmergepublications keeps it."""
    stated = asdict(publication)
    stated["retention"] = publication.retention.total_seconds()
    # Thresholds of `status` are a matter of the file alone.
    del stated["alerts"]
    for subscription in stated["subscriptions"]:
        # The name in commands is a matter of the file alone.
        del subscription["name"]
    for named in (stated, *stated["subscriptions"]):
        if named["catalog"] is None or not with_subscriptions:
            # Names of the publisher's catalog are no matter of a subscriber.
            del named["catalog"]
    if not with_subscriptions:
        # A subscriber does not need the others.
        del stated["subscriptions"]
    return json.dumps(stated, sort_keys=True, ensure_ascii=False)


def publication_row(
    publication: Publication,
    pubid: str,
    number: int | None,
    *,
    publisher_replid: str,
    filters: PublicationFilters = NO_FILTERS,
) -> PublicationRow:
    """Return a new row of sysmergepublications; `apply` activates it last.

    Only the publisher's row has the `filters`: they are never read from a subscriber's copy.
    """
    return PublicationRow(
        publisher=publication.publisher,
        name=publication.name,
        pubid=pubid,
        status=0,
        snapshot_ready=1,
        publication_number=number,
        replicate_ddl=0,
        automatic_reinitialization_policy=0,
        publisher_replid=publisher_replid,
        **publication_settings(publication),
        **filter_columns(filters),
    )


def publication_settings(publication: Publication) -> Columns:
    """Return the columns of sysmergepublications that a changed file may change."""
    hours = -(-int(publication.retention.total_seconds()) // 3600)
    unit, length = (_DAYS, hours // 24) if hours % 24 == 0 else (_HOURS, hours)
    logging = publication.conflict_logging
    return {
        "retention": length,
        "retention_period_unit": unit,
        "conflict_retention": publication.conflict_retention,
        "centralized_conflicts": int(logging in (ConflictLogging.PUBLISHER, ConflictLogging.BOTH)),
        "decentralized_conflicts": int(logging in (ConflictLogging.SUBSCRIBER, ConflictLogging.BOTH)),
    }


def filter_columns(filters: PublicationFilters) -> Columns:
    """Return the columns of sysmergepublications about row filters."""
    is_filtered = filters != NO_FILTERS
    return {
        "publication_type": int(is_filtered),
        "dynamic_filters": int(bool(filters.functions)),
        "use_partition_groups": int(is_filtered),
        "dynamic_filters_function_list": ",".join(f"{each}()" for each in filters.functions) or None,
        "filters": filters.to_json() if is_filtered else None,
    }


def article_row(
    publication: Publication, article: Article, table: TableState, *, pubid: str, artid: str, nickname: int
) -> ArticleRow:
    """Return a new row of sysmergearticles, the same at every replica."""
    columns = published_fields(article, table)
    types = {column["name"]: ddl_of(column["type"]) for column in columns}
    return ArticleRow(
        name=article.name,
        type=_TABLE_ARTICLE,
        artid=artid,
        pre_creation_command=0,
        pubid=pubid,
        nickname=nickname,
        status=ArticleState.ACTIVE,
        conflict_table=conflict_table_name(publication.name, article.name),
        vertical_partition=int(article.columns is not None),
        processing_order=0,
        upload_options=0,
        delete_tracking=1,
        source_table=os.path.normpath(article.table),
        column_tracking=int(article.tracking.value == "column"),
        key_columns=tuple(article.identity),
        key_types=tuple(types[name] for name in article.identity),
        rowguid_column=article.rowguid,
        published_columns=tuple(types),
        published_types=tuple(types.values()),
        generated_columns={n: text for n, text in table.generated_columns.items() if n in types},
        **article_settings(article),
    )


def article_settings(article: Article) -> Columns:
    """Return the columns of sysmergearticles that a changed file may change."""
    return {
        "article_resolver": article.resolver,
        "resolver_info": article.resolver_info.stored,
        "resolution": article.resolution.value,
        "partition_options": article.partition_options,
        "compensate_for_errors": int(article.compensates),
    }


def publisher_row(info: ReplicaInfo, pubid: str) -> SubscriptionRow:
    """Return the publisher's row about itself."""
    return SubscriptionRow(
        subscriber_server=info.root,
        pubid=pubid,
        subid=pubid,
        replid=info.repid,
        replnickname=info.replnickname,
        subscription_type=0,
        status=SubscriptionState.ACTIVE,
        subscriber_type=SubscriberKind.SERVER,
        sync_type=SyncKind.AUTOMATIC,
        priority=PUBLISHER_PRIORITY,
    )


def rows_at_subscriber(
    publisher: ReplicaInfo, row: SubscriptionRow
) -> tuple[SubscriptionRow, SubscriptionRow]:
    """Return a subscriber's rows: about itself, and about the publisher.

    `publisher` is the publisher's MSmerge_replinfo, `row` its row of the subscription. Both rows get the file's values.
    """
    active = replace(row, status=SubscriptionState.ACTIVE)
    other = replace(
        active, subscriber_server=publisher.root, replid=publisher.repid, replnickname=publisher.replnickname
    )
    return replace(active, subid=row.pubid, replicastate=None), other


def subscriber_row(
    subscription: Subscription,
    pubid: str,
    *,
    subid: str,
    replid: str,
    nickname: int,
    replicastate: str | None,
) -> SubscriptionRow:
    """Return the row about a subscriber, not active yet."""
    return SubscriptionRow(
        subscriber_server=subscription.subscriber,
        pubid=pubid,
        subid=subid,
        replid=replid,
        replnickname=nickname,
        subscription_type=0,
        replicastate=replicastate,
        status=SubscriptionState.INACTIVE,
        **subscription_columns(subscription),
    )


def subscription_columns(subscription: Subscription) -> Columns:
    """Return all settings of a subscription in the file, for sysmergesubscriptions."""
    return {
        "subscriber_type": int(SubscriberKind[subscription.type.name]),
        "sync_type": int(SyncKind[subscription.sync_type.name]),
        **subscription_settings(subscription),
    }


def subscription_settings(subscription: Subscription) -> Columns:
    """Return the columns of sysmergesubscriptions that a changed file may change."""
    is_server = subscription.type is SubscriberType.SERVER
    return {
        "priority": subscription.priority if is_server else 0.0,
        "host_name": subscription.host_name,
        "suser_sname": subscription.suser_sname,
    }


def find_changes(rows: Sequence[object], wanted: Columns) -> tuple[Columns, str]:
    """Return the values that one of the rows lacks, and a description of the change.

    An interrupted change reached only some replicas.
    """
    change, said = {}, []
    for name, value in wanted.items():
        before = [former for row in rows if (former := getattr(row, name)) != value]
        if before:
            change[name] = value
            said.append(f"{name} {before[0]} → {value}")
    return change, ", ".join(said)


def update_rows(root: Location, table: TypedTable[RowT], change: Columns, **where: object) -> None:
    """Set columns of the rows with these values, in one commit."""
    Replica(root).control.change_where(table, change, **where)


def change_info(replica: Location, /, **values: Any) -> None:
    """Change columns of MSmerge_replinfo, in one commit; maps (`captured`) are extended, not replaced."""
    control = Replica(replica).control
    (info,) = control.rows(replinfo.TABLE)
    added = {n: {**getattr(info, n), **value} for n, value in values.items() if isinstance(value, dict)}
    control.replace(replinfo.TABLE, [replace(info, **{**values, **added})])


def note_captured(
    replica: Location,
    /,
    tables: Mapping[int, tuple[Location, int, str]],
    *,
    clock: int = 0,
    versions: Mapping[int, int] | None = None,
) -> None:
    """Note tables as captured, in one commit: nickname -> the table, its version and its Delta table id.

    `clock` is that of the replica they were copied from, `versions` are those of their columns.

    Notes the version's commit too, so that another table in this place is detected at once.
    """
    commits = {nickname: commit_text(table, version) for nickname, (table, version, _) in tables.items()}
    change_info(
        replica,
        captured={nickname: version for nickname, (_, version, _) in tables.items()},
        table_ids={nickname: table_id for nickname, (_, _, table_id) in tables.items()},
        captured_commits={nickname: text for nickname, text in commits.items() if text is not None},
        clock=max(clock, Replica(replica).info().clock),
        # A former subscriber's metadata is new, and may have the numbers of its former generations.
        cleaned=dict.fromkeys(tables, 0),
        article_versions=dict(versions or {}),
    )
