"""The step of a session that follows changed columns: the publisher's, then the subscriber's, before rows.

It runs only where a log, or the versions of the columns at both sides, say that something changed.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import ARROW_FOR_FEW
from mergerepl.delta.feed.column_changes import DROP, LEAVE
from mergerepl.delta.feed.schema_walk import is_replacement
from mergerepl.errors import CaptureError, SchemaMismatchError
from mergerepl.merge.capture.record import Recorder
from mergerepl.merge.schema.down import schema_down
from mergerepl.merge.schema.follow import follow_columns
from mergerepl.merge.schema.listing import words_of
from mergerepl.merge.schema.waiting import logged_values
from mergerepl.merge.session.sides import ARTICLE_ERRORS, Refused, SideState, refuse
from mergerepl.model.progress import Progress
from mergerepl.model.words import counted
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import own_priorities
from mergerepl.spark.plain import plain_errors
from mergerepl.systables.catalog import SubscriptionRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def changed_articles(
    opened: Mapping[str, SideState], sides: Mapping[str, SideState], refused: Refused
) -> list[int]:
    """Return the tablenicks of the articles whose columns, or replaced tables, have to be followed.

    `opened` are both sides with the windows that can be captured.
    """
    versions = sides[PUBLISHER].articles
    others = sides[SUBSCRIBER].articles
    return [
        nickname
        for nickname, article in versions.items()
        if article.version != others[nickname].root_version
        or isinstance(refused.get(nickname), SchemaMismatchError | CaptureError)
        or any(_is_replaced(side, nickname) for side in opened.values())
    ]


def articles_to_follow(
    opened: Mapping[str, SideState], sides: Mapping[str, SideState], refused: Refused
) -> list[int]:
    """Return the tablenicks of `changed_articles`, and those whose feed is off: a session sets it again."""
    changed = changed_articles(opened, sides, refused)
    off = [each for each in sides[PUBLISHER].articles if any(_lacks_feed(s, each) for s in opened.values())]
    return [*changed, *(each for each in off if each not in changed)]


def _is_replaced(side: SideState, nickname: int) -> bool:
    windows = (window for window in side.windows if window.article.nickname == nickname)
    return any(is_replacement(commit) for window in windows for commit in window.user_commits)


def _lacks_feed(side: SideState, nickname: int) -> bool:
    states = (window.state for window in side.windows if window.article.nickname == nickname)
    return any(state is not None and not state.metadata.change_data_feed for state in states)


def followed_schema(
    ends: tuple[Replica, Replica],
    tablenicks: Collection[int],
    engine: str,
    spark_of: "Callable[[], SparkSession]",
    progress: Progress,
) -> Refused:
    """Follow the columns of some articles at both held replicas; return the articles that stop, with the reasons.

    Raises: a transient error.
    """
    publisher, subscriber = ends
    in_process = engine == ARROW_FOR_FEW
    recorders = {
        replica: Recorder(replica, own_priorities(replica), spark_of, progress, in_process)
        for replica in ends
    }
    stopped: Refused = {}
    for nickname in tablenicks:
        try:
            with plain_errors(f"following the columns of '{publisher.root}' and '{subscriber.root}'"):
                follow_columns(recorders[publisher], [nickname])
                schema_down(publisher.reread(), recorders[subscriber], nickname)
        except ARTICLE_ERRORS as error:
            refuse(stopped, nickname, error)
    return stopped


def brought_changes(
    ends: tuple[Replica, Replica], now: tuple[Replica, Replica], before: SubscriptionRow
) -> tuple[str, ...]:
    """Return the schema changes that a subscription got since `before`, as `table: change`, in their order.

    `ends` are the replicas as they were then. Values of columns that left are counted where they were logged.
    """
    publisher, subscriber = now
    after = next((row for row in publisher.relations() if row.subid == before.subid), before)
    if after.schemaversion == before.schemaversion:
        return ()
    names = {article.artid: article.name for article in publisher.articles}
    got = {*range(before.schemaversion + 1, after.schemaversion + 1)} - {*after.skipped_changes}
    rows = [row for row in publisher.schema_changes() if row.pubid == before.pubid]
    rows = sorted((row for row in rows if row.schemaversion in got), key=lambda row: row.schemaversion or 0)
    found = [f"{names.get(row.artid or '')}: {text}" for row in rows for text in words_of(row)]
    if not any(each["what"] in (DROP, LEAVE) for row in rows for each in row.stated.get("changes", ())):
        return tuple(found)
    versions = {article.artid: article.version for article in ends[1].articles}
    for article in subscriber.articles:
        logged = logged_values(subscriber, article, versions.get(article.artid, article.version))
        if logged:
            found.append(f"{article.name}: {counted(logged, 'unsent row')} logged at the subscriber")
    return tuple(found)
