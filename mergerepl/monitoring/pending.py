"""`mergerepl pending`: the changes that wait for the next sync, per subscription, article and direction."""

from collections.abc import Iterator
from pathlib import Path

from mergerepl.changes import PUBLISHER
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import PendingArticle, PendingSubscription
from mergerepl.monitoring.parties import others, publication_name, reachable, subscriber_root
from mergerepl.monitoring.waiting import uncaptured, unsent_generations
from mergerepl.store.control import Row
from mergerepl.store.replica import Replica, ReplicaInfo
from mergerepl.systables.catalog import SubscriptionState

UPLOAD = "upload"
DOWNLOAD = "download"


def pending_changes(root: Path) -> tuple[PendingSubscription, ...]:
    """Return what waits in each active subscription: both directions if the other end can be read.

    Raises: ConfigurationError if the folder is no replica; StoreError if a table of it cannot be read.
    """
    replica = Replica(root).require()
    info = replica.info()
    return tuple(
        PendingSubscription(
            publication_name(replica, row["pubid"]),
            subscriber_root(replica, info, row),
            tuple(_articles(replica, info, row)),
        )
        for row in others(replica, info)
        if row["status"] == SubscriptionState.ACTIVE
    )


def _articles(replica: Replica, info: ReplicaInfo, row: Row) -> Iterator[PendingArticle]:
    """Yield the article counts of the asked replica's own direction, then of the other one."""
    other = reachable(row["subscriber_server"], row["replid"])
    away, back = (DOWNLOAD, UPLOAD) if info.role == PUBLISHER else (UPLOAD, DOWNLOAD)
    yield from _direction(away, replica, info, row, other)
    if other is not None:
        about_us = [
            r for r in other.subscriptions() if r["replid"] == info.replid and r["pubid"] == row["pubid"]
        ]
        for theirs in about_us:
            yield from _direction(back, other, other.info(), theirs, replica)


def _direction(
    direction: str, source: Replica, info: ReplicaInfo, row: Row, destination: Replica | None
) -> Iterator[PendingArticle]:
    held = destination.genhistory() if destination is not None else ()
    articles = source.articles_of(row["pubid"])
    waiting = unsent_generations(source, info, row, articles, held=held)
    for article in articles:
        yield _article(direction, source, info, article, waiting)


def _article(
    direction: str, source: Replica, info: ReplicaInfo, article: PublishedArticle, waiting: list[Row]
) -> PendingArticle:
    generations = [row for row in waiting if row["art_nick"] == article.nickname]
    found = uncaptured(source, article, info)
    return PendingArticle(
        article.name,
        direction,
        len(generations),
        sum(row["changecount"] for row in generations),
        found.commits,
        found.problem,
    )
