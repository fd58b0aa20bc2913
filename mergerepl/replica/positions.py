"""How far each article's table was captured, as MSmerge_replinfo says it."""

from mergerepl.delta.feed.window import FeedPosition
from mergerepl.errors import CaptureError, begin_again
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.systables.replinfo import ReplicaInfo


def position_of(article: PublishedArticle, info: ReplicaInfo) -> FeedPosition | None:
    """Return the position up to which an article's table is captured; None if MSmerge_replinfo does not say."""
    version = info.captured.get(article.nickname)
    if version is None:
        return None
    commit = info.captured_commits.get(article.nickname, "")
    is_of_version = commit.startswith(f"{version}:")
    return FeedPosition(info.table_ids.get(article.nickname, ""), version, commit if is_of_version else None)


def captured_position(replica: Replica, article: PublishedArticle, info: ReplicaInfo) -> FeedPosition:
    """Return the position up to which an article's table is captured.

    Raises: CaptureError if MSmerge_replinfo does not say.
    """
    position = position_of(article, info)
    if position is None:
        raise CaptureError(
            f"Article '{article.name}': MSmerge_replinfo of '{replica.root}' does not say up to which version "
            f"its table '{replica.table(article)}' was captured: it was edited or damaged. Nothing was changed. "
            "Restore the '_mergerepl' folder from a copy taken together with the tables, or "
            f"{begin_again()}.",
            replica=str(replica.root),
            article=article.name,
        )
    return position
