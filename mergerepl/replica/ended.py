"""An article that ends: its subscriptions upload once more, then no replica tracks its table any more.

The publisher's row of sysmergearticles names the subscriptions that it waits for. Until the last of them is through, all
replicas synchronize it as before. Then the publisher's row says that it ended, and each subscriber forgets it.
"""

from dataclasses import replace

from mergerepl.failpoints import failpoint
from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import staged_changesets
from mergerepl.systables import catalog
from mergerepl.systables.catalog import ArticleRow, ArticleState


def ending_rows(publisher: Replica, pubid: str) -> list[ArticleRow]:
    """Return the rows of the articles of a publication that are about to end."""
    rows = publisher.control.rows(catalog.ARTICLES)
    return [row for row in rows if row.pubid == pubid and row.status == ArticleState.ENDING]


def waited_for(publisher: Replica, row: ArticleRow) -> list[str]:
    """Return the subscriptions, by subid, whose last upload of an article that ends is still to come."""
    active = {each.subid for each in publisher.relations(row.pubid) if each.is_active}
    return [subid for subid in row.ends_after if subid in active]


def is_staged(publisher: Replica, nickname: int) -> bool:
    """Whether a session that was interrupted still has rows of an article to write or to record."""
    manifests = [each.manifest for each in staged_changesets(publisher.staging)]
    works = [work for each in manifests for work in (each.publisher, each.subscriber) if work is not None]
    return any(item.nickname == nickname for work in works for item in work.articles)


def end_article(publisher: Replica, row: ArticleRow) -> None:
    """End an article at its held publisher: its metadata does not count any more, and its table stays."""
    # Before the end: an open generation that nobody closes would hold back each cleanup.
    publisher.forget_generations([row.nickname])
    failpoint("end.before_ended")
    # The row stays: a subscriber may have the article until its next session.
    publisher.control.change_where(catalog.ARTICLES, {"status": int(ArticleState.ENDED)}, artid=row.artid)
    failpoint("end.after_ended")
    _clean_up(publisher, row.nickname)


def forget_article(subscriber: Replica, nickname: int) -> None:
    """Forget an article that ended at the publisher, at a held subscriber; its table stays."""
    subscriber.forget_generations([nickname])
    _clean_up(subscriber, nickname)
    failpoint("end.before_forgotten")
    subscriber.control.remove_where(catalog.ARTICLES, nickname=nickname)
    failpoint("end.after_forgotten")


def _clean_up(replica: Replica, nickname: int) -> None:
    """Let the metadata of an article count as cleaned up; a later cleanup removes the rows."""
    info = replica.info()
    replica.save_info(replace(info, cleaned={**info.cleaned, nickname: info.last_generation}))
