"""`mergerepl pending`: the changes that wait for the next sync, per subscription, article and direction."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from mergerepl.errors import StoreError
from mergerepl.feed.window import FeedWindow
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import PendingArticle, PendingSubscription
from mergerepl.monitoring.parties import others, publication_name, reachable, subscriber_root
from mergerepl.monitoring.waiting import uncaptured, unsent_generations
from mergerepl.store.replica import Replica
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.replinfo import ReplicaInfo

UPLOAD = "upload"
DOWNLOAD = "download"


TableProblems = Callable[[PublishedArticle, FeedWindow], Sequence[str]]

Look = Callable[[Replica, ReplicaInfo, PublishedArticle], tuple[int, str | None]]
"""Gives the commits of an article's table that are not captured yet, and what keeps capture from them."""


def pending_changes(root: Path, *, table_problems: TableProblems) -> tuple[PendingSubscription, ...]:
    """Return what waits in each active subscription: both directions if the other end is in reach.

    Args:
        root: The replica.
        table_problems: Says what is wrong with an article's table that the next capture meets (the agent's part).

    Raises: ConfigurationError if the folder is no replica; StoreError if a table of it cannot be read.
    """
    replica = Replica(root).require()
    info = replica.info()
    active = (row for row in others(replica) if row.is_active)
    seen: dict[tuple[Path, int], tuple[int, str | None]] = {}

    def look(source: Replica, source_info: ReplicaInfo, article: PublishedArticle) -> tuple[int, str | None]:
        # The publisher's tables are looked at once, not for every subscription.
        place = source.root, article.nickname
        if place not in seen:
            found = uncaptured(source, article, source_info)
            problem = found.problem
            if problem is None and found.window is not None:
                problem = " ".join(table_problems(article, found.window)) or None
            seen[place] = found.commits, problem
        return seen[place]

    return tuple(_subscription(replica, info, row, look) for row in active)


def _subscription(
    replica: Replica, info: ReplicaInfo, row: SubscriptionRow, look: Look
) -> PendingSubscription:
    """Return the article counts of the asked replica's own direction, then of the other one."""
    other = reachable(row.subscriber_server, row.replid)
    away, back = (DOWNLOAD, UPLOAD) if replica.publishes(row.pubid) else (UPLOAD, DOWNLOAD)
    theirs: list[PendingArticle] = []
    held: Collection[str] | None = None
    problem = None
    if other is None:
        problem = (
            f"Replica '{row.subscriber_server}' is out of reach: nobody knows what waits there. Check the "
            "path, or ask again when it is back."
        )
    else:
        own = _guids(replica)
        try:
            held, their_info = _guids(other), other.info()
            for each in others(other):
                if (each.subid, each.replid) == (row.subid, info.replid):
                    theirs += _direction(back, other, their_info, each, own, look)
        except StoreError as error:
            # What is wrong there says nothing against the other subscriptions.
            problem = error.message
    articles = [*_direction(away, replica, info, row, held, look), *theirs]
    return PendingSubscription(
        publication_name(replica, row.pubid),
        subscriber_root(replica, row),
        tuple(articles),
        problem,
    )


def _direction(
    direction: str,
    source: Replica,
    info: ReplicaInfo,
    row: SubscriptionRow,
    held: Collection[str] | None,
    look: Look,
) -> Iterator[PendingArticle]:
    """Yield what waits at a source; `held` are the generations that the destination has, if it can be asked."""
    articles = source.articles_of(row.pubid)
    waiting = unsent_generations(source, row, articles, held=held)
    for article in articles:
        generations = [each for each in waiting if each.art_nick == article.nickname]
        commits, problem = look(source, info, article)
        yield PendingArticle(
            article.name,
            direction,
            len(generations),
            sum(each.changecount for each in generations),
            commits,
            problem,
        )


def _guids(replica: Replica) -> Collection[str]:
    return {generation.guidsrc for generation in replica.genhistory()}
