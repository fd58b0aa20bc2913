"""Stage a session: the changesets of its articles and the manifest that commits to carrying them out."""

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial

from pyspark.sql import SparkSession

from conflict.failed_changes import put_back, undone
from conflict.out_of_partition import Uploaded, rejected
from conflict.resolvers.registry import require_resolver
from enumeration.plan import Enumeration, Numbers, SessionPlan, number_generations
from mergerepl.changes import OTHER_SIDE, PUBLISHER, ROWGUID, SUBSCRIBER
from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.delta.small_writer import MOST_ROWS, article_problem
from mergerepl.delta.tables import merges_prepared, open_table
from mergerepl.failpoints import failpoint
from mergerepl.frames import DataFrame
from mergerepl.merge.resolvers.answers import answers_of_functions
from mergerepl.merge.resolvers.functions import require_function
from mergerepl.merge.session.session_plan import floor_of, session_manifest, session_plan
from mergerepl.merge.session.sides import (
    ARTICLE_ERRORS,
    AT_ONCE,
    Refused,
    SideState,
    committed_sides,
    planned,
    refuse,
    without,
)
from mergerepl.merge.stage.article import Enumerated, StagedArticle, side_changes, stage_article
from mergerepl.merge.stage.constraints import destinations, refuse_violations
from mergerepl.merge.stage.decision import Changed, decided, resolved, with_ancestors, with_held
from mergerepl.merge.stage.withhold import Withholding, withhold_refused
from mergerepl.model.article import PublishedArticle
from mergerepl.model.progress import Progress
from mergerepl.model.session_terms import ArticleTerms, SessionTerms, terms_of
from mergerepl.replica.subscription import write_pointer
from mergerepl.rows.lineage_value import agent_nickname
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.store.changeset import Changeset, drop_rows, new_session_folder
from mergerepl.store.location import Location
from mergerepl.store.rehearsal import worker_threads

log = logging.getLogger(__name__)


def enumerated(side: SideState, nickname: int, sent: Enumeration) -> Enumerated:
    """Return one side of one article for staging."""
    sent = sent.of_articles([nickname])
    captured = side.captured_article(nickname)
    is_new = (
        captured is not None
        and captured.generation is not None
        and [row.guidsrc for row in sent.generations] == [captured.generation.guidsrc]
        and captured.generation.changecount == captured.changes
    )
    return Enumerated(
        side.replica,
        side.articles[nickname],
        side.info.last_seq,
        sent,
        captured,
        is_complete_in_memory=is_new,
    )


def resolving_alone(side: SideState) -> list[int]:
    """The tablenicks of the articles with a resolver for rows that one side alone changed."""
    return [n for n, article in side.articles.items() if article.may_resolve_alone]


@dataclass(frozen=True)
class PlannedSession:
    """The inputs of staging: both sides, their changes and numbers, and the folder."""

    sides: dict[str, SideState]
    plan: SessionPlan
    numbers: Mapping[str, Numbers]
    folder: Location
    progress: Progress
    choice: EngineChoice

    @property
    def spark(self) -> SparkSession:
        """The session of the rules' frames."""
        return self.choice.for_rules

    @property
    def clock(self) -> int:
        """The clock of both sides after their captures: a resolution has the next version."""
        return max(side.info.clock for side in self.sides.values())

    @cached_property
    def terms(self) -> SessionTerms:
        """The terms of the session for classification and resolution."""
        plan, numbers = self.plan, self.numbers
        resolver_side = PUBLISHER if plan.upload else SUBSCRIBER
        return SessionTerms(
            upload=plan.upload,
            download=plan.download,
            resolver_nickname=agent_nickname(self.sides[resolver_side].info.nickname),
            client_subscription=plan.upload and self.sides[SUBSCRIBER].other.is_client,
            publisher_generations=numbers[PUBLISHER].received,
            subscriber_generations=numbers[SUBSCRIBER].received,
            upload_start=plan.up.from_generation_exclusive,
            download_start=plan.down.from_generation_exclusive,
        )

    def article_terms(self, article: PublishedArticle, *, whole_rows: bool = False) -> ArticleTerms:
        """Return the terms of an article."""
        return terms_of(
            article,
            resolved_at_publisher=self.numbers[PUBLISHER].resolved.get(article.nickname, 0),
            resolved_at_subscriber=self.numbers[SUBSCRIBER].resolved.get(article.nickname, 0),
            whole_rows=whole_rows,
            floor=floor_of(self.sides),
            clock=self.clock,
        )

    def captured(self, nickname: int) -> dict[str, int]:
        """Return the captured versions of an article's tables."""
        return {name: side.info.captured[nickname] for name, side in self.sides.items()}

    def written(self, nickname: int, outcome: DataFrame) -> StagedArticle:
        """Write RESOLVED of one article and return its counts."""
        article = self.sides[PUBLISHER].articles[nickname]
        folder = self.folder / str(nickname)
        return stage_article(outcome, folder, article, from_versions=self.captured(nickname))


def stage_articles(session: PlannedSession) -> tuple[dict[int, StagedArticle], Refused]:
    """Decide both sides' changes, for all articles at once, and write the changeset of each.

    Returns: tablenick -> its counts; and the articles that cannot be staged, whose files are removed.
    """
    spark, sides, plan, folder = session.spark, session.sides, session.plan, session.folder
    terms = session.terms
    refused: Refused = {}
    kept = Kept()

    @contextmanager
    def refused_alone(nickname: int) -> Iterator[None]:
        try:
            with plain_errors(f"staging article '{sides[PUBLISHER].articles[nickname].name}'"):
                yield
        except ARTICLE_ERRORS as error:
            drop_rows(folder / str(nickname))
            refuse(refused, nickname, error)

    changed: dict[int, Changed] = {}
    try:
        for nickname in plan.tablenicks:
            with refused_alone(nickname):
                publisher = enumerated(sides[PUBLISHER], nickname, plan.down)
                subscriber = enumerated(sides[SUBSCRIBER], nickname, plan.up)
                require_resolver(publisher.article)
                require_function(publisher.article)
                both = {PUBLISHER: publisher, SUBSCRIBER: subscriber}
                of_article = session.article_terms(publisher.article)
                rows = publisher.rows + subscriber.rows
                if of_article.rejects is not None:
                    rows += both[of_article.rejects].rows
                sent = Changed(
                    publisher.article,
                    of_article,
                    side_changes(spark, publisher, kept),
                    side_changes(spark, subscriber, kept),
                    rows,
                )
                sent = with_ancestors(spark, sent, (publisher, subscriber))
                changed[nickname] = with_held(
                    spark, sent, both, session.captured(nickname), kept, rejects=of_article.rejects
                )
        roots = sides[PUBLISHER].replica.root, sides[SUBSCRIBER].replica.root
        answered = partial(answers_of_functions, roots=roots, kept=kept)
        decision = decided([*changed.values()], terms, kept, answered=answered)

        def stage(nickname: int) -> StagedArticle | None:
            # Captured changes that cancel out still have a generation.
            if not changed[nickname].has_any:
                return None
            staged = None
            with refused_alone(nickname):
                article_folder = folder / str(nickname)
                # Reading the log of a large table takes a while; the rows are staged concurrently.
                tables = _tables_of_spark(session, changed[nickname])
                with nullcontext() if session.choice.in_process else merges_prepared(spark, tables):
                    written = session.written(nickname, resolved(changed[nickname], decision, terms))
                withholding = _withholding(session, changed[nickname], kept)
                staged = withhold_refused(article_folder, written, withholding, kept)
                session.progress.step("stage", article=changed[nickname].article.name, rows=staged.rows)
            return staged

        with worker_threads(AT_ONCE) as pool:
            found = dict(zip(changed, pool.map(stage, changed), strict=True))
    finally:
        kept.release()
    return {nickname: staged for nickname, staged in found.items() if staged is not None}, refused


def _tables_of_spark(session: PlannedSession, changed: Changed) -> Iterator[Location]:
    """Yield the tables of an article that Spark will merge many rows into, as far as known before staging."""
    if not changed.has_many:
        return
    nickname = changed.article.nickname
    by_spark = not session.choice.uses_arrow
    for name, sent in ((PUBLISHER, session.plan.up), (SUBSCRIBER, session.plan.down)):
        side = session.sides[name]
        rows = enumerated(session.sides[OTHER_SIDE[name]], nickname, sent).rows
        table = side.replica.table(side.articles[nickname])
        if by_spark or rows > MOST_ROWS or article_problem(open_table(table), side.articles[nickname]):
            yield table


def _withholding(session: PlannedSession, changed: Changed, kept: Kept) -> Withholding:
    sides, plan, numbers, terms = session.sides, session.plan, session.numbers, session.terms
    nickname = changed.article.nickname

    def sent_of(chosen: DataFrame) -> tuple[DataFrame | None, DataFrame | None]:
        at_publisher, at_subscriber = (
            rows.join(chosen.select(ROWGUID), on=ROWGUID, how="left_semi") if rows is not None else None
            for rows in (changed.at_publisher, changed.at_subscriber)
        )
        return at_publisher, at_subscriber

    def as_wholes(guids: DataFrame) -> DataFrame:
        of_wholes = session.article_terms(changed.article, whole_rows=True)
        again = Changed(changed.article, of_wholes, *sent_of(guids), rows=None)
        return resolved(again, decided([again], terms, kept), terms)

    def undo(outcome: DataFrame, refused: DataFrame) -> DataFrame:
        both = {
            PUBLISHER: enumerated(sides[PUBLISHER], nickname, plan.down),
            SUBSCRIBER: enumerated(sides[SUBSCRIBER], nickname, plan.up),
        }
        at_publisher, at_subscriber = sent_of(outcome)
        sent = replace(changed, at_publisher=at_publisher, at_subscriber=at_subscriber)
        held = with_held(session.spark, sent, both, session.captured(nickname), kept, rejects=SUBSCRIBER)
        assert held.at_publisher is not None
        assert held.at_subscriber is not None
        rows = rejected(
            Uploaded(held.at_subscriber, held.at_publisher, outcome),
            outcome.select(ROWGUID),
            note="",
            # Resolved at the subscriber, the only place that records it.
            resolver_nickname=agent_nickname(sides[SUBSCRIBER].info.nickname),
            clock=changed.terms.clock,
        )
        return put_back(undone(rows, refused), generation=changed.terms.resolved_at_subscriber)

    # In a session of one direction a refused row waits: the other direction writes its source.
    can_undo = plan.upload and plan.download and changed.at_subscriber is not None
    return Withholding(
        at={name: side.articles[nickname] for name, side in sides.items()},
        replicas={name: side.replica for name, side in sides.items()},
        changed=changed,
        numbers={
            name: numbers[name].waiting[nickname] for name in sides if nickname in numbers[name].waiting
        },
        sent={
            PUBLISHER: plan.down.of_articles([nickname]).generations,
            SUBSCRIBER: plan.up.of_articles([nickname]).generations,
        },
        as_wholes=as_wholes if changed.is_contested and changed.article.column_tracking else None,
        undo=undo if changed.article.compensates and can_undo else None,
        versions=session.captured(nickname),
        choice=session.choice,
    )


def _partitioned(session: PlannedSession) -> dict[int, StagedArticle]:
    """Stage the articles with row filters.

    Raises: ApplyError, StoreError if one cannot be applied, such as for a row that a table would refuse.
    """
    from mergerepl.merge.stage.stage_partitioned import PartitionedSession, stage_partitioned

    publisher, subscriber = session.sides[PUBLISHER], session.sides[SUBSCRIBER]
    assert publisher.filtered is not None

    def stage(nickname: int, outcome: DataFrame) -> StagedArticle:
        with plain_errors(f"staging article '{publisher.articles[nickname].name}'"):
            staged = session.written(nickname, outcome)
            at = {name: side.articles[nickname] for name, side in session.sides.items()}
            replicas = {name: side.replica for name, side in session.sides.items()}
            for each in destinations(session.folder / str(nickname), staged, at, replicas).values():
                if each.work.touches_rows:
                    refuse_violations(session.choice, each)
            return staged

    return stage_partitioned(
        PartitionedSession(
            spark=session.spark,
            replica=publisher.replica,
            info=publisher.info,
            subscription=publisher.other,
            publication=publisher.filtered,
            plan=session.plan,
            terms=session.terms,
            numbers=session.numbers,
            folder=session.folder,
            sent={n: enumerated(subscriber, n, session.plan.up) for n in publisher.filtered.tablenicks},
            staged=stage,
            progress=session.progress,
            choice=session.choice,
            clock=session.clock,
            floor=floor_of(session.sides),
        )
    )


def staged_changeset(
    sides: dict[str, SideState],
    publication: str,
    *,
    upload: bool,
    download: bool,
    progress: Progress,
    choice: EngineChoice,
) -> tuple[Changeset | None, Refused]:
    """Commit the captured changes, stage all articles and commit to the plan: the point of no return.

    Returns: the changeset, and the articles left out of it, such as one with a row that a constraint would refuse. The
    changeset is None if every article is left out.

    Raises: UnknownGenerationError; nothing is staged then.
    """
    if not sides[PUBLISHER].articles:
        # The capture left out all articles: a refusal changes nothing.
        return None, {}
    filtered = sides[PUBLISHER].filtered
    if filtered is not None:
        # Mappings that are captured and mappings that wait are read together.
        sides = committed_sides(sides, choice)
    will_be = sides if filtered is not None else {name: planned(side) for name, side in sides.items()}
    plan = session_plan(will_be, upload=upload, download=download)
    last_generations = {n: side.info.last_generation for n, side in will_be.items()}
    tablenicks = filtered.tablenicks if filtered is not None else frozenset()
    moving = tablenicks if any(row.art_nick in tablenicks for row in plan.up.generations) else ()
    numbers = number_generations(
        plan, last_generations, filtered=moving, resolving_alone=resolving_alone(will_be[PUBLISHER])
    )
    folder = new_session_folder(sides[PUBLISHER].replica.staging)
    session = folder.name
    committing: Future[dict[str, SideState]] | None = None
    try:
        # They are independent, and each leaves the machine idle while Spark plans its next query.
        with worker_threads(1) as pool:
            if filtered is None:
                committing = pool.submit(committed_sides, sides, choice)
            others = [n for n in will_be[PUBLISHER].articles if n not in tablenicks]
            staging = PlannedSession(will_be, plan, numbers, folder, progress, choice)
            staged, refused = stage_articles(replace(staging, plan=plan.of_articles(others)))
        if filtered is not None:
            staged |= _partitioned(staging)
        sides = without(committing.result() if committing is not None else sides, refused)
        if sides[PUBLISHER].left_out and not staged:
            drop_rows(folder)
            return None, refused
        plan = plan.of_articles(sides[PUBLISHER].articles)
        manifest = session_manifest(sides, plan, numbers, staged, session, publication)
    except BaseException as error:
        other = committing.exception() if committing is not None else None
        if other is not None and other is not error:
            log.error("committing what was captured failed as well: %s", other)
        drop_rows(folder)
        if other is not None and isinstance(error, NeedsSparkError):
            # Beginning again would hide it.
            raise other from error
        raise
    changeset = Changeset(folder, manifest)
    failpoint("stage.before_pointer")
    write_pointer(sides[PUBLISHER].replica, sides[SUBSCRIBER].replica, session)
    changeset.commit()
    return changeset, refused
