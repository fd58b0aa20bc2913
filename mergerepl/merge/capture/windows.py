"""The commits to a replica's article tables since their capture. It loads no engine."""

from collections.abc import Iterable
from dataclasses import replace

from mergerepl.delta.feed.window import feed_window
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import captured_position
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.schema_checks import ArticleTable
from triggers.window import CaptureWindow, capture_window


def article_window(
    replica: Replica,
    article: PublishedArticle,
    info: ReplicaInfo,
    *,
    through_version_inclusive: int | None = None,
    is_late: bool = False,
) -> CaptureWindow:
    """Return the window from an article's captured version to the head, or to a version before it.

    Raises: As `triggers.window.capture_window`.
    """
    at = ArticleTable(article, replica.root, info.replid, replica.publishes(article.pubid))
    position = captured_position(replica, article, info)
    facts = feed_window(at.path, position, through_version_inclusive=through_version_inclusive)
    return capture_window(at, facts, is_late=is_late)


def move_versions(replica: Replica, info: ReplicaInfo, windows: Iterable[CaptureWindow]) -> None:
    """Move captured versions over commits that changed no rows (OPTIMIZE, properties), so that they are read once."""
    moved = {w.article.nickname: w.through_version_inclusive for w in windows if not w.has_changes}
    captured = {**info.captured, **moved}
    if captured != info.captured:
        replica.save_info(replace(info, captured=captured))
