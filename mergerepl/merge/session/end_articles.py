"""The end of articles that the publication no longer has, before and after a session; `replica.ended` has the states."""

import logging
from collections.abc import Collection

from enumeration.plan import Destination
from mergerepl.failpoints import failpoint
from mergerepl.model.article import PublishedArticle
from mergerepl.model.words import counted
from mergerepl.monitoring.waiting import uncaptured, unsent_generations
from mergerepl.replica.ended import end_article, ending_rows, forget_article, is_staged, waited_for
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog
from mergerepl.systables.catalog import SubscriptionRow

log = logging.getLogger(__name__)


def forget_ended(publisher: Replica, subscriber: Replica, subscription: SubscriptionRow) -> tuple[str, ...]:
    """Forget the articles of a held subscriber that ended at its held publisher; return what happened, by article.

    What the subscriber wrote after its last upload stays in its tables; a warning counts it.
    """
    ended = publisher.ended(subscription.pubid)
    found = []
    for article in subscriber.articles_of(subscription.pubid):
        if article.nickname not in ended:
            continue
        if waiting := _unsent(publisher, subscriber, subscription, article):
            log.warning(
                "%s: article '%s' ended at the publisher; %s written here after the last upload stay in '%s', and are not "
                "sent",
                *(subscriber.root, article.name, waiting, subscriber.table(article)),
            )
        forget_article(subscriber, article.nickname)
        found.append(f"{article.name}: the article ended; its table stays")
    return tuple(found)


def end_when_sent(
    publisher: Replica, subscriber: Replica, subscription: SubscriptionRow, refused: Collection[str]
) -> None:
    """Note after a session in both directions which articles that end it uploaded for the last time.

    The article ends with the last subscription. `refused` are the names of articles that the session left out.
    """
    for row in ending_rows(publisher, subscription.pubid):
        article = next((each for each in subscriber.articles if each.artid == row.artid), None)
        waiting = waited_for(publisher, row)
        is_sent = row.name not in refused and article is not None
        if subscription.subid in waiting and is_sent:
            assert article is not None
            if _unsent(publisher, subscriber, subscription, article):
                continue
            waiting.remove(subscription.subid)
            failpoint("end.before_sent")
            change = {"ends_after": tuple(waiting)}
            publisher.control.change_where(catalog.ARTICLES, change, artid=row.artid)
            failpoint("end.after_sent")
        if not waiting and not is_staged(publisher, row.nickname):
            end_article(publisher, row)


def _unsent(
    publisher: Replica, subscriber: Replica, subscription: SubscriptionRow, article: PublishedArticle
) -> str:
    """Describe the changes of an article that a subscriber has not sent; '' without any."""
    info = subscriber.info()
    about = subscriber.relation(subscription.subid, publisher.info().replid)
    if about is None:
        return ""
    there = publisher.relation(subscription.subid, info.replid)
    destination = Destination(
        str(publisher.root), publisher.held, there, settled=publisher.settled(article.pubid)
    )
    generations = unsent_generations(subscriber, about, [article], destination=destination)
    changes, commits = (
        sum(each.changecount for each in generations),
        uncaptured(subscriber, article, info).commits,
    )
    parts = [counted(changes, "change")] if changes else []
    return " and ".join([*parts, *([counted(commits, "commit")] if commits else [])])
