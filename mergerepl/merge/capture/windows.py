"""The commits to a replica's article tables since their capture. It loads no engine."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from mergerepl.delta.feed.window import feed_window
from mergerepl.filters.publication_filters import PublicationFilters
from mergerepl.merge.partitions.filtered import filtered_publication, publication_with_filters
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import captured_position
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.schema_checks import ArticleTable
from triggers.window import CaptureWindow, Followed, capture_window

if TYPE_CHECKING:
    from mergerepl.merge.apply.side import Side


def article_window(
    replica: Replica,
    article: PublishedArticle,
    info: ReplicaInfo,
    *,
    through_version_inclusive: int | None = None,
    is_late: bool = False,
    followed: Followed | None = None,
) -> CaptureWindow:
    """Return the window from an article's captured version to the head, or to a version before it.

    Raises: As `triggers.window.capture_window`.
    """
    at = ArticleTable(article, replica.root, info.replid, replica.publishes(article.pubid))
    position = captured_position(replica, article, info)
    facts = feed_window(at.path, position, through_version_inclusive=through_version_inclusive)
    return capture_window(at, facts, is_late=is_late, followed=followed)


def windows_beside(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> list[CaptureWindow]:
    """Return empty windows of the articles that the row filters of an article's publication name beside it.

    Rows follow those of other articles: they are looked up as of their captured versions, and follow what is captured there
    later. Empty at a subscriber, and for an article that no filter names.

    Raises: As `triggers.window.capture_window`.
    """
    publication = filtered_publication(replica, article.pubid)
    if publication is None or article.name not in publication.articles:
        return []
    return [
        article_window(
            replica, each, info, through_version_inclusive=info.captured[each.nickname], followed=Followed()
        )
        for name, each in publication.articles.items()
        if name != article.name
    ]


def filter_columns(replica: Replica, article: PublishedArticle) -> tuple[str, ...]:
    """Return the columns of an article that the row filters of its publication read; none at a subscriber."""
    row = publication_with_filters(replica, article.pubid)
    if row is None or row.filters is None:
        return ()
    return PublicationFilters.from_json(row.filters).columns_used(article.name)


def last_sent(replica: Replica, pubids: Iterable[str]) -> int:
    """Return a generation before all open ones of these publications: a session closes all before it sends one."""
    last = [max((row.sentgen for row in replica.relations(pubid)), default=0) for pubid in pubids]
    return min(last, default=0)


def late_windows(side: "Side", merged_versions: dict[int, int], info: ReplicaInfo) -> list[CaptureWindow]:
    """Return by article we merged the window of user commits before our commit that we had not captured.

    The works of `side` have the version from which each article was captured; `merged_versions` maps a tablenick to the
    version of our commit; `info` is the replica's bookkeeping as of the staging.
    """
    windows = []
    for work in side.work.articles:
        if work.nickname in merged_versions:
            as_staged = replace(info, captured={work.nickname: work.from_version})
            window = article_window(
                side.replica,
                side.articles[work.nickname],
                as_staged,
                through_version_inclusive=merged_versions[work.nickname] - 1,
                is_late=True,
            )
            if window.has_changes:
                windows.append(window)
    return windows


def move_versions(replica: Replica, info: ReplicaInfo, windows: Iterable[CaptureWindow]) -> None:
    """Move captured versions over commits that changed no rows (OPTIMIZE, properties), so that they are read once."""
    moved = {w.article.nickname: w.through_version_inclusive for w in windows if not w.has_changes}
    captured = {**info.captured, **moved}
    if captured != info.captured:
        replica.save_info(replace(info, captured=captured))
