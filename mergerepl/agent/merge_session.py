"""One merge session: one subscription, upload and download.

Order: leases, roll forward what a dead session left, compare identities and watermarks, capture both sides,
make_generation, stage the changeset, carry it out. Up to the manifest of the changeset nothing but captured
changes is written; from there on the session will be finished, by this run or the next.
"""

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from conflict.resolve import SessionTerms
from enumeration.generations import (
    Watermark,
    generations_to_send,
    make_generation,
    received_generation,
    start_generation,
)
from mergerepl import spark as engine
from mergerepl.agent import history
from mergerepl.agent.capture import (
    CapturedArticle,
    commit_changes,
    new_generation,
    next_seq,
    open_generation,
    read_changes,
    remove_leftovers,
    upserted,
)
from mergerepl.agent.carry_out import Outcome, carry_out, pointer
from mergerepl.agent.constraints import refuse_violations
from mergerepl.agent.feed_window import FeedWindow, feed_window
from mergerepl.agent.identity import require_same_session
from mergerepl.agent.stage import Enumerated, Kept, StagedArticle, changeset_rows, stage_article
from mergerepl.apply.side import data_app_id, session_number_of
from mergerepl.changes import PUBLISHER, SUBSCRIBER
from mergerepl.changeset import (
    Changeset,
    Generation,
    Manifest,
    Mark,
    SideWork,
    drop,
    read_changeset,
    write_durably,
)
from mergerepl.failpoints import failpoint
from mergerepl.lineage.value import agent_nickname
from mergerepl.model.article import PublishedArticle
from mergerepl.model.progress import Progress
from mergerepl.model.publication import PUBLISHER_PRIORITY
from mergerepl.model.results import ArticleCounts, PhaseCounts, SessionResult
from mergerepl.store import delta
from mergerepl.store.control import Row
from mergerepl.store.engine_errors import told_plainly
from mergerepl.store.lease import lease, record_jvm
from mergerepl.store.replica import Replica, ReplicaInfo
from mergerepl.systables.genhistory import GenStatus

log = logging.getLogger(__name__)

_AT_ONCE = 2
"""Spark actions run side by side: one keeps two cores busy only in part."""

SparkSource = Callable[[], SparkSession]


@dataclass(frozen=True)
class SideState:
    """One replica of the session: its bookkeeping as it moves along. `other` is its row about the other side."""

    name: str
    replica: Replica
    info: ReplicaInfo
    genhistory: list[Row]
    articles: dict[int, PublishedArticle]
    other: Row
    windows: tuple[FeedWindow, ...] = ()
    captured: tuple[CapturedArticle, ...] = ()

    def captured_article(self, nickname: int) -> CapturedArticle | None:
        """Return what was captured of an article in this session, None if nothing."""
        return next((c for c in self.captured if c.article.nickname == nickname and c.rows is not None), None)


@dataclass(frozen=True)
class SessionPlan:
    """Which generations travel, and under which numbers they are received."""

    upload: bool
    download: bool
    upload_start: int
    download_start: int
    up: list[Row]
    down: list[Row]


def merge_session(
    publisher: Replica,
    subscriber: Replica,
    subscription: Row,
    publication: str,
    *,
    spark_of: SparkSource,
    upload: bool = True,
    download: bool = True,
    lease_wait_s: float = 0.0,
    progress: Progress,
) -> SessionResult:
    """Run one session and return what it did.

    Raises: LeaseError, CommitConflictError (run again); CaptureError, EnumerationError, SchemaMismatchError,
    PublicationError (nothing was changed); ApplyError, StoreError (the changeset is staged; the next run goes
    on).
    """
    started = time.monotonic()
    start_time = datetime.now(UTC)
    doing = f"synchronizing '{publisher.root}' with '{subscriber.root}'"
    with told_plainly(doing), _leases(publisher, subscriber, lease_wait_s):
        progress.step("recover")
        recovered = recover(publisher, subscriber, spark_of)
        sides = _open_sides(publisher, subscriber, subscription)
        progress.step("capture")
        sides = {name: _with_windows(side) for name, side in sides.items()}
        if not _has_work(sides, upload=upload, download=download):
            _note_versions(sides)
            status = "succeeded" if recovered else "nothing_to_do"
            duration = time.monotonic() - started
            return SessionResult(
                publication, str(subscriber.root), status, duration_s=round(duration, 3), recovered=recovered
            )
        spark = spark_of()
        for replica in (publisher, subscriber):
            record_jvm(replica.root, engine.jvm_pid())
        sides = _captured(spark, sides)
        try:
            changeset = _staged(
                spark, sides, publication, upload=upload, download=download, progress=progress
            )
        finally:
            for side in sides.values():
                for item in side.captured:
                    item.release()
        failpoint("session.before_apply")
        progress.step(
            "apply",
            rows=changeset.manifest.counts(PUBLISHER).total + changeset.manifest.counts(SUBSCRIBER).total,
        )
        results: list[SessionResult] = []

        def record(outcome: Outcome) -> None:
            duration_s = time.monotonic() - started
            results.append(_result(publication, subscriber, outcome, duration_s, recovered))
            history.record(publisher, subscriber, changeset.manifest, results[0], start_time)

        carry_out(spark, changeset, record=record)
        return results[0]


@contextmanager
def _leases(publisher: Replica, subscriber: Replica, wait_s: float) -> Iterator[None]:
    """Hold both replicas, the publisher first: all agents take them in this order."""
    with ExitStack() as stack:
        for replica in (publisher, subscriber):
            purpose = f"mergerepl sync {publisher.root} {subscriber.root}"
            stack.enter_context(lease(replica.root, purpose=purpose, wait_s=wait_s))
        yield


def recover(publisher: Replica, subscriber: Replica, spark_of: SparkSource) -> int:
    """Roll staged sessions of the publisher forward and drop incomplete ones. Returns how many were rolled
    forward.

    A session with another subscriber is finished at the publisher only; its own subscriber may be out of
    reach, and the rest waits for that one's next session.
    """
    rolled = 0
    folders = sorted(publisher.staging.iterdir()) if publisher.staging.is_dir() else []
    for folder in (path for path in folders if path.is_dir()):
        changeset = read_changeset(folder)
        if changeset is None:
            drop(folder)
            pointer(subscriber, folder.name).unlink(missing_ok=True)
            continue
        work = changeset.manifest.subscriber
        is_ours = (
            work is not None and Path(work.root) == subscriber.root and subscriber.root != publisher.root
        )
        if not is_ours and changeset.done_file(PUBLISHER).exists():
            continue
        log.info("rolling session %s forward", folder.name)
        _roll_forward(spark_of(), changeset, publisher, subscriber, is_ours=is_ours)
        rolled += 1
    for stale in subscriber.staging.glob("*.json") if subscriber.staging.is_dir() else ():
        told = json.loads(stale.read_text(encoding="utf-8") or "{}")
        if told.get("publisher") == str(publisher.root) and not (publisher.staging / stale.stem).exists():
            stale.unlink(missing_ok=True)
    return rolled


def _roll_forward(
    spark: SparkSession, changeset: Changeset, publisher: Replica, subscriber: Replica, *, is_ours: bool
) -> None:
    manifest = changeset.manifest

    def record(outcome: Outcome) -> None:
        result = _result(manifest.publication, subscriber, outcome, 0.0, 1)
        history.record(publisher, subscriber, manifest, result, datetime.fromisoformat(manifest.started))

    sides = (PUBLISHER, SUBSCRIBER) if is_ours else (PUBLISHER,)
    carry_out(spark, changeset, record=record, sides=sides)


def _open_sides(publisher: Replica, subscriber: Replica, subscription: Row) -> dict[str, SideState]:
    pubid, subid = subscription["pubid"], subscription["subid"]
    infos = {PUBLISHER: publisher.info(), SUBSCRIBER: subscriber.info()}
    replicas = {PUBLISHER: publisher, SUBSCRIBER: subscriber}
    others = {PUBLISHER: SUBSCRIBER, SUBSCRIBER: PUBLISHER}
    rows = {name: replica.subscriptions() for name, replica in replicas.items()}
    found = {
        name: next(
            (r for r in rows[name] if r["subid"] == subid and r["replid"] == infos[others[name]].replid), None
        )
        for name in replicas
    }
    row_of = require_same_session(publisher, subscriber, infos[PUBLISHER], infos[SUBSCRIBER], found)
    return {
        name: SideState(
            name,
            replica,
            infos[name],
            replica.genhistory(),
            {article.nickname: article for article in replica.articles_of(pubid)},
            row_of[name],
        )
        for name, replica in replicas.items()
    }


def _with_windows(side: SideState) -> SideState:
    windows = tuple(feed_window(side.replica, article, side.info) for article in side.articles.values())
    return replace(side, windows=windows)


def plan_generations(sides: dict[str, SideState], *, upload: bool, download: bool) -> SessionPlan:
    """Return which closed generations each side has to tell the other.

    Raises: UnknownGenerationError if the watermarks of the two sides do not fit together.
    """
    publisher, subscriber = sides[PUBLISHER], sides[SUBSCRIBER]
    starts = {}
    for source, destination in ((subscriber, publisher), (publisher, subscriber)):
        starts[source.name] = start_generation(
            sent=Watermark(source.other["sentgen"] or 0, source.other["sentguid"]),
            received=Watermark(destination.other["recgen"] or 0, destination.other["recguid"]),
            source_genhistory=source.genhistory,
            source=str(source.replica.root),
            destination=str(destination.replica.root),
        )

    def to_send(source: SideState, destination: SideState) -> list[Row]:
        return generations_to_send(
            make_generation(source.genhistory),
            destination.genhistory,
            from_generation_exclusive=starts[source.name],
            destination_nickname=destination.info.nickname,
            tablenicks=source.articles,
        )

    up, down = to_send(subscriber, publisher), to_send(publisher, subscriber)
    return SessionPlan(upload, download, starts[SUBSCRIBER], starts[PUBLISHER], up, down)


def _has_work(sides: dict[str, SideState], *, upload: bool, download: bool) -> bool:
    plan = plan_generations(sides, upload=upload, download=download)
    has_new = {name: any(window.has_changes for window in side.windows) for name, side in sides.items()}
    has_up = upload and (has_new[SUBSCRIBER] or any(row["changecount"] for row in plan.up))
    has_down = download and (has_new[PUBLISHER] or any(row["changecount"] for row in plan.down))
    return has_up or has_down


def _note_versions(sides: dict[str, SideState]) -> None:
    """Move captured versions over commits that changed no rows (OPTIMIZE, properties), so that they are read once."""
    for side in sides.values():
        moved = {w.article.nickname: w.through_version_inclusive for w in side.windows if not w.has_changes}
        captured = {**side.info.captured, **moved}
        if captured != side.info.captured:
            side.replica.save_info(replace(side.info, captured=captured))


def _captured(spark: SparkSession, sides: dict[str, SideState]) -> dict[str, SideState]:
    """Compute what is new at both sides, side by side; nothing is written yet."""
    jobs = []
    for side in sides.values():
        number = last_number(side)
        for window in side.windows:
            if window.has_changes:
                number += 1
            generation = open_generation(side.genhistory, window.article, side.info, number)
            jobs.append((side, window, generation))

    def read(job: tuple[SideState, FeedWindow, Row]) -> CapturedArticle:
        side, window, generation = job
        return read_changes(
            spark, side.replica, window, side.info, priority=own_priority(side), generation=generation
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(read, jobs))
    by_side: dict[str, list[CapturedArticle]] = {name: [] for name in sides}
    for (side, _, _), result in zip(jobs, results, strict=True):
        by_side[side.name].append(result)
    return {name: replace(side, captured=tuple(by_side[name])) for name, side in sides.items()}


def last_number(side: SideState) -> int:
    """Return the highest generation number given out, also by a capture that died before its commit point."""
    return max(side.info.last_generation, *(int(row["generation"]) for row in side.genhistory), 0)


def own_priority(side: SideState) -> float:
    """Return the priority of the changes made at a replica (merge_replication.md 3.3)."""
    if side.name == PUBLISHER:
        return PUBLISHER_PRIORITY
    return 0.0 if side.other["subscriber_type"] == 2 else float(side.other["priority"] or 0.0)


def _committed(spark: SparkSession, sides: dict[str, SideState]) -> dict[str, SideState]:
    """Append what was captured and close the generations (make_generation), both sides side by side."""

    def commit(side: SideState) -> SideState:
        remove_leftovers(lambda: spark, side.replica, side.info)
        closed = [_closed(item) for item in side.captured]
        before = make_generation(side.genhistory)
        info, after = commit_changes(spark, side.replica, closed, before, side.info)
        is_saved = any(item.rows is not None for item in closed)
        if not is_saved and before != side.genhistory:
            side.replica.save_genhistory(before)
        committed = tuple(replace(item, is_committed=True) for item in closed)
        return replace(side, info=info, genhistory=after, captured=committed)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done = list(pool.map(commit, sides.values()))
    return {side.name: side for side in done}


def _closed(item: CapturedArticle) -> CapturedArticle:
    if item.generation is None:
        return item
    return replace(item, generation={**item.generation, "genstatus": int(GenStatus.CLOSED)})


@dataclass(frozen=True)
class Numbered:
    """The generation numbers of a session: how each side receives the other's, and where resolved rows go."""

    publisher_numbers: dict[int, int]
    subscriber_numbers: dict[int, int]
    resolved_at_publisher: dict[int, int]
    resolved_at_subscriber: dict[int, int]


def number_generations(sides: dict[str, SideState], plan: SessionPlan) -> Numbered:
    """Give out the next local numbers at each side; an article changed at both sides gets one for resolved rows."""
    two_sided = sorted({row["art_nick"] for row in plan.up} & {row["art_nick"] for row in plan.down})

    def number(side: SideState, received: list[Row], *, used: bool) -> tuple[dict[int, int], dict[int, int]]:
        if not used:
            return {}, {}
        first = last_number(side) + 1
        numbers = {row["generation"]: first + i for i, row in enumerate(received)}
        resolved = {nickname: first + len(received) + i for i, nickname in enumerate(two_sided)}
        return numbers, resolved

    publisher_numbers, at_publisher = number(sides[PUBLISHER], plan.up, used=plan.upload)
    subscriber_numbers, at_subscriber = number(sides[SUBSCRIBER], plan.down, used=plan.download)
    return Numbered(publisher_numbers, subscriber_numbers, at_publisher, at_subscriber)


def enumerated(side: SideState, nickname: int, sent: list[Row], start: int) -> Enumerated:
    """Return one side of one article for staging."""
    to_send = [row for row in sent if row["art_nick"] == nickname]
    chosen = {row["generation"] for row in to_send}
    known = tuple(
        row["generation"]
        for row in side.genhistory
        if row["art_nick"] == nickname and row["generation"] > start and row["generation"] not in chosen
    )
    captured = side.captured_article(nickname)
    is_new = (
        captured is not None
        and captured.generation is not None
        and [row["guidsrc"] for row in to_send] == [captured.generation["guidsrc"]]
        and captured.generation["changecount"] == captured.changes
    )
    return Enumerated(
        side.replica,
        side.articles[nickname],
        side.info.last_seq,
        start,
        known,
        captured,
        is_complete_in_memory=is_new,
        is_needed=bool(to_send),
    )


def session_terms(
    sides: dict[str, SideState], plan: SessionPlan, numbers: Numbered, nickname: int
) -> SessionTerms:
    """Return what resolve needs to know for one article."""
    resolver_side = PUBLISHER if plan.upload else SUBSCRIBER
    return SessionTerms(
        upload=plan.upload,
        download=plan.download,
        resolver_nickname=agent_nickname(sides[resolver_side].info.nickname),
        client_subscription=plan.upload and sides[SUBSCRIBER].other["subscriber_type"] == 2,
        publisher_generations=numbers.publisher_numbers,
        subscriber_generations=numbers.subscriber_numbers,
        resolved_at_publisher=numbers.resolved_at_publisher.get(nickname, 0),
        resolved_at_subscriber=numbers.resolved_at_subscriber.get(nickname, 0),
        upload_start=plan.upload_start,
        download_start=plan.download_start,
    )


def stage_articles(
    spark: SparkSession,
    sides: dict[str, SideState],
    plan: SessionPlan,
    numbers: Numbered,
    folder: Path,
    progress: Progress,
) -> dict[int, StagedArticle]:
    """Write the changesets of all articles with something to tell. Returns tablenick -> what it amounts to."""
    nicknames = sorted(
        {
            row["art_nick"]
            for row in (*(plan.up if plan.upload else ()), *(plan.down if plan.download else ()))
        }
    )

    def stage(nickname: int) -> StagedArticle | None:
        publisher = enumerated(sides[PUBLISHER], nickname, plan.down, plan.download_start)
        subscriber = enumerated(sides[SUBSCRIBER], nickname, plan.up, plan.upload_start)
        kept = Kept()
        try:
            terms = session_terms(sides, plan, numbers, nickname)
            rows = changeset_rows(spark, publisher, subscriber, terms, kept)
            if rows is None:
                return None
            versions = {name: side.info.captured[nickname] for name, side in sides.items()}
            rows_folder = folder / str(nickname)
            staged = stage_article(rows, rows_folder, publisher.article, from_versions=versions)
        finally:
            kept.release()
        replicas = sides[PUBLISHER].replica, sides[SUBSCRIBER].replica
        refuse_violations(spark, rows_folder, staged, *replicas, publisher.article, subscriber.article)
        progress.step("stage", article=publisher.article.name, rows=_rows_of(staged))
        return staged

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(stage, nicknames))
    return {n: staged for n, staged in zip(nicknames, results, strict=True) if staged is not None}


def _rows_of(staged: StagedArticle) -> int:
    return sum(work.live + work.deleted for work in (staged.publisher, staged.subscriber))


def _staged(
    spark: SparkSession,
    sides: dict[str, SideState],
    publication: str,
    *,
    upload: bool,
    download: bool,
    progress: Progress,
) -> Changeset:
    sides = _committed(spark, sides)
    plan = plan_generations(sides, upload=upload, download=download)
    numbers = number_generations(sides, plan)
    session = str(uuid4())
    folder = sides[PUBLISHER].replica.staging / session
    folder.mkdir(parents=True)
    try:
        staged = stage_articles(spark, sides, plan, numbers, folder, progress)
        manifest = _manifest(sides, plan, numbers, staged, session, publication)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    changeset = Changeset(folder, manifest)
    told = json.dumps({"publisher": str(sides[PUBLISHER].replica.root), "session": session})
    write_durably(pointer(sides[SUBSCRIBER].replica, session), told)
    failpoint("stage.before_manifest")
    changeset.commit()
    failpoint("stage.after_manifest")
    return changeset


def _manifest(
    sides: dict[str, SideState],
    plan: SessionPlan,
    numbers: Numbered,
    staged: dict[int, StagedArticle],
    session: str,
    publication: str,
) -> Manifest:
    publisher, subscriber = sides[PUBLISHER], sides[SUBSCRIBER]
    now = datetime.now(UTC)
    resolved = [nickname for nickname, article in staged.items() if article.resolved]
    both = plan.upload and plan.download
    guids = {nickname: str(uuid4()) for nickname in resolved}

    def resolution(side: SideState, numbers_: dict[int, int], *, made_here: bool) -> list[Row]:
        holders = [publisher.info.nickname, subscriber.info.nickname] if both else [side.info.nickname]
        status = GenStatus.CLOSED if made_here else GenStatus.CLOSED_ELSEWHERE
        return [
            {
                **new_generation(
                    side.articles[n], number=numbers_[n], nicknames=holders, status=status, guid=guids[n]
                ),
                "changecount": staged[n].resolved,
            }
            for n in resolved
            if n in numbers_
        ]

    def received(side: SideState, rows: Iterable[Row], numbers_: dict[int, int]) -> list[Row]:
        return [
            received_generation(
                row, generation=numbers_[row["generation"]], nickname=side.info.nickname, now=now
            )
            for row in rows
            if row["generation"] in numbers_
        ]

    at_publisher = received(publisher, plan.up, numbers.publisher_numbers)
    at_publisher += resolution(publisher, numbers.resolved_at_publisher, made_here=True)
    at_subscriber = received(subscriber, plan.down, numbers.subscriber_numbers)
    at_subscriber += resolution(subscriber, numbers.resolved_at_subscriber, made_here=not plan.upload)
    first = publisher.replica.publication(pubid=publisher.other["pubid"])
    return Manifest(
        session=session,
        number=_next_session_number(sides, staged),
        publication=publication,
        pubid=publisher.other["pubid"],
        subid=publisher.other["subid"],
        upload=plan.upload,
        download=plan.download,
        started=now.isoformat(),
        conflict_logging=_conflict_logging(first),
        conflicts={nickname: article.conflicts for nickname, article in staged.items()},
        publisher=_side_work(publisher, at_publisher, [staged[n].publisher for n in sorted(staged)]),
        subscriber=_side_work(subscriber, at_subscriber, [staged[n].subscriber for n in sorted(staged)]),
        # What a side received in this very session the other one holds too, so both watermarks may cover it;
        # with one direction only, resolved rows have yet to travel.
        upload_watermark=_watermark(subscriber, at_subscriber if both else []) if plan.upload else None,
        download_watermark=_watermark(publisher, at_publisher if both else []) if plan.download else None,
        uploaded_guids=[row["guidsrc"] for row in plan.up] if plan.upload else [],
        downloaded_guids=[row["guidsrc"] for row in plan.down] if plan.download else [],
        replicastate=str(uuid4()),
        captured={
            name: [item.article.name for item in side.captured if item.rows is not None]
            for name, side in sides.items()
        },
    )


def _side_work(side: SideState, generations: Sequence[Row], works: Sequence[object]) -> SideWork:
    rows: list[Generation] = [{**row, "coldate": row["coldate"].isoformat()} for row in generations]
    return SideWork(
        root=str(side.replica.root),
        replid=side.info.replid,
        nickname=side.info.nickname,
        base_seq=side.info.last_seq,
        seq=next_seq(side.replica, side.info),
        last_generation=max([side.info.last_generation, *(row["generation"] for row in generations)]),
        generations=rows,
        articles=list(works),  # type: ignore[arg-type]
    )


def _watermark(side: SideState, received: Sequence[Row]) -> Mark:
    rows = [row for row in (*side.genhistory, *received) if row["genstatus"] != GenStatus.OPEN]
    if not rows:
        return Mark(generation=0, guid=None)
    last = max(rows, key=lambda row: int(row["generation"]))
    return Mark(generation=last["generation"], guid=last["guidsrc"])


def _next_session_number(sides: dict[str, SideState], staged: dict[int, StagedArticle]) -> int:
    """Return a number above every one used, also in tables whose bookkeeping was restored: writes must not be skipped."""
    used = [0]
    for side in sides.values():
        used += [side.info.session_number, side.other["session_number"] or 0]
        app_id = data_app_id(side.other["subid"])
        for nickname in staged:
            version = delta.transaction_version(side.replica.table(side.articles[nickname]), app_id)
            used.append(session_number_of(version) if version >= 0 else 0)
    return max(used) + 1


def _conflict_logging(publication: Row) -> str:
    centralized, decentralized = publication["centralized_conflicts"], publication["decentralized_conflicts"]
    return "both" if centralized and decentralized else "subscriber" if decentralized else "publisher"


def _result(
    publication: str, subscriber: Replica, outcome: Outcome, duration_s: float, recovered: int
) -> SessionResult:
    return SessionResult(
        publication,
        str(subscriber.root),
        "succeeded",
        upload=_sum(article.upload for article in outcome.articles),
        download=_sum(article.download for article in outcome.articles),
        articles=outcome.articles,
        duration_s=round(duration_s, 3),
        recovered=recovered,
        late_changes=outcome.late_changes,
    )


def _sum(counts: Iterable[PhaseCounts]) -> PhaseCounts:
    total = PhaseCounts()
    for item in counts:
        total = total + item
    return total


def preview_session(
    publisher: Replica,
    subscriber: Replica,
    subscription: Row,
    publication: str,
    *,
    spark_of: SparkSource,
    upload: bool = True,
    download: bool = True,
    progress: Progress,
) -> SessionResult:
    """Return what a session would do, with its conflicts, and change nothing."""
    from mergerepl.agent.preview import conflict_previews

    started = time.monotonic()
    doing = f"previewing '{publisher.root}' with '{subscriber.root}'"
    with told_plainly(doing), _leases(publisher, subscriber, 0.0):
        sides = {n: _with_windows(s) for n, s in _open_sides(publisher, subscriber, subscription).items()}
        if not _has_work(sides, upload=upload, download=download):
            return SessionResult(
                publication,
                str(subscriber.root),
                "nothing_to_do",
                duration_s=round(time.monotonic() - started, 3),
            )
        spark = spark_of()
        sides = _captured(spark, sides)
        folder = Path(tempfile.mkdtemp(prefix="mergerepl-preview-"))
        try:
            sides = {name: _as_if_committed(side) for name, side in sides.items()}
            plan = plan_generations(sides, upload=upload, download=download)
            numbers = number_generations(sides, plan)
            staged = stage_articles(spark, sides, plan, numbers, folder, progress)
            previews = conflict_previews(spark, folder, staged, sides[PUBLISHER].articles)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            for side in sides.values():
                for item in side.captured:
                    item.release()
        counts = tuple(
            _planned(sides[PUBLISHER].articles[n].name, article, upload=upload)
            for n, article in staged.items()
        )
        return SessionResult(
            publication,
            str(subscriber.root),
            "planned",
            upload=_sum(article.upload for article in counts),
            download=_sum(article.download for article in counts),
            articles=counts,
            duration_s=round(time.monotonic() - started, 3),
            conflicts=previews,
        )


def _as_if_committed(side: SideState) -> SideState:
    closed = [_closed(item) for item in side.captured]
    generations = [item.generation for item in closed if item.generation is not None]
    history_ = upserted(make_generation(side.genhistory), generations)
    last = max([side.info.last_generation, *(row["generation"] for row in generations)])
    moved = {item.article.nickname: item.window.through_version_inclusive for item in closed}
    info = replace(side.info, last_generation=last, captured={**side.info.captured, **moved})
    return replace(side, genhistory=history_, captured=tuple(closed), info=info)


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
