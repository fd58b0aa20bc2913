"""Carry out a staged changeset at its replicas, in a fresh session and in recovery.

Order at each side: concurrently MERGE the articles, append the run and log conflicts; capture late user commits; then
write the bookkeeping (genhistory, replinfo). Both sides run concurrently. The watermarks move only when both are done.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from mergerepl.changes import OTHER_SIDE, PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.tables import Commit, open_table
from mergerepl.errors import CommitConflictError
from mergerepl.failpoints import failpoint
from mergerepl.merge.apply.conflict_log import log_conflicts
from mergerepl.merge.apply.side import Side, append_side_run, merge_article
from mergerepl.merge.stage.late import late_windows, stage_late_round
from mergerepl.model.publication import ConflictLogging
from mergerepl.model.results import ArticleCounts, PhaseCounts, SessionResult
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import drop_pointer, own_priority, update_subscription
from mergerepl.spark import session as engine
from mergerepl.store.changeset import ArticleWork, Changeset, SideWork, drop, is_staged, staged_changesets
from mergerepl.store.lease import record_jvm
from mergerepl.systables.catalog import SubscriptionRow, SyncStatus
from mergerepl.systables.genhistory import Generation

log = logging.getLogger(__name__)

LATE_ROUNDS = 20
_WRITES_AT_ONCE = 3


@dataclass(frozen=True)
class SessionEnds:
    """The work of both sides by name, the replicas whose lease we hold (no others may be written), and the engine."""

    works: dict[str, SideWork]
    held: dict[str, Replica]
    choice: EngineChoice


@dataclass(frozen=True)
class SideOutcome:
    """By article, the rows that a side's MERGEs changed and the conflicts of late changes."""

    counts: dict[int, PhaseCounts]
    late_conflicts: dict[int, int]
    late_changes: int = 0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a carried-out changeset."""

    articles: tuple[ArticleCounts, ...]
    late_changes: int
    fallbacks: tuple[str, ...] = ()

    def result(self, publication: str, subscriber: Replica, *, recovered: int) -> SessionResult:
        """Return the outcome, summed over the articles, as `sync` returns it and the history keeps it."""
        return SessionResult(
            publication,
            str(subscriber.root),
            "succeeded",
            upload=sum((article.upload for article in self.articles), PhaseCounts()),
            download=sum((article.download for article in self.articles), PhaseCounts()),
            articles=self.articles,
            recovered=recovered,
            late_changes=self.late_changes,
            fallbacks=self.fallbacks,
        )


def carry_out(
    spark: SparkSession,
    changeset: Changeset,
    replicas: dict[str, Replica],
    choice: EngineChoice,
    *,
    record: Callable[[Outcome], None],
) -> Outcome | None:
    """Carry out a staged changeset at these replicas, by side; with both, finish the session.

    The caller holds the replicas; they may have moved since the changeset was staged. `record` gets the outcome before
    the changeset is dropped, so that the history has it too.

    Returns: None if the session is not finished.

    Raises: CommitConflictError, ApplyError, StoreError. The changeset stays staged; the next run takes it up.
    """
    manifest = changeset.manifest
    works = _works(changeset)
    ends = SessionEnds(works, replicas, choice)

    def run(name: str) -> SideOutcome:
        if (done := changeset.redo.outcome(name, SideOutcome)) is not None:
            return done
        record_jvm(replicas[name].root, engine.jvm_pid())
        outcome = _carry_out_side(spark, changeset, name, ends)
        changeset.redo.mark_done(name, outcome)
        failpoint(f"{name}.after_done")
        return outcome

    with ThreadPoolExecutor(len(works)) as pool:
        futures = {name: pool.submit(run, name) for name in works if name in replicas}
        outcomes = {name: future.result() for name, future in futures.items()}
    if len(outcomes) < len(works):
        return None
    _log_all_late_conflicts(spark, changeset, ends)
    fallbacks = tuple(choice.fallbacks.values())
    _move_watermarks(changeset, replicas, fallbacks)
    outcome = replace(_outcome(changeset, replicas, outcomes), fallbacks=fallbacks)
    record(outcome)
    failpoint("session.before_drop")
    drop(changeset.folder)
    failpoint("session.before_unlink")
    drop_pointer(replicas[SUBSCRIBER], manifest.session)
    failpoint("session.after_drop")
    return outcome


def _works(changeset: Changeset) -> dict[str, SideWork]:
    sides = {name: changeset.manifest.side(name) for name in (PUBLISHER, SUBSCRIBER)}
    return {name: work for name, work in sides.items() if work is not None}


def _carry_out_side(spark: SparkSession, changeset: Changeset, name: str, ends: SessionEnds) -> SideOutcome:
    replica, work = ends.held[name], ends.works[name]
    articles = {article.nickname: article for article in replica.articles}
    info = replica.info()
    subscription = _subscription_row(changeset, replica, name)
    counts: dict[int, PhaseCounts] = {}
    captured = dict(info.captured)
    generations: list[Generation] = []
    late_changes = rounds = 0
    late_conflicts: dict[int, int] = {}
    last_generation, seq = work.last_generation, work.seq
    current = changeset
    while True:
        side = Side(name, replica, articles, current.work_of(name))
        commits = _write_all(spark, current, side, ends)
        for nickname, commit in commits.items():
            counts[nickname] = counts.get(nickname, PhaseCounts()) + PhaseCounts(*commit.merged_rows)
            captured[nickname] = max(captured.get(nickname, -1), commit.version)
        generations += side.work.generations
        last_generation, seq = max(last_generation, side.work.last_generation), side.work.seq
        versions = {nickname: commit.version for nickname, commit in commits.items()}
        windows = late_windows(side, versions, info)
        if not windows:
            break
        log.info("%s: %s late commits", replica.root, sum(len(window.user_commits) for window in windows))
        # Rounds that an earlier run staged do not count: each run must get further than the last one.
        rounds += not is_staged(current.late_folder(name, current.manifest.round + 1))
        if rounds > LATE_ROUNDS:
            raise CommitConflictError(
                f"User writers change '{replica.root}' faster than the session can take their commits in "
                f"({LATE_ROUNDS} rounds). The session stays staged; run again.",
                replica=str(replica.root),
            )
        current, found = stage_late_round(
            spark,
            current,
            side,
            windows,
            versions,
            info,
            priority=own_priority(name, subscription),
            client_subscription=subscription.is_client,
            run_seq=seq + 1,
            last_generation=last_generation,
            versions=captured,
        )
        late_changes += found
        for nickname, count in current.manifest.conflicts.items():
            late_conflicts[nickname] = late_conflicts.get(nickname, 0) + count
    _save_bookkeeping(replica, generations, captured, seq, last_generation, changeset.manifest.number)
    return SideOutcome(counts, late_conflicts, late_changes)


def _write_all(spark: SparkSession, changeset: Changeset, side: Side, ends: SessionEnds) -> dict[int, Commit]:
    """MERGE the side's articles, append its run and log the conflicts.

    All writes are staged and each happens once, so they need not wait for each other. They count only with the
    bookkeeping that follows.

    Returns: tablenick -> our MERGE's commit.
    """
    merges = [work for work in side.work.articles if work.touches_rows]

    def merge(work: ArticleWork) -> Commit:
        article = side.articles[work.nickname]
        facts = open_table(side.replica.table(article))
        # An interrupted session may be finished in another time zone.
        engine.require_utc(spark, article.name, facts.path, facts.metadata.timestamp_partitions)
        return merge_article(
            spark,
            ends.choice,
            changeset,
            side,
            work,
            generated_columns=facts.generated_columns,
            left_out_columns=[name for name in facts.written_columns if name not in article.columns],
        )

    def log() -> None:
        _log_conflicts(spark, changeset, side, ends)

    with ThreadPoolExecutor(_WRITES_AT_ONCE) as pool:
        merged = {work.nickname: pool.submit(merge, work) for work in merges}
        others = [pool.submit(append_side_run, spark, ends.choice, changeset, side), pool.submit(log)]
        commits = {nickname: future.result() for nickname, future in merged.items()}
        for other in others:
            other.result()
        return commits


def _log_conflicts(spark: SparkSession, changeset: Changeset, side: Side, ends: SessionEnds) -> None:
    """Log a round's conflicts where the publication keeps them, at held replicas only.

    Each side logs the session's own conflicts; only the side of a late round logs the conflicts of that round.
    """
    is_session = changeset.manifest.round == 0
    chosen = [n for n in _logging_sides(changeset) if n in ends.held and (n == side.name or not is_session)]
    _log_at(spark, changeset, chosen, ends)


def _log_all_late_conflicts(spark: SparkSession, changeset: Changeset, ends: SessionEnds) -> None:
    """Log the conflicts of late rounds at the replica that was not held when they were carried out."""
    logging_at = _logging_sides(changeset)
    for late in _late_rounds(changeset):
        _log_at(spark, late, logging_at, ends)


def _late_rounds(changeset: Changeset) -> list[Changeset]:
    return staged_changesets(changeset.folder)


def _has_conflicts(changeset: Changeset) -> bool:
    return any(changeset.manifest.conflicts.values())


def log_given_up(spark_of: Callable[[], SparkSession], changeset: Changeset, publisher: Replica) -> None:
    """Log the subscriber's conflicts at the publisher, since the subscriber's side of the session is given up.

    The publisher has done its own side. The side of a late round logs that round's conflicts, also where the publisher
    keeps the conflicts.
    """
    ends = SessionEnds(_works(changeset), {PUBLISHER: publisher}, EngineChoice(uses_arrow=False))
    rounds = [*([] if PUBLISHER in _logging_sides(changeset) else [changeset]), *_late_rounds(changeset)]
    if not any(_has_conflicts(each) for each in rounds):
        return
    spark = spark_of()
    record_jvm(publisher.root, engine.jvm_pid())
    for each in rounds:
        _log_at(spark, each, [PUBLISHER], ends)


def log_everywhere(
    spark_of: Callable[[], SparkSession], changeset: Changeset, replicas: dict[str, Replica]
) -> None:
    """Log the conflicts of a session that is given up, and of its late rounds, at the replicas that keep them.

    If none of them is in reach, log at the publisher: a copy of overwritten rows must remain.
    """
    ends = SessionEnds(_works(changeset), replicas, EngineChoice(uses_arrow=False))
    chosen = [name for name in _logging_sides(changeset) if name in replicas] or [PUBLISHER]
    rounds = [each for each in (changeset, *_late_rounds(changeset)) if _has_conflicts(each)]
    if not rounds:
        return
    spark = spark_of()
    for name in chosen:
        record_jvm(replicas[name].root, engine.jvm_pid())
    for each in rounds:
        _log_at(spark, each, chosen, ends)


def _log_at(spark: SparkSession, changeset: Changeset, sides: Sequence[str], ends: SessionEnds) -> None:
    if not _has_conflicts(changeset):
        return
    for name in sides:
        articles = {article.nickname: article for article in ends.held[name].articles}
        log_conflicts(spark, changeset, ends.held[name], articles, ends.works, ends.choice)


def _logging_sides(changeset: Changeset) -> list[str]:
    logging_at = ConflictLogging(changeset.manifest.conflict_logging)
    return {
        ConflictLogging.PUBLISHER: [PUBLISHER],
        ConflictLogging.SUBSCRIBER: [SUBSCRIBER],
        ConflictLogging.BOTH: [PUBLISHER, SUBSCRIBER],
    }[logging_at]


def _save_bookkeeping(
    replica: Replica,
    generations: list[Generation],
    captured: dict[int, int],
    seq: int,
    last_generation: int,
    session_number: int,
) -> None:
    """Record the generations, then the captured versions and the run: the side's commit point. No number decreases."""
    failpoint("bookkeeping.before_genhistory")
    if generations:
        replica.append_generations(generations, seq=seq)
    failpoint("bookkeeping.before_replinfo")
    info = replica.info()
    replica.save_info(
        replace(
            info,
            last_seq=max(info.last_seq, seq),
            last_generation=max(info.last_generation, last_generation),
            captured={nick: max(version, info.captured.get(nick, -1)) for nick, version in captured.items()},
            session_number=max(info.session_number, session_number),
        )
    )
    failpoint("bookkeeping.after_replinfo")


def _subscription_row(changeset: Changeset, replica: Replica, name: str) -> SubscriptionRow:
    row = replica.relation(changeset.manifest.subid, changeset.work_of(OTHER_SIDE[name]).replid)
    assert row is not None
    return row


def _move_watermarks(changeset: Changeset, replicas: dict[str, Replica], fallbacks: Sequence[str]) -> None:
    """Record the received, then the sent generations, then the end of the session. The last step of a session."""
    manifest = changeset.manifest
    assert manifest.publisher is not None
    assert manifest.subscriber is not None
    received = {PUBLISHER: manifest.upload_watermark, SUBSCRIBER: manifest.download_watermark}
    sent = {PUBLISHER: manifest.download_watermark, SUBSCRIBER: manifest.upload_watermark}
    left = f"; by Spark: {'; '.join(fallbacks)}" if fallbacks else ""
    for name in (SUBSCRIBER, PUBLISHER):
        replica, other = replicas[name], OTHER_SIDE[name]
        other_work = changeset.work_of(other)
        failpoint(f"watermarks.before_{name}")
        changed: dict[str, Any] = {
            "last_sync_date": datetime.now(UTC),
            "last_sync_status": int(SyncStatus.SUCCEEDED),
            "last_sync_summary": f"session {manifest.number} succeeded{left}",
            "replicastate": manifest.replicastate,
            "session_number": manifest.number,
        }
        if (mark := received[name]) is not None:
            changed |= {"recgen": mark.generation, "recguid": mark.guid}
        if (mark := sent[name]) is not None:
            changed |= {"sentgen": mark.generation, "sentguid": mark.guid}
        update_subscription(replica, manifest.subid, other_work.replid, changed)
        failpoint(f"watermarks.after_{name}")


def _outcome(changeset: Changeset, replicas: dict[str, Replica], outcomes: dict[str, SideOutcome]) -> Outcome:
    manifest = changeset.manifest
    at_publisher, at_subscriber = outcomes[PUBLISHER], outcomes[SUBSCRIBER]
    # A conflict counts in the upload, where the two changes first meet; in the download if the session only downloads.
    met_at = PUBLISHER if manifest.upload else SUBSCRIBER

    def counts(side: str, nickname: int) -> PhaseCounts:
        conflicts = outcomes[side].late_conflicts.get(nickname, 0)
        conflicts += manifest.conflicts.get(nickname, 0) if side == met_at else 0
        return replace(outcomes[side].counts.get(nickname, PhaseCounts()), conflicts=conflicts)

    counted = [
        ArticleCounts(a.name, counts(PUBLISHER, a.nickname), counts(SUBSCRIBER, a.nickname))
        for a in replicas[PUBLISHER].articles_of(manifest.pubid)
    ]
    moved = [item for item in counted if item.upload != PhaseCounts() or item.download != PhaseCounts()]
    return Outcome(tuple(moved), at_publisher.late_changes + at_subscriber.late_changes)
