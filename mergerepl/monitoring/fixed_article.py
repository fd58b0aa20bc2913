"""An article at both ends of a subscription, as of its captured versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl.changes import PUBLISHER
from mergerepl.delta.feed.window import feed_window
from mergerepl.errors import ConfigurationError
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.fixed_versions import FixedEnd, unsent_rows
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import position_of
from mergerepl.store.location import Location
from triggers.schema_checks import ArticleTable, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from mergerepl.spark.in_memory import Kept

Pair = tuple[PublishedArticle | None, PublishedArticle | None]
"""An article as the publisher and the subscriber have it."""


@dataclass(frozen=True)
class FixedArticle:
    """An article at both ends, as of its captured versions; both mappings are by side."""

    ends: Mapping[str, FixedEnd]
    articles: Mapping[str, PublishedArticle]

    @cached_property
    def name(self) -> str:
        """The article's name."""
        return self.articles[PUBLISHER].name

    @cached_property
    def versions(self) -> Mapping[str, int]:
        """The captured version of its table at each side."""
        return {side: end.version(self.articles[side]) for side, end in self.ends.items()}

    @cached_property
    def is_filtered(self) -> bool:
        """True if the subscriber gets a part of the publisher's rows."""
        filtered = self.ends[PUBLISHER].filtered
        return filtered is not None and self.articles[PUBLISHER].nickname in filtered.tablenicks

    @property
    def unsent(self) -> Mapping[str, int]:
        """The number of its changes that wait at each side for a sync."""
        return {side: end.unsent(self.articles[side]) for side, end in self.ends.items()}

    def table(self, side: str) -> Location:
        """The article's table at a side."""
        return self.ends[side].replica.table(self.articles[side])

    def check_columns(self) -> None:
        """Check that both tables have the published columns, as every sync does.

        Raises: SchemaMismatchError.
        """
        for side, end in self.ends.items():
            check_present_columns(end.replica, self.articles[side])

    def rows(self, kept: "Kept") -> "dict[str, DataFrame]":
        """Return the rows that both sides must have in common, by side, with the columns of their tables.

        Raises: SchemaMismatchError if a table lacks a published column.
        """
        from mergerepl.delta.tables import read_version
        from mergerepl.rows.key_bounds import same_key
        from mergerepl.spark import session as engine
        from mergerepl.spark.in_memory import broadcast_if_few
        from triggers.schema_checks import require_columns

        spark = engine.session()
        found = {side: read_version(spark, self.table(side), at) for side, at in self.versions.items()}
        if self.is_filtered:
            found[PUBLISHER] = self._of_partition(kept)
        most = sum(self.unsent.values())
        waiting = unsent_rows(spark, self.ends, self.articles, kept) if most else None
        for side, article in self.articles.items():
            require_columns(article, self.table(side), found[side].columns)
            if waiting is not None:
                keys = broadcast_if_few(waiting, most).alias("s")
                found[side] = found[side].alias("t").join(keys, on=same_key(article, {}), how="left_anti")
        return found

    def _of_partition(self, kept: "Kept") -> "DataFrame":
        """Return the publisher's rows that the subscriber should have."""
        from pyspark.sql import functions as F

        from mergerepl.changes import ROW
        from mergerepl.merge.partitions.membership import base_rows, group_rows, partition_rows
        from mergerepl.spark import session as engine

        end, article = self.ends[PUBLISHER], self.articles[PUBLISHER]
        publication = end.filtered
        assert publication is not None
        spark = engine.session()
        versions = {each.nickname: end.version(each) for each in publication.articles.values()}
        groups = [group for group in publication.groups if group.partition_id == end.other.partition_id]
        found = partition_rows(
            publication,
            group_rows(spark, groups),
            base_rows(spark, end.replica, publication.articles, versions),
            kept,
            [article.name],
        )
        names = zip(article.fields, article.columns, strict=True)
        return found[article.name].select(*(F.col(f"{ROW}.{f}").alias(name) for f, name in names))


def check_present_columns(replica: Replica, article: PublishedArticle) -> None:
    """Check that an article's table has the published columns now.

    Raises: SchemaMismatchError, with which every sync refuses it; StoreError if its log cannot be read.
    """
    info = replica.info()
    position = position_of(article, info)
    window = feed_window(replica.table(article), position) if position is not None else None
    if window is None or window.head_version is None or window.is_older or window.unreadable is not None:
        return
    check_columns(ArticleTable(article, replica.root, info.replid, replica.publishes(article.pubid)), window)


def subscribed(publisher: Replica, subscriber: Replica, publication: str) -> str:
    """Return the id of a publication that the subscriber receives.

    Raises: ConfigurationError.
    """
    replid, rows = subscriber.info().replid, publisher.relations()
    named = {row.pubid for row in publisher.published if row.name == publication}
    subscribed = named & {row.pubid for row in rows if row.replid == replid and row.is_active}
    if not subscribed:
        raise ConfigurationError(
            f"'{subscriber.root}' has no active subscription to publication '{publication}' at publisher "
            f"'{publisher.root}': there is nothing to compare. Run `mergerepl apply` with this subscription "
            "in the file.",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    return subscribed.pop()


def article_pairs(publisher: Replica, subscriber: Replica, pubid: str) -> list[Pair]:
    """Return the articles of the subscription, as each side has them; None where a side lacks one."""
    here = {article.artid: article for article in publisher.articles_of(pubid)}
    ended = publisher.ended(pubid)
    found = (article for article in subscriber.articles_of(pubid) if article.nickname not in ended)
    there = {article.artid: article for article in found}
    return [(here.get(artid), there.get(artid)) for artid in dict.fromkeys([*here, *there])]
