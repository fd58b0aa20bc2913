"""Give a subscriber the articles it lacks: tables, rows and metadata, from one version of each article.

Invariant 20: the version copied is the publisher's captured one, so that every change is either in the rows
copied, with its lineage in the metadata copied, or will be captured later and sent. A subscriber's part is
not visible to sessions before the publisher's subscription row becomes active, which is the last commit;
until then the next `apply` drops what was made and starts over.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from mergerepl.changes import ROWGUID
from mergerepl.delta.layout import clustering_columns
from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.metadata import CDF_PROPERTY
from mergerepl.delta.properties import folder_properties, retention_properties
from mergerepl.delta.tables import TableState, Transaction, create_table, open_table
from mergerepl.delta.types import Field
from mergerepl.failpoints import failpoint
from mergerepl.merge.partitions.filtered import filtered_publication
from mergerepl.merge.partitions.membership import base_rows, group_rows, partition_rows, with_rowguid
from mergerepl.merge.partitions.scratch import require_scratch_outside
from mergerepl.model.publication import Subscription, SyncType
from mergerepl.publish.adopt import adopt
from mergerepl.publish.changes import columns_changed
from mergerepl.publish.metadata import forget_metadata, give_metadata, last_generation
from mergerepl.publish.replica_state import (
    ReplicaState,
    note_captured,
    read_replica,
)
from mergerepl.publish.rows import Columns, definition, publication_row, rows_at_subscriber
from mergerepl.publish.snapshot import copy_rows, is_computable, replica_table
from mergerepl.publish.system_tables import add_image_columns, create_conflict_table, create_replica
from mergerepl.publish.unfinished import (
    article_table,
    drop_unfinished,
    drop_unfinished_replica,
    initialise_mark,
    subscriber_path,
)
from mergerepl.publish.work import Work
from mergerepl.replica.replica import Replica
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.session import require_utc
from mergerepl.systables import catalog
from mergerepl.systables.catalog import ArticleRow, SubscriptionRow, SubscriptionState, relations
from mergerepl.systables.replinfo import ReplicaInfo


def initialise(
    work: Work, subscription: Subscription, subid: str, artids: Sequence[str] | None = None
) -> None:
    """Initialise a new subscriber, or (given `artids`) new articles at one that is active already.

    Reads the publisher's rows again: steps before this one wrote them.
    """
    publisher = read_replica(work.publisher)
    row = _subscription(publisher, subid)
    root = Path(subscription.subscriber)
    articles = [a for a in publisher.articles_of(work.pubid) if artids is None or a.artid in artids]
    mark = initialise_mark(subid, "create", row.replid)
    failpoint("initialise.begin")
    _prepare(work, publisher, row, articles, root, mark)
    failpoint("initialise.after_system_tables")
    tables = {}
    kept = Kept()
    try:
        only = rows_of_partition(work, publisher, row, [article.nickname for article in articles], kept)
        for article in articles:
            work.progress.step("copy", article=article.name)
            version, table_id = _article(
                work, subscription, publisher, article, root, mark, only.get(article.nickname)
            )
            tables[article.nickname] = article_table(root, article), version, table_id
            failpoint("initialise.after_article")
        nicknames = [article.nickname for article in articles]
        published = Replica(work.publisher).articles
        give_metadata(
            work,
            publisher,
            nicknames,
            root,
            row.replnickname,
            initialise_mark(subid, "metadata", row.replid),
            only={
                article.nickname: with_rowguid(only[article.nickname], article).select(ROWGUID)
                for article in published
                if article.nickname in only
            },
        )
    finally:
        kept.release()
    note_captured(root, tables)
    failpoint("initialise.after_captured")
    if artids is None:
        _enter_publication(work, publisher, root)
    _enter_articles(articles, root)
    failpoint("initialise.after_articles")
    if artids is None:
        _enter_subscription(work, publisher, row, root)
        failpoint("initialise.before_active")
        _activate(work, root, subid)
        failpoint("initialise.after_active")


def rows_of_partition(
    work: Work, publisher: ReplicaState, row: SubscriptionRow, nicknames: Sequence[int], kept: Kept
) -> dict[int, DataFrame]:
    """Return the rows (`row`) that a subscriber gets of filtered articles, by tablenick, at their captured versions."""
    replica = Replica(work.publisher)
    publication = filtered_publication(replica, work.pubid)
    if publication is None:
        return {}
    require_scratch_outside(work.spark, replica, work.pubid, Path(row.subscriber_server))
    mine = [group for group in publication.groups if group.partition_id == row.partition_id]
    groups = group_rows(work.spark, mine)
    base = base_rows(work.spark, replica, publication.articles, publisher.captured)
    nickname_of = {name: article.nickname for name, article in publication.articles.items()}
    wanted = [
        name
        for name, nickname in nickname_of.items()
        if nickname in nicknames and nickname in publication.tablenicks
    ]
    found = partition_rows(publication, groups, base, kept, wanted)
    return {nickname_of[name]: rows for name, rows in found.items()}


def _subscription(publisher: ReplicaState, subid: str) -> SubscriptionRow:
    return next(row for row in relations(publisher.subscriptions) if row.subid == subid)


def _prepare(
    work: Work,
    publisher: ReplicaState,
    row: SubscriptionRow,
    articles: Sequence[ArticleRow],
    root: Path,
    mark: CommitMark,
) -> None:
    """Drop the tables of an unfinished run, and make the missing system tables."""
    drop_unfinished([article_table(root, article) for article in articles], row.subid)
    if row.status == SubscriptionState.INACTIVE and not _is_shared(publisher, read_replica(root), row):
        drop_unfinished_replica(root, row.subid)
    images = {article.nickname: _fields(publisher, article) for article in articles}
    state = read_replica(root)
    if state.info is None:
        info = ReplicaInfo(repid=row.replid, replnickname=row.replnickname, root=str(root))
        create_replica(root, info, images, retention=work.retention, mark=mark)
    else:
        Replica(root).require_unedited()
        forget_metadata(work, state, [*(row.nickname for row in articles), *_gone(work, publisher, state)])
        add_image_columns(lambda: work.spark, root, images)
    for article in articles:
        create_conflict_table(
            root,
            article.conflict_table,
            images[article.nickname],
            spark_of=lambda: work.spark,
            retention=work.retention,
            mark=mark,
        )


def _is_shared(publisher: ReplicaState, subscriber: ReplicaState, row: SubscriptionRow) -> bool:
    """Return whether a replica belongs also to another publication than the one that it was made for.

    Another one may have joined while the first was unfinished: its metadata and its conflicts are there, too.
    """
    pubids = {each.pubid for each in subscriber.subscriptions}
    pubids |= {each.pubid for each in subscriber.articles}
    return not pubids <= {row.pubid} or any(
        each.replid == row.replid and each.subid != row.subid and each.is_active
        for each in publisher.subscriptions
    )


def _gone(work: Work, publisher: ReplicaState, subscriber: ReplicaState) -> list[int]:
    """Return the nicknames of articles that a former subscriber still has and the publication no longer has."""
    published = {row.artid for row in publisher.articles_of(work.pubid)}
    rows = subscriber.articles_of(work.pubid)
    return [row.nickname for row in rows if row.artid not in published]


def _fields(publisher: ReplicaState, article: ArticleRow) -> list[Field]:
    """Return the columns in the order in which they were published, which identifies them in images.

    Raises: PublicationError.
    """
    table = _publisher_table(publisher, article)
    fields = {field["name"]: field for field in table.fields}
    if not fields.keys() >= set(article.published_columns):
        raise columns_changed(article, table)
    return [fields[name] for name in article.published_columns]


def _publisher_table(publisher: ReplicaState, article: ArticleRow) -> TableState:
    return open_table(publisher.root / article.source_table)


def _article(
    work: Work,
    subscription: Subscription,
    publisher: ReplicaState,
    article: ArticleRow,
    root: Path,
    mark: CommitMark,
    only: DataFrame | None,
) -> tuple[int, str]:
    """Make or check one article's table; return its captured version and its id."""
    source = _publisher_table(publisher, article)
    require_utc(work.spark, article.name, source.path, source.metadata.timestamp_partitions)
    captured = publisher.captured[article.nickname]
    if subscription.sync_type is SyncType.NONE:
        return adopt(work, article, source, captured, root)
    target = article_table(root, article)
    columns = list(article.published_columns)
    properties = {
        CDF_PROPERTY: "true",
        **retention_properties(source.properties, work.retention),
        **folder_properties(source),
    }
    new = replica_table(
        source,
        columns,
        properties,
        clustering=clustering_columns(work.spark, source),
        is_computable=partial(is_computable, work.spark, source, columns),
    )
    table_id = create_table(target, new, mark)
    failpoint("initialise.after_create")
    version = copy_rows(
        work.spark,
        source.path,
        captured,
        target,
        columns=columns,
        partition_columns=new.partition_columns,
        transaction=Transaction(mark.session, 1, replace(mark, step=f"{SETUP}:rows")),
        only=only,
    )
    # A commit between the two is a user's write: it is captured later.
    return (version if version == 1 else 0), table_id


def _enter_publication(work: Work, publisher: ReplicaState, root: Path) -> None:
    """Write the publication's row at a new subscriber; a former subscriber has the row of that time."""
    control = Replica(root).control
    publications = control.rows(catalog.PUBLICATIONS)
    former = next((row for row in publications if row.pubid == work.pubid), None)
    number = len(publications) + 1 if former is None else former.publication_number
    row = publication_row(work.publication, work.pubid, number, publisher_replid=publisher.repid)
    row = replace(row, status=1, definition=definition(work.publication, with_subscriptions=False))
    if row != former:
        control.replace(catalog.PUBLICATIONS, [*(each for each in publications if each is not former), row])


def _enter_articles(articles: Sequence[ArticleRow], root: Path) -> None:
    control = Replica(root).control
    entered = [replace(a, source_table=subscriber_path(a.name, a.source_table)) for a in articles]
    known = {article.artid for article in entered}
    others = [row for row in control.rows(catalog.ARTICLES) if row.artid not in known]
    control.replace(catalog.ARTICLES, [*others, *entered])


def _enter_subscription(work: Work, publisher: ReplicaState, row: SubscriptionRow, root: Path) -> None:
    """Write the subscriber's own rows of the subscription: one for itself, one for the publisher."""
    assert publisher.info is not None
    control = Replica(root).control
    at_publisher = last_generation(work.publisher, work.pubid)
    here = last_generation(root, work.pubid)
    itself, other = rows_at_subscriber(publisher.info, row)
    other = replace(other, recgen=at_publisher[0], recguid=at_publisher[1], sentgen=here[0], sentguid=here[1])
    kept = [r for r in control.rows(catalog.SUBSCRIPTIONS) if r.pubid != work.pubid]
    control.replace(catalog.SUBSCRIPTIONS, [*kept, itself, other])


def _activate(work: Work, root: Path, subid: str) -> None:
    """Make the publisher's subscription row active: the commit point of an initialisation."""
    publisher = read_replica(work.publisher)
    at_publisher = last_generation(work.publisher, work.pubid)
    at_subscriber = last_generation(root, work.pubid)
    change: Columns = {
        "status": SubscriptionState.ACTIVE,
        "sentgen": at_publisher[0],
        "sentguid": at_publisher[1],
        "recgen": at_subscriber[0],
        "recguid": at_subscriber[1],
    }
    rows = [
        replace(row, **change) if row.subid == subid and not row.is_ended else row
        for row in publisher.subscriptions
    ]
    publisher.control.replace(catalog.SUBSCRIPTIONS, rows)
