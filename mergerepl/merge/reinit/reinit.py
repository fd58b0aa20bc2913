"""Reinitialise a subscriber by difference: readers never meet an empty table, and equal rows are not written.

Its tables are compared with the publisher's at captured versions. The outcome is staged and carried out as a session's
changeset: it happens once, late writes are taken in, and a run that died is finished by the next one. The subscriber's
metadata becomes void and is replaced by the publisher's (docs/decisions/0073). So the two need no common past: a
subscription that expired, or a replica that was restored from an older copy, goes on.
"""

import logging
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from enumeration.horizon import own_row
from enumeration.plan import Enumeration, Numbers, SessionPlan, enumeration
from mergerepl.changes import DATA_ACTIONS, OTHER_SIDE, PUBLISHER, ROWGUID, SUBSCRIBER, Action
from mergerepl.delta.engine_choice import ARROW_FOR_FEW, EngineChoice
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.store_proof import require_shared_folders
from mergerepl.errors import ConfigurationError, EnumerationError, PublicationError
from mergerepl.failpoints import failpoint
from mergerepl.merge.reinit.captured_ends import CapturedEnds, capture_ends
from mergerepl.merge.reinit.decisions import (
    ReinitArticle,
    conflicting_rows,
    decided_rows,
    deletes_outside,
    publishers_rows,
    unsent_rows,
)
from mergerepl.merge.reinit.kept_rows import export, rows_taken_away
from mergerepl.merge.repair.differing import SHOWN, examples
from mergerepl.merge.session import session_history
from mergerepl.merge.session.carry_out import Outcome, carry_out
from mergerepl.merge.session.merge_session import (
    SessionRequest,
    finish_elsewhere,
    held_session,
    refuse_pending_elsewhere,
)
from mergerepl.merge.session.recovery import named, recover, refuse_interrupted
from mergerepl.merge.session.schema_step import changed_articles, followed_schema
from mergerepl.merge.session.session_plan import session_manifest
from mergerepl.merge.session.sides import SideState, committed_sides, open_sides, with_windows, without
from mergerepl.merge.stage.article import StagedArticle, stage_article
from mergerepl.merge.stage.constraints import destinations, refuse_violations
from mergerepl.model.article import PublishedArticle
from mergerepl.model.horizon import Horizon
from mergerepl.model.results import ArticleCounts, KeyDifference
from mergerepl.model.tasks import Reinit
from mergerepl.model.words import counted, key_text
from mergerepl.replica.partition_generations import is_moving
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.subscription import write_pointer
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.store.changeset import UNSENT, Changeset, Manifest, drop_rows, new_folder
from mergerepl.store.location import Location
from mergerepl.systables.genhistory import Generation, GenStatus
from mergerepl.tracking.sweep import sweep_root

log = logging.getLogger(__name__)

NOTHING = "Nothing was changed."


@dataclass(frozen=True)
class ReinitTerms:
    """What happens to changes that the subscriber has not sent; neither: there must be none. `tables`: empty for all.

    `is_changing_resolver`: `apply` gives these articles, upload_only until now, another resolver once they are equal.
    """

    upload_first: bool = False
    discard_local: bool = False
    tables: Collection[str] = ()
    is_dry: bool = False
    is_changing_resolver: bool = False


@dataclass(frozen=True)
class _Decided:
    """An article with its decided rows; `unsent` are those among them with a change that was not sent, `count` many."""

    of: ReinitArticle
    rows: DataFrame
    unsent: DataFrame | None
    count: int
    examples: tuple[KeyDifference, ...]

    @property
    def article(self) -> PublishedArticle:
        """The article."""
        return self.of.article


def reinitialise(request: SessionRequest, terms: ReinitTerms, *, lease_wait_s: float = 0.0) -> list[Reinit]:
    """Reinitialise one subscription, or some of its articles.

    Raises: ConfigurationError if a table is unknown, or changes would be given up that the terms do not name;
    PublicationError if its publication cannot be reinitialised, a replica is not the subscribed one, or a key has several
    rows; ApplyError if a table would refuse a row; CaptureError, SchemaMismatchError, StoreError if a table cannot be
    read on; EnumerationError if a session must be finished or aborted first; LeaseError, CommitConflictError (run again).
    """
    if not terms.is_dry:
        for replica in request.ends:
            finish_elsewhere(replica, request)
    doing = f"reinitialising '{request.subscriber.root}'"
    with request.held(doing, lease_wait_s) as held, plain_errors(doing):
        return reinitialise_held(held, terms)


def reinitialise_held(held: SessionRequest, terms: ReinitTerms) -> list[Reinit]:
    """Reinitialise a subscription whose replicas the caller holds (`SessionRequest.held`); as `reinitialise`."""
    for replica in held.ends:
        if not replica.root.is_local:
            raise PublicationError(
                f"'{replica.root}' is in a bucket, where no subscriber is reinitialised yet. {NOTHING} End its "
                "subscription and give the rows to a new subscriber.",
                replica=str(replica.root),
            )
        sweep_root(replica.root)
    held.refuse_unfit_replicas()
    refuse_pending_elsewhere(held)
    if terms.is_dry:
        refuse_interrupted(*held.ends)
    else:
        recover(*held.ends, held.spark_of, engine=held.engine)
    chosen = _chosen(held, terms)
    others = [
        each.nickname
        for each in held.publisher.articles_of(held.subscription.pubid)
        if each.nickname not in chosen
    ]
    counts: tuple[ArticleCounts, ...] = ()
    if not terms.is_dry and (others or terms.upload_first):
        try:
            # What the others have to send goes first: the watermarks are those of all articles.
            counts = held_session(held, datetime.now(UTC), time.monotonic())[0].articles
        except EnumerationError:
            # The two have no common past that a session could go by.
            if others:
                raise
        held = held.reread()
    sides = open_sides(*held.ends, held.subscription, is_anew=not others)
    changed = _with_changed_columns(held, sides, terms, chosen)
    if changed and not terms.is_dry:
        stopped = followed_schema(
            held.ends, held.subscription, changed, held.engine, held.spark_of, held.progress
        )
        for error in stopped.values():
            raise error
        held = held.reread()
        sides = open_sides(*held.ends, held.subscription, is_anew=not others)
    if others:
        sides = without(sides, others)
        _refuse_waiting(sides)
    if terms.is_dry:
        sides = without(sides, changed)
    started = recording_jvm(held.spark_of, held.ends)
    choice = EngineChoice(uses_arrow=held.engine == ARROW_FOR_FEW, spark_of=started)
    kept = Kept()
    with ExitStack() as stack:
        stack.callback(kept.release)
        captured = capture_ends(sides, choice, stack, takes_as_it_is=terms.discard_local, is_dry=terms.is_dry)
        articles = _articles(captured, is_changing_resolver=terms.is_changing_resolver)
        found = [_decided(choice.spark, of, kept) for of in articles]
        _refuse_unsent(held, terms, found)
        _refuse_moves(held, terms, sides[PUBLISHER], found)
        done = _carried_out(held, terms, captured, found, choice, kept) if found else []
    done = [with_counts(each, counts) for each in done]
    if not terms.is_dry:
        return done
    return done + [_to_follow(held, nickname) for nickname in changed]


def _chosen(held: SessionRequest, terms: ReinitTerms) -> set[int]:
    """Return the tablenicks of the articles to reinitialise.

    Raises: ConfigurationError, PublicationError.
    """
    articles = held.publisher.articles_of(held.subscription.pubid)
    if unknown := set(terms.tables) - {each.name for each in articles}:
        raise ConfigurationError(
            f"Publication '{held.publication}' has no article {', '.join(map(repr, sorted(unknown)))}. {NOTHING}"
        )
    if terms.tables and held.publisher.publication(pubid=held.subscription.pubid).filters is not None:
        raise PublicationError(
            f"Publication '{held.publication}' has row filters: rows of one table may follow those of another. {NOTHING} "
            "Leave out --table: all its tables are compared.",
            publication=held.publication,
        )
    chosen = [each for each in articles if not terms.tables or each.name in terms.tables]
    return {each.nickname for each in chosen}


def _with_changed_columns(
    held: SessionRequest, sides: Mapping[str, SideState], terms: ReinitTerms, chosen: Collection[int]
) -> list[int]:
    """Return the chosen articles whose columns the subscriber has to follow first.

    Raises: PublicationError if changes that were not sent would be compared with rows of other columns.
    """
    opened, refused = with_windows({PUBLISHER: sides[PUBLISHER]})
    changed = [nickname for nickname in changed_articles(opened, sides, refused) if nickname in chosen]
    if changed and terms.upload_first and not (terms.is_dry and _has_session_first(held)):
        article = sides[PUBLISHER].articles[changed[0]]
        raise PublicationError(
            f"The columns of article '{article.name}' changed since '{held.subscriber.root}' was synchronized last: its "
            f"changes cannot be compared with the publisher's rows. {NOTHING} Say --discard-local: their rows are kept.",
            article=article.name,
        )
    return changed


def _has_session_first(held: SessionRequest) -> bool:
    """True if the two have a common past: the session before an upload follows columns, as `held_session` does."""
    try:
        open_sides(*held.ends, held.subscription)
    except EnumerationError:
        return False
    return True


def _refuse_waiting(sides: Mapping[str, SideState]) -> None:
    """Check that the articles left out have nothing to send: the watermarks will pass it.

    Raises: PublicationError.
    """
    for name, side in sides.items():
        source = replace(side.source, tablenicks=side.left_out)
        waiting = enumeration(source, sides[OTHER_SIDE[name]].destination).generations
        if any(row.changecount for row in waiting):
            raise PublicationError(
                f"Other articles of '{side.replica.root}' have changes that wait for a sync. {NOTHING} Run "
                "`mergerepl sync`; if it leaves them out, reinitialise all articles: leave out --table.",
                replica=str(side.replica.root),
            )


def _articles(captured: CapturedEnds, *, is_changing_resolver: bool) -> list[ReinitArticle]:
    """Return the articles with the numbers of their new generations; the old ones do not count."""
    sides = captured.planned
    publisher, subscriber = sides[PUBLISHER], sides[SUBSCRIBER]
    void = subscriber.info.last_generation + 1
    start = min(subscriber.other.sentgen, publisher.other.recgen)
    unsent = _unsent_generations(captured, subscriber, start)
    return [
        ReinitArticle(
            sides,
            nickname,
            {PUBLISHER: publisher.info.last_generation + i, SUBSCRIBER: void + i},
            void,
            max(publisher.info.clock, subscriber.info.clock),
            start,
            frozenset(row.generation for row in unsent if row.art_nick == nickname),
            keeps_rows=publisher.articles[nickname].rejects == PUBLISHER and not is_changing_resolver,
        )
        for i, nickname in enumerate(sorted(publisher.articles), 1)
    ]


def _unsent_generations(captured: CapturedEnds, subscriber: SideState, start: int) -> list[Generation]:
    """Return the subscriber's generations after the start that the publisher lacks.

    Also what a publisher that was restored from an older copy had sent since. A replica that was restored goes on with
    the generation that was open then: another one with its guid was sent meanwhile.
    """
    publisher = captured.sides[PUBLISHER]
    known = {row.guidsrc: row for row in publisher.replica.genhistory()}
    left_open = {row.guidsrc for side in captured.sides.values() for row in side.genhistory if row.is_open}

    def is_there(row: Generation) -> bool:
        other = known.get(row.guidsrc)
        if other is None:
            # The publisher forgets its generations that all replicas know.
            is_old = row.maxversion is not None and row.maxversion <= publisher.settled
            return row.genstatus == GenStatus.CLOSED_ELSEWHERE and is_old
        is_same = (row.changecount, row.maxversion) == (other.changecount, other.maxversion)
        return is_same and row.guidsrc not in left_open

    later = (row for row in subscriber.genhistory if row.generation > start and row.changecount)
    return [row for row in later if not is_there(row)]


def _decided(spark: SparkSession, of: ReinitArticle, kept: Kept) -> _Decided:
    with plain_errors(f"comparing article '{of.article.name}'"):
        rows = decided_rows(spark, of, kept)
        unsent = unsent_rows(spark, of, rows, kept)
        outside = deletes_outside(spark, of, rows, kept)
        counts = [0 if each is None else each.count() for each in (unsent, outside)]
        shown = [examples(each, of.article) for each in (unsent, outside) if each is not None]
        return _Decided(of, rows, unsent if counts[0] else None, sum(counts), sum(shown, ()))


def _refuse_unsent(held: SessionRequest, terms: ReinitTerms, found: Sequence[_Decided]) -> None:
    """Check that no change is given up that the caller did not mean.

    Raises: ConfigurationError naming up to 20 keys.
    """
    count = sum(each.count for each in found)
    if not count or terms.upload_first or terms.discard_local:
        return
    keys = [f"{each.article.name} {key_text(one.key)}" for each in found for one in each.examples][:SHOWN]
    raise ConfigurationError(
        f"'{held.subscriber.root}' has {counted(count, 'change')} that the publisher lacks: {'; '.join(keys)}. It "
        "was not filled again. Say --upload-first, which compares them with the publisher's rows and logs what loses, or "
        "--discard-local, which exports them first.",
        subscriber=str(held.subscriber.root),
    )


def _refuse_moves(
    held: SessionRequest, terms: ReinitTerms, publisher: SideState, found: Sequence[_Decided]
) -> None:
    """Check that no row of the publisher changes, and that the partition stays, where there are row filters.

    A row that goes up may move others between partitions, which a session alone sees to.

    Raises: PublicationError.
    """
    if publisher.filtered is None:
        return
    subscriber, about = str(held.subscriber.root), publisher.other
    number, start = publisher.filtered.number, about.sentgen
    if is_moving(publisher.replica, number, about, from_generation_exclusive=start):
        raise PublicationError(
            f"'{subscriber}' has yet to move to another partition: its host_name or suser_sname changed. {NOTHING} State "
            "the former value, run `mergerepl apply`, reinitialise, and change it again.",
            subscriber=subscriber,
        )
    count = sum(each.count for each in found)
    if count and terms.upload_first:
        keys = [f"{each.article.name} {key_text(one.key)}" for each in found for one in each.examples][:SHOWN]
        raise PublicationError(
            f"'{subscriber}' has {counted(count, 'change')} that the publisher lacks: {'; '.join(keys)}. With row filters "
            f"they go up by sessions alone, as they may move other rows between partitions. It was not filled again. "
            "Say --discard-local, which exports them first, and write them again.",
            subscriber=subscriber,
        )


def _carried_out(
    held: SessionRequest,
    terms: ReinitTerms,
    captured: CapturedEnds,
    found: Sequence[_Decided],
    choice: EngineChoice,
    kept: Kept,
) -> list[Reinit]:
    session, replicas = str(uuid4()), dict(zip((PUBLISHER, SUBSCRIBER), held.ends, strict=True))
    if terms.is_dry:
        folder = Location.of(tempfile.mkdtemp(prefix="mergerepl-reinit-"))
    else:
        folder = new_folder(held.publisher.staging / session)
    kept_at, taken_away, staged = held.subscriber.folder / UNSENT / session, {}, {}
    with ExitStack() as undo:
        undo.callback(drop_rows, folder)
        if terms.is_dry:
            require_shared_folders(choice.spark, folder)
        for each in found:
            nickname = each.of.nickname
            held.progress.step("stage", article=each.article.name)
            with plain_errors(f"staging article '{each.article.name}'"):
                staged[nickname] = _stage(each, terms, folder, replicas, choice, kept)
                taken_away[nickname] = 0
                if each.of.keeps_rows:
                    continue
                lost = kept.keep(_taken_away(each, terms))
                taken_away[nickname] = lost.count()
                if taken_away[nickname] and not terms.is_dry:
                    mark = CommitMark(session, "reinit:kept", captured.sides[SUBSCRIBER].info.replid)
                    export(lost, each.article, kept_at / each.article.name, mark)
        at = kept_at if any(taken_away.values()) else None
        results = [
            _result(held, each, staged[each.of.nickname], taken_away[each.of.nickname], at) for each in found
        ]
        if terms.is_dry:
            return [replace(each, kept_at=None) for each in results]
        failpoint("reinit.after_export")
        if captured.taken is not None:
            # What these tables had not sent is given up: every session but a reinitialisation is refused from here on.
            held.subscriber.save_info(captured.taken)
            failpoint("reinit.after_taken")
        manifest = _manifest(held, captured, found, staged, session, choice)
        undo.pop_all()
    changeset = Changeset(folder, manifest)
    failpoint("stage.before_pointer")
    write_pointer(held.publisher, held.subscriber, session)
    changeset.commit()
    started = datetime.fromisoformat(manifest.started)

    def record(outcome: Outcome) -> None:
        result = outcome.result(held.publication, held.subscriber, recovered=0)
        session_history.record(held.publisher, held.subscriber, manifest, result, started)

    with named(changeset, held.publisher):
        carry_out(changeset, replicas, choice, record=record)
    return results


def _stage(
    each: _Decided,
    terms: ReinitTerms,
    folder: Location,
    replicas: Mapping[str, Replica],
    choice: EngineChoice,
    kept: Kept,
) -> StagedArticle:
    """Write RESOLVED of an article, and check that both tables take its rows.

    Raises: ApplyError, StoreError, EngineError.
    """
    of, article = each.of, each.article
    outcome = publishers_rows(of, each.rows)
    if _is_decided(each, terms):
        assert each.unsent is not None
        unsent = each.unsent.select(ROWGUID)
        outcome = outcome.join(unsent, on=ROWGUID, how="left_anti").unionByName(
            conflicting_rows(of, each.unsent, each.count, kept)
        )
    rows = folder / str(of.nickname)
    staged = stage_article(outcome, rows, article, from_versions=of.versions)
    at = {name: side.articles[of.nickname] for name, side in of.sides.items()}
    for destination in destinations(rows, staged, at, replicas).values():
        if destination.work.touches_rows:
            refuse_violations(choice, destination)
    if of.partition is None:
        return staged
    work = replace(staged.works[SUBSCRIBER], is_filtered=True)
    return replace(staged, works={**staged.works, SUBSCRIBER: work})


def _is_decided(each: _Decided, terms: ReinitTerms) -> bool:
    """True if the unsent changes of an article are decided against the publisher's rows; else they are given up."""
    return terms.upload_first and each.unsent is not None and each.article.rejects != SUBSCRIBER


def _taken_away(each: _Decided, terms: ReinitTerms) -> DataFrame:
    if each.unsent is None or not _is_decided(each, terms):
        return rows_taken_away(each.rows, each.unsent)
    return rows_taken_away(each.rows.join(each.unsent.select(ROWGUID), on=ROWGUID, how="left_anti"), None)


def _manifest(
    held: SessionRequest,
    captured: CapturedEnds,
    found: Sequence[_Decided],
    staged: dict[int, StagedArticle],
    session: str,
    choice: EngineChoice,
) -> Manifest:
    """Commit what was captured, and return the plan."""
    sides = committed_sides(captured.sides, choice)
    start = found[0].of.start
    plan = SessionPlan(True, True, Enumeration(start, [], []), Enumeration(0, [], []))
    numbers = {
        name: Numbers({}, {each.of.nickname: each.of.generations[name] for each in found}) for name in sides
    }
    void = {each.of.nickname: each.of.void for each in found}
    manifest = session_manifest(sides, plan, numbers, staged, session, held.publication, void=void)
    publishers = own_row(sides[PUBLISHER].rows)
    horizon = Horizon(
        # All that was made at the subscriber up to here is in the changeset, or given up.
        through=found[0].of.clock,
        knows=publishers.settled,
        settled=publishers.settled,
        known=publishers.known,
    )
    return replace(manifest, horizon=horizon)


def _result(
    held: SessionRequest, each: _Decided, staged: StagedArticle, taken_away: int, kept_at: Location | None
) -> Reinit:
    at = {name: work.actions for name, work in staged.works.items()}
    return Reinit(
        publication=held.publication,
        subscriber=str(held.subscriber.root),
        article=each.article.name,
        inserts=at[SUBSCRIBER].get(Action.INSERT.value, 0),
        updates=at[SUBSCRIBER].get(Action.UPDATE.value, 0),
        deletes=sum(at[SUBSCRIBER].get(each.value, 0) for each in (Action.DELETE, Action.LEAVE)),
        uploaded=sum(at[PUBLISHER].get(action.value, 0) for action in DATA_ACTIONS),
        conflicts=staged.conflicts,
        unsent=each.count,
        kept=taken_away,
        kept_at=str(kept_at / each.article.name) if kept_at is not None and taken_away else None,
        examples=each.examples,
    )


def with_counts(done: Reinit, counts: Collection[ArticleCounts]) -> Reinit:
    """Return an article's rows with those that the session before the comparison wrote."""
    for each in counts:
        if each.article == done.article:
            done = replace(
                done,
                inserts=done.inserts + each.download.inserts,
                updates=done.updates + each.download.updates,
                deletes=done.deletes + each.download.deletes,
                uploaded=done.uploaded + each.upload.inserts + each.upload.updates + each.upload.deletes,
                conflicts=done.conflicts + each.upload.conflicts + each.download.conflicts,
            )
    return done


def _to_follow(held: SessionRequest, nickname: int) -> Reinit:
    """Return an article that a dry run cannot compare before its columns are followed."""
    articles = held.publisher.articles_of(held.subscription.pubid)
    name = next(each.name for each in articles if each.nickname == nickname)
    counts = dict.fromkeys(("inserts", "updates", "deletes", "uploaded", "conflicts", "unsent", "kept"), 0)
    return Reinit(
        held.publication,
        str(held.subscriber.root),
        name,
        **counts,
        kept_at=None,
        examples=(),
        follows_columns=True,
    )
