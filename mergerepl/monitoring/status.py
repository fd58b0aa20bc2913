"""`mergerepl status`: one replica, its articles and its subscriptions; problems are reported, not raised."""

from collections.abc import Callable, Sequence
from enum import IntEnum

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.feed.window import FeedWindow
from mergerepl.delta.tables import count_rows
from mergerepl.errors import INITIALISE_AGAIN, MergeReplError, StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import Tracking
from mergerepl.model.results import ArticleStatus, ReplicaStatus, SubscriptionStatus
from mergerepl.model.tasks import CRITICAL, MERGE, WARNING, Status, StatusWarning
from mergerepl.monitoring.capture_lag import article_lag
from mergerepl.monitoring.cost import cost, update_cost
from mergerepl.monitoring.parties import others, publication_name, subscriber_root
from mergerepl.monitoring.waiting import NO_VERSION, Uncaptured, uncaptured, unsent_generations
from mergerepl.replica.expiry import WARNED_FROM, present, waiting_since, was_away
from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import unfinished_sessions
from mergerepl.store.lease import holder
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables import conflicts_info
from mergerepl.systables.catalog import SubscriberKind, SubscriptionRow, SubscriptionState, SyncStatus
from mergerepl.systables.replinfo import ReplicaInfo


def replica_status(
    root: Location, *, table_problems: Callable[[PublishedArticle, FeedWindow], Sequence[str]]
) -> Status:
    """Return a replica's identity, its articles, the progress of each subscription, and problems.

    `table_problems` returns the problems of an article's table that the next capture meets (the agent's part).

    Raises: ConfigurationError if the folder is not a replica; StoreError if its catalog cannot be read.
    """
    replica = Replica(root).require()
    info = replica.info()
    rows = others(replica)
    published = [row.pubid for row in replica.published]
    # The tables of an ended subscription belong to the user again, and may be gone.
    part = {*published, *(row.pubid for row in rows)}
    articles = [each for each in replica.articles if each.pubid in part]
    looks = [(article, uncaptured(replica, article, info)) for article in articles]
    warnings: list[StatusWarning] = []

    def warn(source: str, text: str, level: str = CRITICAL) -> None:
        warnings.append(StatusWarning(source, level, text))

    for article, look in looks:
        found = [look.problem] if look.problem else []
        if look.window is not None and not look.problem:
            found += table_problems(article, look.window)
        for text in found:
            warn(article.name, text)
        if not found and (lag := article_lag(article, look, info)) is not None:
            warn(article.name, lag[0], CRITICAL if lag[1] else WARNING)
    try:
        replica.require_unedited()
    except MergeReplError as error:
        warn(str(root), error.message)
    if not is_local(root) and (who := holder(root)) is not None:
        text = "'{}' is held: {purpose} by process {pid} on {host} since {since}; its lease was last renewed {renewed}"
        warn(str(root), text.format(root, **who), WARNING)
    subscriptions = []
    for row in rows:
        subscriber = subscriber_root(replica, row)
        try:
            unsent = len(unsent_generations(replica, row, replica.articles_of(row.pubid), destination=None))
        except MergeReplError as error:
            unsent = 0
            warn(subscriber, error.message)
        subscriptions.append(_subscription(replica, row, unsent))
        if row.pubid in published and (stated := _expiry(replica, row)) is not None:
            warn(subscriber, *stated)
        if row.last_sync_status == SyncStatus.FAILED:
            is_often = row.failures >= _FAILED_OFTEN
            which = f"The last {row.failures} sessions or more" if is_often else "The last session"
            # Perhaps its replica is only out of reach for a while.
            warn(
                subscriber,
                f"{which} of '{subscriber}' failed: {row.last_sync_summary}",
                CRITICAL if is_often else WARNING,
            )
        for name, found_at in _diverged(replica, row):
            warn(
                subscriber,
                f"Article '{name}' of '{subscriber}' has other rows than the publisher ({found_at}). `mergerepl repair "
                f"--table {name} --dry-run` shows them.",
            )
    try:
        # By the files' statistics.
        conflicts = count_rows(replica.folder / conflicts_info.NAME)
    except StoreError as error:
        conflicts = 0
        warn(str(root), error.message)
    role = PUBLISHER if published else SUBSCRIBER
    details = ReplicaStatus(
        info.replid,
        info.nickname,
        tuple(_article(replica.root, article, info, look) for article, look in looks),
        tuple(subscriptions),
        conflicts,
        tuple(unfinished_sessions(replica.staging)),
    )
    # Several publications may have one table.
    return Status(MERGE, str(replica.root), role, tuple(dict.fromkeys(warnings)), details)


def _expiry(replica: Replica, row: SubscriptionRow) -> tuple[str, str] | None:
    """Return the text and level of a warning about a subscription that has expired, or is about to."""
    subscriber = subscriber_root(replica, row)
    if row.expired_at is not None and not row.is_ended:
        text = f"The subscription of '{subscriber}' expired on {row.expired_at:%Y-%m-%d %H:%M} UTC. {INITIALISE_AGAIN}"
        return text, CRITICAL
    publication, now = replica.publication(pubid=row.pubid), present(replica.info())
    waiting = waiting_since(replica, publication, row)
    if waiting is None or (share := waiting.share(now)) < WARNED_FROM:
        return None
    if not was_away(row, publication, now):
        text = (
            f"Changes wait for '{subscriber}' since {waiting.since:%Y-%m-%d %H:%M} UTC, though it is synchronized: its "
            "sessions only upload, or leave an article out. Metadata is kept for it as long."
        )
        return text, WARNING
    text = (
        f"Changes wait for '{subscriber}' since {waiting.since:%Y-%m-%d %H:%M} UTC, {min(share, 1):.0%} of the retention "
        "and a day: then its subscription expires, and it must be initialised again. Synchronize it."
    )
    return text, WARNING


def _article(root: Location, article: PublishedArticle, info: ReplicaInfo, look: Uncaptured) -> ArticleStatus:
    return ArticleStatus(
        article.publication,
        article.name,
        article.artid,
        article.nickname,
        str(Tracking.COLUMN if article.column_tracking else Tracking.ROW),
        article.table,
        look.version,
        info.captured.get(article.nickname, NO_VERSION),
        look.commits,
        article.triggers,
        _cost(root, article, look),
    )


def _cost(root: Location, article: PublishedArticle, look: Uncaptured) -> str:
    """Return why few changes of an article's table are expensive; '' if its log is damaged (reported as a problem)."""
    if look.window is None or look.problem:
        return ""
    try:
        found = cost(root, article.name, article.bounded_identity, look.window.table)
        updates = update_cost(look.window.table, article.identity)
    except StoreError:
        return ""
    return " ".join(filter(None, [str(found or ""), updates]))


_FAILED_OFTEN = 3


def _diverged(replica: Replica, row: SubscriptionRow) -> list[tuple[str, str]]:
    """Return the articles that a validation found different, and its level and time."""
    names = {each.nickname: each.name for each in replica.articles_of(row.pubid)}
    return [(names[nickname], text) for nickname, text in row.diverged.items() if nickname in names]


def _subscription(replica: Replica, row: SubscriptionRow, unsent: int) -> SubscriptionStatus:
    return SubscriptionStatus(
        publication_name(replica, row.pubid),
        subscriber_root(replica, row),
        _word(SubscriberKind, row.subscriber_type),
        row.priority,
        _word(SubscriptionState, row.status),
        row.sentgen,
        row.recgen,
        unsent,
        row.last_sync_date,
        _word(SyncStatus, row.last_sync_status),
        row.last_sync_summary,
        row.partition_id,
        row.failures,
        tuple(name for name, _ in _diverged(replica, row)),
    )


def _word(codes: type[IntEnum], code: int) -> str:
    """Return the word for a code; an unknown code (the row was edited) is returned as it is."""
    return next((known.name.lower() for known in codes if known == code), str(code))
