"""Late capture: user commits that landed between our capture and our MERGE (design section 7.5).

Our MERGE reads the table at its start, so it may overwrite a user's write that landed just before. The feed keeps the
overwritten row. Such changes are concurrent with ours: they are captured with the lineage the row had before, detected,
resolved and logged like any other conflict, in a changeset of their own that only this side carries out.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl import changes
from mergerepl.changes import PUBLISHER, SUBSCRIBER, Action
from mergerepl.delta.tables import open_table, read_version
from mergerepl.merge.apply.side import Side, recorded_rows
from mergerepl.merge.capture.capture import CapturedArticle, CaptureJob, read_changes
from mergerepl.merge.capture.windows import article_window
from mergerepl.merge.partitions.filtered import filtered_publication
from mergerepl.merge.stage.article import stage_article
from mergerepl.merge.stage.constraints import broken_rules
from mergerepl.merge.stage.decision import Changed, decided, resolved
from mergerepl.merge.stage.late_partitioned import LateSession, StagedLate, stage_late_partitioned
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import CUSTOM, PRIORITY, RESOLVERS
from mergerepl.model.session_terms import SessionTerms, terms_of
from mergerepl.replica.staged_rows import read_staged
from mergerepl.rows.images import image_type, same_image
from mergerepl.rows.lineage_value import agent_nickname, late_nickname
from mergerepl.spark.errors import cause_of
from mergerepl.spark.in_memory import Kept
from mergerepl.store.changeset import ArticleWork, Changeset, Manifest, new_folder, read_changeset
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.tracked_rows import KNOWN_COLUMNS
from triggers.window import CaptureWindow

log = logging.getLogger(__name__)


def late_windows(side: Side, merged_versions: dict[int, int], info: ReplicaInfo) -> list[CaptureWindow]:
    """Return, per article we merged, the window of user commits before our commit that we had not captured.

    The works of `side` have the version from which each article was captured; `merged_versions` maps a tablenick to the
    version of our commit; `info` is the replica's bookkeeping as of the staging.
    """
    windows = []
    for work in side.work.articles:
        if work.nickname in merged_versions:
            as_staged = replace(info, captured={work.nickname: work.from_version})
            window = article_window(
                side.replica,
                side.articles[work.nickname],
                as_staged,
                through_version_inclusive=merged_versions[work.nickname] - 1,
                is_late=True,
            )
            if window.has_changes:
                windows.append(window)
    return windows


def stage_late_round(
    spark: SparkSession,
    changeset: Changeset,
    side: Side,
    windows: list[CaptureWindow],
    merged_versions: dict[int, int],
    info: ReplicaInfo,
    *,
    priority: float,
    client_subscription: bool,
    run_seq: int,
    last_generation: int,
    versions: Mapping[int, int],
) -> tuple[Changeset, int]:
    """Stage the outcome of the late changes and our applied rows.

    A round that a dead run staged is reused. `versions` are those of the replica's tables (by tablenick) up to which
    every commit is captured or was written by the session.

    Returns: the round's changeset and the number of its late changes.
    """
    number = changeset.manifest.round + 1
    folder = changeset.late_folder(side.name, number)
    staged = read_changeset(folder)
    if staged is not None:
        return staged, sum(work.live + work.deleted for work in staged.work_of(side.name).articles)
    new_folder(folder)
    late = StagedLate(last_generation)
    filtered = filtered_publication(side.replica, changeset.manifest.pubid)
    capture = partial(_captured_late, spark, changeset, side, info, priority, number)
    if filtered is not None:
        of_filtered = [window for window in windows if window.article.nickname in filtered.tablenicks]
        windows = [window for window in windows if window not in of_filtered]
        stage_late_partitioned(
            LateSession(spark, changeset, side, filtered, folder, versions),
            late,
            windows=of_filtered,
            capture=capture,
            rows=partial(_late_rows, spark, changeset, side, client_subscription=client_subscription),
        )
    for window in windows:
        article = window.article
        generation = late.next_generation(article, side)
        captured = capture(window, generation)
        if captured.rows is None:
            continue
        kept = Kept()
        try:
            result = stage_article(
                _late_rows(spark, changeset, side, captured, kept, client_subscription=client_subscription),
                folder / str(article.nickname),
                article,
                from_versions=dict.fromkeys((PUBLISHER, SUBSCRIBER), merged_versions[article.nickname]),
            )
        finally:
            kept.release()
            captured.release()
        work = result.publisher if side.name == PUBLISHER else result.subscriber
        is_filtered = _work_of(side, article).is_filtered
        late.add(
            replace(work, is_filtered=is_filtered),
            replace(generation, changecount=captured.changes),
            result.conflicts,
        )
    before = changeset.manifest
    own = replace(
        side.work,
        base_seq=side.work.seq,
        seq=run_seq,
        last_generation=late.last_generation,
        generations=late.generations,
        articles=late.works,
        commits={},
    )
    manifest = Manifest(
        session=before.session,
        number=before.number,
        round=number,
        publication=before.publication,
        pubid=before.pubid,
        subid=before.subid,
        upload=before.upload,
        download=before.download,
        started=datetime.now(UTC).isoformat(),
        conflict_logging=before.conflict_logging,
        conflicts=late.conflicts,
        publisher=own if side.name == PUBLISHER else None,
        subscriber=own if side.name == SUBSCRIBER else None,
        replicastate=str(uuid4()),
    )
    staged = Changeset(folder, manifest)
    staged.commit()
    return staged, sum(work.live + work.deleted for work in late.works)


def _captured_late(
    spark: SparkSession,
    changeset: Changeset,
    side: Side,
    info: ReplicaInfo,
    priority: float,
    number: int,
    window: CaptureWindow,
    generation: Generation,
    *,
    with_images: bool = False,
) -> CapturedArticle:
    """Capture the users' late commits, with the lineage that the rows had before the session."""
    return read_changes(
        spark,
        CaptureJob(side.replica, window, info, priority, generation, with_images=with_images),
        through_seq_inclusive=side.work.base_seq,
        writer=late_nickname(side.work.nickname, number),
        known_meanwhile=_left_alone(spark, changeset, side, window.article),
    )


def _work_of(side: Side, article: PublishedArticle) -> ArticleWork:
    return next(work for work in side.work.articles if work.nickname == article.nickname)


def _left_alone(
    spark: SparkSession, changeset: Changeset, side: Side, article: PublishedArticle
) -> DataFrame | None:
    """Return the changeset's versions of rows that it did not change: a late write follows them, it overwrote nothing.

    Returns: KNOWN_COLUMNS; None if it has no such rows.
    """
    work = _work_of(side, article)
    if not work.actions.get(Action.METADATA.value):
        return None
    rows = recorded_rows(spark, changeset, side, work, actions=(Action.METADATA,))
    return rows.select(*KNOWN_COLUMNS)


def _late_rows(
    spark: SparkSession,
    changeset: Changeset,
    side: Side,
    captured: CapturedArticle,
    kept: Kept,
    *,
    client_subscription: bool,
) -> DataFrame:
    """Return RESOLVED of the late changes against the rows we applied: the remaining changes of the table.

    If the article's resolver needs it, the rows have `base`, as captured.
    """
    article = captured.article
    assert captured.rows is not None
    assert captured.generation is not None
    generation = captured.generation.generation
    late_keys = captured.rows.select(changes.ROWGUID)
    # A row that left cannot conflict: the late write is inserted again, and the next session uploads it.
    decided_here = tuple(action for action in changes.DATA_ACTIONS if action is not Action.LEAVE)
    written = recorded_rows(spark, changeset, side, _work_of(side, article), actions=decided_here)
    applied = written.join(late_keys, on=changes.ROWGUID, how="left_semi")
    # The publisher's position wins ties. From the second round on the applied row is this replica's earlier late write:
    # the later write takes the winning position.
    wins_ties = side.name == PUBLISHER or changeset.manifest.round > 0
    at_publisher, at_subscriber = (captured.rows, applied) if wins_ties else (applied, captured.rows)
    terms = SessionTerms(
        upload=True,
        download=True,
        resolver_nickname=agent_nickname(side.work.nickname),
        client_subscription=client_subscription and side.name == PUBLISHER,
        publisher_generations={generation: generation},
        subscriber_generations={generation: generation},
        # At a subscriber, a merged row keeps the priority of the late write until it is uploaded.
        unpublished=None if side.name == PUBLISHER else PUBLISHER if wins_ties else SUBSCRIBER,
    )
    in_table = _in_table(spark, changeset, side, captured.rows, article)

    # A sum already includes an older state of the late value. From the second round on it belongs to no side.
    is_default = changeset.manifest.round > 0 or RESOLVERS[article.resolver].makes_value
    # The resolver's function may fail, but the session must finish.
    is_default = is_default or article.resolver == CUSTOM
    decided_as = replace(article, resolver=PRIORITY, resolver_info=None) if is_default else article

    def resolve(at_publisher: DataFrame, at_subscriber: DataFrame, *, whole_rows: bool = False) -> DataFrame:
        of_article = terms_of(
            decided_as,
            resolved_at_publisher=generation,
            resolved_at_subscriber=generation,
            whole_rows=whole_rows,
        )
        # A row that we applied without a late write is not compared.
        changed = Changed(decided_as, of_article, at_publisher, at_subscriber, rows=2 * captured.changes)
        return resolved(changed, decided([changed], terms, kept), terms)

    outcome = kept.keep(resolve(at_publisher, at_subscriber))
    if article.generated and not _is_computable(outcome, article):
        outcome = kept.keep(resolve(at_publisher, at_subscriber, whole_rows=True))
    acted = _acted_on(outcome, in_table, side, generation)
    broken = _not_taken(spark, acted, side, article, kept)
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


def _not_taken(
    spark: SparkSession, acted: DataFrame, side: Side, article: PublishedArticle, kept: Kept
) -> DataFrame | None:
    """Return the rowguids of rows that the table would refuse; None if it takes all.

    Returns all of them if a rule cannot be computed, as for an overflow in a CHECK: the error does not name the row.
    """
    facts = open_table(side.replica.table(article))
    written = acted.where(F.col(side.action).isin(Action.INSERT.value, Action.UPDATE.value))
    held = partial(read_version, spark, facts.path, facts.version)
    refused = broken_rules(written, facts, article, held=held)
    if refused is None:
        return None
    try:
        found = kept.keep(refused.select(changes.ROWGUID))
        # Computed for every row: Spark would stop at the first one, and a later one may fail.
        return found if found.count() else None
    except (PySparkException, Py4JJavaError) as error:
        log.warning("%s: late changes are not merged by columns: %s", article.name, cause_of(error))
        return kept.keep(written.select(changes.ROWGUID))


def _in_table(
    spark: SparkSession, changeset: Changeset, side: Side, late: DataFrame, article: PublishedArticle
) -> DataFrame:
    """Return the late rows as the table has them now: as our MERGE wrote them, or else as the user left them.

    If the changeset has only metadata of a row, we did not write it, so the user's late write stands.

    Returns: rowguid, held_deleted, held_row.
    """
    staged = read_staged(spark, changeset.rows(article.nickname))
    written = staged.where(F.col(side.action).isin([action.value for action in changes.DATA_ACTIONS])).select(
        changes.ROWGUID,
        F.struct(
            (F.col(changes.DELETED) | (F.col(side.action) == Action.LEAVE.value)).alias(changes.DELETED),
            changes.ROW,
        ).alias("written"),
    )
    held = late.select(changes.ROWGUID, F.struct(changes.DELETED, changes.ROW).alias("left")).join(
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
