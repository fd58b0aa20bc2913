"""The file compared with the replicas: what is new, known and no longer named, all of it checked."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mergerepl.config.wording import dotted
from mergerepl.delta.feed.window import feed_window
from mergerepl.delta.tables import TableState, open_table
from mergerepl.errors import (
    CaptureError,
    ConfigurationError,
    PublicationError,
    SchemaMismatchError,
    StoreError,
)
from mergerepl.filters.publication_filters import NO_FILTERS, PublicationFilters
from mergerepl.filters.stated import first_problem, value_of
from mergerepl.model.progress import Progress
from mergerepl.model.publication import Article, Publication, Subscription, SyncType
from mergerepl.publish import changes
from mergerepl.publish.articles import NewArticle
from mergerepl.publish.check_article import check_article, published_fields, read_article_table
from mergerepl.publish.check_resolver import check_resolver
from mergerepl.publish.check_subscriber import check_no_session_open, check_target, check_was_ours
from mergerepl.publish.filters import Values, check_no_overlap, check_values, filters_of
from mergerepl.publish.replica_state import (
    ReplicaState,
    read_replica,
    where_it_was,
)
from mergerepl.publish.rows import article_row
from mergerepl.publish.system_tables import free_nickname
from mergerepl.publish.unfinished import article_table, check_unwritten, is_unfinished
from mergerepl.publish.work import Agent, Work
from mergerepl.replica.positions import captured_position
from mergerepl.replica.replica import Replica, no_subscriptions, refuse_older_bookkeeping
from mergerepl.roots import resolved
from mergerepl.store.folders import is_writable
from mergerepl.systables.catalog import (
    ArticleRow,
    ArticleState,
    PublicationRow,
    SubscriptionRow,
    SubscriptionState,
    relations,
)
from mergerepl.systables.conflicts_info import conflict_table_name
from triggers.schema_checks import ArticleTable, check_captured_table

if TYPE_CHECKING:
    from mergerepl.store.changeset import Changeset


@dataclass(frozen=True)
class Pair:
    """A subscription of the file, the subscriber's replica and the publisher's row, None while it is new."""

    subscription: Subscription
    replica: ReplicaState
    row: SubscriptionRow | None

    @property
    def is_active(self) -> bool:
        """True when the subscriber was initialised."""
        return self.row is not None and self.row.is_active


@dataclass
class Situation:
    """The publication of the file and the state of its replicas.

    `left` are subscriptions that the file no longer names, each with its replica if that can be reached; `to_inform` are
    replicas that are back, whose subscription ended while they were out of reach; `new` are articles to be published;
    `uncaptured` are the tables of a publication that nobody subscribed to yet, by nickname, as they were checked;
    `filters` are the file's.
    """

    work: Work
    publisher: ReplicaState
    pairs: list[Pair]
    left: list[tuple[SubscriptionRow, ReplicaState | None]]
    to_inform: list[ReplicaState]
    new: list[NewArticle] = field(default_factory=list)
    uncaptured: dict[int, TableState] | None = None
    filters: PublicationFilters = NO_FILTERS

    @property
    def row(self) -> PublicationRow | None:
        """The publication's row, None while it is new."""
        return self.publisher.publication(self.work.publication.name)

    @property
    def articles(self) -> list[ArticleRow]:
        """The rows of the articles that are published already."""
        return self.publisher.articles_of(self.work.pubid)

    @property
    def interrupted(self) -> list[tuple["Changeset", ReplicaState | None]]:
        """The sessions to finish, since their subscription ends or has ended; each with its subscriber if in reach."""
        leaving = {row.subid: replica for row, replica in self.left}
        return [
            (session, leaving.get(subid))
            for session in self.publisher.sessions
            if (subid := session.manifest.subid) in leaving or not self.publisher.is_active(subid)
        ]

    @property
    def active(self) -> list[ReplicaState]:
        """The subscribers that are initialised."""
        return [pair.replica for pair in self.pairs if pair.is_active]

    @property
    def is_subscribed(self) -> bool:
        """True when a subscriber is initialised, also one that the file no longer names and that has not ended yet."""
        return bool(self.active) or any(row.is_active for row, _ in self.left)


def look(publication: Publication) -> list[ReplicaState]:
    """Return the replicas the file names, publisher first, and those of subscriptions it no longer names.

    Replicas of ended subscriptions are among them only if the end is not recorded there yet.
    """
    publisher = read_replica(Path(publication.publisher))
    seen = [publisher, *(read_replica(Path(s.subscriber)) for s in publication.subscriptions)]
    row = publisher.publication(publication.name)
    if row is not None:
        known = {replica.repid for replica in seen}
        gone = [Path(r.subscriber_server) for r in publisher.others_of(row.pubid) if r.replid not in known]
        named = {str(replica.root) for replica in seen}
        seen += [_if_readable(root) for root in gone if str(root) not in named]
        for ended in publisher.ended_of(row.pubid):
            if all(ended.replid != replica.repid for replica in seen):
                replica = _if_readable(Path(ended.subscriber_server))
                # A replica on a read-only disk is left alone: the publication goes on without it.
                if replica.is_active(ended.subid) and is_writable(replica.root):
                    seen.append(replica)
    return seen


def _if_readable(root: Path) -> ReplicaState:
    try:
        return read_replica(root)
    except (PublicationError, StoreError, OSError):
        # Not there, damaged, or on a mount that does not answer: nothing can be recorded there.
        return ReplicaState(root)


def checked_situation(
    publication: Publication,
    seen: list[ReplicaState],
    agent: Agent,
    progress: Progress,
) -> Situation:
    """Check everything, rows last, and return what `apply` finds.

    Raises: ConfigurationError, PublicationError, CaptureError, EnumerationError, StoreError: one message, nothing was
        changed.
    """
    situation = _situation(publication, seen, agent, progress)
    _check_articles(situation)
    _check_filters(situation)
    _check_subscriptions(situation)
    _check_in_step(situation)
    _check_left(situation)
    _check_rows(situation)
    return situation


def _situation(
    publication: Publication,
    seen: list[ReplicaState],
    agent: Agent,
    progress: Progress,
) -> Situation:
    publisher = seen[0]
    _check_publisher(publisher)
    row = publisher.publication(publication.name)
    pubid = row.pubid if row else str(uuid.uuid4())
    rows = publisher.others_of(pubid)
    replicas = seen[1 : 1 + len(publication.subscriptions)]
    # By their identity first: a new replica may be in the former folder of one that was moved.
    by_id = [next((r for r in rows if r.replid == replica.repid), None) for replica in replicas]
    taken = {id(found) for found in by_id}
    pairs = []
    for subscription, replica, known in zip(publication.subscriptions, replicas, by_id, strict=True):
        at_root = (r for r in rows if r.subscriber_server == str(replica.root) and id(r) not in taken)
        pairs.append(Pair(subscription, replica, known or next(at_root, None)))
    named = {id(pair.row) for pair in pairs}
    at = {replica.repid: replica for replica in seen if replica.info}
    left = [(r, at.get(r.replid)) for r in rows if id(r) not in named]
    known_yet = {*(replica.repid for replica in replicas), *(r.replid for r in rows)}
    to_inform = [replica for repid, replica in at.items() if repid not in {publisher.repid, *known_yet}]
    work = Work(publication, pubid, publisher.root, agent, progress)
    return Situation(work, publisher, pairs, left, to_inform)


def _check_publisher(publisher: ReplicaState) -> None:
    where_it_was(publisher)
    if not all(row.is_published_by(publisher.repid) for row in publisher.publications):
        raise PublicationError(
            f"'{publisher.root}' is a subscriber; this version of mergerepl cannot publish from a "
            "subscriber. Publish from the publisher, or from a replica root of its own.",
            replica=str(publisher.root),
        )
    if publisher.publications and not publisher.subscriptions:
        raise no_subscriptions(publisher.root)


def _check_articles(situation: Situation) -> None:
    work = situation.work
    publication = work.publication
    known = {row.name: row for row in situation.articles}
    _check_removed(situation, known)
    staying = [row for row in situation.publisher.articles if not is_removed(situation, row)]
    nicknames = [row.nickname for row in situation.publisher.articles]
    last_nickname = max([0, *nicknames, *situation.publisher.captured])
    for article in publication.articles:
        if article.name in known:
            row = known[article.name]
            changes.check_article_unchanged(article, row)
            types = dict(zip(row.published_columns, row.published_types, strict=False))
            check_resolver(article, types, row.generated_columns)
            continue
        path = work.publisher / article.table
        _check_claims(situation, article, path, staying)
        table = read_article_table(article, path)
        check_article(article, table)
        columns = published_fields(article, table)
        last_nickname = (
            free_nickname(work.publisher, columns, above=last_nickname)
            if situation.publisher.info is not None
            else last_nickname + 1
        )
        situation.new.append(NewArticle(article, table, last_nickname))


def _check_filters(situation: Situation) -> None:
    publication = situation.work.publication
    if problem := first_problem(publication):
        path, why = problem
        raise ConfigurationError(f"{dotted(path)} {why}.", publication=publication.name)
    tables = {new.article.name: new.table for new in situation.new}
    if publication.joins or any(article.filter is not None for article in publication.articles):
        for row in situation.articles:
            tables[row.name] = open_table(situation.work.publisher / row.source_table)
    situation.filters = filters = filters_of(publication, tables)
    partitions: list[Values] = []
    for subscription in publication.subscriptions:
        partitions.append({function: value_of(subscription, function) for function in filters.functions})
        check_values(filters, partitions[-1], of=f"Subscriber '{subscription.subscriber}'")
    check_no_overlap(publication, filters, partitions)
    from mergerepl.publish.partitions import check_filtered

    check_filtered(situation)


def is_removed(situation: Situation, row: ArticleRow) -> bool:
    """Return whether the file no longer names an article of the publication."""
    names = {article.name for article in situation.work.publication.articles}
    return row.pubid == situation.work.pubid and row.name not in names


def _check_removed(situation: Situation, known: dict[str, ArticleRow]) -> None:
    removed = [name for name, row in known.items() if is_removed(situation, row)]
    if removed and situation.work.publication.subscriptions:
        raise PublicationError(
            f"Article '{removed[0]}' is published and no longer in the file. An article can leave only a "
            "publication without subscriptions, because changes of it may be on their way. Put it back; or "
            "sync, take the subscriptions out of the file, run `mergerepl apply`, and then put them in "
            "again.",
            article=removed[0],
        )


def _check_claims(situation: Situation, article: Article, path: Path, others: Sequence[ArticleRow]) -> None:
    """Refuse a table, or a conflict table, that another article has already."""
    conflict_table = conflict_table_name(situation.work.publication.name, article.name).casefold()
    names = {row.pubid: row.name for row in situation.publisher.publications}
    for row in others:
        owner = f"article '{row.name}' of publication '{names.get(row.pubid)}'"
        if resolved(situation.publisher.root / row.source_table) == resolved(path):
            raise PublicationError(
                f"Article '{article.name}': table '{path}' is {owner} already. A table belongs to one "
                "article; add the subscriptions there, or take it out there first.",
                article=article.name,
                table=str(path),
            )
        if row.conflict_table.casefold() == conflict_table:
            raise PublicationError(
                f"Article '{article.name}': its conflict table would have the name of that of {owner} "
                f"({row.conflict_table}). Choose another name for the article.",
                article=article.name,
            )


def _check_subscriptions(situation: Situation) -> None:
    work = situation.work
    wanted = [*rows_of_new(situation), *situation.articles]
    for pair in situation.pairs:
        where_it_was(pair.replica)
        check_was_ours(situation.publisher, pair.replica, pair.row)
        _check_not_moved(situation, pair)
        if pair.is_active:
            assert pair.row is not None
            changes.check_subscription_unchanged(work.publisher, pair.subscription, pair.row)
        subid = pair.row.subid if pair.row else None
        missing = missing_articles(work, pair, wanted)
        if missing:
            check_no_session_open(situation.publisher, pair.replica.root)
        for row in missing:
            check_target(situation.publisher.root, pair.subscription, row, subid)


def _check_not_moved(situation: Situation, pair: Pair) -> None:
    """Refuse the former folder of a subscriber whose move was recorded through another publication's file.

    The subscriber is no longer known there. That neither ends its subscription nor asks for a second one.

    Raises: PublicationError.
    """
    root, row = str(pair.replica.root), situation.row
    if pair.row is not None or row is None:
        return
    applied = {each["subscriber"] for each in json.loads(row.definition or "{}").get("subscriptions", [])}
    active = [each for each in situation.publisher.subscriptions if each.is_active]
    shared = {each.replid for each in active if each.pubid != row.pubid}
    moved = [
        each.subscriber_server
        for each, _ in situation.left
        if each.replid in shared and each in active and each.subscriber_server not in applied
    ]
    if root in applied and moved:
        where = " or ".join(f"'{place}'" for place in moved)
        raise PublicationError(
            f"Subscriber '{root}' was moved, as the file of another publication said since this one was applied: to "
            f"{where}. Write that folder in this file, too. To end its subscription instead, take it out and run "
            "`mergerepl apply`.",
            replica=root,
        )


def _check_in_step(situation: Situation) -> None:
    """Check, as a session does, that initialised replicas have their subscription and the tables that were captured.

    A subscriber that is to be initialised again is checked too: rows that older bookkeeping does not know would be
    removed with leftovers.

    Raises: EnumerationError, StoreError, CaptureError, SchemaMismatchError; PublicationError if there are no subscribers.

    If no subscriber ever had rows, the publisher's tables are taken as they are.
    """
    for state in (situation.publisher, *(pair.replica for pair in situation.pairs)):
        if state.info is not None:
            refuse_older_bookkeeping(state.root, state.info, relations(state.subscriptions))
    relies = situation.active or (is_waited_for(situation) and not _is_idle(situation))
    for state in (situation.publisher, *situation.active) if relies else ():
        assert state.info is not None
        if not state.subscriptions:
            raise no_subscriptions(state.root)
        replica, info = Replica(state.root), state.info
        is_publisher = state is situation.publisher
        for row in state.articles_of(situation.work.pubid):
            article = row.published(situation.work.publication.name)
            at = ArticleTable(article, replica.root, info.replid, is_publisher)
            window = feed_window(at.path, captured_position(replica, article, info))
            if situation.is_subscribed or window.head_version is None:
                check_captured_table(at, window)
            else:
                with changes.publish_again_otherwise(CaptureError, SchemaMismatchError):
                    check_captured_table(at, window)


def _check_left(situation: Situation) -> None:
    """Check that ending an unfinished subscription drops only tables that `apply` made."""
    for left, replica in situation.left:
        if replica is not None and left.status == SubscriptionState.INACTIVE:
            for article in situation.articles:
                table = article_table(replica.root, article)
                if is_unfinished(table, left.subid):
                    check_unwritten(replica.root, table)


def rows_of_new(situation: Situation) -> list[ArticleRow]:
    """Return the rows that the new articles will have; without an identity yet."""
    work = situation.work
    return [
        article_row(
            work.publication, new.article, new.table, pubid=work.pubid, artid="", nickname=new.nickname
        )
        for new in situation.new
    ]


def missing_articles(work: Work, pair: Pair, articles: Sequence[ArticleRow]) -> list[ArticleRow]:
    """Return the articles that a subscriber does not have yet."""
    if not pair.is_active:
        return list(articles)
    held = {row.artid for row in pair.replica.articles_of(work.pubid) if row.status == ArticleState.ACTIVE}
    return [row for row in articles if row.artid not in held]


def is_waited_for(situation: Situation) -> bool:
    """Return whether a subscriber is to get articles that are published already."""
    return any(missing_articles(situation.work, pair, situation.articles) for pair in situation.pairs)


def _is_idle(situation: Situation) -> bool:
    """Return whether only the publisher has rows of the publication: its changes need not be sent."""
    pubid = situation.work.pubid
    return not situation.is_subscribed and Replica(situation.publisher.root).last_generation(pubid) is None


def _copied(situation: Situation) -> list[ArticleRow]:
    """Return the articles that are published already and that a subscriber is to get as a copy."""
    pairs = [pair for pair in situation.pairs if pair.subscription.sync_type is SyncType.AUTOMATIC]
    work, articles = situation.work, situation.articles
    return [row for row in articles if any(missing_articles(work, pair, [row]) for pair in pairs)]


def _check_rows(situation: Situation) -> None:
    """Check rows through Spark: of new articles, of what is copied, and of tables that `sync_type: none` says are equal."""
    work = situation.work
    if is_waited_for(situation) and _is_idle(situation):
        situation.uncaptured = changes.check_uncaptured(work, situation.articles)
    if situation.new:
        from mergerepl.publish.check_rows import check_rows

        for new in situation.new:
            work.progress.step("check", article=new.article.name)
            check_rows(work.spark, new.article, new.table)
    if situation.uncaptured is None:
        changes.check_copied(work, _copied(situation))
    for pair in situation.pairs:
        if pair.subscription.sync_type is SyncType.NONE:
            from mergerepl.publish.check_subscriber import check_same_rows_now

            for row in missing_articles(work, pair, [*rows_of_new(situation), *situation.articles]):
                work.progress.step("compare", article=row.name)
                check_same_rows_now(work, row, pair.replica.root)
