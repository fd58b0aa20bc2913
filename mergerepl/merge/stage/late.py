"""Late capture: user commits that landed between our capture and our MERGE (design section 7.5).

Our MERGE reads the table at its start, so it may overwrite a user's write that landed just before. The feed keeps the
overwritten row. Such changes are concurrent with ours: they are captured with the lineage the row had before, detected,
resolved and logged like any other conflict, in a changeset of their own that only this side carries out.

At a publisher with row filters, late writes move rows, and the rows that follow them. That pass starts from the end of the
session's pass: from the rows as they were staged, or as they were captured.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from enumeration.get_metadata import no_conflict
from mergerepl import changes
from mergerepl.changes import (
    DELETED,
    GENERATION,
    PARTCHANGEGEN,
    PUBLISHER,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    Action,
    Verdict,
)
from mergerepl.delta.tables import open_table, write_files
from mergerepl.frames import DataFrame, F
from mergerepl.merge.apply.side import Side, recorded_rows
from mergerepl.merge.capture.capture import CapturedArticle, CaptureJob, new_generation, read_changes
from mergerepl.merge.capture.partitions import event_counts, touched_rows
from mergerepl.merge.partitions.filtered import FilteredPublication, filtered_publication
from mergerepl.merge.partitions.membership import (
    AFTER,
    BEFORE,
    WRITTEN,
    MembershipPass,
    base_rows,
    group_rows,
)
from mergerepl.merge.partitions.membership import Changed as ChangedRows
from mergerepl.merge.partitions.versions import with_metadata
from mergerepl.merge.stage.article import stage_article
from mergerepl.merge.stage.constraints import broken_rules
from mergerepl.merge.stage.decision import Changed, decided, resolved
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import CUSTOM, PRIORITY, RESOLVERS
from mergerepl.model.session_terms import SessionTerms, terms_of
from mergerepl.replica.runs import ArticleRuns
from mergerepl.replica.staged_rows import read_staged
from mergerepl.rows.images import image_type, same_image
from mergerepl.rows.lineage_value import agent_nickname, late_nickname
from mergerepl.spark.errors import cause_of
from mergerepl.spark.in_memory import Kept
from mergerepl.store.changeset import ArticleWork, Changeset, events_folder, new_folder, read_changeset
from mergerepl.store.location import Location
from mergerepl.systables.genhistory import Generation, GenStatus
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.partition_mappings import partition_events
from triggers.tracked_rows import KNOWN_COLUMNS
from triggers.window import CaptureWindow

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LateRound:
    """One side's late commits after the MERGEs of a session or of an earlier round, and the inputs to decide them.

    Mappings are by tablenick: `merged_versions` are those of our MERGEs' commits; `versions` those up to which every commit
    is captured or was written by the session. `info` is the replica's bookkeeping as of the staging. `last_generation` is
    the last one that the session uses here. The clock of `info` is that of the session up to here.
    """

    spark: SparkSession
    side: Side
    windows: Sequence[CaptureWindow]
    merged_versions: Mapping[int, int]
    versions: Mapping[int, int]
    info: ReplicaInfo
    priority: float
    client_subscription: bool
    last_generation: int

    @property
    def number(self) -> int:
        """The number of the round, from 1 on."""
        return self.side.changeset.manifest.round + 1

    @property
    def folder(self) -> Location:
        """The folder of its changeset."""
        return self.side.changeset.late_folder(self.side.name, self.number)

    def staged_rows(self, article: PublishedArticle) -> DataFrame:
        """Return RESOLVED of the rows that the side's last MERGE wrote."""
        staged = read_staged(self.spark, self.side.changeset.rows(article.nickname))
        return staged.where(F.col(self.side.action).isin([action.value for action in changes.DATA_ACTIONS]))


@dataclass
class StagedLate:
    """The staged articles of a late round so far, and its last generation.

    Late changes have the first version after `clock`, their resolutions the second.
    """

    last_generation: int
    clock: int
    works: list[ArticleWork] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    conflicts: dict[int, int] = field(default_factory=dict)

    def next_generation(self, article: PublishedArticle, side: Side) -> Generation:
        """Return the generation for the next changes of an article; `add` or a capture takes it."""
        return new_generation(
            article,
            number=self.last_generation + 1,
            nicknames=[side.work.nickname],
            status=GenStatus.CLOSED,
            maxversion=self.clock + 2,
        )

    def add(self, work: ArticleWork, generation: Generation, conflicts: int) -> None:
        """Add an article."""
        self.last_generation = max(self.last_generation, generation.generation)
        self.works.append(work)
        self.generations.append(generation)
        self.conflicts[work.nickname] = conflicts


def stage_late_round(late: LateRound) -> Changeset:
    """Stage the outcome of the late changes and our applied rows. A round that a dead run staged is reused."""
    if (staged := read_changeset(late.folder)) is not None:
        return staged
    new_folder(late.folder)
    side, before = late.side, late.side.changeset.manifest
    done = StagedLate(late.last_generation, late.info.clock)
    filtered = filtered_publication(side.replica, before.pubid)
    moving = filtered.tablenicks if filtered is not None else frozenset()
    if filtered is not None:
        _stage_filtered(late, done, filtered, [w for w in late.windows if w.article.nickname in moving])
    for window in late.windows:
        if window.article.nickname not in moving:
            _stage_unfiltered(late, done, window)
    own = replace(
        side.work,
        base_seq=side.work.seq,
        seq=side.work.seq + 1,
        last_generation=done.last_generation,
        generations=done.generations,
        articles=done.works,
        commits={},
    )
    manifest = replace(
        before,
        round=late.number,
        started=datetime.now(UTC).isoformat(),
        conflicts=done.conflicts,
        publisher=own if side.name == PUBLISHER else None,
        subscriber=own if side.name == SUBSCRIBER else None,
        upload_watermark=None,
        download_watermark=None,
        uploaded_guids=[],
        replicastate=str(uuid4()),
    )
    staged = Changeset(late.folder, manifest)
    staged.commit()
    return staged


def _stage_unfiltered(late: LateRound, done: StagedLate, window: CaptureWindow) -> None:
    article, side = window.article, late.side
    generation = done.next_generation(article, side)
    captured = _captured_late(late, window, generation)
    if captured.rows is None:
        return
    kept = Kept()
    try:
        result = stage_article(
            _late_rows(late, captured, kept),
            late.folder / str(article.nickname),
            article,
            from_versions=dict.fromkeys((PUBLISHER, SUBSCRIBER), late.merged_versions[article.nickname]),
        )
    finally:
        kept.release()
        captured.release()
    work = replace(result.works[side.name], is_filtered=side.work_on(article).is_filtered)
    done.add(work, replace(generation, changecount=captured.changes), result.conflicts)


def _stage_filtered(
    late: LateRound, done: StagedLate, publication: FilteredPublication, windows: Sequence[CaptureWindow]
) -> None:
    """Stage the users' late writes to filtered articles, and the rows that they move."""
    captured: dict[str, tuple[CapturedArticle, DataFrame]] = {}
    kept = Kept()
    try:
        for window in windows:
            generation = done.next_generation(window.article, late.side)
            found = _captured_late(late, window, generation, with_images=True)
            if found.rows is not None:
                done.last_generation = generation.generation
                captured[window.article.name] = found, kept.keep(_late_rows(late, found, kept))
        _stage_moves(late, done, publication, captured, kept)
    finally:
        kept.release()
        for found, _ in captured.values():
            found.release()


def _stage_moves(
    late: LateRound,
    done: StagedLate,
    publication: FilteredPublication,
    captured: Mapping[str, tuple[CapturedArticle, DataFrame]],
    kept: Kept,
) -> None:
    changed = {
        name: ChangedRows(_changed(late, *each, kept), each[0].changes) for name, each in captured.items()
    }
    base = base_rows(late.spark, late.side.replica, publication.articles, late.versions)
    pass_ = MembershipPass(publication, group_rows(late.spark, publication.groups), base, kept)
    memberships = pass_.run(changed)
    counts = event_counts(memberships, pass_.counts)
    for name, article in publication.articles.items():
        touched, events = counts.get(name, (0, 0))
        frames = [captured[name][1]] if name in captured else []
        generation = captured[name][0].generation if name in captured else None
        if generation is None:
            generation = done.next_generation(article, late.side)
        if touched:
            number = generation.generation
            frames.append(_touched(late, article, memberships[name], touched, kept, generation=number))
        if not frames:
            continue
        rows = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1], allowMissingColumns=True)
        versions = dict.fromkeys(changes.ACTION_OF, late.versions[article.nickname])
        staged = stage_article(rows, late.folder / str(article.nickname), article, from_versions=versions)
        if events:
            mappings = partition_events(memberships[name], generation=generation.generation)
            write_files(mappings, events_folder(late.folder, article.nickname))
        count = (captured[name][0].changes if name in captured else 0) + touched
        work = replace(staged.works[PUBLISHER], events=events)
        done.add(work, replace(generation, changecount=count), staged.conflicts)


def _captured_late(
    late: LateRound, window: CaptureWindow, generation: Generation, *, with_images: bool = False
) -> CapturedArticle:
    """Capture the users' late commits, with the lineage that the rows had before the session."""
    writer = late_nickname(late.side.work.nickname, late.number)
    captured = read_changes(
        late.spark,
        CaptureJob(late.side.replica, window, late.info, late.priority, generation, with_images=with_images),
        through_seq_inclusive=late.side.work.base_seq,
        writer=writer,
        known_meanwhile=_left_alone(late, window.article),
        is_late=True,
    )
    is_anew = window.article.nickname in late.side.changeset.manifest.void
    if captured.rows is None or not is_anew or late.side.name == PUBLISHER or late.number > 1:
        return captured
    return replace(captured, rows=_on_no_version(late, window.article, captured.rows, writer))


def _on_no_version(late: LateRound, article: PublishedArticle, rows: DataFrame, writer: int) -> DataFrame:
    """Return late changes of a reinitialised subscriber; those of rows that it wrote have the late entry alone.

    What they were based on is void: with its lineage they would count as knowing the row that was written.
    """
    is_written = late.staged_rows(article).select(ROWGUID, F.lit(True).alias("is_written"))
    own = {
        changes.LINEAGE: F.map_filter(changes.LINEAGE, lambda nickname, _: nickname == writer),
        changes.COLV1: F.map_filter(changes.COLV1, lambda _, entry: entry["nickname"] == writer),
    }
    found = rows.join(is_written, on=ROWGUID, how="left")
    return found.select(
        *(
            F.when(F.col("is_written"), own[name]).otherwise(F.col(name)).alias(name)
            if name in own
            else F.col(name)
            for name in rows.columns
        )
    )


def _left_alone(late: LateRound, article: PublishedArticle) -> DataFrame | None:
    """Return the changeset's versions of rows that it did not change: a late write follows them, it overwrote nothing.

    Returns: KNOWN_COLUMNS; None if it has no such rows.
    """
    work = late.side.work_on(article)
    if not work.actions.get(Action.METADATA.value):
        return None
    rows = recorded_rows(late.spark, late.side, work, actions=(Action.METADATA,))
    return rows.select(*KNOWN_COLUMNS)


def _late_rows(late: LateRound, captured: CapturedArticle, kept: Kept) -> DataFrame:
    """Return RESOLVED of the late changes against the rows we applied: the remaining changes of the table.

    If the article's resolver needs it, the rows have `base`, as captured.
    """
    article, side = captured.article, late.side
    assert captured.rows is not None
    assert captured.generation is not None
    generation = captured.generation.generation
    late_keys = captured.rows.select(changes.ROWGUID)
    # A row that left cannot conflict: the late write is inserted again, and the next session uploads it.
    decided_here = tuple(action for action in changes.DATA_ACTIONS if action is not Action.LEAVE)
    written = recorded_rows(late.spark, side, side.work_on(article), actions=decided_here)
    applied = written.join(late_keys, on=changes.ROWGUID, how="left_semi")
    # The publisher's position wins ties. From the second round on the applied row is this replica's earlier late write:
    # the later write takes the winning position.
    wins_ties = side.name == PUBLISHER or late.number > 1
    at_publisher, at_subscriber = (captured.rows, applied) if wins_ties else (applied, captured.rows)
    terms = SessionTerms(
        upload=True,
        download=True,
        resolver_nickname=agent_nickname(side.work.nickname),
        client_subscription=late.client_subscription and side.name == PUBLISHER,
        publisher_generations={generation: generation},
        subscriber_generations={generation: generation},
        # At a subscriber, a merged row keeps the priority of the late write until it is uploaded.
        unpublished=None if side.name == PUBLISHER else PUBLISHER if wins_ties else SUBSCRIBER,
    )
    in_table = _in_table(late, captured.rows, article)

    # A sum already includes an older state of the late value. From the second round on it belongs to no side.
    is_default = late.number > 1 or RESOLVERS[article.resolver].makes_value
    # The resolver's function may fail, but the session must finish.
    is_default = is_default or article.resolver == CUSTOM
    decided_as = replace(article, resolver=PRIORITY, resolver_info=None) if is_default else article

    def resolve(at_publisher: DataFrame, at_subscriber: DataFrame, *, whole_rows: bool = False) -> DataFrame:
        of_article = terms_of(
            decided_as,
            resolved_at_publisher=generation,
            resolved_at_subscriber=generation,
            whole_rows=whole_rows,
            floor=side.changeset.manifest.floor,
            clock=late.info.clock + 1,
            # A row that was inserted late.
            publisher_fresh_after=generation - 1,
            subscriber_fresh_after=generation - 1,
        )
        # A row that we applied without a late write is not compared.
        changed = Changed(decided_as, of_article, at_publisher, at_subscriber, rows=2 * captured.changes)
        return resolved(changed, decided([changed], terms, kept), terms)

    outcome = kept.keep(resolve(at_publisher, at_subscriber))
    if article.generated and not _is_computable(outcome, article):
        outcome = kept.keep(resolve(at_publisher, at_subscriber, whole_rows=True))
    acted = _acted_on(outcome, in_table, side, generation)
    broken = _not_taken(late, acted, article, kept)
    if broken is None:
        return _with_base(acted, captured.rows)
    # Both halves were in this table, but not together: each row becomes one side's whole row; the other's is logged.
    publishers, subscribers = (
        wanted.join(broken, on=changes.ROWGUID, how="left_semi") for wanted in (at_publisher, at_subscriber)
    )
    as_wholes = resolve(publishers, subscribers, whole_rows=True)
    others = acted.join(broken, on=changes.ROWGUID, how="left_anti")
    return _with_base(others.unionByName(_acted_on(as_wholes, in_table, side, generation)), captured.rows)


def _with_base(rows: DataFrame, captured: DataFrame) -> DataFrame:
    if changes.BASE not in captured.columns:
        return rows
    return rows.join(captured.select(changes.ROWGUID, changes.BASE), on=changes.ROWGUID, how="left")


def _is_computable(outcome: DataFrame, article: PublishedArticle) -> bool:
    """True if Delta can compute the generated columns of merged rows: both halves together may overflow.

    Each half is already in the table, and the session must finish.
    """
    try:
        outcome.count()
    except (PySparkException, Py4JJavaError) as error:
        log.warning("%s: late changes are not merged by columns: %s", article.name, cause_of(error))
        return False
    return True


def _not_taken(late: LateRound, acted: DataFrame, article: PublishedArticle, kept: Kept) -> DataFrame | None:
    """Return the rowguids of rows that the table would refuse; None if it takes all.

    Returns all of them if a rule cannot be computed, as for an overflow in a CHECK: the error does not name the row.
    """
    facts = open_table(late.side.replica.table(article))
    written = acted.where(F.col(late.side.action).isin(Action.INSERT.value, Action.UPDATE.value))
    refused = broken_rules(late.spark, written, facts, article)
    if refused is None:
        return None
    try:
        found = kept.keep(refused.select(changes.ROWGUID))
        # Computed for every row: Spark would stop at the first one, and a later one may fail.
        return found if found.count() else None
    except (PySparkException, Py4JJavaError) as error:
        log.warning("%s: late changes are not merged by columns: %s", article.name, cause_of(error))
        return kept.keep(written.select(changes.ROWGUID))


def _in_table(late: LateRound, rows: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return the late rows as the table has them now: as our MERGE wrote them, or else as the user left them.

    If the changeset has only metadata of a row, we did not write it, so the user's late write stands.

    Returns: rowguid, held_deleted, held_row.
    """
    written = late.staged_rows(article).select(
        changes.ROWGUID,
        F.struct(
            (F.col(changes.DELETED) | (F.col(late.side.action) == Action.LEAVE.value)).alias(changes.DELETED),
            changes.ROW,
        ).alias("written"),
    )
    held = rows.select(changes.ROWGUID, F.struct(changes.DELETED, changes.ROW).alias("left")).join(
        written, on=changes.ROWGUID, how="left"
    )
    held_now = F.coalesce("written", "left")
    return held.select(
        changes.ROWGUID,
        held_now[changes.DELETED].alias("held_deleted"),
        held_now[changes.ROW].alias("held_row"),
    )


def _acted_on(resolved: DataFrame, in_table: DataFrame, side: Side, generation: int) -> DataFrame:
    """Set the action of this side by comparing the final state with the table."""
    joined = resolved.join(in_table, on=changes.ROWGUID, how="left")
    same = same_image(changes.ROW, "held_row", image_type(joined, changes.ROW))
    action = (
        F.when(F.col(changes.DELETED) & F.col("held_deleted"), Action.METADATA.value)
        .when(F.col(changes.DELETED), Action.DELETE.value)
        .when(F.col("held_deleted"), Action.INSERT.value)
        .when(same, Action.METADATA.value)
        .otherwise(Action.UPDATE.value)
    )
    other_action = changes.ACTION_OF[changes.OTHER_SIDE[side.name]]
    acted = joined.withColumns(
        {
            side.action: action,
            side.generation: F.lit(generation).cast("bigint"),
            other_action: F.lit(None).cast("string"),
        }
    )
    return acted.select(*changes.RESOLVED_COLUMNS)


def _changed(late: LateRound, captured: CapturedArticle, acted: DataFrame, kept: Kept) -> DataFrame:
    """Return CHANGED of late rows: after the previous pass and after this one."""
    assert captured.images is not None
    staged = late.staged_rows(captured.article).select(
        ROWGUID, F.struct(F.when(~F.col(DELETED), F.col(ROW)).alias(ROW)).alias("staged")
    )
    before = captured.images.select(ROWGUID, BEFORE).join(staged, on=ROWGUID, how="left")
    before = before.select(
        ROWGUID,
        F.when(F.col("staged").isNotNull(), F.col(f"staged.{ROW}")).otherwise(F.col(BEFORE)).alias(BEFORE),
    )
    after = acted.select(
        ROWGUID, F.when(~F.col(DELETED), F.col(ROW)).alias(AFTER), F.lit(True).alias(WRITTEN)
    )
    return kept.keep(after.join(before, on=ROWGUID, how="left").select(ROWGUID, BEFORE, AFTER, WRITTEN))


def _touched(
    late: LateRound,
    article: PublishedArticle,
    memberships: DataFrame,
    count: int,
    kept: Kept,
    *,
    generation: int,
) -> DataFrame:
    """Return RESOLVED of unchanged rows that late writes move in a generation.

    The publisher records their metadata as it is.
    """
    runs = ArticleRuns.of(late.spark, late.side.replica, article, late.side.work.seq)
    known = with_metadata(runs, touched_rows(memberships), count=count, kept=kept)
    nothing = F.lit(None)
    values = {
        changes.VERDICT: F.lit(Verdict.KNOWN.value),
        changes.ACTION_OF[PUBLISHER]: F.lit(Action.METADATA.value),
        changes.GENERATION_OF[PUBLISHER]: F.col(GENERATION),
        PARTCHANGEGEN: F.lit(generation).cast("bigint"),
        changes.SUBSCRIBER_ACTION: nothing.cast("string"),
        changes.SUBSCRIBER_GENERATION: nothing.cast("bigint"),
        **no_conflict(known.schema),
    }
    return known.withColumns(values).select(*changes.RESOLVED_COLUMNS)
