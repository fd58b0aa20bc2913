"""One merge session: one subscription, upload and download.

Order: take leases, roll dead sessions forward, compare identities and watermarks, choose the engine, capture both
sides, make_generation while staging the changeset, carry it out. Before the manifest of the changeset only captured
changes are written; after it this run or the next one finishes the session.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from enumeration.plan import SessionPlan
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.conflicts.purge import purge_when_due
from mergerepl.delta.engine_choice import SPARK_ALONE, EngineChoice, NeedsSparkError
from mergerepl.delta.tables import tables_kept_open
from mergerepl.errors import LeaseError, MergeReplError, PublicationError, RefusedArticlesError
from mergerepl.merge.capture.windows import move_versions
from mergerepl.merge.partitions.scratch import with_scratch_outside
from mergerepl.merge.session import session_history
from mergerepl.merge.session.carry_out import Outcome, carry_out
from mergerepl.merge.session.change_partition import follow_partition
from mergerepl.merge.session.choice import choose_engine
from mergerepl.merge.session.clean_up import clean_up_when_due
from mergerepl.merge.session.end_articles import end_when_sent, forget_ended
from mergerepl.merge.session.history_cleanup import purge_history_of
from mergerepl.merge.session.own_side import held_with_publishers, pending_elsewhere
from mergerepl.merge.session.recovery import named, recover
from mergerepl.merge.session.schema_step import articles_to_follow, brought_changes, followed_schema
from mergerepl.merge.session.session_history import Failure, note_presence, record_failure, record_success
from mergerepl.merge.session.session_plan import (
    has_few_changes,
    has_many_changes,
    has_work,
    quiet_moves,
    session_plan,
)
from mergerepl.merge.session.sides import (
    Refused,
    SideState,
    captured_sides,
    open_sides,
    with_windows,
    without,
    without_filtered,
)
from mergerepl.merge.session.stage_session import staged_changeset
from mergerepl.model import refused_pairs
from mergerepl.model.progress import PhaseClock, Progress
from mergerepl.model.results import SessionResult
from mergerepl.monitoring.capture_lag import lag_warning
from mergerepl.replica.expiry import expire_overdue, present
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.runs import compact_when_due
from mergerepl.replica.subscription import refuse_copies
from mergerepl.spark.plain import plain_errors
from mergerepl.spark.session import interpreting, tuned_for
from mergerepl.store.changeset import Changeset
from mergerepl.store.lease import leases
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.tracking.sweep import sweep_root

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionRequest:
    """One subscription to synchronize: its replicas, the engine (`auto` or `spark`) and the directions."""

    publisher: Replica
    subscriber: Replica
    subscription: SubscriptionRow
    publication: str
    spark_of: Callable[[], SparkSession]
    progress: Progress
    engine: str = SPARK_ALONE
    upload: bool = True
    download: bool = True
    refused: NeedsSparkError | None = None
    """Why the rules could not run in this process."""
    brought: tuple[str, ...] = ()
    """The schema changes that the session brought already, as `table: change`."""

    @property
    def ends(self) -> tuple[Replica, Replica]:
        """Both replicas."""
        return self.publisher, self.subscriber

    @contextmanager
    def held(self, doing: str, wait_s: float = 0.0) -> "Iterator[SessionRequest]":
        """Hold both replicas, keep their tables open and yield the request with their present state.

        They may have changed during the wait for their leases.
        """
        purpose = f"mergerepl sync {self.publisher.root} {self.subscriber.root}"
        # Errors are translated inside the leases too: leases end differently after an interrupt than after our errors.
        with (
            plain_errors(doing),
            leases(self.publisher.root, self.subscriber.root, purpose=purpose, wait_s=wait_s),
            tables_kept_open(self.publisher.root, self.subscriber.root),
            plain_errors(doing),
        ):
            yield self.reread()

    def reread(self) -> "SessionRequest":
        """Return the request with the present state of its held replicas."""
        return replace(self, publisher=self.publisher.reread(), subscriber=self.subscriber.reread())

    def refuse_unfit_replicas(self) -> None:
        """Refuse replicas that no session may change, not even to finish another one.

        Raises: PublicationError for a copy; StoreError for an edited system table.
        """
        refuse_copies(*self.ends)
        for replica in self.ends:
            replica.require_unedited()


@dataclass(frozen=True)
class OpenSession:
    """A session after reading the logs: both sides with their windows, the changes to send, and the articles left out.

    `names` are those of all articles, by tablenick.
    """

    request: SessionRequest
    sides: dict[str, SideState]
    plan: SessionPlan
    refused: Refused
    names: dict[int, str]
    started: float

    @property
    def has_work(self) -> bool:
        """True if a running direction has changes to capture or to send."""
        return has_work(self.sides, self.plan)

    def engine(self) -> EngineChoice:
        """Choose the engine. Spark starts here if the rules run on it, else when something needs it."""
        started = recording_jvm(self.request.spark_of, self.request.ends)
        is_small = has_few_changes(self.sides, self.plan)
        spark_of = (lambda: interpreting(started())) if is_small else started
        choice = choose_engine(self.request.engine, self.sides, self.plan, self.request.refused)
        choice = replace(choice, spark_of=spark_of)
        # In this thread: an interrupt does not reach a thread of a pool that waits for Java.
        with tuned_for(many_rows=has_many_changes(self.sides, self.plan)):
            _ = choice.for_rules
        return choice

    @property
    def nothing_to_do(self) -> SessionResult:
        """The result without changes to send."""
        root, waiting = str(self.request.subscriber.root), self.plan.waiting_changes
        brought = self.request.brought
        return SessionResult(self.request.publication, root, "nothing_to_do", waiting=waiting, schema=brought)

    def finish(self, result: SessionResult, refused: Refused | None = None) -> SessionResult:
        """Return a result with its duration and all articles left out, including these.

        Raises: the error of these articles, if the session has no others.
        """
        result = replace(result, duration_s=round(time.monotonic() - self.started, 3))
        left_out = self.refused | (refused or {})
        if not left_out:
            return result
        names = [self.names[nickname] for nickname in left_out]
        errors = [*left_out.values()]
        error = errors[0] if len(errors) == 1 else RefusedArticlesError(names, errors)
        if len(left_out) == len(self.names):
            raise error
        refused_names = tuple(self.names[nickname] for nickname in sorted(left_out))
        return replace(result, refused=refused_names, error=error.details())


def open_session(
    request: SessionRequest, sides: dict[str, SideState], started: float, stopped: Refused | None = None
) -> OpenSession:
    """Read the logs of both sides' tables, and plan the changes to send.

    `stopped` are articles whose columns cannot be followed, with the reasons.
    """
    names = {nickname: article.name for nickname, article in sides[PUBLISHER].articles.items()}
    sides, refused = with_windows(sides if not stopped else without(sides, stopped))
    refused = {**refused, **(stopped or {})}
    _warn_of_lags(sides)
    plan = session_plan(sides, upload=request.upload, download=request.download)
    return OpenSession(request, sides, plan, refused, names, started)


def _warn_of_lags(sides: dict[str, SideState]) -> None:
    """Log which tables had commits for so long that the next late session may not be able to capture theirs."""
    for side in sides.values():
        for window in side.windows:
            if window.user_commits and window.state is not None:
                lag = lag_warning(window.article.name, window.state, window.first_change)
                if lag is not None:
                    log.warning("%s", lag[0])


def merge_session(request: SessionRequest, *, lease_wait_s: float = 0.0) -> SessionResult:
    """Run one session and return its result.

    An article that cannot be captured, or whose rows a table would refuse, is left out: the result names it as
    `refused`, with the reason as its `error`.

    Raises: LeaseError, CommitConflictError (run again); EnumerationError, PublicationError (nothing was changed);
    UnfinishedSessionError (the changeset is staged; the next run goes on); CaptureError, SchemaMismatchError,
    ApplyError, ConflictError, StoreError, RefusedArticlesError if no article can go on (nothing was applied).
    """
    start_time = datetime.now(UTC)
    for replica in request.ends:
        finish_elsewhere(replica, request)
    doing = f"synchronizing '{request.publisher.root}' with '{request.subscriber.root}'"
    with request.held(doing, lease_wait_s) as held:
        about = held.ends, held.subscription.subid, held.publication, held.subscriber.root
        clock = PhaseClock(held.progress)
        try:
            with plain_errors(doing):
                ended: tuple[str, ...] = ()
                if held.publisher.ended(held.subscription.pubid):
                    held.refuse_unfit_replicas()
                    ended = forget_ended(*held.ends, held.subscription)
                    held = held.reread()
                result, is_in_history = held_session(
                    replace(held, progress=clock), start_time, time.monotonic()
                )
                if held.upload and held.download and held.publisher.ending(held.subscription.pubid):
                    end_when_sent(*held.reread().ends, held.subscription, result.refused)
                    ended += forget_ended(*held.reread().ends, held.subscription)
                result = replace(result, schema=(*result.schema, *ended))
        except MergeReplError as error:
            why = Failure.of(error.details(), clock.phase)
            record_failure(*about, why, start_time)
            raise
        if result.error is not None:
            why = Failure.of(result.error, clock.phase)
            record_failure(*about, why, start_time, is_in_history=is_in_history)
        elif result.status == "nothing_to_do" or (result.schema and not is_in_history):
            record_success(*about, result.schema, start_time)
        if result.error is not None or not held.download:
            note_presence(held.publisher, held.subscription.subid)
        return result


def finish_elsewhere(replica: Replica, request: SessionRequest) -> None:
    """Finish the staged sessions that a replica has as the subscriber of publishers of other publications."""
    if not pending_elsewhere(replica, request.publisher):
        return
    with held_with_publishers(replica, "mergerepl sync") as publishers:
        for publisher in publishers:
            if publisher.root != request.publisher.root:
                refuse_copies(publisher, replica)
                for each in (publisher, replica):
                    each.require_unedited()
                recover(publisher, replica, recording_jvm(request.spark_of, (publisher, replica)))


def refuse_pending_elsewhere(request: SessionRequest) -> None:
    """Check under the leases that no session of another publication has died since.

    Raises: LeaseError: run again.
    """
    for replica in request.ends:
        if others := pending_elsewhere(replica, request.publisher):
            raise LeaseError(
                f"A session of '{replica.root}' with '{min(others)}' was interrupted just now. Run again: it is finished "
                "first.",
                replica=str(replica.root),
            )


def _staged(session: OpenSession, choice: EngineChoice) -> tuple[Changeset | None, Refused, Refused]:
    """Capture both sides and stage the session; return also the articles that were not captured, or not staged."""
    request = session.request
    sides, not_captured = captured_sides(session.sides, choice)
    try:
        changeset, not_staged = staged_changeset(
            sides,
            request.publication,
            upload=request.upload,
            download=request.download,
            progress=request.progress,
            choice=choice,
        )
    finally:
        for side in sides.values():
            for item in side.captured:
                item.release()
    return changeset, not_captured, not_staged


def held_session(
    request: SessionRequest, start_time: datetime, started: float, stopped: Refused | None = None
) -> tuple[SessionResult, bool]:
    """Run one session of two held replicas; return its result, and whether their history has it.

    `stopped` are articles whose columns could not be followed; None: that was not tried yet.
    """
    publisher, subscriber = request.ends
    for replica in request.ends:
        sweep_root(replica.root)
    request.refuse_unfit_replicas()
    spark_of = with_scratch_outside(request.spark_of, publisher, request.subscription.pubid, subscriber.root)
    request = replace(request, spark_of=spark_of)
    request.progress.step("recover")
    refuse_pending_elsewhere(request)
    recovered = recover(publisher, subscriber, spark_of, engine=request.engine)
    expire_overdue(publisher, present(publisher.info()), only=request.subscription.subid)
    sides = open_sides(publisher, subscriber, request.subscription)
    if follow_partition(publisher, sides[PUBLISHER].other, spark_of, request.progress):
        result, is_in_history = held_session(request.reread(), start_time, started, stopped)
        return replace(result, recovered=result.recovered + recovered), is_in_history
    if sides[PUBLISHER].filtered is not None and not (request.upload and request.download):
        # Rows that an upload moves must be downloaded by the same session.
        raise PublicationError(
            refused_pairs.FILTERED_DIRECTION.says(publication=request.publication),
            publication=request.publication,
        )
    request.progress.step("capture")
    session = open_session(request, sides, started, stopped)
    if stopped is None and (changed := articles_to_follow(session.sides, sides, session.refused)):
        stopped = followed_schema(request.ends, changed, request.engine, spark_of, request.progress)
        again = request.reread()
        again = replace(again, brought=brought_changes(request.ends, again.ends, request.subscription))
        result, is_in_history = held_session(again, start_time, started, stopped)
        return replace(result, recovered=result.recovered + recovered), is_in_history
    sides, refused = without_filtered(session.sides, session.refused, session.names)
    if sides is not session.sides:
        plan = session_plan(sides, upload=request.upload, download=request.download)
        session = replace(session, sides=sides, plan=plan, refused=refused)
    nothing = replace(
        session.nothing_to_do, recovered=recovered, status="succeeded" if recovered else "nothing_to_do"
    )
    if not session.has_work:
        for side in session.sides.values():
            move_versions(side.replica, side.info, side.windows)
        for move in quiet_moves(session.sides, session.plan):
            move.store()
        finished = session.finish(nothing)
        if not session.refused:
            clean_up_when_due(request.ends)
        return finished, False
    choice = session.engine()
    try:
        with choice.rules():
            changeset, not_captured, not_staged = _staged(session, choice)
    except NeedsSparkError as error:
        if not choice.in_process:
            raise
        # Nothing is staged. The captured changes are recorded, and are sent like those of earlier captures.
        again = replace(request.reread(), refused=error)
        result, is_in_history = held_session(again, start_time, started, stopped)
        return replace(result, recovered=result.recovered + recovered), is_in_history
    refused = not_captured | not_staged
    if changeset is None:
        return session.finish(nothing, refused), False
    manifest = changeset.manifest
    rows = manifest.counts(PUBLISHER).total + manifest.counts(SUBSCRIBER).total
    request.progress.step("apply", rows=rows)
    results: list[SessionResult] = []
    seconds: dict[str, float] = {}

    def record(outcome: Outcome) -> None:
        waiting = sum(row.changecount for row in manifest.waiting_generations)
        result = outcome.result(request.publication, subscriber, recovered=recovered)
        result = replace(result, waiting=waiting, schema=request.brought)
        results.append(session.finish(result, refused))
        session_history.record(publisher, subscriber, manifest, results[0], start_time, seconds)

    with named(changeset, publisher):
        carry_out(
            changeset, {PUBLISHER: publisher, SUBSCRIBER: subscriber}, choice, record=record, seconds=seconds
        )
    previous = sides[PUBLISHER].other.session_number
    removed = compact_when_due(request.ends, choice, number=manifest.number, previous_number=previous)
    session_history.note_cleaned(request.ends, manifest.session, removed)
    purge_history_of(purge_when_due(request.ends))
    clean_up_when_due(request.ends)
    for replica in request.ends:
        replica.keep_knowledge()
    return results[0], True
