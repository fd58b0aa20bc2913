"""Stage the filtered articles of a session.

Decide the subscriber's changes, find the rows they move, and filter for it. All articles go through each step together,
since rows follow those of other articles. Captured changes are committed before.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import SparkSession

from conflict.failed_changes import undone
from conflict.out_of_partition import NOTE, Uploaded, bound_to_partition, rejected
from conflict.resolvers.registry import require_resolver
from enumeration.enum_changes import enum_partition_changes
from enumeration.partition_actions import PartitionRows, PartitionTerms, partition_actions, without_strangers
from enumeration.plan import Numbers, SessionPlan
from mergerepl import changes
from mergerepl.changes import (
    CHANGE_COLUMNS,
    DELETED,
    GENERATION,
    PUBLISHER,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    TOMBSTONE_TYPE,
    VERDICT,
    WRITTEN_VERDICTS,
    Verdict,
)
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.tables import open_table, write_files
from mergerepl.frames import DataFrame, F
from mergerepl.merge.capture.partitions import event_counts, touched_rows
from mergerepl.merge.partitions.filtered import FilteredPublication
from mergerepl.merge.partitions.membership import (
    AFTER,
    BEFORE,
    WRITTEN,
    MembershipPass,
    base_rows,
    group_rows,
)
from mergerepl.merge.partitions.membership import Changed as SentRows
from mergerepl.merge.partitions.runs import read_mappings
from mergerepl.merge.partitions.versions import table_rows, versions_of, with_metadata
from mergerepl.merge.stage.article import Enumerated, StagedArticle, side_changes
from mergerepl.merge.stage.constraints import refused_rows
from mergerepl.merge.stage.decision import Changed, decided, resolved, with_ancestors
from mergerepl.model.article import PublishedArticle
from mergerepl.model.progress import Progress
from mergerepl.model.session_terms import ArticleTerms, SessionTerms, terms_of
from mergerepl.replica.partition_generations import generations_for, is_moving
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import ArticleRuns, current_rows
from mergerepl.rows.lineage_value import agent_nickname
from mergerepl.spark.in_memory import Kept, broadcast_if_few, in_one_task, is_for_one_task
from mergerepl.store.changeset import events_folder
from mergerepl.store.location import Location
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.systables.tombstone import TombstoneType
from triggers.partition_mappings import data_events, partition_events

_NEVER_SENT = (int(TombstoneType.PARTIAL_DELETE), int(TombstoneType.SYSTEM_DELETE))


@dataclass(frozen=True)
class _Sent(Uploaded):
    """At most `rows` changes of the subscriber to an article, and the terms of the article."""

    rows: int
    terms: ArticleTerms


@dataclass(frozen=True)
class _Window:
    """WINDOW of one article and the publisher's versions (CHANGES) of its rows; each has at most `count` rows."""

    rows: DataFrame
    versions: DataFrame
    count: int


@dataclass(frozen=True)
class _Wanted:
    """The generations of an article to send; from `first_seq` on they have `count` changes for the partition."""

    article: PublishedArticle
    generations: frozenset[int]
    first_seq: int
    count: int


@dataclass(frozen=True)
class PartitionedSession:
    """The inputs of all steps of a session whose captured changes are committed.

    `replica` is the publisher, `subscription` its row about the subscriber, `folder` the place of the changesets,
    `sent` the subscriber's changes by tablenick, `clock` that of both sides, `floor` the version up to which both know all
    changes of rows that the subscriber has. `staged` writes RESOLVED of one article
    (its rows) and returns its counts.
    """

    spark: SparkSession
    replica: Replica
    info: ReplicaInfo
    subscription: SubscriptionRow
    publication: FilteredPublication
    plan: SessionPlan
    terms: SessionTerms
    numbers: Mapping[str, Numbers]
    folder: Location
    sent: Mapping[int, Enumerated]
    staged: Callable[[int, DataFrame], StagedArticle]
    progress: Progress
    choice: EngineChoice
    clock: int
    floor: int
    kept: Kept = field(default_factory=Kept)

    @property
    def articles(self) -> dict[str, PublishedArticle]:
        """The filtered articles, by name."""
        filtered = self.publication.tablenicks
        return {name: a for name, a in self.publication.articles.items() if a.nickname in filtered}

    @property
    def last_seq(self) -> int:
        """The publisher's last committed run."""
        return self.info.last_seq

    def runs(self, article: PublishedArticle) -> ArticleRuns:
        """Return the publisher's runs of an article."""
        return ArticleRuns.of(self.spark, self.replica, article, self.last_seq)


def stage_partitioned(session: PartitionedSession) -> dict[int, StagedArticle]:
    """Write the changesets of all filtered articles and return their counts, by tablenick.

    Raises: ApplyError, StoreError if any article cannot be applied: rows of other articles may follow its rows.
    """
    try:
        sent = {name: _without_refused(session, name, each) for name, each in _sent(session).items()}
        memberships, counts, outside = _memberships(session, sent)
        sent |= {name: _without_outside(session, name, sent[name], rows) for name, rows in outside.items()}
        windows = _windows(session)
        found = {}
        for name, article in session.articles.items():
            touched, events = counts.get(name, (0, 0))
            rows = _acted(session, article, sent.get(name), memberships.get(name), windows.get(name), touched)
            if rows is None:
                continue
            staged = session.staged(article.nickname, rows)
            events_at = events_folder(session.folder, article.nickname)
            if events:
                write_files(_events(session, article, memberships[name], sent.get(name)), events_at)
            found[article.nickname] = replace(
                staged,
                works={
                    PUBLISHER: replace(staged.works[PUBLISHER], events=events),
                    SUBSCRIBER: replace(staged.works[SUBSCRIBER], is_filtered=True),
                },
                resolved=max(staged.resolved, events, int(name in sent)),
            )
            session.progress.step("stage", article=name, rows=staged.rows)
        return found
    finally:
        session.kept.release()


def _sent(session: PartitionedSession) -> dict[str, _Sent]:
    """Decide the subscriber's changes of each article by the publisher's versions of those rows."""
    changed: dict[str, tuple[Changed, int, DataFrame, DataFrame]] = {}
    for name, article in session.articles.items():
        enumerated = session.sent[article.nickname]
        rows = side_changes(session.spark, enumerated, session.kept)
        if rows is None:
            continue
        require_resolver(article)
        is_own = ~F.coalesce(F.col(TOMBSTONE_TYPE), F.lit(0)).isin(*_NEVER_SENT)
        rows = session.kept.keep(rows.where(is_own).select(*CHANGE_COLUMNS))
        count = enumerated.rows
        at, version = session.replica.table(article), session.info.captured[article.nickname]
        table = table_rows(session.spark, at, version, article)
        known = versions_of(session.runs(article), table, rows, rows=count, kept=session.kept)
        terms = _terms(session, article)
        at_subscriber, at_publisher = without_strangers(
            rows, known, fresh_after=session.terms.upload_start, most=count
        )
        sent = Changed(article, terms, at_publisher, at_subscriber, rows=2 * count)
        # The captured changes are committed on both sides.
        theirs = replace(enumerated, captured=None)
        ours = replace(
            theirs, replica=session.replica, article=article, through_seq_inclusive=session.last_seq
        )
        sent = with_ancestors(session.spark, sent, (ours, theirs))
        changed[name] = sent, count, rows, known
    decision = decided([each[0] for each in changed.values()], session.terms, session.kept)
    return {
        name: _Sent(
            rows, known, session.kept.keep(resolved(each, decision, session.terms)), count, each.terms
        )
        for name, (each, count, rows, known) in changed.items()
    }


def _terms(session: PartitionedSession, article: PublishedArticle) -> ArticleTerms:
    return terms_of(
        article,
        resolved_at_publisher=session.numbers[PUBLISHER].resolved[article.nickname],
        resolved_at_subscriber=session.numbers[SUBSCRIBER].resolved[article.nickname],
        floor=session.floor,
        clock=session.clock,
        subscriber_fresh_after=session.terms.upload_start,
    )


def _without_refused(session: PartitionedSession, name: str, sent: _Sent) -> _Sent:
    """Undo the changes that the publisher's table refuses.

    If the article does not compensate, they stay, and the article is refused once it is staged.
    """
    article = session.articles[name]
    if not article.compensates:
        return sent
    tables = {PUBLISHER: open_table(session.replica.table(article))}
    found = refused_rows(session.spark, sent.outcome, {PUBLISHER: article}, tables)
    refused = session.kept.keep_if_any(found)
    if refused is None:
        return sent
    # Resolved at the subscriber, the only place that records it.
    resolver = agent_nickname(session.subscription.replnickname)
    chosen, clock = refused.select(ROWGUID), sent.terms.clock
    rows = undone(rejected(sent, chosen, note="", resolver_nickname=resolver, clock=clock), refused)
    return _with_rejected(session, sent, rows)


def _without_outside(session: PartitionedSession, name: str, sent: _Sent, outside: DataFrame) -> _Sent:
    """Reject the rows that the subscriber sends from outside its partition."""
    note = NOTE.format(options=session.articles[name].partition_options)
    resolver = session.terms.resolver_nickname
    rows = rejected(sent, outside, note=note, resolver_nickname=resolver, clock=sent.terms.clock)
    return _with_rejected(session, sent, rows)


def _with_rejected(session: PartitionedSession, sent: _Sent, rows: DataFrame) -> _Sent:
    others = sent.outcome.join(rows.select(ROWGUID), on=ROWGUID, how="left_anti")
    return replace(sent, outcome=session.kept.keep(others.unionByName(rows)))


def _memberships(
    session: PartitionedSession, sent: Mapping[str, _Sent]
) -> tuple[dict[str, DataFrame], dict[str, tuple[int, int]], dict[str, DataFrame]]:
    """Return MEMBERSHIPS of the rows that the subscriber sends and of those that they move, and their `event_counts`.

    The third value holds, by article name, the rows (rowguid) that it may not write: they count as they were.
    """
    if not sent:
        return {}, {}, {}
    changed = {}
    bound = {}
    for name, each in sent.items():
        changed[name] = SentRows(session.kept.keep(_changed(each)), each.rows)
        article = session.articles[name]
        if article.partition_options:
            used = session.publication.filters.columns_used(name)
            fields = [
                field for column, field in zip(article.columns, article.fields, strict=True) if column in used
            ]
            start = session.terms.upload_start
            bound[name] = session.kept.keep(bound_to_partition(each, fields, fresh_after=start))
    spark, replica, versions = session.spark, session.replica, session.info.captured
    pass_ = MembershipPass(
        session.publication,
        group_rows(spark, session.publication.groups),
        base_rows(spark, replica, session.publication.articles, versions),
        session.kept,
        bound=bound,
        bound_to=_writable(session),
    )
    found = pass_.run(changed)
    return found, event_counts(found, pass_.counts), pass_.outside


def _changed(sent: _Sent) -> DataFrame:
    """CHANGED of the publisher's table: its rows before the session and after it."""
    before = sent.known.select(ROWGUID, F.when(~F.col(DELETED), F.col(ROW)).alias(BEFORE))
    final = sent.outcome.where(F.col(VERDICT).isin(*WRITTEN_VERDICTS)).select(
        ROWGUID, F.lit(True).alias(WRITTEN), F.when(~F.col(DELETED), F.col(ROW)).alias(AFTER)
    )
    # Each row that is sent has at most one known version and one outcome.
    joined = in_one_task(sent.sent.select(ROWGUID), sent.rows)
    joined = joined.join(in_one_task(before, sent.rows), on=ROWGUID, how="left")
    joined = joined.join(in_one_task(final, sent.rows), on=ROWGUID, how="left")
    is_written = F.coalesce(WRITTEN, F.lit(False))
    after = F.when(is_written, F.col(AFTER)).otherwise(F.col(BEFORE))
    return joined.select(ROWGUID, BEFORE, after.alias(AFTER), is_written.alias(WRITTEN))


def _windows(session: PartitionedSession) -> dict[str, _Window]:
    """Enumerate the rows of each article that the subscriber's partition gained, kept and lost."""
    start = session.plan.down.from_generation_exclusive
    named = generations_for(
        session.replica, session.publication.number, session.subscription, from_generation_exclusive=start
    )
    wanted = {}
    for name, article in session.articles.items():
        sent = frozenset(
            row.generation for row in session.plan.down.of_articles([article.nickname]).generations
        )
        if sent:
            changed = [row for row in named if row.generation in sent]
            wanted[name] = _Wanted(
                article, sent, min(row.first_seq for row in changed), sum(row.changecount for row in changed)
            )
    return {name: _window(session, each) for name, each in wanted.items()}


def _window(session: PartitionedSession, wanted: _Wanted) -> _Window:
    article, folder = wanted.article, session.replica.folder
    mappings = read_mappings(
        session.spark,
        folder,
        article.nickname,
        session.subscription,
        from_seq_inclusive=wanted.first_seq,
        through_seq_inclusive=session.last_seq,
    )
    window = session.kept.keep(enum_partition_changes(mappings, wanted.generations))
    # A row that only moved is recorded with its former generation, which may have been cleaned up.
    runs = replace(session.runs(article), cleaned=0)
    recent = runs.read(from_seq_exclusive=wanted.first_seq - 1)
    theirs = recent.join(broadcast_if_few(window.select(ROWGUID), wanted.count), on=ROWGUID, how="left_semi")
    return _Window(window, session.kept.keep(current_rows(theirs)), wanted.count)


def _partition_id(session: PartitionedSession) -> int:
    number = session.subscription.partition_id
    # A subscription gets its partition before its first row.
    assert number is not None
    return number


def _writable(session: PartitionedSession) -> tuple[int, ...]:
    """Return the partitions that the subscriber may write: also the former one until the session that moves it."""
    mine, about = _partition_id(session), session.subscription
    start = session.plan.down.from_generation_exclusive
    former = about.former_partition_id
    if former is not None and is_moving(
        session.replica, session.publication.number, about, from_generation_exclusive=start
    ):
        return mine, former
    return (mine,)


def _acted(
    session: PartitionedSession,
    article: PublishedArticle,
    sent: _Sent | None,
    memberships: DataFrame | None,
    window: _Window | None,
    touched: int,
) -> DataFrame | None:
    """Return RESOLVED of one article; None if it has no work."""
    versions = [sent.known] if sent is not None else []
    if window is not None:
        versions.append(window.versions)
    if touched and memberships is not None:
        rows = touched_rows(memberships)
        versions.append(with_metadata(session.runs(article), rows, count=touched, kept=session.kept))
    if not versions:
        return None
    most = (2 * sent.rows if sent else 0) + (window.count if window else 0) + touched
    known = reduce(DataFrame.unionByName, versions)
    if len(versions) > 1:
        known = in_one_task(known, most).dropDuplicates([ROWGUID])
    down = session.plan.down.of_articles([article.nickname])
    terms = PartitionTerms(
        partition_id=_partition_id(session),
        start=down.from_generation_exclusive,
        held=tuple(row.generation for row in down.known),
        received=session.numbers[SUBSCRIBER].received,
        own_at_publisher=session.numbers[PUBLISHER].resolved.get(article.nickname, 0),
        own_at_subscriber=session.numbers[SUBSCRIBER].resolved.get(article.nickname, 0),
    )
    frames = PartitionRows(
        known,
        sent.sent if sent is not None else None,
        sent.outcome if sent is not None else None,
        memberships,
        window.rows if window is not None else None,
        most,
    )
    acted = partition_actions(frames, terms)
    # Writing few rows is faster than a second Spark plan.
    return acted if is_for_one_task(most) else session.kept.keep(acted)


def _events(
    session: PartitionedSession, article: PublishedArticle, memberships: DataFrame, sent: _Sent | None
) -> DataFrame:
    own = session.numbers[PUBLISHER].resolved[article.nickname]
    events = partition_events(memberships, generation=own)
    if sent is None:
        return events
    uploaded = sent.outcome.where(F.col(VERDICT) == Verdict.UPLOAD.value)
    generations = uploaded.select(ROWGUID, F.col(changes.PUBLISHER_GENERATION).alias(GENERATION))
    return events.unionByName(data_events(memberships, generations))
