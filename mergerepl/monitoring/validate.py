"""`mergerepl validate` and `sync --validate`: do a subscriber and its publisher have the same rows?

Compares both tables as they are now; changes that were not synchronized yet are differences. Nothing is written.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.feed.window import feed_window
from mergerepl.delta.tables import head_version
from mergerepl.errors import ConfigurationError, MergeReplError, SchemaMismatchError, StoreError
from mergerepl.merge.partitions.filtered import filtered_publication
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ArticleValidation
from mergerepl.monitoring.compare_tables import row_count
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import position_of, require_ends
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import worker_threads
from triggers.schema_checks import ArticleTable, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mergerepl.spark.in_memory import Kept

ROWCOUNT = "rowcount"

Pair = tuple[PublishedArticle | None, PublishedArticle | None]
"""An article as the publisher and the subscriber have it."""

_AT_ONCE = 2
"""Comparisons run side by side: one keeps two cores busy only in part."""


def validate_subscription(
    publisher: Location, subscriber: Location, publication: str, level: str, *, tables: Collection[str] = ()
) -> tuple[ArticleValidation, ...]:
    """Compare all articles of a publication that a subscriber receives; an article that a side lacks differs.

    Only the named publication counts: the two replicas may share other subscriptions. `tables` are names of articles;
    empty for all. As `level`, `rowcount` compares
    numbers of rows, `checksum` every published value by its bits.

    Raises: ConfigurationError if a folder is not a replica or the subscription does not exist; StoreError if a folder
    is missing, OutOfReachError if the other end knows it; SchemaMismatchError and StoreError if the only article cannot
    be compared. With several articles, the result of that article has the error.
    """
    at_publisher, at_subscriber = require_ends(publisher, subscriber)
    pairs = [
        pair
        for pair in _articles(at_publisher, at_subscriber, publication)
        if not tables or any(each is not None and each.name in tables for each in pair)
    ]
    partition = _Partition(at_publisher, at_subscriber, pairs)

    def compare(pair: Pair) -> ArticleValidation:
        here, there = pair
        if here is None or there is None:
            return _only_at_one_side(at_publisher, at_subscriber, here, there, level)
        # Equal rows stay equal only while they are synchronized.
        refusal = _refusal(at_publisher, here) or _refusal(at_subscriber, there)
        try:
            return replace(compare_rows(here, there), error=refusal)
        except (SchemaMismatchError, StoreError) as error:
            if len(pairs) == 1:
                raise
            # The other articles are still compared.
            return ArticleValidation(here.name, level, 0, 0, 0, error=refusal or error.details())

    def compare_rows(here: PublishedArticle, there: PublishedArticle) -> ArticleValidation:
        if here.rejects == PUBLISHER:
            counts = _compare_counts(here.name, at_publisher.table(here), at_subscriber.table(there))
            return replace(counts, level=level, may_differ=True)
        if here.nickname in partition.tablenicks:
            return partition.compare(here, there, level)
        if level == ROWCOUNT:
            return _compare_counts(here.name, at_publisher.table(here), at_subscriber.table(there))
        from mergerepl.monitoring.compare_tables import compare_tables
        from mergerepl.spark import session as engine
        from mergerepl.spark.plain import plain_errors

        tables = at_publisher.table(here), at_subscriber.table(there)
        with plain_errors(f"comparing '{tables[0]}' with '{tables[1]}'"):
            return compare_tables(engine.session(), here, there, *tables)

    with worker_threads(_AT_ONCE) as pool:
        return tuple(replace(compared, publication=publication) for compared in pool.map(compare, pairs))


class _Partition:
    """The rows of filtered articles that a subscriber should have, from the tables as they are now."""

    def __init__(self, publisher: Replica, subscriber: Replica, pairs: Sequence[Pair]) -> None:
        self.publisher, self.subscriber = publisher, subscriber
        pubids = {here.pubid for here, _ in pairs if here is not None}
        publications = [filtered_publication(publisher, pubid) for pubid in pubids]
        self.publication = next((each for each in publications if each is not None), None)

    @property
    def tablenicks(self) -> frozenset[int]:
        """The filtered articles."""
        return self.publication.tablenicks if self.publication is not None else frozenset()

    def compare(self, here: PublishedArticle, there: PublishedArticle, level: str) -> ArticleValidation:
        """Compare one of them."""
        from mergerepl.monitoring.compare_tables import compare_tables
        from mergerepl.spark.in_memory import Kept
        from mergerepl.spark.plain import plain_errors

        tables = self.publisher.table(here), self.subscriber.table(there)
        kept = Kept()
        try:
            with plain_errors(f"comparing '{tables[0]}' with '{tables[1]}'"):
                rows = self._wanted(here, kept)
                if level == ROWCOUNT:
                    at_publisher, at_subscriber = rows.count(), row_count(tables[1])
                    differing = abs(at_publisher - at_subscriber)
                    found = ArticleValidation(here.name, ROWCOUNT, at_publisher, at_subscriber, differing)
                else:
                    from mergerepl.spark import session as engine

                    found = compare_tables(engine.session(), here, there, *tables, publisher_rows=rows)
        finally:
            kept.release()
        return replace(found, partition_id=self._partition_id())

    def _partition_id(self) -> int | None:
        assert self.publication is not None
        replid = self.subscriber.info().replid
        relations = self.publisher.relations(self.publication.pubid)
        return next(row.partition_id for row in relations if row.replid == replid and row.is_active)

    def _wanted(self, article: PublishedArticle, kept: "Kept") -> "DataFrame":
        from pyspark.sql import functions as F

        from mergerepl.changes import ROW
        from mergerepl.merge.partitions.membership import base_rows, group_rows, partition_rows
        from mergerepl.spark import session as engine

        assert self.publication is not None
        mine = self._partition_id()
        spark = engine.session()
        articles = self.publication.articles
        versions = {a.nickname: head_version(self.publisher.table(a)) for a in articles.values()}
        groups = [group for group in self.publication.groups if group.partition_id == mine]
        found = partition_rows(
            self.publication,
            group_rows(spark, groups),
            base_rows(spark, self.publisher, articles, versions),
            kept,
            [article.name],
        )
        names = zip(article.fields, article.columns, strict=True)
        return found[article.name].select(*(F.col(f"{ROW}.{f}").alias(name) for f, name in names))


def _refusal(replica: Replica, article: PublishedArticle) -> dict[str, Any] | None:
    """Return the error with which every sync refuses the present columns of an article's table, or None."""
    info = replica.info()
    position = position_of(article, info)
    window = feed_window(replica.table(article), position) if position is not None else None
    if window is None or window.head_version is None or window.is_older or window.unreadable is not None:
        return None
    at = ArticleTable(article, replica.root, info.replid, replica.publishes(article.pubid))
    try:
        check_columns(at, window)
    except SchemaMismatchError as error:
        return error.details()
    return None


def not_compared(
    publisher: Location, publication: str, level: str, error: dict[str, Any]
) -> tuple[ArticleValidation, ...]:
    """Return the result for a subscriber that could not be compared: the error at each article of the publication.

    Empty if the articles are unknown: the publisher cannot be read, or has no publication of that name.
    """
    try:
        articles = Replica(publisher).require().articles
    except MergeReplError:
        return ()
    return tuple(
        ArticleValidation(article.name, level, 0, 0, 0, publication=publication, error=error)
        for article in articles
        if article.publication == publication
    )


def _articles(publisher: Replica, subscriber: Replica, publication: str) -> list[Pair]:
    """Return the articles of the subscription, as each side has them; None where a side lacks one."""
    replid, rows = subscriber.info().replid, publisher.relations()
    named = {row.pubid for row in publisher.published if row.name == publication}
    subscribed = named & {row.pubid for row in rows if row.replid == replid and row.is_active}
    here = {article.artid: article for article in publisher.articles if article.pubid in subscribed}
    there = {article.artid: article for article in subscriber.articles if article.pubid in subscribed}
    pairs = [(here.get(artid), there.get(artid)) for artid in dict.fromkeys([*here, *there])]
    if not subscribed:
        raise ConfigurationError(
            f"'{subscriber.root}' has no active subscription to publication '{publication}' at publisher "
            f"'{publisher.root}': there is nothing to compare. Run `mergerepl apply` with this subscription "
            "in the file.",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    return pairs


def _only_at_one_side(
    publisher: Replica,
    subscriber: Replica,
    here: PublishedArticle | None,
    there: PublishedArticle | None,
    level: str,
) -> ArticleValidation:
    """Return the result for an article that one side lacks, as after an interrupted `apply`."""
    at_publisher = row_count(publisher.table(here)) if here is not None else 0
    at_subscriber = row_count(subscriber.table(there)) if there is not None else 0
    known = here or there
    assert known is not None
    return ArticleValidation(
        known.name,
        level,
        at_publisher,
        at_subscriber,
        at_publisher + at_subscriber,
        missing_at=PUBLISHER if here is None else SUBSCRIBER,
    )


def _compare_counts(article: str, publisher_table: Location, subscriber_table: Location) -> ArticleValidation:
    at_publisher, at_subscriber = row_count(publisher_table), row_count(subscriber_table)
    return ArticleValidation(
        article, ROWCOUNT, at_publisher, at_subscriber, abs(at_publisher - at_subscriber)
    )
