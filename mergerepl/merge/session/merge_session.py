"""One merge session: one subscription, upload and download.

Order: leases, roll forward what a dead session left, compare identities and watermarks, capture both sides,
make_generation beside staging the changeset, carry it out. Before the manifest of the changeset only captured changes
are written; after it the session will be finished, by this run or the next.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from enumeration.plan import SessionPlan, number_generations
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.compact.sweep import sweep_root
from mergerepl.conflict_tools.purge import purge_when_due
from mergerepl.delta.tables import tables_kept_open
from mergerepl.errors import MergeReplError, PublicationError
from mergerepl.merge.apply import session_history
from mergerepl.merge.capture.windows import move_versions
from mergerepl.merge.partitions.scratch import with_scratch_outside
from mergerepl.merge.session.carry_out import Outcome, carry_out
from mergerepl.merge.session.failed_session import record_failure, record_success
from mergerepl.merge.session.recovery import named, recover, refuse_interrupted
from mergerepl.merge.session.refused import Refused, refusal
from mergerepl.merge.session.session_plan import has_few_changes, has_work, session_plan
from mergerepl.merge.session.session_result import session_result, summed
from mergerepl.merge.session.sides import SideState, captured_sides, open_sides, planned, with_windows
from mergerepl.merge.session.stage_session import (
    PlannedSession,
    resolving_alone,
    stage_articles,
    staged_changeset,
)
from mergerepl.merge.stage.article import StagedArticle
from mergerepl.model import refused_pairs
from mergerepl.model.progress import Progress
from mergerepl.model.results import ArticleCounts, PhaseCounts, SessionResult, SessionStatus
from mergerepl.replica.compaction import compact_when_due
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import refuse_copies
from mergerepl.spark import session as engine
from mergerepl.spark.errors import plain_errors
from mergerepl.store.changeset import drop_rows
from mergerepl.store.lease import leases, record_jvm
from mergerepl.systables.catalog import SubscriptionRow

SparkSource = Callable[[], SparkSession]


def merge_session(
    publisher: Replica,
    subscriber: Replica,
    subscription: SubscriptionRow,
    publication: str,
    *,
    spark_of: SparkSource,
    upload: bool = True,
    download: bool = True,
    lease_wait_s: float = 0.0,
    progress: Progress,
) -> SessionResult:
    """Run one session and return what it did.

    An article that cannot be captured, or whose rows a table would not take, is left out: the result names it as `refused`,
    with the reason as its `error`.

    Raises: LeaseError, CommitConflictError (run again); EnumerationError, PublicationError (nothing was changed);
    UnfinishedSessionError (the changeset is staged; the next run goes on); CaptureError, SchemaMismatchError, ApplyError,
    ConflictError, StoreError, RefusedArticlesError if no article can go on (nothing was applied).
    """
    start_time = datetime.now(UTC)
    doing = f"synchronizing '{publisher.root}' with '{subscriber.root}'"
    # Errors are translated inside of the leases too: leases end differently after an interrupt than after our errors.
    with plain_errors(doing), _leases(publisher, subscriber, lease_wait_s):
        # What was read before the leases may have changed while they were waited for.
        ends = publisher, subscriber = publisher.reread(), subscriber.reread()
        about = subscription.subid, publication, subscriber.root
        try:
            with plain_errors(doing):
                result, is_in_history = _held_session(
                    publisher,
                    subscriber,
                    subscription,
                    publication,
                    start_time,
                    spark_of=spark_of,
                    upload=upload,
                    download=download,
                    progress=progress,
                )
        except MergeReplError as error:
            record_failure(ends, *about, error.message, start_time)
            raise
        if result.error is not None:
            record_failure(ends, *about, result.reason, start_time, is_in_history=is_in_history)
        elif result.status == "nothing_to_do":
            record_success(ends, subscription.subid)
        return result


def _held_session(
    publisher: Replica,
    subscriber: Replica,
    subscription: SubscriptionRow,
    publication: str,
    start_time: datetime,
    *,
    spark_of: SparkSource,
    upload: bool,
    download: bool,
    progress: Progress,
) -> tuple[SessionResult, bool]:
    """Run one session of two replicas that are held; return what it did, and whether it is in their history."""
    started = time.monotonic()
    for replica in (publisher, subscriber):
        sweep_root(replica.root)
    _refuse(publisher, subscriber)
    spark_of = with_scratch_outside(spark_of, publisher, subscription.pubid, subscriber.root)
    progress.step("recover")
    recovered = recover(publisher, subscriber, spark_of)
    sides = open_sides(publisher, subscriber, subscription)
    _refuse_one_way(sides, publication, upload=upload, download=download)
    names = {nickname: article.name for nickname, article in sides[PUBLISHER].articles.items()}

    progress.step("capture")
    sides, refused = with_windows(sides)
    status: SessionStatus = "succeeded" if recovered else "nothing_to_do"
    plan = session_plan(sides, upload=upload, download=download)
    nothing = SessionResult(
        publication, str(subscriber.root), status, recovered=recovered, waiting=plan.waiting_changes
    )
    if not has_work(sides, plan):
        for side in sides.values():
            move_versions(side.replica, side.info, side.windows)
        return _timed(_with_refused(nothing, refused, names), started), False
    spark = _spark_for(sides, plan, spark_of)
    for replica in (publisher, subscriber):
        record_jvm(replica.root, engine.jvm_pid())
    sides, not_captured = captured_sides(spark, sides)
    try:
        changeset, not_staged = staged_changeset(
            spark, sides, publication, upload=upload, download=download, progress=progress
        )
    finally:
        for side in sides.values():
            for item in side.captured:
                item.release()
    refused |= not_captured | not_staged
    if changeset is None:
        return _timed(_with_refused(nothing, refused, names), started), False
    progress.step(
        "apply",
        rows=changeset.manifest.counts(PUBLISHER).total + changeset.manifest.counts(SUBSCRIBER).total,
    )
    results: list[SessionResult] = []

    def record(outcome: Outcome) -> None:
        duration_s = time.monotonic() - started
        result = session_result(publication, subscriber, outcome, duration_s, recovered)
        waiting = sum(row.changecount for row in changeset.manifest.waiting_generations)
        results.append(_with_refused(replace(result, waiting=waiting), refused, names))
        session_history.record(publisher, subscriber, changeset.manifest, results[0], start_time)

    with named(changeset, publisher):
        carry_out(spark, changeset, {PUBLISHER: publisher, SUBSCRIBER: subscriber}, record=record)
    previous = sides[PUBLISHER].other.session_number
    compact_when_due(
        spark, (publisher, subscriber), number=changeset.manifest.number, previous_number=previous
    )
    purge_when_due((publisher, subscriber))
    return results[0], True


def _spark_for(sides: dict[str, SideState], plan: SessionPlan, spark_of: SparkSource) -> SparkSession:
    spark = spark_of()
    return engine.interpreting(spark) if has_few_changes(sides, plan) else spark


def _with_refused(result: SessionResult, refused: Refused, names: Mapping[int, str]) -> SessionResult:
    """Return a session's result with the articles that were left out of it.

    Raises: why they cannot go on, if these are all articles there are.
    """
    if not refused:
        return result
    error = refusal(refused, names)
    if len(refused) == len(names):
        raise error
    return replace(result, refused=tuple(names[n] for n in sorted(refused)), error=error.details())


def _refuse_one_way(
    sides: Mapping[str, SideState], publication: str, *, upload: bool, download: bool
) -> None:
    """Refuse a session of one direction where rows are filtered: rows that it moves must be downloaded by it, too.

    Raises: PublicationError.
    """
    if sides[PUBLISHER].filtered is not None and not (upload and download):
        raise PublicationError(
            refused_pairs.FILTERED_DIRECTION.says(publication=publication),
            publication=publication,
        )


def _timed(result: SessionResult, started: float) -> SessionResult:
    return replace(result, duration_s=round(time.monotonic() - started, 3))


def _refuse(publisher: Replica, subscriber: Replica) -> None:
    """Refuse replicas that no session may change, not even to finish another one.

    Raises: PublicationError of a copy; StoreError of an edited system table.
    """
    refuse_copies(publisher, subscriber)
    publisher.require_unedited()
    subscriber.require_unedited()


@contextmanager
def _leases(publisher: Replica, subscriber: Replica, wait_s: float) -> Iterator[None]:
    """Hold both replicas, and keep their tables open."""
    roots = publisher.root, subscriber.root
    purpose = f"mergerepl sync {publisher.root} {subscriber.root}"
    with leases(*roots, purpose=purpose, wait_s=wait_s), tables_kept_open(*roots):
        yield


def preview_session(
    publisher: Replica,
    subscriber: Replica,
    subscription: SubscriptionRow,
    publication: str,
    *,
    spark_of: SparkSource,
    upload: bool = True,
    download: bool = True,
    progress: Progress,
) -> SessionResult:
    """Return what a session would do, with its conflicts, and change nothing.

    Raises: As `merge_session`; EnumerationError if a session is staged that the next one will finish first.
    """
    from mergerepl.merge.session.preview import conflict_previews

    started = time.monotonic()
    doing = f"previewing '{publisher.root}' with '{subscriber.root}'"
    with plain_errors(doing), _leases(publisher, subscriber, 0.0):
        _refuse(publisher, subscriber)
        refuse_interrupted(publisher, subscriber)
        sides = open_sides(publisher, subscriber, subscription)
        if sides[PUBLISHER].filtered is not None:
            raise PublicationError(
                refused_pairs.FILTERED_DRY_RUN.says(publication=publication),
                publication=publication,
            )
        names = {nickname: article.name for nickname, article in sides[PUBLISHER].articles.items()}
        sides, refused = with_windows(sides)
        plan = session_plan(sides, upload=upload, download=download)
        waiting = plan.waiting_changes
        result = SessionResult(publication, str(subscriber.root), "nothing_to_do", waiting=waiting)
        if not has_work(sides, plan):
            return _timed(_with_refused(result, refused, names), started)
        spark = _spark_for(sides, plan, spark_of)
        sides, not_captured = captured_sides(spark, sides)
        folder = Path(tempfile.mkdtemp(prefix="mergerepl-preview-"))
        try:
            sides = {name: planned(side) for name, side in sides.items()}
            plan = session_plan(sides, upload=upload, download=download)
            numbers = number_generations(
                plan,
                {n: side.info.last_generation for n, side in sides.items()},
                resolving_alone=resolving_alone(sides[PUBLISHER]),
            )
            staging = PlannedSession(spark, sides, plan, numbers, folder, progress)
            staged, not_staged = stage_articles(staging)
            previews = conflict_previews(spark, folder, staged, sides[PUBLISHER].articles)
        finally:
            drop_rows(folder)
            for side in sides.values():
                for item in side.captured:
                    item.release()
        counts = tuple(
            _planned(sides[PUBLISHER].articles[n].name, article, upload=upload)
            for n, article in staged.items()
        )
        result = replace(
            result,
            status="planned",
            upload=summed(article.upload for article in counts),
            download=summed(article.download for article in counts),
            articles=counts,
            conflicts=previews,
            waiting=sum(sum(article.waiting.values()) for article in staged.values()),
        )
        return _timed(_with_refused(result, refused | not_captured | not_staged, names), started)


def _planned(article: str, staged: StagedArticle, *, upload: bool) -> ArticleCounts:
    def counts(actions: dict[str, int], conflicts: int) -> PhaseCounts:
        return PhaseCounts(
            actions.get("insert", 0), actions.get("update", 0), actions.get("delete", 0), conflicts
        )

    return ArticleCounts(
        article,
        counts(staged.publisher.actions, staged.conflicts if upload else 0),
        counts(staged.subscriber.actions, 0 if upload else staged.conflicts),
    )
