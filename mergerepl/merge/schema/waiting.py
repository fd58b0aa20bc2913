"""The schema changes of a publisher that its subscribers do not have yet."""

from collections.abc import Collection

from mergerepl.delta.feed.window import FeedWindow
from mergerepl.delta.sql_text import text_literal
from mergerepl.delta.tables import count_rows
from mergerepl.errors import MergeReplError
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.systables import conflicts_info
from mergerepl.systables.replinfo import ReplicaInfo


def recorded_since(publisher: Replica, artid: str, version: int) -> set[tuple[int | None, str]]:
    """Return the fields, with the kinds of their changes, that a publisher recorded after a version of an article."""
    return {
        (change.get("field"), change["what"])
        for each in publisher.schema_changes()
        if each.artid == artid and version < each.stated.get("article_version", 0)
        for change in each.stated.get("changes", ())
    }


def skipped_changes(
    publisher: Replica, subscriber: Replica, article: PublishedArticle
) -> set[tuple[int | None, str]]:
    """Return the fields of an article, with the kinds of their changes, whose last change a subscriber skips."""
    relations = (row for row in subscriber.relations(article.pubid) if not row.is_ended)
    numbers = {number for row in relations for number in row.skipped_changes}
    last = {
        (change.get("field"), change["what"]): each.schemaversion in numbers
        for each in sorted(publisher.schema_changes(), key=lambda each: each.schemaversion or 0)
        if each.artid == article.artid
        for change in each.stated.get("changes", ())
    }
    return {change for change, is_skipped in last.items() if is_skipped}


def recorded_changes(
    publisher: Replica, article: PublishedArticle, after: int, skipped: Collection[int]
) -> tuple[str, ...]:
    """Return in words the recorded changes of an article's columns after a number of sysmergeschemachange, in their order.

    `skipped` are numbers of changes that the subscriber leaves out.
    """
    if article.version == 1:
        return ()
    from mergerepl.merge.schema.listing import words_of

    found = [row for row in publisher.schema_changes() if row.artid == article.artid]
    found = [row for row in found if row.schemaversion not in skipped]
    rows = sorted(found, key=lambda row: row.schemaversion or 0)
    return tuple(text for row in rows if (row.schemaversion or 0) > after for text in words_of(row))


def definition_changes(publisher: Replica, article: PublishedArticle, since: int) -> tuple[str, ...]:
    """Return in words the recorded changes of an article after a version of its definition, in their order."""
    from mergerepl.merge.schema.listing import words_of

    rows = [row for row in publisher.schema_changes() if row.artid == article.artid]
    rows = sorted(rows, key=lambda row: row.stated.get("article_version", 0))
    return tuple(
        text for row in rows if row.stated.get("article_version", 0) > since for text in words_of(row)
    )


def unfollowed_changes(
    replica: Replica, article: PublishedArticle, info: ReplicaInfo, window: FeedWindow | None
) -> tuple[str, ...]:
    """Return in words the changes of published columns that a publisher's table has and no session has recorded.

    Changes that no session follows are a problem of the table, which `status` reports.
    """
    if window is None or window.unreadable is not None or not window.metadata_commits:
        return ()
    if window.is_older or window.is_another_commit or not replica.publishes(article.pubid):
        return ()
    from mergerepl.merge.schema.follow import follower_of
    from mergerepl.merge.schema.listing import change_in_words

    try:
        move = follower_of(replica, article, info).next_move(window)
    except MergeReplError:
        return ()
    return () if move is None else tuple(map(change_in_words, move.changes))


def dropped_session(nickname: int, version: int) -> str:
    """Return MSmerge_conflicts_info.session_id of values of columns that a version of an article's definition lacks."""
    return f"schema {nickname} {version}"


def logged_values(subscriber: Replica, article: PublishedArticle, since: int) -> int:
    """Count the rows that a subscriber logged since a version of an article, because their columns left it."""
    versions = range(since + 1, article.version + 1)
    sessions = ", ".join(text_literal(dropped_session(article.nickname, each)) for each in versions)
    where = f"session_id in ({sessions})"
    return count_rows(subscriber.folder / conflicts_info.NAME, where=where) if sessions else 0
