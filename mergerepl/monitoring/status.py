"""`mergerepl status`: one replica, its articles and its subscriptions; problems are reported, not raised."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import IntEnum

from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.delta.layout import Layout, layout
from mergerepl.delta.tables import count_rows, tables_kept_open
from mergerepl.delta.vacuum import Lag
from mergerepl.errors import MergeReplError, SchemaStoppedError, StoreError, reinit_advice
from mergerepl.filters.publication_filters import followed_articles
from mergerepl.model.alerts import DEFAULT, EXPIRATION, Alerts
from mergerepl.model.article import PublishedArticle
from mergerepl.model.products import MERGE
from mergerepl.model.publication import Tracking
from mergerepl.model.relation import added
from mergerepl.model.replica_status import ArticleStatus, MetadataStatus, ReplicaStatus, SubscriptionStatus
from mergerepl.model.tasks import CRITICAL, WARNING, Status, StatusWarning
from mergerepl.monitoring.capture_lag import WARNED, article_lag, warning_of_lag
from mergerepl.monitoring.cost import cost_of
from mergerepl.monitoring.parties import others, publication_name, subscriber_root
from mergerepl.monitoring.pending import (
    DOWNLOAD,
    NO_CHANGES,
    UPLOAD,
    Look,
    SchemaChanges,
    TableProblems,
    lasting,
    looked_at_once,
    pending_of,
)
from mergerepl.monitoring.waiting import (
    NO_VERSION,
    GenerationsAfter,
    Uncaptured,
    generations_read_once,
    uncaptured,
    unsent_generations,
)
from mergerepl.replica.expiry import present, waiting_since, was_away
from mergerepl.replica.replica import Replica
from mergerepl.store.changeset import unfinished_sessions
from mergerepl.store.lease import holder
from mergerepl.store.location import Location
from mergerepl.store.storage import is_local
from mergerepl.systables import conflicts_info
from mergerepl.systables.catalog import (
    PublicationRow,
    SubscriberKind,
    SubscriptionRow,
    SubscriptionState,
    SyncStatus,
)
from mergerepl.systables.replinfo import ReplicaInfo


def replica_status(
    root: Location,
    *,
    table_problems: TableProblems,
    schema: SchemaChanges = NO_CHANGES,
    alerts: Alerts = DEFAULT,
) -> Status:
    """Return a replica's identity, its articles, the progress of each subscription, and problems.

    `table_problems` returns the problems of an article's table that the next capture meets (the agent's part).

    Raises: ConfigurationError if the folder is not a replica; StoreError if its catalog cannot be read.
    """
    replica = Replica(root).require()
    rows = others(replica)
    # A warm process reads only the commits since its last reading.
    with tables_kept_open(replica.root, *(Location.of(row.subscriber_server) for row in rows)):
        return _status(replica, rows, table_problems, schema, alerts)


def _status(
    replica: Replica,
    rows: Sequence[SubscriptionRow],
    table_problems: TableProblems,
    schema: SchemaChanges,
    alerts: Alerts,
) -> Status:
    root, info = replica.root, replica.info()
    published = replica.published
    warnings: list[StatusWarning] = []

    def warn(source: str, text: str, level: str = CRITICAL) -> None:
        warnings.append(StatusWarning(source, level, text))

    articles = []
    follows = {row.pubid: followed_articles(row.filters) for row in published}
    # The tables of an ended subscription belong to the user again, and may be gone.
    part = {*(row.pubid for row in published), *(row.pubid for row in rows)}
    for article in (each for each in replica.articles if each.pubid in part):
        look = uncaptured(replica, article, info)
        found = [look.problem] if look.problem else []
        if look.window is not None and not look.problem:
            followed = schema.unfollowed(replica, article, info, look.window)
            found += lasting(table_problems(article, look.window), followed)
        for text in found:
            warn(article.name, text)
        lag = article_lag(article, look, info)
        state_of_article = _article(root, article, info, look, lag)
        articles.append(
            replace(state_of_article, follows=follows.get(article.pubid, {}).get(article.name, ()))
        )
        if lag is None or found:
            continue
        stated = warning_of_lag(
            article.name, replica.table(article), lag, warned=alerts.capture_lag or WARNED
        )
        if stated is not None:
            warn(article.name, stated[0], CRITICAL if stated[1] else WARNING)
    try:
        replica.require_unedited()
    except MergeReplError as error:
        warn(str(root), error.message)
    if not is_local(root) and (who := holder(root)) is not None:
        text = "'{}' is held: {purpose} by process {pid} on {host} since {since}; its lease was last renewed {renewed}"
        warn(str(root), text.format(root, **who), WARNING)
    look_at, after = looked_at_once(table_problems, schema), generations_read_once(replica, rows)
    subscriptions = []
    for row in rows:
        state = _subscription(replica, row)
        try:
            state = _with_pending(replica, row, state, look_at, after, schema)
        except MergeReplError as error:
            warn(state.subscriber, error.message)
        subscriptions.append(state)
        is_published = any(each.pubid == row.pubid for each in published)
        is_away = is_published and was_away(row, replica.publication(pubid=row.pubid), present(info))
        for text, level in _warnings_of(state, row, alerts if is_published else None, is_away=is_away):
            warn(state.subscriber, text, level)
    try:
        # By the files' statistics.
        conflicts = count_rows(replica.folder / conflicts_info.NAME)
    except StoreError as error:
        conflicts = None
        warn(str(root), error.message)
    details = ReplicaStatus(
        info.replid,
        info.nickname,
        tuple(articles),
        tuple(subscriptions),
        conflicts,
        tuple(unfinished_sessions(replica.staging)),
        _metadata_rows(replica),
        tuple(_metadata(replica, each, info, rows) for each in published),
    )
    role = PUBLISHER if published else SUBSCRIBER
    # Several publications may have one table.
    return Status(MERGE, str(root), role, tuple(dict.fromkeys(warnings)), details)


def _warnings_of(
    state: SubscriptionStatus, row: SubscriptionRow, alerts: Alerts | None, *, is_away: bool
) -> Iterator[tuple[str, str]]:
    """Yield the text and level of each problem of a subscription; `alerts` is None at the subscriber. Pure.

    `is_away`: its last session is longer ago than the retention.
    """
    who = f"'{state.subscriber}'"
    sync = f"`mergerepl sync {shlex.quote(Location.of(state.subscriber).name)}`"
    if alerts is not None:
        yield from _waiting(state, row, alerts, who, sync, is_away=is_away)
    if state.schema_stop is not None:
        # It lasts until somebody changes a table.
        yield f"A schema change stops {who}: {state.schema_stop}", CRITICAL
    elif row.last_sync_status == SyncStatus.FAILED:
        is_often = row.failures >= _FAILED_OFTEN
        which = f"The last {row.failures} rounds or more" if is_often else "The last session"
        # Perhaps its replica is only out of reach for a while.
        text = f"{which} of {who} failed: {row.last_sync_summary}"
        yield text, CRITICAL if is_often else WARNING
    for name in state.diverged:
        yield (
            f"Article '{name}' of {who} has other rows than the publisher ({state.diverged[name]}). `mergerepl repair "
            f"--table {name} --dry-run` shows them.",
            CRITICAL,
        )


def _waiting(
    state: SubscriptionStatus, row: SubscriptionRow, alerts: Alerts, who: str, sync: str, *, is_away: bool
) -> Iterator[tuple[str, str]]:
    if row.expired_at is not None:
        at, advice = f"{row.expired_at:%Y-%m-%d %H:%M}", reinit_advice(None, state.subscriber)
        yield f"The subscription of {who} expired on {at} UTC. {advice}", CRITICAL
    elif not row.is_active and alerts.uninitialized:
        yield f"{who} has no first copy of the rows yet. Run `mergerepl apply`.", WARNING
    elif state.retention_used is not None and state.waiting_since is not None:
        since = f"Changes wait for {who} since {state.waiting_since:%Y-%m-%d %H:%M} UTC"
        hours = (datetime.now(UTC) - state.waiting_since).total_seconds() / 3600
        if state.retention_used >= (alerts.expiration or EXPIRATION) and not is_away:
            yield (
                f"{since}, though it is synchronized: its sessions only upload, or leave an article out. Metadata is kept "
                f"for it as long. Run {sync} without `--direction`.",
                WARNING,
            )
        elif state.retention_used >= (alerts.expiration or EXPIRATION):
            yield (
                f"{since}, {min(state.retention_used, 1):.0%} of the retention and a day: then its subscription "
                f"expires, and it must be reinitialised. Run {sync}.",
                WARNING,
            )
        elif alerts.pending_hours is not None and hours >= alerts.pending_hours:
            yield f"{since}. Run {sync}.", WARNING


def _article(
    root: Location, article: PublishedArticle, info: ReplicaInfo, look: Uncaptured, lag: Lag | None
) -> ArticleStatus:
    found, advice = _layout(root, article, look)
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
        advice,
        None if lag is None else lag.since,
        None if lag is None else round(max(lag.used(datetime.now(UTC)), 0.0), 3),
        None if found is None else found.rows,
        None if found is None else found.files,
        None if found is None else found.bytes,
    )


def _layout(root: Location, article: PublishedArticle, look: Uncaptured) -> tuple[Layout | None, str]:
    """Return the layout of an article's table, and why few changes are expensive; neither of a damaged log."""
    if look.window is None or look.problem:
        return None, ""
    try:
        table = look.window.table
        found = layout(table, article.bounded_identity)
        return found, str(cost_of(root, article.name, table, found) or "")
    except StoreError:
        return None, ""


_FAILED_OFTEN = 3


def _with_pending(
    replica: Replica,
    row: SubscriptionRow,
    state: SubscriptionStatus,
    look: Look,
    after: GenerationsAfter,
    schema: SchemaChanges,
) -> SubscriptionStatus:
    """Return a subscription with what waits for it, both ways if the other end can be read."""
    if not row.is_active:
        articles = replica.articles_of(row.pubid)
        unsent = unsent_generations(replica, row, articles, destination=None, after=after)
        return replace(state, unsent_generations=len(unsent))
    found = pending_of(replica, row, look, after, schema)
    away, back = (DOWNLOAD, UPLOAD) if replica.publishes(row.pubid) else (UPLOAD, DOWNLOAD)
    is_known = all(each.article for each in found)
    changes = {
        way: sum(each.changes for each in found if each.direction == way) if way == away or is_known else None
        for way in (UPLOAD, DOWNLOAD)
    }
    waiting = waiting_since(replica, replica.publication(pubid=row.pubid), row, after=after)
    return replace(
        state,
        upload=changes[UPLOAD],
        download=changes[DOWNLOAD],
        unsent_generations=sum(each.units for each in found if each.direction == away),
        uncaptured_commits=sum(each.uncaptured_commits for each in found),
        schema_pending=tuple(f"{each.article}: {text}" for each in found for text in each.schema),
        is_reachable=is_known or not any(each.direction == back and not each.article for each in found),
        waiting_since=None if waiting is None else waiting.since,
        retention_used=(
            None if waiting is None else round(max(waiting.share(present(replica.info())), 0.0), 3)
        ),
    )


def _subscription(replica: Replica, row: SubscriptionRow) -> SubscriptionStatus:
    """Return a subscription as the replica's own row has it."""
    names = {each.nickname: each.name for each in replica.articles_of(row.pubid)}
    is_stopped = (
        row.last_sync_status == SyncStatus.FAILED and row.last_error_class == SchemaStoppedError.__name__
    )
    return SubscriptionStatus(
        publication=publication_name(replica, row.pubid),
        subscriber=subscriber_root(replica, row),
        subscriber_type=_word(SubscriberKind, row.subscriber_type),
        priority=row.priority,
        status=_word(SubscriptionState, row.status) if row.expired_at is None else "expired",
        sentgen=row.sentgen,
        recgen=row.recgen,
        unsent_generations=0,
        last_sync_date=row.last_sync_date,
        last_sync_status=_word(SyncStatus, row.last_sync_status),
        last_sync_summary=row.last_sync_summary,
        partition_id=row.partition_id,
        failures=row.failures,
        validated=row.last_validated,
        diverged={names[nickname]: text for nickname, text in row.diverged.items() if nickname in names},
        through=row.through,
        knows=row.knows,
        last_sync_error=row.last_error_class,
        schema_stop=row.last_sync_summary if is_stopped else None,
        schema_skipped=row.skipped_changes,
    )


def _metadata_rows(replica: Replica) -> int | None:
    try:
        return added(count_rows(each) for each in (replica.contents, replica.tombstone))
    except StoreError:
        # A session reports the damage.
        return None


def _metadata(
    replica: Replica, publication: PublicationRow, info: ReplicaInfo, rows: Sequence[SubscriptionRow]
) -> MetadataStatus:
    """Return how far the replicas of a publication know each other's changes, and whose sessions are behind."""
    own = next(row for row in replica.rows_of(publication.pubid) if row.is_own)
    if publication.filters is not None:
        return MetadataStatus(publication.name, info.clock, own.settled, own.known)
    live = [row for row in rows if row.pubid == publication.pubid and row.is_live]
    # First all changes have to arrive, then all replicas have to know them.
    behind: tuple[str, ...] = ()
    for reached in ([row.through for row in live], [row.knows for row in live]):
        if not behind and (least := min(reached, default=info.clock)) < info.clock:
            pairs = zip(live, reached, strict=True)
            behind = tuple(row.subscriber_server for row, at in pairs if at == least)
    return MetadataStatus(publication.name, info.clock, own.settled, own.known, behind)


def _word(codes: type[IntEnum], code: int) -> str:
    """Return the word for a code; an unknown code (the row was edited) is returned as it is."""
    return next((known.name.lower() for known in codes if known == code), str(code))
