"""Carry out a staged changeset at its replicas, in a fresh session and in recovery.

Order at each side: concurrently MERGE the articles, append the run and log conflicts; capture late user commits; then
write the bookkeeping (genhistory, replinfo). Both sides run concurrently. The watermarks move only when both are done.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from enumeration.horizon import NOTHING_STAGED, with_horizon
from mergerepl.changes import OTHER_SIDE, PUBLISHER, SUBSCRIBER
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.delta.feed.schema_walk import is_replacement
from mergerepl.delta.tables import Commit
from mergerepl.errors import CommitConflictError
from mergerepl.failpoints import failpoint
from mergerepl.merge.apply.conflict_log import ConflictLog
from mergerepl.merge.apply.side import Side, append_side_run, merge_article
from mergerepl.merge.capture.windows import late_windows
from mergerepl.merge.schema.follow import set_properties_again
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import ArticleCounts, PhaseCounts, SessionResult
from mergerepl.replica.expiry import staged_again
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import drop_pointer, own_priority, update_subscription
from mergerepl.store.changeset import Changeset, SideWork, drop, is_staged
from mergerepl.store.rehearsal import worker_threads
from mergerepl.systables.catalog import SyncStatus
from mergerepl.systables.replinfo import ReplicaInfo

log = logging.getLogger(__name__)

LATE_ROUNDS = 20
_WRITES_AT_ONCE = 3


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
    changeset: Changeset,
    replicas: dict[str, Replica],
    choice: EngineChoice,
    *,
    record: Callable[[Outcome], None],
    seconds: dict[str, float] | None = None,
) -> Outcome | None:
    """Carry out a staged changeset at these replicas, by side; with both, finish the session.

    The caller holds the replicas; they may have moved since the changeset was staged. `record` gets the outcome before
    the changeset is dropped, so that the history has it too. `seconds` receives how long each side took.

    Returns: None if the session is not finished.

    Raises: CommitConflictError, ApplyError, StoreError. The changeset stays staged; the next run takes it up.
    """
    manifest = changeset.manifest
    conflict_log = ConflictLog(changeset, replicas, choice)

    def run(name: str) -> SideOutcome:
        if (done := changeset.redo.outcome(name, SideOutcome)) is not None:
            return done
        began = time.monotonic()
        outcome = _carry_out_side(changeset, name, replicas[name], conflict_log)
        if seconds is not None:
            seconds[name] = time.monotonic() - began
        changeset.redo.mark_done(name, outcome)
        failpoint(f"{name}.after_done")
        return outcome

    with worker_threads(len(changeset.works)) as pool:
        futures = {name: pool.submit(run, name) for name in changeset.works if name in replicas}
        outcomes = {name: future.result() for name, future in futures.items()}
    if len(outcomes) < len(changeset.works):
        return None
    for late in conflict_log.late_rounds:
        # At the replica that was not held when a round was carried out.
        conflict_log.log(late, conflict_log.sides)
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


def _carry_out_side(
    changeset: Changeset, name: str, replica: Replica, conflict_log: ConflictLog
) -> SideOutcome:
    """MERGE, append and log the changeset and, one after the other, its late rounds; then save the bookkeeping."""
    if name == SUBSCRIBER:
        _void_metadata(replica, changeset.manifest.void)
    info = replica.info()
    subscription = replica.relation(changeset.manifest.subid, changeset.work_of(OTHER_SIDE[name]).replid)
    assert subscription is not None
    counts: dict[int, PhaseCounts] = {}
    captured = dict(info.captured)
    side = Side.of(changeset, name, replica)
    rounds, newly_staged = [side], 0
    replaced: dict[int, PublishedArticle] = {}
    for side in rounds:
        commits = _write_all(side, conflict_log)
        for nickname, commit in commits.items():
            counts[nickname] = counts.get(nickname, PhaseCounts()) + PhaseCounts(*commit.merged_rows)
            captured[nickname] = max(captured.get(nickname, -1), commit.version)
        merged = {nickname: commit.version for nickname, commit in commits.items()}
        windows = late_windows(side, merged, info)
        if not windows:
            break
        for window in windows:
            if any(is_replacement(commit) for commit in window.user_commits):
                replaced[window.article.nickname] = window.article
        from mergerepl.merge.stage.late import stage_late_round
        from mergerepl.merge.stage.late_round import LateRound

        log.info("%s: %s late commits", replica.root, sum(len(window.user_commits) for window in windows))
        late = LateRound(
            conflict_log.choice.spark,
            side,
            windows,
            merged,
            captured,
            replace(info, clock=_clock(info, [each.work for each in rounds])),
            priority=own_priority(name, subscription),
            client_subscription=subscription.is_client,
            last_generation=max(each.work.last_generation for each in rounds),
        )
        # Rounds that an earlier run staged do not count: each run must get further than the last one.
        newly_staged += not is_staged(late.folder)
        if newly_staged > LATE_ROUNDS:
            raise CommitConflictError(
                f"User writers change '{replica.root}' faster than the session can take their commits in "
                f"({LATE_ROUNDS} rounds). The session stays staged; run again.",
                replica=str(replica.root),
            )
        rounds.append(replace(side, changeset=stage_late_round(late)))
    # Before the captured versions pass it: no step looks at a captured table again.
    for article in replaced.values():
        set_properties_again(lambda: conflict_log.choice.spark, replica, article)
    _save_bookkeeping(replica, [each.work for each in rounds], captured, changeset.manifest.number)
    late_conflicts: Counter[int] = Counter()
    for each in rounds[1:]:
        late_conflicts.update(each.changeset.manifest.conflicts)
    late_changes = sum(work.live + work.deleted for each in rounds[1:] for work in each.work.articles)
    return SideOutcome(counts, dict(late_conflicts), late_changes)


def _void_metadata(replica: Replica, void: Mapping[int, int]) -> None:
    """Let a reinitialised subscriber's metadata up to these generations not count: late changes do not continue it.

    From this commit on every session but the reinitialisation is refused: it would start below what was cleaned up.
    """
    info = replica.info()
    cleaned = {nickname: max(last, info.cleaned.get(nickname, 0)) for nickname, last in void.items()}
    if any(last > info.cleaned.get(nickname, 0) for nickname, last in cleaned.items()):
        last = max(info.last_generation, *cleaned.values())
        failpoint("reinit.before_void")
        replica.save_info(replace(info, cleaned={**info.cleaned, **cleaned}, last_generation=last))
        failpoint("reinit.after_void")


def _write_all(side: Side, conflict_log: ConflictLog) -> dict[int, Commit]:
    """MERGE the side's articles, append its run and log the conflicts.

    All writes are staged and each happens once, so they need not wait for each other. They count only with the
    bookkeeping that follows.

    Returns: tablenick -> our MERGE's commit.
    """
    choice, works = conflict_log.choice, [work for work in side.work.articles if work.touches_rows]
    with worker_threads(_WRITES_AT_ONCE) as pool:
        merged = {work.nickname: pool.submit(merge_article, choice, side, work) for work in works}
        others = [
            pool.submit(append_side_run, choice, side),
            pool.submit(conflict_log.log_round, side.changeset, side.name),
        ]
        commits = {nickname: future.result() for nickname, future in merged.items()}
        for other in others:
            other.result()
        return commits


def _save_bookkeeping(
    replica: Replica, works: Sequence[SideWork], captured: dict[int, int], session_number: int
) -> None:
    """Record the generations, then the captured versions and the run: the side's commit point. No number decreases."""
    generations = [row for work in works for row in work.generations]
    seq, last_generation = works[-1].seq, max(work.last_generation for work in works)
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
            clock=_clock(info, works),
        )
    )
    failpoint("bookkeeping.after_replinfo")


def _clock(info: ReplicaInfo, works: Sequence[SideWork]) -> int:
    """Return a replica's clock after a session and its late rounds: no version is higher, received or made."""
    versions = [row.maxversion or 0 for work in works for row in work.generations]
    return max([info.clock, *(work.clock for work in works), *versions])


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
            "last_error_class": None,
            "failures": 0,
            "last_sync_summary": f"session {manifest.number} succeeded{left}",
            "replicastate": manifest.replicastate,
            "session_number": manifest.number,
        }
        if (mark := received[name]) is not None:
            changed |= {"recgen": mark.generation, "recguid": mark.guid}
        if (mark := sent[name]) is not None:
            changed |= {"sentgen": mark.generation, "sentguid": mark.guid}
        if manifest.void:
            # What was found different is equal now.
            about = replica.relation(manifest.subid, other_work.replid)
            known = about.diverged if about is not None else {}
            changed["diverged"] = {n: text for n, text in known.items() if n not in manifest.void}
        also = partial(
            with_horizon,
            subid=manifest.subid,
            side=name,
            to=manifest.horizon,
            info=replica.info(),
            is_anew=bool(manifest.void),
            staged=staged_again(replica) if name == PUBLISHER else NOTHING_STAGED,
        )
        update_subscription(replica, manifest.subid, other_work.replid, changed, also)
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
