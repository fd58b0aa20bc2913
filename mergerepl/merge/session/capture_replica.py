"""`mergerepl capture`: the users' changes of one replica, recorded without a session.

Run it before change files are vacuumed. A session that died is rolled forward first: its commits and the numbers of its
runs are already planned. The generations stay open; the next session closes and sends them.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from enumeration.horizon import clock_of
from mergerepl.delta.engine_choice import embedded_spark
from mergerepl.merge.capture.record import Recorder
from mergerepl.merge.capture.windows import article_window
from mergerepl.merge.schema.follow import follow_columns
from mergerepl.merge.session.own_side import held_with_publishers
from mergerepl.model.progress import Progress
from mergerepl.model.results import ArticleCapture, CaptureResult, PhaseCounts
from mergerepl.replica.damage import refuse_older_bookkeeping
from mergerepl.replica.replica import Replica, recording_jvm
from mergerepl.replica.subscription import own_priorities, refuse_copies
from mergerepl.store.changeset import staged_folders
from mergerepl.store.location import Location
from mergerepl.tracking.sweep import sweep_root
from triggers.window import CaptureWindow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        return _capture(replica, publishers, embedded_spark, progress, in_process=True)


def capture_held(
    replica: Replica,
    pubid: str,
    *,
    progress: Progress,
    spark_of: SparkSource | None = None,
    in_process: bool = False,
) -> CaptureResult:
    """Capture one publication of a publisher whose lease the caller holds.

    `apply` does so before it initialises a subscriber, a session before it moves one to another partition. Problems of
    another publication's tables do not matter.

    Raises: CaptureError, SchemaMismatchError (nothing was captured).
    """
    return _capture(replica, [], spark_of or embedded_spark, progress, only=pubid, in_process=in_process)


def _capture(
    replica: Replica,
    publishers: Sequence[Replica],
    spark_of: SparkSource,
    progress: Progress,
    *,
    only: str | None = None,
    in_process: bool = False,
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
    recorder = Recorder(replica, priorities, source, progress, in_process)
    chosen = [a.nickname for a in replica.articles if a.pubid in priorities and a.nickname in info.captured]
    followed = follow_columns(recorder, chosen)
    if followed:
        replica = replica.reread()
        info = replica.info()
        info = replace(info, clock=clock_of(info, relations))
    windows = [article_window(replica, a, info) for a in replica.articles if a.nickname in chosen]
    if in_process and any(window.has_changes for window in windows):
        from mergerepl.merge.capture.partitions import filtered_publications
        from mergerepl.merge.session.choice import captures_in_process

        in_process = captures_in_process(windows, filtered_publications(replica, list(priorities)))
    recorded = replace(recorder, replica=replica, in_process=in_process).record(info, windows)
    counts = [
        _article_capture(window, rows + followed.get(window.article.nickname, PhaseCounts()))
        for window, rows in zip(windows, recorded, strict=True)
    ]
    return CaptureResult(str(replica.root), tuple(counts))


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


def _article_capture(window: CaptureWindow, rows: PhaseCounts) -> ArticleCapture:
    return ArticleCapture(
        window.article.name,
        rows.inserts,
        rows.updates,
        rows.deletes,
        window.from_version_exclusive,
        window.through_version_inclusive,
    )
