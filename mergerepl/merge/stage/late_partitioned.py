"""A late round of a publisher with row filters: late writes move rows, and the rows that follow them.

The pass starts from the end of the session's pass: from the rows as they were staged, or as they were captured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from enumeration.get_metadata import no_conflict
from mergerepl import changes
from mergerepl.changes import DELETED, GENERATION, PUBLISHER, ROW, ROWGUID, Action, Verdict
from mergerepl.delta.tables import write_files
from mergerepl.merge.apply.side import Side
from mergerepl.merge.capture.capture import CapturedArticle, new_generation
from mergerepl.merge.capture.partitions import event_counts, touched_rows
from mergerepl.merge.partitions.filtered import FilteredPublication
from mergerepl.merge.partitions.membership import (
    AFTER,
    BEFORE,
    WRITTEN,
    Changed,
    MembershipPass,
    base_rows,
    group_rows,
)
from mergerepl.merge.partitions.versions import with_metadata
from mergerepl.merge.stage.article import StagedArticle, stage_article
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.staged_rows import read_staged
from mergerepl.spark.in_memory import Kept
from mergerepl.store.changeset import ArticleWork, Changeset, events_folder
from mergerepl.store.location import Location
from mergerepl.systables.genhistory import Generation, GenStatus
from triggers.partition_mappings import partition_events
from triggers.window import CaptureWindow

Capture = Callable[..., CapturedArticle]
"""Captures a window as changes of a generation."""

LateRows = Callable[..., DataFrame]
"""Returns RESOLVED of the late changes of one article."""


@dataclass(frozen=True)
class LateSession:
    """The inputs of the steps of a late round.

    `versions` are those of the publisher's tables, by tablenick, as in `stage_late_round`.
    """

    spark: SparkSession
    changeset: Changeset
    side: Side
    publication: FilteredPublication
    folder: Location
    versions: Mapping[int, int]
    kept: Kept = field(default_factory=Kept)


@dataclass
class StagedLate:
    """The staged articles of a late round so far, and its last generation."""

    last_generation: int
    works: list[ArticleWork] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    conflicts: dict[int, int] = field(default_factory=dict)

    def next_generation(self, article: PublishedArticle, side: Side) -> Generation:
        """Return the generation for the next changes of an article; `add` or a capture takes it."""
        return new_generation(
            article, number=self.last_generation + 1, nicknames=[side.work.nickname], status=GenStatus.CLOSED
        )

    def add(self, work: ArticleWork, generation: Generation, conflicts: int) -> None:
        """Add an article."""
        self.last_generation = max(self.last_generation, generation.generation)
        self.works.append(work)
        self.generations.append(generation)
        self.conflicts[work.nickname] = conflicts


def stage_late_partitioned(
    session: LateSession,
    late: StagedLate,
    *,
    windows: Sequence[CaptureWindow],
    capture: Capture,
    rows: LateRows,
) -> None:
    """Stage the users' late writes to filtered articles, and the rows that they move."""
    captured: dict[str, tuple[CapturedArticle, DataFrame]] = {}
    try:
        for window in windows:
            generation = late.next_generation(window.article, session.side)
            found = capture(window, generation, with_images=True)
            if found.rows is not None:
                late.last_generation = generation.generation
                acted = session.kept.keep(rows(found, session.kept))
                captured[window.article.name] = found, acted
        _stage(session, late, captured)
    finally:
        session.kept.release()
        for found, _ in captured.values():
            found.release()


def _stage(
    session: LateSession, late: StagedLate, captured: Mapping[str, tuple[CapturedArticle, DataFrame]]
) -> None:
    changed = {name: Changed(_changed(session, *each), each[0].changes) for name, each in captured.items()}
    base = base_rows(session.spark, session.side.replica, session.publication.articles, session.versions)
    groups = group_rows(session.spark, session.publication.groups)
    pass_ = MembershipPass(session.publication, groups, base, session.kept)
    memberships = pass_.run(changed)
    counts = event_counts(memberships, pass_.counts)
    for name, article in session.publication.articles.items():
        touched, events = counts.get(name, (0, 0))
        frames = [captured[name][1]] if name in captured else []
        if touched:
            frames.append(_touched(session, article, memberships[name], touched))
        if not frames:
            continue
        generation = captured[name][0].generation if name in captured else None
        if generation is None:
            generation = late.next_generation(article, session.side)
        staged = _staged(session, article, frames)
        if events:
            mappings = partition_events(memberships[name], generation=generation.generation)
            write_files(mappings, events_folder(session.folder, article.nickname))
        count = (captured[name][0].changes if name in captured else 0) + touched
        work = replace(staged.publisher, events=events)
        late.add(work, replace(generation, changecount=count), staged.conflicts)


def _staged(session: LateSession, article: PublishedArticle, frames: Sequence[DataFrame]) -> StagedArticle:
    rows = frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1], allowMissingColumns=True)
    version = session.versions[article.nickname]
    folder = session.folder / str(article.nickname)
    return stage_article(rows, folder, article, from_versions=dict.fromkeys(changes.ACTION_OF, version))


def _changed(session: LateSession, captured: CapturedArticle, acted: DataFrame) -> DataFrame:
    """Return CHANGED of late rows: after the previous pass and after this one."""
    assert captured.images is not None
    action = F.col(session.side.action)
    written = read_staged(session.spark, session.changeset.rows(captured.article.nickname)).where(
        action.isin([each.value for each in changes.DATA_ACTIONS])
    )
    staged = written.select(ROWGUID, F.struct(F.when(~F.col(DELETED), F.col(ROW)).alias(ROW)).alias("staged"))
    before = captured.images.select(ROWGUID, BEFORE).join(staged, on=ROWGUID, how="left")
    before = before.select(
        ROWGUID,
        F.when(F.col("staged").isNotNull(), F.col(f"staged.{ROW}")).otherwise(F.col(BEFORE)).alias(BEFORE),
    )
    after = acted.select(
        ROWGUID, F.when(~F.col(DELETED), F.col(ROW)).alias(AFTER), F.lit(True).alias(WRITTEN)
    )
    return session.kept.keep(
        after.join(before, on=ROWGUID, how="left").select(ROWGUID, BEFORE, AFTER, WRITTEN)
    )


def _touched(
    session: LateSession, article: PublishedArticle, memberships: DataFrame, count: int
) -> DataFrame:
    """Return RESOLVED of unchanged rows that late writes move: the publisher records their metadata as it is."""
    known = with_metadata(
        session.spark,
        session.side.replica,
        article,
        touched_rows(memberships),
        count=count,
        through_seq_inclusive=session.side.work.seq,
        kept=session.kept,
    )
    nothing = F.lit(None)
    values = {
        changes.VERDICT: F.lit(Verdict.KNOWN.value),
        changes.ACTION_OF[PUBLISHER]: F.lit(Action.METADATA.value),
        changes.GENERATION_OF[PUBLISHER]: F.col(GENERATION),
        changes.SUBSCRIBER_ACTION: nothing.cast("string"),
        changes.SUBSCRIBER_GENERATION: nothing.cast("bigint"),
        **no_conflict(known.schema),
    }
    return known.withColumns(values).select(*changes.RESOLVED_COLUMNS)
