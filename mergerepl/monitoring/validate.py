"""`mergerepl validate` and `sync --validate`: do a subscriber and its publisher have the same rows?

Compares both tables at their captured versions, without the rows whose changes a sync has still to bring over: the rest
is divergence, not pending work. Writers and sessions may go on. Nothing is written.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.errors import CaptureError, EngineError, MergeReplError, SchemaMismatchError, StoreError
from mergerepl.frames import NeedsSparkError, is_in_process
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ArticleValidation
from mergerepl.monitoring.compare_tables import row_count
from mergerepl.monitoring.fixed_article import (
    FixedArticle,
    Pair,
    article_pairs,
    check_present_columns,
    subscribed,
)
from mergerepl.monitoring.fixed_versions import fixed_ends
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import require_ends
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import worker_threads

if TYPE_CHECKING:
    from mergerepl.spark.in_memory import Kept

log = logging.getLogger(__name__)

ROWCOUNT = "rowcount"

_AT_ONCE = 2
"""Comparisons run side by side: one keeps two cores busy only in part."""


def validate_subscription(
    publisher: Location,
    subscriber: Location,
    publication: str,
    level: str,
    *,
    tables: Collection[str] = (),
    since: Mapping[str, int] | None = None,
) -> tuple[ArticleValidation, ...]:
    """Compare all articles of a publication that a subscriber receives; an article that a side lacks differs.

    Only the named publication counts: the two replicas may share other subscriptions. `tables` are names of articles;
    empty for all. As `level`, `rowcount` compares
    numbers of rows, `checksum` every published value by its bits, `touched` those of the rows that a run after
    `since` (side -> its last run before) recorded.

    Raises: ConfigurationError if a folder is not a replica or the subscription does not exist; StoreError if a folder
    is missing, OutOfReachError if the other end knows it; PublicationError, EnumerationError if the ends do not fit
    together; LeaseError if sessions ran all the time; SchemaMismatchError, StoreError and CaptureError if the only
    article cannot be compared. With several articles, the result of that article has the error.
    """
    at_publisher, at_subscriber = require_ends(publisher, subscriber)
    pubid = subscribed(at_publisher, at_subscriber, publication)
    pairs = [
        pair
        for pair in article_pairs(at_publisher, at_subscriber, pubid)
        if not tables or any(each is not None and each.name in tables for each in pair)
    ]
    ends = fixed_ends(at_publisher, at_subscriber, pubid)

    def compare_pair(pair: Pair) -> ArticleValidation:
        here, there = pair
        if here is None or there is None:
            return _only_at_one_side(at_publisher, at_subscriber, here, there, level)
        # Equal rows stay equal only while they are synchronized.
        refusal = _refusal(at_publisher, here) or _refusal(at_subscriber, there)
        try:
            return replace(
                compare(FixedArticle(ends, {PUBLISHER: here, SUBSCRIBER: there}), level, since), error=refusal
            )
        except (SchemaMismatchError, StoreError, CaptureError) as error:
            if len(pairs) == 1:
                raise
            # The other articles are still compared.
            return ArticleValidation(here.name, level, 0, 0, 0, error=refusal or error.details())

    if any(end.filtered is not None for end in ends.values()):
        # Two threads that import it at once would see a half of it.
        import_module("mergerepl.merge.partitions.membership")
    with worker_threads(_AT_ONCE) as pool:
        return tuple(replace(compared, publication=publication) for compared in pool.map(compare_pair, pairs))


def compare(article: FixedArticle, level: str, since: Mapping[str, int] | None = None) -> ArticleValidation:
    """Compare both sides' rows of an article; `since` as in `validate_subscription`.

    Raises: SchemaMismatchError, StoreError, CaptureError if they cannot be read.
    """
    uncaptured = article.uncaptured
    if article.articles[PUBLISHER].rejects == PUBLISHER:
        found = replace(_counts(article), level=level, may_differ=True)
    elif level == ROWCOUNT and not article.is_filtered and not any(article.unsent.values()):
        found = _counts(article)
    elif since is not None and not article.is_touched(since):
        found = ArticleValidation(article.name, level, 0, 0, 0)
    else:
        found = replace(_compared_rows(article, level, since), level=level)
    partition = article.ends[PUBLISHER].other.partition_id if article.is_filtered else None
    facts: dict[str, Any] = {"partition_id": partition}
    for side in article.ends:
        facts[f"{side}_version"] = article.versions[side]
        facts[f"unsent_at_{side}"] = article.unsent[side]
        facts[f"uncaptured_at_{side}"] = uncaptured[side]
    return replace(found, **facts)


def _counts(article: FixedArticle) -> ArticleValidation:
    rows = {side: row_count(article.table(side), version) for side, version in article.versions.items()}
    return _of_counts(article.name, rows[PUBLISHER], rows[SUBSCRIBER])


def _compared_rows(article: FixedArticle, level: str, since: Mapping[str, int] | None) -> ArticleValidation:
    from mergerepl.spark.in_memory import Kept
    from mergerepl.spark.plain import plain_errors

    choice, kept = EngineChoice(uses_arrow=True, in_process=True), Kept()
    try:
        if since is not None:
            raise NeedsSparkError("rows of some runs are looked up")
        with choice.rules():
            return _compared(article, level, kept, None)
    except NeedsSparkError as error:
        log.info("Spark compares '%s': %s", article.table(PUBLISHER), error)
    kept = Kept()
    try:
        with plain_errors(f"comparing '{article.table(PUBLISHER)}' with '{article.table(SUBSCRIBER)}'"):
            return _compared(article, level, kept, since)
    except (StoreError, EngineError) as error:
        raise _gone(article, error) or error from error
    finally:
        kept.release()


def _compared(
    article: FixedArticle, level: str, kept: "Kept", since: Mapping[str, int] | None
) -> ArticleValidation:
    """Compare in process or on Spark, as the context chose."""
    from mergerepl.monitoring.compare_tables import Compared, compare_here, compare_tables

    rows = article.rows(kept, touched_since=since)
    if level == ROWCOUNT:
        return _of_counts(article.name, *(rows[side].count() for side in (PUBLISHER, SUBSCRIBER)))
    here, there = article.articles[PUBLISHER], article.articles[SUBSCRIBER]
    compare_sides = compare_here if is_in_process() else compare_tables
    return compare_sides(Compared(here, there, rows[PUBLISHER], rows[SUBSCRIBER]))


def _gone(article: FixedArticle, error: MergeReplError) -> StoreError | None:
    """Return the error for a captured version whose files or log are gone, if `error` means that."""
    from mergerepl.spark.errors import gone_reason

    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    reason = gone_reason(cause)
    if reason is None:
        return None
    tables = " and ".join(
        f"version {version} of '{article.table(side)}'" for side, version in article.versions.items()
    )
    return StoreError(
        f"Article '{article.name}' cannot be compared: {reason} ({tables}). Run `mergerepl sync`, or `mergerepl capture` "
        "at both replicas, then validate again: the newly captured versions are compared.",
        article=article.name,
    )


def _refusal(replica: Replica, article: PublishedArticle) -> dict[str, Any] | None:
    """Return the error with which every sync refuses the present columns of an article's table, or None."""
    try:
        check_present_columns(replica, article)
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
