"""Carry out a staged changeset at its replicas: the same code for a fresh session and for rolling one
forward.

Order at each side: MERGE the articles, append the run and log conflicts, beside each other; capture late user
commits; then the bookkeeping (genhistory, replinfo). Only when both sides are through do the watermarks move. The sides run
side by side.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from enumeration.generations import with_nickname
from mergerepl import spark as engine
from mergerepl.agent.capture import upserted
from mergerepl.agent.late import late_windows, stage_late_round
from mergerepl.agent.subscription import is_client, own_priority
from mergerepl.apply.conflict_rows import log_conflicts
from mergerepl.apply.side import Side, append_side_run, merge_article
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.changeset import Changeset, Generation, SideWork, drop, write_durably
from mergerepl.errors import ApplyError
from mergerepl.failpoints import failpoint
from mergerepl.model.publication import ConflictLogging
from mergerepl.model.results import ArticleCounts, PhaseCounts
from mergerepl.store.control import Row
from mergerepl.store.deltalog import Commit
from mergerepl.store.lease import record_jvm
from mergerepl.store.replica import Replica
from mergerepl.systables import catalog
from mergerepl.systables.catalog import SyncStatus

log = logging.getLogger(__name__)

LATE_ROUNDS = 20
_WRITES_AT_ONCE = 3


@dataclass(frozen=True)
class Parties:
    """Both sides of a changeset by name; `held` are those whose lease is ours, the only ones that may be written."""

    replicas: dict[str, Replica]
    works: dict[str, SideWork]
    held: tuple[str, ...]


@dataclass(frozen=True)
class SideOutcome:
    """What one side came to: rows its MERGEs changed by article, late changes and the conflicts they met."""

    counts: dict[int, PhaseCounts]
    late_changes: int = 0
    late_conflicts: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a carried-out changeset came to."""

    articles: tuple[ArticleCounts, ...]
    late_changes: int


def carry_out(
    spark: SparkSession,
    changeset: Changeset,
    *,
    record: Callable[[Outcome], None],
    sides: Sequence[str] = (PUBLISHER, SUBSCRIBER),
) -> Outcome | None:
    """Carry out a staged changeset at these sides; with both, finish the session. Returns None if it is not
    finished.

    `record` is told the outcome before the changeset is dropped, so that the history has it too.

    Raises: CommitConflictError, ApplyError, StoreError. The changeset stays staged; the next run takes it up.
    """
    manifest = changeset.manifest
    works = {name: work for name in (PUBLISHER, SUBSCRIBER) if (work := manifest.side(name)) is not None}
    replicas = {name: Replica(work.root) for name, work in works.items()}
    parties = Parties(replicas, works, tuple(sides))

    def run(name: str) -> SideOutcome:
        if changeset.done_file(name).exists():
            return SideOutcome({})
        record_jvm(replicas[name].root, engine.jvm_pid())
        outcome = _carry_out_side(spark, changeset, name, parties)
        write_durably(changeset.done_file(name), "")
        failpoint(f"{name}.after_done")
        return outcome

    with ThreadPoolExecutor(len(works)) as pool:
        futures = {name: pool.submit(run, name) for name in works if name in sides}
        outcomes = {name: future.result() for name, future in futures.items()}
    if len(outcomes) < len(works):
        return None
    _move_watermarks(changeset, replicas)
    outcome = _outcome(changeset, replicas, outcomes)
    record(outcome)
    failpoint("session.before_drop")
    drop(changeset.folder)
    _drop_pointer(replicas.get(SUBSCRIBER), manifest.session)
    failpoint("session.after_drop")
    return outcome


def _carry_out_side(
    spark: SparkSession,
    changeset: Changeset,
    name: str,
    parties: Parties,
) -> SideOutcome:
    replica, work = parties.replicas[name], parties.works[name]
    articles = {article.nickname: article for article in replica.articles}
    info = replica.info()
    subscription = _subscription_row(changeset, parties.replicas, name)
    counts: dict[int, PhaseCounts] = {}
    captured = dict(info.captured)
    generations: list[Generation] = []
    late_changes = late_conflicts = 0
    last_generation, seq = work.last_generation, work.seq
    current = changeset
    for _ in range(LATE_ROUNDS):
        side = Side(name, replica, articles, _work_of(current, name))
        commits = _write_all(spark, current, side, parties)
        for nickname, commit in commits.items():
            counts[nickname] = counts.get(nickname, PhaseCounts()) + _merged_counts(commit)
            captured[nickname] = max(captured.get(nickname, -1), commit.version)
        generations += side.work.generations
        last_generation, seq = max(last_generation, side.work.last_generation), side.work.seq
        versions = {nickname: commit.version for nickname, commit in commits.items()}
        windows = late_windows(side, versions, info)
        if not windows:
            break
        log.info("%s: %s late commits", replica.root, sum(len(window.user_commits) for window in windows))
        current, found = stage_late_round(
            spark,
            current,
            side,
            windows,
            versions,
            info,
            priority=own_priority(name, subscription),
            client_subscription=is_client(subscription),
            run_seq=seq + 1,
            last_generation=last_generation,
        )
        late_changes += found
        late_conflicts += sum(current.manifest.conflicts.values())
    else:
        raise ApplyError(
            f"User writers change '{replica.root}' faster than the session can take their commits in "
            f"({LATE_ROUNDS} rounds). The session stays staged; run again.",
            replica=str(replica.root),
        )
    _save_bookkeeping(replica, generations, captured, seq, last_generation, changeset.manifest.number)
    return SideOutcome(counts, late_changes, late_conflicts)


def _work_of(changeset: Changeset, name: str) -> SideWork:
    work = changeset.manifest.side(name)
    assert work is not None
    return work


def _write_all(
    spark: SparkSession,
    changeset: Changeset,
    side: Side,
    parties: Parties,
) -> dict[int, Commit]:
    """MERGE the side's articles, append its run and log the conflicts. Returns tablenick -> our MERGE's commit.

    All of it is staged and each write happens once, so they need not wait for each other; nothing of it counts before
    the bookkeeping that follows.
    """
    merges = [work for work in side.work.articles if work.touches_rows]

    def log() -> None:
        _log_conflicts(spark, changeset, side, parties)

    with ThreadPoolExecutor(_WRITES_AT_ONCE) as pool:
        merged = {work.nickname: pool.submit(merge_article, spark, changeset, side, work) for work in merges}
        others = [pool.submit(append_side_run, spark, changeset, side), pool.submit(log)]
        commits = {nickname: future.result() for nickname, future in merged.items()}
        for other in others:
            other.result()
        return commits


def _merged_counts(commit: Commit) -> PhaseCounts:
    """Return the rows a MERGE really changed, as Delta counted them."""
    names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    return PhaseCounts(*(int(commit.metrics.get(name, 0)) for name in names))


def _log_conflicts(
    spark: SparkSession,
    changeset: Changeset,
    side: Side,
    parties: Parties,
) -> None:
    """Log a round's conflicts where the publication keeps them, but never at a replica that is not held.

    The session's own conflicts are logged by each side for itself; those of a late round by the side that has it.
    """
    if not any(changeset.manifest.conflicts.values()):
        return
    logging_at = _logging_sides(changeset)
    is_late = changeset.manifest.round > 0
    reachable = [name for name in logging_at if name in parties.held] or [PUBLISHER]
    for name in reachable if is_late else [name for name in logging_at if name == side.name]:
        log_conflicts(
            spark,
            changeset,
            parties.replicas[name],
            {article.nickname: article for article in parties.replicas[name].articles},
            parties.works,
        )


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
    """Record the generations, then the captured versions and the run: the side's commit point. Nothing goes back."""
    failpoint("bookkeeping.before_genhistory")
    if generations:
        rows = [{**row, "coldate": datetime.fromisoformat(str(row["coldate"]))} for row in generations]
        replica.save_genhistory(upserted(replica.genhistory(), rows))
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


def _subscription_row(changeset: Changeset, replicas: dict[str, Replica], name: str) -> Row:
    rows = replicas[name].subscriptions()
    other = SUBSCRIBER if name == PUBLISHER else PUBLISHER
    wanted = changeset.manifest.subid
    work = changeset.manifest.side(other)
    replid = work.replid if work is not None else None
    return next(row for row in rows if row["subid"] == wanted and replid in (None, row["replid"]))


def _move_watermarks(changeset: Changeset, replicas: dict[str, Replica]) -> None:
    """Record what was received, then what was sent, then that the session is complete. The last step of a session."""
    manifest = changeset.manifest
    assert manifest.publisher is not None
    assert manifest.subscriber is not None
    nicknames = {PUBLISHER: manifest.publisher.nickname, SUBSCRIBER: manifest.subscriber.nickname}
    sent_guids = {PUBLISHER: manifest.downloaded_guids, SUBSCRIBER: manifest.uploaded_guids}
    received = {PUBLISHER: manifest.upload_watermark, SUBSCRIBER: manifest.download_watermark}
    sent = {PUBLISHER: manifest.download_watermark, SUBSCRIBER: manifest.upload_watermark}
    others = {PUBLISHER: SUBSCRIBER, SUBSCRIBER: PUBLISHER}
    for name in (SUBSCRIBER, PUBLISHER):
        replica, other = replicas[name], others[name]
        if sent_guids[name]:
            replica.save_genhistory(with_nickname(replica.genhistory(), sent_guids[name], nicknames[other]))
        other_work = manifest.side(other)
        assert other_work is not None
        failpoint(f"watermarks.before_{name}")
        changed: Row = {
            "last_sync_date": datetime.now(UTC),
            "last_sync_status": int(SyncStatus.SUCCEEDED),
            "last_sync_summary": f"session {manifest.number} succeeded",
            "replicastate": manifest.replicastate,
            "session_number": manifest.number,
        }
        if (mark := received[name]) is not None:
            changed |= {"recgen": mark.generation, "recguid": mark.guid}
        if (mark := sent[name]) is not None:
            changed |= {"sentgen": mark.generation, "sentguid": mark.guid}
        update_subscription(replica, manifest.subid, other_work.replid, changed)
        failpoint(f"watermarks.after_{name}")


def update_subscription(replica: Replica, subid: str, other_replid: str, changed: Row) -> None:
    """Change one replica's row about the other side of a subscription."""
    rows = replica.subscriptions()
    is_it: Callable[[Row], bool] = lambda row: row["subid"] == subid and row["replid"] == other_replid  # noqa: E731
    replica.control.replace(
        catalog.SUBSCRIPTIONS, [{**row, **changed} if is_it(row) else row for row in rows]
    )


def pointer(subscriber: Replica, session: str) -> Path:
    """Return the file at a subscriber that says a session of its publisher is not finished."""
    return subscriber.staging / f"{session}.json"


def _drop_pointer(subscriber: Replica | None, session: str) -> None:
    if subscriber is not None:
        pointer(subscriber, session).unlink(missing_ok=True)


def _outcome(changeset: Changeset, replicas: dict[str, Replica], outcomes: dict[str, SideOutcome]) -> Outcome:
    manifest = changeset.manifest
    none = PhaseCounts()
    at_publisher, at_subscriber = outcomes[PUBLISHER], outcomes[SUBSCRIBER]
    counted = []
    for article in replicas[PUBLISHER].articles_of(manifest.pubid):
        conflicts = manifest.conflicts.get(article.nickname, 0)
        # A conflict is met where the two changes first come together: while uploading, unless only
        # downloading.
        up = replace(
            at_publisher.counts.get(article.nickname, none), conflicts=conflicts if manifest.upload else 0
        )
        down = replace(
            at_subscriber.counts.get(article.nickname, none), conflicts=0 if manifest.upload else conflicts
        )
        if up != none or down != none:
            counted.append(ArticleCounts(article.name, up, down))
    return Outcome(tuple(counted), at_publisher.late_changes + at_subscriber.late_changes)
