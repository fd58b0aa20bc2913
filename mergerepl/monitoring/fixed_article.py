"""An article at both ends of a subscription, as of its captured versions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl.changes import PUBLISHER
from mergerepl.delta.engine_choice import embedded_spark
from mergerepl.delta.feed.window import feed_window
from mergerepl.delta.tables import open_table
from mergerepl.errors import ConfigurationError
from mergerepl.frames import DataFrame, is_in_process
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.fixed_versions import FixedEnd, recorded_keys, unsent_rows
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import position_of
from mergerepl.store.location import Location
from triggers.schema_checks import ArticleTable, check_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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

    @property
    def uncaptured(self) -> Mapping[str, int]:
        """The number of commits after its captured version at each side."""
        return {side: end.uncaptured(self.articles[side]).commits for side, end in self.ends.items()}

    def table(self, side: str) -> Location:
        """The article's table at a side."""
        return self.ends[side].replica.table(self.articles[side])

    def check_columns(self) -> None:
        """Check that both tables have the published columns, as every sync does.

        Raises: SchemaMismatchError.
        """
        for side, end in self.ends.items():
            check_present_columns(end.replica, self.articles[side])

    def is_touched(self, since: Mapping[str, int]) -> bool:
        """True if a side recorded runs after these ones, of whatever article."""
        return any(end.info.last_seq > since[side] for side, end in self.ends.items())

    def rows(self, kept: "Kept", *, touched_since: Mapping[str, int] | None = None) -> dict[str, DataFrame]:
        """Return the rows that both sides must have in common, by side, with the columns of their tables.

        `touched_since`: side -> a run; only rows that a later run of a side recorded, on Spark.

        In process, only tables of few rows and plain types are read.

        Raises: SchemaMismatchError if a table lacks a published column; NeedsSparkError in process.
        """
        from mergerepl.frames import F
        from mergerepl.rows.key_bounds import bounds_of, same_key
        from mergerepl.spark.in_memory import broadcast_if_few

        spark = embedded_spark()
        touched = None
        if touched_since is not None:
            touched = recorded_keys(spark, self.ends, self.articles, touched_since, kept)
            at_publisher = self.articles[PUBLISHER]
            count, bounds = touched.count(), bounds_of(touched, at_publisher, lambda field: F.col(field))
        found = {side: self._table_rows(spark, side) for side in self.articles}
        if self.is_filtered:
            found[PUBLISHER] = self._of_partition(spark, kept)
        most = sum(self.unsent.values())
        waiting = unsent_rows(spark, self.ends, self.articles, kept) if most else None
        for side, article in self.articles.items():
            if waiting is not None:
                keys = broadcast_if_few(waiting, most).alias("s")
                found[side] = found[side].alias("t").join(keys, on=same_key(article, {}), how="left_anti")
            if touched is not None:
                keys = broadcast_if_few(touched, count).alias("s")
                found[side] = found[side].alias("t").join(keys, on=same_key(article, bounds), how="left_semi")
        return found

    def _table_rows(self, spark: "SparkSession", side: str) -> DataFrame:
        from mergerepl.delta.tables import read_version
        from triggers.schema_checks import require_columns

        path, version, article = self.table(side), self.versions[side], self.articles[side]
        if not is_in_process():
            found = read_version(spark, path, version)
            require_columns(article, path, found.columns)
            return found
        require_columns(article, path, [field.name for field in open_table(path, version).schema])
        return _few_rows(path, version, article)

    def _of_partition(self, spark: "SparkSession", kept: "Kept") -> DataFrame:
        """Return the publisher's rows that the subscriber should have."""
        from mergerepl.changes import ROW
        from mergerepl.frames import F
        from mergerepl.merge.partitions.membership import base_rows, subscribed_rows

        end, article = self.ends[PUBLISHER], self.articles[PUBLISHER]
        publication = end.filtered
        assert publication is not None
        articles = publication.articles
        versions = {each.nickname: end.version(each) for each in articles.values()}

        base = base_rows(spark, end.replica, articles, versions)
        found = subscribed_rows(spark, publication, end.other.partition_id, base, article.name, kept)
        names = zip(article.fields, article.columns, strict=True)
        return found.select(*(F.col(f"{ROW}.{f}").alias(name) for f, name in names))


def _few_rows(path: Location, version: int, article: PublishedArticle) -> DataFrame:
    """Return the published columns of a small table in process. Raises: NeedsSparkError."""
    from mergerepl.delta.commit_files import few_rows, frame_here

    state = open_table(path, version)
    return frame_here(few_rows(state, article.columns, is_key=False), state)


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
