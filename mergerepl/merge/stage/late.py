"""Late capture: user commits that landed between our capture and our MERGE (design section 7.5).

Our MERGE reads the table at its start, so it may overwrite a user's write that landed just before. The feed keeps the
overwritten row. Such changes are concurrent with ours: they are captured with the lineage the row had before, detected,
resolved and logged like any other conflict, in a changeset of their own that only this side carries out.

At a publisher with row filters, late writes move rows, and the rows that follow them. That pass starts from the end of the
session's pass: from the rows as they were staged, or as they were captured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

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
from mergerepl.delta.tables import write_files
from mergerepl.frames import DataFrame, F
from mergerepl.merge.apply.side import recorded_rows
from mergerepl.merge.capture.capture import CapturedArticle, CaptureJob, read_changes
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
from mergerepl.merge.stage.late_round import LateRound, StagedLate
from mergerepl.merge.stage.late_rows import late_rows
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.expiry import present
from mergerepl.replica.runs import ArticleRuns
from mergerepl.rows.lineage_value import late_nickname
from mergerepl.spark.in_memory import Kept
from mergerepl.store.changeset import Changeset, events_folder, new_folder, read_changeset
from mergerepl.systables.genhistory import Generation
from triggers.partition_mappings import partition_events
from triggers.tracked_rows import KNOWN_COLUMNS
from triggers.window import CaptureWindow


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
        started=present(late.info).isoformat(),
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
            late_rows(late, captured, kept),
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
                captured[window.article.name] = found, kept.keep(late_rows(late, found, kept))
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
