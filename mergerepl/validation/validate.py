"""`mergerepl validate` and `sync --validate`: do a subscriber and its publisher hold the same rows?

Both tables are taken as they are at that moment; changes that were not synchronized yet are differences.
Nothing is written.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mergerepl.changes import PUBLISHER
from mergerepl.errors import ConfigurationError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ArticleValidation
from mergerepl.store.replica import Replica
from mergerepl.systables.catalog import SubscriptionState
from mergerepl.validation.row_count import row_count

ROWCOUNT = "rowcount"

_AT_ONCE = 2
"""Comparisons run side by side: one keeps two cores busy only in part."""


def validate_subscription(publisher: Path, subscriber: Path, level: str) -> tuple[ArticleValidation, ...]:
    """Compare all articles a subscriber receives from a publisher.

    Args:
        publisher: Publisher root.
        subscriber: Subscriber root.
        level: `rowcount` compares numbers of rows, `checksum` every published value by its bits.

    Raises: ConfigurationError if a folder is no replica or there is no such subscription; StoreError if a
        table cannot be read.
    """
    at_publisher, at_subscriber = Replica(publisher).require(), Replica(subscriber).require()
    pairs = _articles(at_publisher, at_subscriber)

    def compare(pair: tuple[PublishedArticle, PublishedArticle]) -> ArticleValidation:
        here, there = pair
        if level == ROWCOUNT:
            return _compare_counts(here.name, at_publisher.table(here), at_subscriber.table(there))
        from mergerepl import spark
        from mergerepl.store.engine_errors import told_plainly
        from mergerepl.validation.compare_tables import compare_tables

        tables = at_publisher.table(here), at_subscriber.table(there)
        with told_plainly(f"comparing '{tables[0]}' with '{tables[1]}'"):
            return compare_tables(spark.session(), here, there, *tables)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(compare, pairs))


def _articles(publisher: Replica, subscriber: Replica) -> list[tuple[PublishedArticle, PublishedArticle]]:
    """Return the articles of the subscription, as each side has them."""
    replid, role = subscriber.info().replid, publisher.info().role
    rows = publisher.subscriptions() if role == PUBLISHER else []
    subscribed = {
        row["pubid"] for row in rows if row["replid"] == replid and row["status"] == SubscriptionState.ACTIVE
    }
    there = {article.artid: article for article in subscriber.articles}
    pairs = [
        (article, there[article.artid])
        for article in publisher.articles
        if article.pubid in subscribed and article.artid in there
    ]
    if not subscribed:
        raise ConfigurationError(
            f"'{subscriber.root}' has no active subscription at publisher '{publisher.root}': there is "
            "nothing to compare. Run `mergerepl apply FILE` with this subscription in the file.",
            publisher=str(publisher.root),
            subscriber=str(subscriber.root),
        )
    return pairs


def _compare_counts(article: str, publisher_table: Path, subscriber_table: Path) -> ArticleValidation:
    at_publisher, at_subscriber = row_count(publisher_table), row_count(subscriber_table)
    return ArticleValidation(
        article, ROWCOUNT, at_publisher, at_subscriber, abs(at_publisher - at_subscriber)
    )
