"""Compare the file's publication with the stored one, and prepare it for its tables or refuse it.

Nothing is read or written here.
"""

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mergerepl.delta.tables import TableState, edited_table
from mergerepl.delta.types import Field, ddl_of
from mergerepl.errors import PUBLISH_AGAIN, PublicationError
from mergerepl.filters.publication_filters import NO_FILTERS, PublicationFilters
from mergerepl.filters.stated import ONE_SUBSCRIPTION
from mergerepl.model.definition import FIRST_VERSION
from mergerepl.model.publication import Article, Publication, Tracking
from mergerepl.model.resolvers import UPLOAD_ONLY
from mergerepl.publish.changed_columns import ChangedColumns, changed_columns
from mergerepl.publish.check_article import check_article, check_resolver, published_fields
from mergerepl.publish.filters import (
    Values,
    added_columns,
    check_followed_filters,
    check_no_overlap,
    check_values,
    filters_of,
    stored_filters,
    values_of,
)
from mergerepl.publish.rows import article_row
from mergerepl.publish.shared_tables import check_shared_tables
from mergerepl.publish.stored import ReplicaState, Stored, SubscriberState
from mergerepl.publish.system_tables import image_type
from mergerepl.replica.damage import no_subscriptions
from mergerepl.roots import resolved
from mergerepl.store.location import Location
from mergerepl.systables import catalog
from mergerepl.systables.catalog import ArticleRow, ArticleState, SubscriberKind, SubscriptionState, relations
from mergerepl.systables.conflicts_info import conflict_table_name
from mergerepl.systables.contents import row_column
from mergerepl.systables.table import FOLDER


@dataclass(frozen=True)
class NewArticle:
    """An article to publish, with the table it was checked against."""

    article: Article
    table: TableState
    nickname: int

    @property
    def fields(self) -> list[Field]:
        """The published columns."""
        return published_fields(self.article, self.table)


@dataclass(frozen=True)
class Stated:
    """A publication as the file states it, prepared for its tables: its new articles and its row filters.

    `new_rows` are the rows of the new articles, without an identity yet; `values` are those of the filters' functions
    for each subscription; `columns` are published articles with other columns.
    """

    publication: Publication
    new: Sequence[NewArticle] = ()
    new_rows: Sequence[ArticleRow] = ()
    filters: PublicationFilters = NO_FILTERS
    values: Sequence[Values] = ()
    columns: Sequence[ChangedColumns] = ()

    @property
    def filled_by_row(self) -> list[str]:
        """The articles that publish more columns, and whose rows conflict as a whole."""
        more = {each.row.name for each in self.columns if each.added}
        return [
            each.name
            for each in self.publication.articles
            if each.name in more and each.tracking is Tracking.ROW and each.resolver != UPLOAD_ONLY
        ]


def prepare(publication: Publication, stored: Stored) -> Stated:
    """Prepare the file for the tables that it names.

    Raises: ConfigurationError, PublicationError for a setting that cannot be published, or cannot change while published.
    """
    new, columns = _articles(publication, stored)
    _check_compared(publication, stored)
    filters = _filters(publication, stored, new)
    values = [values_of(each, filters.functions) for each in publication.subscriptions]
    _check_values(publication, filters, values)
    check_shared_tables(publication, stored)
    for each in stored.subscribers:
        _check_subscriber(publication, stored, each)
    rows = [
        article_row(
            publication, each.article, each.table, pubid=stored.pubid, artid="", nickname=each.nickname
        )
        for each in new
    ]
    return Stated(publication, new, rows, filters, values, columns)


def is_removed(publication: Publication, stored: Stored, row: ArticleRow) -> bool:
    """True if the file no longer names an article of the publication."""
    return row.pubid == stored.pubid and row.name not in {article.name for article in publication.articles}


def check_publisher(publisher: ReplicaState) -> None:
    """Check that a replica can publish.

    Raises: PublicationError.
    """
    if not all(row.is_published_by(publisher.repid) for row in publisher.publications):
        raise PublicationError(
            f"'{publisher.root}' is a subscriber; this version of mergerepl cannot publish from a "
            "subscriber. Publish from the publisher, or from a replica root of its own.",
            replica=str(publisher.root),
        )
    if publisher.publications and not publisher.subscriptions:
        raise no_subscriptions(publisher.root)


# ---- articles


def _articles(publication: Publication, stored: Stored) -> tuple[list[NewArticle], list[ChangedColumns]]:
    """Return the articles to publish, and those that publish other columns."""
    known = {row.name: row for row in stored.articles}
    _check_ends(publication, stored)
    publisher = stored.publisher
    staying = [
        row for row in publisher.articles if stored.is_subscribed or not is_removed(publication, stored, row)
    ]
    last = max([0, *(row.nickname for row in publisher.articles), *publisher.captured])
    new, columns = [], []
    for article in publication.articles:
        if article.name in known:
            row = known[article.name]
            _check_article_unchanged(article, row)
            _check_tracking(article, row, stored.tracking(row))
            if stored.active:
                _check_followed(article, row)
            changed = changed_columns(article, row, stored)
            if changed is None:
                types = {field.name: field.type for field in stored.definition(row).fields}
                check_resolver(article, types, row.generated_columns)
            else:
                columns.append(changed)
            continue
        path = publisher.root / article.table
        _check_claims(publication, stored, article, path, staying)
        table = stored.tables[path]
        assert isinstance(table, TableState)
        check_article(article, table)
        last = _free_nickname(stored, published_fields(article, table), above=last)
        new.append(NewArticle(article, table, last))
    return new, columns


def _check_ends(publication: Publication, stored: Stored) -> None:
    """Refuse an article less where a subscription cannot upload its changes once more."""
    removed = [row for row in stored.articles if is_removed(publication, stored, row)]
    if not removed or not publication.subscriptions:
        return
    row = removed[0]
    otherwise = "Put it back; or sync, take the subscriptions out of the file, run `mergerepl apply`, and then put them "
    otherwise += "in again"
    before = stored_filters(stored.row)
    named = {*before.own, *(name for each in before.joins for name in (each.article, each.parent))}
    filtered = next((each for each in removed if each.name in named), None)
    incomplete = [each for each in stored.subscribers if not each.is_active or each.missing(removed)]
    if filtered is not None:
        row, why = filtered, "a row filter or a join names it, and rows of others may follow its rows"
    elif incomplete:
        place = incomplete[0].subscription.subscriber
        why = f"the subscription of '{place}' is not initialised with all articles yet"
        otherwise = "Put it back, run `mergerepl apply`, and take it out again"
        if any(each.status == ArticleState.ENDING for each in removed):
            otherwise = "Run `mergerepl sync` until it has ended; or put it back"
    else:
        return
    raise PublicationError(
        f"Article '{row.name}' is published and no longer in the file. It cannot end now: {why}. {otherwise}.",
        article=row.name,
    )


def _free_nickname(stored: Stored, columns: Sequence[Field], *, above: int) -> int:
    """Return the first nickname above `above` whose image column is absent or has this very type.

    An interrupted `apply` leaves empty image columns of articles that may never exist.
    """
    wanted = ddl_of(image_type(columns))
    return next(
        n for n in itertools.count(above + 1) if stored.image_types.get(row_column(n), wanted) == wanted
    )


def _check_claims(
    publication: Publication, stored: Stored, article: Article, path: Location, others: Sequence[ArticleRow]
) -> None:
    """Refuse a table, or a conflict table, that another article already has."""
    conflict_table = conflict_table_name(publication.name, article.name).casefold()
    names = {row.pubid: row.name for row in stored.publisher.publications}
    for row in others:
        owner = f"article '{row.name}' of publication '{names.get(row.pubid)}'"
        is_same = resolved(stored.publisher.root / row.source_table) == resolved(path)
        if row.pubid == stored.pubid and is_same:
            raise PublicationError(
                f"Article '{article.name}': table '{path}' is {owner} already. A table is one article of a publication; "
                "take it out there first.",
                article=article.name,
                table=str(path),
            )
        if row.conflict_table.casefold() == conflict_table:
            raise PublicationError(
                f"Article '{article.name}': its conflict table would have the name of that of {owner} "
                f"({row.conflict_table}). Choose another name for the article.",
                article=article.name,
            )


def _check_article_unchanged(article: Article, row: ArticleRow) -> None:
    """Refuse changes of settings that the replicas' metadata depends on."""
    wanted: dict[str, tuple[Any, Any]] = {
        "table": (row.source_table, os.path.normpath(article.table)),
        "key": (list(row.key_columns), list(article.identity)),
        "rowguid": (row.rowguid_column, article.rowguid),
    }
    for name, (before, now) in wanted.items():
        if before != now:
            raise PublicationError(
                f"Article '{article.name}': `{name}` was {_shown(before)} and is {_shown(now)} in the file. "
                f"It cannot change while the article is published. Put it back; or {PUBLISH_AGAIN}.",
                article=article.name,
            )


def _check_tracking(article: Article, row: ArticleRow, before: Tracking) -> None:
    """Refuse column tracking of rows whose key Delta computes, possibly from columns that two replicas change."""
    computed = [name for name in row.key_columns if name in row.generated_columns]
    if computed and before is Tracking.ROW and article.tracking is Tracking.COLUMN:
        raise PublicationError(
            f"Article '{article.name}': `tracking` was 'row' and is 'column' in the file, and its key column "
            f"'{computed[0]}' is generated: halves of two rows may have another key. Put it back; or {PUBLISH_AGAIN}.",
            article=article.name,
        )


def _check_followed(article: Article, row: ArticleRow) -> None:
    """Refuse changes that active subscribers cannot follow."""
    before, now = row.partition_options, article.partition_options
    if before != now and ONE_SUBSCRIPTION in (before, now):
        raise _subscribe_again_otherwise(
            article, "partition_options", before, now, "rows that are in several partitions would stay"
        )


def _check_compared(publication: Publication, stored: Stored) -> None:
    """Check that each subscriber of an article that ends to be upload_only can be compared with the publisher."""
    names = ended_upload_only(publication, stored)
    for each in stored.subscribers if names else ():
        place = each.subscription.subscriber
        if each.row is None or not each.is_active:
            continue
        if each.row.expired_at is None:
            continue
        why = f"the subscription of '{place}' has expired"
        article = next(article for article in publication.articles if article.name == names[0])
        raise _subscribe_again_otherwise(article, "resolver", UPLOAD_ONLY, article.resolver, why)


def ended_upload_only(publication: Publication, stored: Stored) -> list[str]:
    """Return the articles that were upload_only and get another resolver: their replicas differ by design."""
    resolvers = {article.name: article.resolver for article in publication.articles}
    return [
        row.name
        for row in stored.articles
        if row.article_resolver == UPLOAD_ONLY != resolvers.get(row.name, UPLOAD_ONLY)
    ]


def _subscribe_again_otherwise(
    article: Article, key: str, before: object, now: object, why: str
) -> PublicationError:
    return PublicationError(
        f"Article '{article.name}': `{key}` was {_shown(before)} and is {_shown(now)} in the file. Active subscribers "
        f"cannot follow that: {why}. Put it back; or run `mergerepl sync`, take all subscriptions out of the file, run "
        "`mergerepl apply`, and put them in again.",
        article=article.name,
    )


def _shown(value: object) -> str:
    if value is None:
        return "not given"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else f"'{value}'"


# ---- row filters


def _filters(publication: Publication, stored: Stored, new: Sequence[NewArticle]) -> PublicationFilters:
    filters = NO_FILTERS
    names = {article.name for article in publication.articles}
    known = {row.name: row for row in stored.articles if row.name in names}
    if publication.joins or any(article.filter is not None for article in publication.articles):
        tables = {each.article.name: each.table for each in new}
        for name, row in known.items():
            tables[name] = stored.table(stored.publisher, row)
        filters = filters_of(publication, tables)
    if stored.active:
        before, given = stored_filters(stored.row), given_articles(publication, stored)
        check_followed_filters(before, filters, given)
        if before == NO_FILTERS != filters:
            raise PublicationError(
                f"Publication '{publication.name}' has active subscriptions and no row filter, and is to get one: its "
                f"subscribers have no partition yet. Take the filter out; or {PUBLISH_AGAIN}.",
                publication=publication.name,
            )
        for name in given:
            _check_known(stored, known[name], added_columns(before, filters, name))
    return filters


def given_articles(publication: Publication, stored: Stored) -> list[str]:
    """Return the published articles of the file that an initialised subscriber has.

    An interrupted run may have stored no filter of another one.
    """
    names = {article.name for article in publication.articles}
    return [row.name for row in stored.articles if row.name in names and _is_given(stored, row)]


def _check_known(stored: Stored, row: ArticleRow, columns: Sequence[str]) -> None:
    """Check that every subscriber has columns that a filter of an article newly reads.

    What it writes before it has one says nothing of it.
    """
    for each in stored.subscribers if columns else ():
        there = next((r for r in each.replica.articles if r.artid == row.artid), None)
        if not each.is_active or there is None or each.replica.info is None:
            continue
        version = each.replica.info.article_versions.get(row.nickname, FIRST_VERSION)
        has = {field.name for field in there.definitions[version].fields}
        if lacking := next((name for name in columns if name not in has), None):
            raise PublicationError(
                f"Article '{row.name}': its filter needs the column '{lacking}', which subscriber "
                f"'{each.subscription.subscriber}' does not have yet. Put the filter back, run `mergerepl sync`, and then "
                "change it.",
                article=row.name,
            )


def _is_given(stored: Stored, row: ArticleRow) -> bool:
    """Whether an initialised subscriber has an article."""
    return any(each.is_active and not each.missing([row]) for each in stored.subscribers)


def _check_values(publication: Publication, filters: PublicationFilters, values: Sequence[Values]) -> None:
    for subscription, each in zip(publication.subscriptions, values, strict=True):
        check_values(filters, each, of=f"Subscriber '{subscription.subscriber}'")
    check_no_overlap(publication, filters, values)


# ---- subscribers


def _check_subscriber(publication: Publication, stored: Stored, subscriber: SubscriberState) -> None:
    _check_was_ours(stored, subscriber)
    _check_not_moved(stored, subscriber)
    subscription, row = subscriber.subscription, subscriber.row
    if row is not None and subscriber.is_active:
        if row.subscriber_type not in list(SubscriberKind):
            path = stored.publisher.root / FOLDER / catalog.SUBSCRIPTIONS.name
            raise edited_table(path, f"has {row.subscriber_type} in column 'subscriber_type'")
        before = SubscriberKind(row.subscriber_type).name.lower()
        if before != subscription.type.value:
            # The old type decided earlier conflicts.
            raise PublicationError(
                f"Subscriber '{subscription.subscriber}': `type` was {before} and is {subscription.type.value} "
                "in the file. It cannot change while the subscription lasts. Put it back; or remove the "
                "subscription, run `mergerepl apply`, and add it again.",
                replica=subscription.subscriber,
            )


def _check_was_ours(stored: Stored, state: SubscriberState) -> None:
    """Check that a replica at the subscriber's root belongs to this publisher, and that its subscription still exists."""
    publisher, subscriber, row = stored.publisher, state.replica, state.row
    root = subscriber.root
    if subscriber.info is None:
        if row is not None and row.is_active:
            raise PublicationError(
                f"Subscriber '{root}' has lost its replica: there are no system tables below it. If the "
                "folder is elsewhere or not mounted, bring it back. To initialise it again, take the "
                "subscription out of the file, run `mergerepl apply`, move the old tables away and put the "
                "subscription in again.",
                replica=str(root),
            )
        return
    # A subscription that was cut short before its replica was created has an id without a replica; another
    # publication's replica may be there now.
    is_known_by = row is not None and row.status != SubscriptionState.INACTIVE
    if row is not None and is_known_by and row.replid != subscriber.repid:
        raise PublicationError(
            f"Subscriber '{root}' is another replica than the one subscribed from there (it is "
            f"{subscriber.repid}, the subscription {row.subid} is of {row.replid}). Bring the right "
            "folder back, or take the subscription out of the file, run `mergerepl apply`, and put it in "
            "again.",
            replica=str(root),
        )
    if any(row.is_published_by(subscriber.repid) for row in subscriber.publications):
        raise PublicationError(
            f"'{root}' is a publisher; this version of mergerepl cannot make a publisher a subscriber. Give "
            "a folder of its own.",
            replica=str(root),
        )
    publishers = {r.replid: r.subscriber_server for r in relations(subscriber.subscriptions)}
    others = {replid: server for replid, server in publishers.items() if replid != publisher.repid}
    is_known = any(r.replid == subscriber.repid for r in publisher.subscriptions)
    if publisher.repid in publishers and not is_known:
        # Rows of ended subscriptions stay. Another subscription may have this nickname now.
        raise PublicationError(
            f"'{root}' is a subscriber of '{publisher.root}', which does not know of it: the publisher was put back to an "
            "older copy. Nothing was changed. Bring the newer copy back; or move the subscriber's folder away, run "
            "`mergerepl apply`, and bring in by hand what was written there only.",
            replica=str(root),
        )
    if others or not is_known:
        other = next(iter(others.values()), "an unfinished initialisation")
        raise PublicationError(
            f"'{root}' is already a subscriber of '{other}'; a replica has one publisher. Give another "
            f"folder, or, if that subscription has ended, remove '{root / FOLDER}'.",
            replica=str(root),
        )


def _check_not_moved(stored: Stored, subscriber: SubscriberState) -> None:
    """Refuse the former folder of a subscriber whose move was recorded through another publication's file.

    The subscriber is no longer known there. This neither ends its subscription nor adds a second one.
    """
    root, row = str(subscriber.replica.root), stored.row
    if subscriber.row is not None or row is None:
        return
    applied = {each["subscriber"] for each in json.loads(row.definition or "{}").get("subscriptions", [])}
    active = [each for each in stored.publisher.subscriptions if each.is_active]
    shared = {each.replid for each in active if each.pubid != row.pubid}
    moved = [
        each.subscriber_server
        for each, _ in stored.left
        if each.replid in shared and each in active and each.subscriber_server not in applied
    ]
    if root in applied and moved:
        where = " or ".join(f"'{place}'" for place in moved)
        raise PublicationError(
            f"Subscriber '{root}' was moved, as the file of another publication said since this one was applied: to "
            f"{where}. Write that folder in this file, too. To end its subscription instead, take it out and run "
            "`mergerepl apply`.",
            replica=root,
        )
