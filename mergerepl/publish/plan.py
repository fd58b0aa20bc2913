"""The steps of `apply`, in order; everything is checked before the first step."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mergerepl.delta.metadata import CONSTRAINT_PREFIX
from mergerepl.delta.tables import open_table
from mergerepl.errors import SchemaMismatchError
from mergerepl.failpoints import failpoint
from mergerepl.model.progress import Progress
from mergerepl.model.publication import Publication, SyncType
from mergerepl.model.results import PlanStep
from mergerepl.publish import changes
from mergerepl.publish.articles import publish_steps, unpublish
from mergerepl.publish.check_paths import check_names, check_places
from mergerepl.publish.partitions import filter_step, partition_column, partition_steps
from mergerepl.publish.replica_state import (
    ReplicaState,
    read_replica,
    where_it_was,
)
from mergerepl.publish.rows import (
    PUBLISHER_NICKNAME,
    publication_row,
    publisher_row,
    subscriber_row,
    subscription_columns,
)
from mergerepl.publish.situation import (
    Pair,
    Situation,
    checked_situation,
    is_removed,
    is_waited_for,
    look,
    missing_articles,
    rows_of_new,
)
from mergerepl.publish.system_tables import create_replica
from mergerepl.publish.work import Agent, Step, Work
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog
from mergerepl.systables.catalog import ArticleRow
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.errors import FeedGapError


@dataclass(frozen=True)
class Plan:
    """The steps, the replicas they concern and the state of these when the plan was made."""

    steps: list[Step]
    roots: list[Path]
    seen: list[ReplicaState]
    work: Work


def make_plan(publication: Publication, agent: Agent, progress: Progress) -> Plan:
    """Check everything and return the steps.

    Raises: ConfigurationError, PublicationError, CaptureError, StoreError: one message, nothing was changed.
    """
    check_names(publication)
    check_places(publication)
    seen = look(publication)
    situation = checked_situation(publication, seen, agent, progress)
    roots = [replica.root for replica in seen if replica.info or str(replica.root) in _stated(publication)]
    leased = [roots[0], *sorted(set(roots[1:]))]
    return Plan(list(_steps(situation)), leased, seen, situation.work)


def _stated(publication: Publication) -> set[str]:
    return {publication.publisher, *(s.subscriber for s in publication.subscriptions)}


def _steps(situation: Situation) -> Iterator[Step]:
    """Yield the steps in order: moved folders, ends, new articles, changes, new subscribers, and the file as applied."""
    work, row = situation.work, situation.row
    first = list(_steps_before_last(situation))
    yield from first
    yield from changes.definition_step(work, row, situation.active, is_alone=not first)


def _steps_before_last(situation: Situation) -> Iterator[Step]:
    work, publisher, row = situation.work, situation.publisher, situation.row
    yield from _move_steps(situation)
    if row is None:
        yield _publication_step(situation)
    yield from _finish_steps(situation)
    yield from partition_steps(situation)
    # Before anything ends: a capture may be refused because of a user's change to a table.
    if is_waited_for(situation):
        yield _capture_step(situation)
    for left, replica_left in situation.left:
        staged = [guid for session in publisher.sessions for guid in session.manifest.uploaded_guids]
        yield changes.unsubscribe_step(work, left, replica_left, situation.articles, staged=staged)
    for replica in situation.to_inform:
        yield changes.record_end_step(work, replica.root)
    for article in situation.articles:
        if is_removed(situation, article):
            yield _unpublish_step(work, article)
    yield from publish_steps(work, situation.new, situation.filters)
    yield from filter_step(situation)
    if row is not None:
        yield from _change_steps(situation)
    yield from _initialise_steps(situation)


def _move_steps(situation: Situation) -> Iterator[Step]:
    work, publisher = situation.work, situation.publisher
    subscribers = [pair.replica for pair in situation.pairs]
    replicas = [publisher, *subscribers]
    for replica in replicas:
        before = where_it_was(replica)
        if before is not None:
            yield changes.moved_step(work, replica, before, replicas)
    if where_it_was(publisher) is None:
        yield from changes.record_move_steps(work, publisher, subscribers)


def _finish_steps(situation: Situation) -> Iterator[Step]:
    work = situation.work
    for changeset, replica in situation.interrupted:
        session, subscriber = changeset.manifest.session, changeset.manifest.subscriber
        root = replica.root if replica is not None else None
        detail = "finish the session that was interrupted"
        if root is None:
            detail += ", at the publisher only (the replica cannot be reached, or its subscription has ended)"
        run = partial(work.agent.finish, work.publisher, root, session)
        yield Step(PlanStep("finish", subscriber.root if subscriber is not None else "", detail), run)


def _unpublish_step(work: Work, article: ArticleRow) -> Step:
    step = PlanStep("unpublish", article.name, "take it out of the publication; its table stays")
    return Step(step, lambda: unpublish(work.publisher, article.artid))


def _publication_step(situation: Situation) -> Step:
    work, publisher = situation.work, situation.publisher
    is_new = publisher.info is None
    detail = "new publication" + (", with the publisher's system tables" if is_new else "")

    def run() -> None:
        info = publisher.info
        if info is None:
            info = ReplicaInfo(
                repid=str(uuid.uuid4()),
                replnickname=PUBLISHER_NICKNAME,
                root=str(publisher.root),
            )
            images = {new.nickname: new.fields for new in situation.new}
            create_replica(
                publisher.root, info, images, retention=work.retention, mark=work.mark("system tables")
            )
            failpoint("create.after_system_tables")
        itself = publisher_row(info, work.pubid)
        number = len(publisher.publications) + 1
        new_row = publication_row(
            work.publication,
            work.pubid,
            number,
            publisher_replid=info.replid,
            filters=situation.filters,
        )
        control = Replica(publisher.root).control
        # A run that was cut short here left a row of a publication that was never published.
        known = {row.pubid for row in publisher.publications}
        subscriptions = [row for row in control.rows(catalog.SUBSCRIPTIONS) if row.pubid in known]
        control.replace(catalog.SUBSCRIPTIONS, [*subscriptions, itself])
        failpoint("create.after_subscriptions")
        control.replace(catalog.PUBLICATIONS, [*control.rows(catalog.PUBLICATIONS), new_row])

    return Step(PlanStep("create", work.publication.name, detail), run)


def _change_steps(situation: Situation) -> Iterator[Step]:
    work = situation.work
    replicas = [situation.publisher, *situation.active]
    settings = changes.publication_steps(work, replicas)
    # The tables before the publication's row: the next run would not set a retention that the row has already.
    for replica in replicas:
        yield from changes.property_steps(work, replica)
    yield from settings
    stated = {article.name: article for article in work.publication.articles}
    known = [(stated[r.name], r) for r in situation.articles if r.name in stated]
    yield from changes.article_steps(known, replicas)
    for pair in situation.pairs:
        if pair.row is not None and pair.is_active:
            yield from changes.subscription_steps(work, pair.subscription, pair.row, pair.replica)


def _initialise_steps(situation: Situation) -> Iterator[Step]:
    work = situation.work
    waiting = [(pair, missing_articles(work, pair, situation.articles)) for pair in situation.pairs]
    nicknames = _Nicknames(situation.publisher)
    of_new = rows_of_new(situation)
    new_names = [row.name for row in of_new]
    for pair, rows in waiting:
        copied = [row for row in rows if not is_removed(situation, row)]
        names = [*(row.name for row in copied), *new_names]
        # A table that is there already stays as it is.
        is_copied = pair.subscription.sync_type is SyncType.AUTOMATIC
        without = _unusable_constraints(work, [*copied, *of_new]) if is_copied and names else []
        which = ", ".join(without)
        lacking = f", without CHECK {which} (not all of their columns are published)" if without else ""
        if not pair.is_active:
            yield _subscribe_step(work, pair, names, nicknames.of(pair), lacking)
        elif names:
            yield _new_articles_step(work, pair, names, lacking)


def _unusable_constraints(work: Work, articles: Sequence[ArticleRow]) -> list[str]:
    """Return the CHECK constraints that a subscriber cannot have, as a vertical filter leaves their columns out."""
    found = []
    for article in articles:
        if article.vertical_partition:
            table = open_table(work.publisher / article.source_table)
            if any(name.startswith(CONSTRAINT_PREFIX) for name in table.properties):
                from mergerepl.publish.snapshot import is_computable, uncomputable

                check = partial(is_computable, work.spark, table, article.published_columns)
                found += uncomputable(table, is_computable=check)
    return found


class _Nicknames:
    """Gives out the nicknames of new subscribers, unique among all this publisher ever knew."""

    def __init__(self, publisher: ReplicaState) -> None:
        own = publisher.info.nickname if publisher.info is not None else PUBLISHER_NICKNAME
        self._last = max([own, *(row.replnickname for row in publisher.subscriptions)])

    def of(self, pair: Pair) -> int:
        if pair.replica.info is not None:
            return pair.replica.info.nickname
        if pair.row is not None:
            return pair.row.replnickname
        self._last += 1
        return self._last


def _capture_step(situation: Situation) -> Step:
    work, publisher = situation.work, situation.publisher

    def run() -> None:
        if situation.uncaptured is not None:
            changes.skip_to_head(work, situation.articles, situation.uncaptured)
        elif situation.is_subscribed:
            work.agent.capture(publisher.root, work.pubid)
        else:
            with changes.publish_again_otherwise(FeedGapError, SchemaMismatchError):
                work.agent.capture(publisher.root, work.pubid)

    return Step(PlanStep("capture", str(publisher.root), "bring the publisher's metadata up to date"), run)


def _subscribe_step(work: Work, pair: Pair, names: Sequence[str], nickname: int, lacking: str) -> Step:
    subscription = pair.subscription
    detail = (
        f"copy {', '.join(names)} from the publisher"
        if subscription.sync_type is SyncType.AUTOMATIC
        else f"{', '.join(names)} are there already"
    )
    if pair.row is not None:
        detail += ", again: it was interrupted"
    detail += lacking

    def run() -> None:
        row = pair.row
        if row is None:
            row = subscriber_row(
                subscription,
                work.pubid,
                subid=str(uuid.uuid4()),
                replid=pair.replica.repid or str(uuid.uuid4()),
                nickname=nickname,
                replicastate=str(uuid.uuid4()),
            )
            row = replace(row, **partition_column(Replica(work.publisher), work.pubid, subscription))
            control = Replica(work.publisher).control
            control.replace(catalog.SUBSCRIPTIONS, [*control.rows(catalog.SUBSCRIPTIONS), row])
        else:
            # The file may differ by now, and the replica may belong to another publication.
            stated = subscription_columns(subscription)
            stated |= {"replid": pair.replica.repid or row.replid, "replnickname": nickname}
            stated |= partition_column(Replica(work.publisher), work.pubid, subscription)
            changes.update_rows(work.publisher, catalog.SUBSCRIPTIONS, stated, subid=row.subid)
        failpoint("subscribe.after_row")
        from mergerepl.publish.initialise import initialise

        initialise(work, subscription, row.subid)

    return Step(PlanStep("subscribe", subscription.subscriber, detail), run)


def _new_articles_step(work: Work, pair: Pair, names: Sequence[str], lacking: str) -> Step:
    assert pair.row is not None
    subid = pair.row.subid

    def run() -> None:
        from mergerepl.publish.initialise import initialise

        publisher = read_replica(work.publisher)
        artids = [row.artid for row in publisher.articles_of(work.pubid) if row.name in names]
        initialise(work, pair.subscription, subid, artids)

    return Step(PlanStep("initialise", pair.subscription.subscriber, f"add {', '.join(names)}{lacking}"), run)
