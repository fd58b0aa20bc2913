"""`mergerepl validate` and `sync --validate`: do a subscriber and its publisher have the same rows?

Compares both tables at their captured versions, without the rows whose changes a sync has still to bring over: the rest
is divergence, not pending work. Writers and sessions may go on. Nothing is written.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.feed.window import feed_window
from mergerepl.errors import (
    CaptureError,
    ConfigurationError,
    EngineError,
    MergeReplError,
    SchemaMismatchError,
    StoreError,
)
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ArticleValidation
from mergerepl.monitoring.compare_tables import row_count
from mergerepl.monitoring.fixed_versions import FixedEnd, fixed_ends, unsent_rows
from mergerepl.monitoring.waiting import Uncaptured
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
    is missing, OutOfReachError if the other end knows it; PublicationError, EnumerationError if the ends do not fit
    together; LeaseError if sessions ran all the time; SchemaMismatchError, StoreError and CaptureError if the only
    article cannot be compared. With several articles, the result of that article has the error.
    """
    at_publisher, at_subscriber = require_ends(publisher, subscriber)
    pubid = _pubid(at_publisher, at_subscriber, publication)
    pairs = [
        pair
        for pair in _articles(at_publisher, at_subscriber, pubid)
        if not tables or any(each is not None and each.name in tables for each in pair)
    ]
    ends = fixed_ends(at_publisher, at_subscriber, pubid)

    def compare(pair: Pair) -> ArticleValidation:
        here, there = pair
        if here is None or there is None:
            return _only_at_one_side(at_publisher, at_subscriber, here, there, level)
        # Equal rows stay equal only while they are synchronized.
        refusal = _refusal(at_publisher, here) or _refusal(at_subscriber, there)
        try:
            return replace(
                FixedArticle(ends, {PUBLISHER: here, SUBSCRIBER: there}).compare(level), error=refusal
            )
        except (SchemaMismatchError, StoreError, CaptureError) as error:
            if len(pairs) == 1:
                raise
            # The other articles are still compared.
            return ArticleValidation(here.name, level, 0, 0, 0, error=refusal or error.details())

    with worker_threads(_AT_ONCE) as pool:
        return tuple(replace(compared, publication=publication) for compared in pool.map(compare, pairs))


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

    def compare(self, level: str) -> ArticleValidation:
        """Compare both sides' rows.

        Raises: SchemaMismatchError, StoreError, CaptureError if they cannot be read.
        """
        uncaptured = {side: end.uncaptured(self.articles[side]) for side, end in self.ends.items()}
        unsent = {side: end.unsent(self.articles[side]) for side, end in self.ends.items()}
        if self.articles[PUBLISHER].rejects == PUBLISHER:
            found = replace(self._counts(), level=level, may_differ=True)
        elif level == ROWCOUNT and not self.is_filtered and not any(unsent.values()):
            found = self._counts()
        else:
            found = self._compared_rows(level, has_unsent=any(unsent.values()))
        return replace(found, **self._facts(uncaptured, unsent))

    def _facts(self, uncaptured: Mapping[str, Uncaptured], unsent: Mapping[str, int]) -> dict[str, Any]:
        partition = self.ends[PUBLISHER].other.partition_id if self.is_filtered else None
        facts: dict[str, Any] = {"partition_id": partition}
        for side in self.ends:
            facts[f"{side}_version"] = self.versions[side]
            facts[f"unsent_at_{side}"] = unsent[side]
            facts[f"uncaptured_at_{side}"] = uncaptured[side].commits
        return facts

    def table(self, side: str) -> Location:
        """The article's table at a side."""
        return self.ends[side].replica.table(self.articles[side])

    def _counts(self) -> ArticleValidation:
        rows = {side: row_count(self.table(side), version) for side, version in self.versions.items()}
        return _of_counts(self.name, rows[PUBLISHER], rows[SUBSCRIBER])

    def _compared_rows(self, level: str, *, has_unsent: bool) -> ArticleValidation:
        from mergerepl.monitoring.compare_tables import Compared, compare_tables
        from mergerepl.spark.in_memory import Kept
        from mergerepl.spark.plain import plain_errors

        kept = Kept()
        try:
            with plain_errors(f"comparing '{self.table(PUBLISHER)}' with '{self.table(SUBSCRIBER)}'"):
                rows = self.rows(kept, has_unsent=has_unsent)
                if level == ROWCOUNT:
                    return _of_counts(self.name, *(rows[side].count() for side in (PUBLISHER, SUBSCRIBER)))
                here, there = self.articles[PUBLISHER], self.articles[SUBSCRIBER]
                return compare_tables(Compared(here, there, rows[PUBLISHER], rows[SUBSCRIBER]))
        except (StoreError, EngineError) as error:
            raise self._gone(error) or error from error
        finally:
            kept.release()

    def _gone(self, error: MergeReplError) -> StoreError | None:
        """Return the error for a captured version whose files or log are gone, if `error` means that."""
        from mergerepl.spark.errors import gone_reason

        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        reason = gone_reason(cause)
        if reason is None:
            return None
        tables = " and ".join(
            f"version {version} of '{self.table(side)}'" for side, version in self.versions.items()
        )
        return StoreError(
            f"Article '{self.name}' cannot be compared: {reason} ({tables}). Run `mergerepl sync`, or `mergerepl capture` "
            "at both replicas, then validate again: the newly captured versions are compared.",
            article=self.name,
        )

    def rows(self, kept: "Kept", *, has_unsent: bool) -> "dict[str, DataFrame]":
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
        waiting = unsent_rows(spark, self.ends, self.articles, kept) if has_unsent else None
        for side, article in self.articles.items():
            require_columns(article, self.table(side), found[side].columns)
            if waiting is not None:
                most = sum(end.unsent(self.articles[name]) for name, end in self.ends.items())
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


def _pubid(publisher: Replica, subscriber: Replica, publication: str) -> str:
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


def _articles(publisher: Replica, subscriber: Replica, pubid: str) -> list[Pair]:
    """Return the articles of the subscription, as each side has them; None where a side lacks one."""
    here = {article.artid: article for article in publisher.articles_of(pubid)}
    there = {article.artid: article for article in subscriber.articles_of(pubid)}
    return [(here.get(artid), there.get(artid)) for artid in dict.fromkeys([*here, *there])]


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


def _of_counts(article: str, at_publisher: int, at_subscriber: int) -> ArticleValidation:
    return ArticleValidation(
        article, ROWCOUNT, at_publisher, at_subscriber, abs(at_publisher - at_subscriber)
    )
