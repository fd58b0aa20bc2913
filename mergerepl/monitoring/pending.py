"""`mergerepl pending`: the changes that wait for the next sync, per subscription, article and direction."""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from mergerepl.errors import StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import PendingArticle, PendingSubscription
from mergerepl.monitoring.parties import others, publication_name, reachable, subscriber_root
from mergerepl.monitoring.waiting import uncaptured, unsent_generations
from mergerepl.store.replica import Replica
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.replinfo import ReplicaInfo

UPLOAD = "upload"
DOWNLOAD = "download"


TableProblems = Callable[[Replica, PublishedArticle], Sequence[str]]


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
    told: dict[tuple[Path, int], Sequence[str]] = {}

    def problems(source: Replica, article: PublishedArticle) -> Sequence[str]:
        # The publisher's tables are asked after once, not for every subscription.
        place = source.root, article.nickname
        if place not in told:
            told[place] = table_problems(source, article)
        return told[place]

    return tuple(_subscription(replica, info, row, problems) for row in active)


def _subscription(
    replica: Replica, info: ReplicaInfo, row: SubscriptionRow, table_problems: TableProblems
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
                    theirs += _direction(back, other, their_info, each, own, table_problems)
        except StoreError as error:
            # What is wrong there says nothing against the other subscriptions.
            problem = error.message
    articles = [*_direction(away, replica, info, row, held, table_problems), *theirs]
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
    table_problems: TableProblems,
) -> Iterator[PendingArticle]:
    """Yield what waits at a source; `held` are the generations that the destination has, if it can be asked."""
    articles = source.articles_of(row.pubid)
    waiting = unsent_generations(source, row, articles, held=held)
    for article in articles:
        generations = [each for each in waiting if each.art_nick == article.nickname]
        found = uncaptured(source, article, info)
        yield PendingArticle(
            article.name,
            direction,
            len(generations),
            sum(each.changecount for each in generations),
            found.commits,
            found.problem or " ".join(table_problems(source, article)) or None,
        )


def _guids(replica: Replica) -> Collection[str]:
    return {generation.guidsrc for generation in replica.genhistory()}
