"""`mergerepl capture`: the users' changes of one replica, recorded without a session.

Run it before change files are vacuumed. A session that died is rolled forward first: its commits and the numbers of its
runs are already planned. The generations stay open; the next session closes and sends them.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from enumeration.horizon import clock_of
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.merge.capture.windows import article_window, last_sent, move_versions
from mergerepl.merge.session.own_side import held_with_publishers
from mergerepl.model.progress import Progress
from mergerepl.model.results import ArticleCapture, CaptureResult
from mergerepl.replica.damage import refuse_older_bookkeeping
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.subscription import own_priorities, refuse_copies
from mergerepl.store.changeset import staged_folders
from mergerepl.store.location import Location
from mergerepl.systables.replinfo import ReplicaInfo
from mergerepl.tracking.sweep import sweep_root
from triggers.window import CaptureWindow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mergerepl.merge.capture.capture import CapturedArticle

log = logging.getLogger(__name__)

SparkSource = Callable[[], "SparkSession"]


def capture_replica(root: Location, *, progress: Progress) -> CaptureResult:
    """Capture all articles of one replica and return the new changes.

    Raises: ConfigurationError if the folder is not a replica; CaptureError, SchemaMismatchError (nothing was captured);
    LeaseError, OutOfReachError (run again).
    """
    replica = Replica(root).require()
    replica.require_tables()
    refuse_copies(replica)
    with held_with_publishers(replica, "mergerepl capture") as publishers:
        sweep_root(replica.root)
        return _capture(replica, publishers, _embedded_spark, progress)


def capture_held(replica: Replica, pubid: str, *, progress: Progress) -> CaptureResult:
    """Capture one publication of a publisher whose lease the caller holds.

    `apply` does so before it initialises a subscriber. Problems of another publication's tables do not matter.

    Raises: CaptureError, SchemaMismatchError (nothing was captured).
    """
    return _capture(replica, [], _embedded_spark, progress, only=pubid)


def _embedded_spark() -> "SparkSession":
    from mergerepl.spark import session as engine

    return engine.session()


def _capture(
    replica: Replica,
    publishers: Sequence[Replica],
    spark_of: SparkSource,
    progress: Progress,
    *,
    only: str | None = None,
) -> CaptureResult:
    source = recording_jvm(spark_of, (replica, *publishers))
    for each in (replica, *publishers):
        each.require_unedited()
    if publishers or _has_staged(replica):
        from mergerepl.spark.plain import plain_errors

        with plain_errors(f"finishing the sessions of '{replica.root}' that were interrupted"):
            _recover(replica, publishers, source, progress)
    info = replica.info()
    relations = replica.relations()
    refuse_older_bookkeeping(replica.root, info, relations)
    info = replace(info, clock=clock_of(info, relations))
    priorities = {pubid: own for pubid, own in own_priorities(replica).items() if only in (None, pubid)}
    windows = [
        article_window(replica, article, info)
        for article in replica.articles
        if article.pubid in priorities and article.nickname in info.captured
    ]
    if not any(window.has_changes for window in windows):
        move_versions(replica, info, windows)
        return CaptureResult(str(replica.root), tuple(_article_capture(window) for window in windows))
    from mergerepl.spark.plain import plain_errors

    with plain_errors(f"capturing '{replica.root}'"):
        captured = _captured(replica, info, priorities, windows, source, progress)
    return CaptureResult(str(replica.root), captured)


def _has_staged(replica: Replica) -> bool:
    return bool(staged_folders(replica.staging))


def _recover(
    replica: Replica, publishers: Sequence[Replica], spark_of: SparkSource, progress: Progress
) -> None:
    """Roll dead sessions forward: a publisher's at its own side, a subscriber's with the publisher."""
    from mergerepl.merge.session.recovery import recover

    progress.step("recover")
    for publisher in publishers:
        recover(publisher, replica, spark_of)
    if _has_staged(replica):
        # No subscriber is leased here: each session is finished at the publisher's side only.
        recover(replica, replica, spark_of)


def _captured(
    replica: Replica,
    info: ReplicaInfo,
    priorities: dict[str, float],
    windows: Sequence[CaptureWindow],
    spark_of: SparkSource,
    progress: Progress,
) -> tuple[ArticleCapture, ...]:
    from mergerepl.merge.capture.capture import (
        CaptureJob,
        commit_changes,
        open_generations,
        read_changes,
        remove_leftovers,
    )
    from mergerepl.merge.capture.partitions import Capturing, filtered_publications, with_memberships
    from mergerepl.spark import session as engine

    spark = spark_of()
    if all(window.is_small for window in windows):
        spark = engine.interpreting(spark)
    remove_leftovers(lambda: spark, replica, info)
    genhistory = replica.genhistory(from_generation_exclusive=last_sent(replica, priorities))
    captured: list[CapturedArticle] = []
    filtered = filtered_publications(replica, list(priorities))
    images_of = {publication.pubid for publication in filtered}
    try:
        for window, generation in zip(windows, open_generations(genhistory, windows, info), strict=True):
            progress.step("capture", article=window.article.name)
            priority = priorities[window.article.pubid]
            with_images = window.article.pubid in images_of
            job = CaptureJob(replica, window, info, priority, generation, with_images=with_images)
            captured.append(read_changes(spark, job))
        at = Capturing(replica, genhistory, info, EngineChoice(uses_arrow=False, spark_of=lambda: spark))
        captured = list(with_memberships(at, filtered, captured))
        commit_changes(replica, captured, genhistory, info)
    finally:
        for item in captured:
            item.release()
    return tuple(
        _article_capture(item.window, inserts=item.inserts, updates=item.updates, deletes=item.deletes)
        for item in captured
    )


def _article_capture(
    window: CaptureWindow, *, inserts: int = 0, updates: int = 0, deletes: int = 0
) -> ArticleCapture:
    return ArticleCapture(
        window.article.name,
        inserts,
        updates,
        deletes,
        window.from_version_exclusive,
        window.through_version_inclusive,
    )
