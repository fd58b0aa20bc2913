"""The outcome of a reinitialisation: staged as the changeset of a session, and carried out at both sides."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from pyspark.sql import DataFrame

from enumeration.horizon import own_row
from enumeration.plan import Enumeration, Numbers, SessionPlan
from mergerepl.changes import DATA_ACTIONS, PUBLISHER, ROWGUID, SUBSCRIBER, Action
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.store_proof import require_shared_folders
from mergerepl.failpoints import failpoint
from mergerepl.merge.reinit.captured_ends import CapturedEnds
from mergerepl.merge.reinit.decisions import conflicting_rows, publishers_rows
from mergerepl.merge.reinit.kept_rows import export, rows_taken_away
from mergerepl.merge.reinit.unsent import DecidedArticle, ReinitTerms
from mergerepl.merge.session import session_history
from mergerepl.merge.session.carry_out import Outcome, carry_out
from mergerepl.merge.session.merge_session import SessionRequest
from mergerepl.merge.session.recovery import named
from mergerepl.merge.session.session_plan import session_manifest
from mergerepl.merge.session.sides import committed_sides
from mergerepl.merge.stage.article import StagedArticle, stage_article
from mergerepl.merge.stage.constraints import destinations, refuse_violations
from mergerepl.model.horizon import Horizon
from mergerepl.model.results import ArticleCounts
from mergerepl.model.tasks import Reinit
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import write_pointer
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.plain import plain_errors
from mergerepl.store.changeset import UNSENT, Changeset, Manifest, drop_rows, new_folder
from mergerepl.store.location import Location


def carried_out(
    held: SessionRequest,
    terms: ReinitTerms,
    captured: CapturedEnds,
    found: Sequence[DecidedArticle],
    choice: EngineChoice,
    kept: Kept,
) -> list[Reinit]:
    """Stage the decided rows, export what the subscriber loses, and carry all out; a dry run counts it.

    Raises: as `reinit.reinitialise`.
    """
    session, replicas = str(uuid4()), dict(zip((PUBLISHER, SUBSCRIBER), held.ends, strict=True))
    if terms.is_dry:
        folder = Location.of(tempfile.mkdtemp(prefix="mergerepl-reinit-"))
    else:
        folder = new_folder(held.publisher.staging / session)
    kept_at, taken_away, staged = held.subscriber.folder / UNSENT / session, {}, {}
    with ExitStack() as undo, choice.rules():
        undo.callback(drop_rows, folder)
        if terms.is_dry and not choice.in_process:
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
                    export(lost, each.of, kept_at / each.article.name, mark)
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
    each: DecidedArticle,
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


def _is_decided(each: DecidedArticle, terms: ReinitTerms) -> bool:
    """True if the unsent changes of an article are decided against the publisher's rows; else they are given up."""
    return terms.upload_first and each.unsent is not None and each.article.rejects != SUBSCRIBER


def _taken_away(each: DecidedArticle, terms: ReinitTerms) -> DataFrame:
    if each.unsent is None or not _is_decided(each, terms):
        return rows_taken_away(each.rows, each.unsent)
    return rows_taken_away(each.rows.join(each.unsent.select(ROWGUID), on=ROWGUID, how="left_anti"), None)


def _manifest(
    held: SessionRequest,
    captured: CapturedEnds,
    found: Sequence[DecidedArticle],
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
    held: SessionRequest,
    each: DecidedArticle,
    staged: StagedArticle,
    taken_away: int,
    kept_at: Location | None,
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


def article_to_follow(held: SessionRequest, nickname: int) -> Reinit:
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
