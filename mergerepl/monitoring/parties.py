"""The subscriptions that a replica knows, and the replicas at their other ends."""

from collections.abc import Sequence

from mergerepl.errors import ConfigurationError, MergeReplError, StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.store.location import Location
from mergerepl.systables.catalog import SubscriptionRow


def others(replica: Replica, pubid: str | None = None) -> list[SubscriptionRow]:
    """Return a replica's rows of sysmergesubscriptions about other replicas, without ended subscriptions."""
    return [row for row in replica.relations(pubid) if not row.is_ended]


def subscriber_root(replica: Replica, other: SubscriptionRow) -> str:
    """Return the subscriber's root of a subscription, from either end."""
    return other.subscriber_server if replica.publishes(other.pubid) else str(replica.root)


def publication_name(replica: Replica, pubid: str) -> str:
    """Return a publication's name; its id if the replica no longer knows it."""
    names = {row.pubid: row.name for row in replica.publications}
    return names.get(pubid, pubid)


def reachable(root: str | Location, replid: str) -> Replica | None:
    """Return the replica at a root if it can be read and has this replid, else None."""
    try:
        replica = Replica(root).require()
        return replica if replica.info().replid == replid else None
    except (MergeReplError, OSError):
        return None


def in_reach(replica: Replica) -> list[Replica]:
    """Return a replica and those at the other ends of its subscriptions that can be read."""
    ends = {row.replid: row.subscriber_server for row in others(replica)}
    found = (reachable(root, replid) for replid, root in ends.items())
    return [replica, *(each for each in found if each is not None)]


def members(replica: Replica, pubid: str, *, asking: str | None = None) -> tuple[list[Replica], list[str]]:
    """Return the replicas of a publication, the publisher first, and the roots of those out of reach.

    The given replica is among them. A subscriber knows the others only through its publisher, which may not know yet
    the new place of a moved subscriber: `asking` is the id of that replica.
    """
    ends = {row.subscriber_server: row.replid for row in others(replica, pubid)}
    reached = {root: reachable(root, replid) for root, replid in ends.items()}
    found = [each for each in reached.values() if each is not None]
    missing = [root for root, each in reached.items() if each is None and ends[root] != asking]
    if replica.publishes(pubid):
        return [replica, *found], missing
    if not found:
        return [replica], missing
    try:
        all_, missing = members(found[0], pubid, asking=replica.info().replid)
    except StoreError:
        # The other members cannot be read; the problem is reported with the publisher.
        return [found[0], replica], missing
    return all_ if any(each.root == replica.root for each in all_) else [*all_, replica], missing


def article_named(replica: Replica, name: str, publication: str | None) -> PublishedArticle:
    """Return an article by its name.

    Raises: ConfigurationError naming the existing articles, or the publications if several have it.
    """
    pubid = replica.publication(publication).pubid if publication is not None else None
    articles = [article for article in replica.articles if pubid in (None, article.pubid)]
    chosen = [article for article in articles if article.name == name]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        several = ", ".join(sorted(article.publication for article in chosen))
        raise ConfigurationError(
            f"Several publications of '{replica.root}' have an article '{name}': {several}. Name one with --publication.",
            replica=str(replica.root),
            article=name,
        )
    raise ConfigurationError(
        f"Replica '{replica.root}' has no article {name!r}. Known: {_names(articles)}.",
        replica=str(replica.root),
        article=name,
    )


def _names(articles: Sequence[PublishedArticle]) -> str:
    return ", ".join(sorted({article.name for article in articles})) or "none"
