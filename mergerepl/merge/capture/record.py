"""Record windows of one replica's tables without a session: for `mergerepl capture`, and where columns changed.

The generations stay open; the next session closes and sends them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mergerepl.delta.engine_choice import EngineChoice, NeedsSparkError
from mergerepl.merge.capture.windows import last_sent
from mergerepl.model.progress import Progress
from mergerepl.model.results import PhaseCounts
from mergerepl.replica.replica import Replica
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.window import CaptureWindow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Recorder:
    """A held replica whose windows are recorded; `priorities` are its own, by publication.

    `in_process`: few rows of one segment are captured in this process, without Spark.
    """

    replica: Replica
    priorities: Mapping[str, float]
    spark_of: "Callable[[], SparkSession]"
    progress: Progress
    in_process: bool = False

    def record(self, info: ReplicaInfo, windows: Sequence[CaptureWindow]) -> list[PhaseCounts]:
        """Capture windows and commit them with `info`, which may have more news; return the rows of each.

        Raises: as a capture.
        """
        if not any(window.has_changes for window in windows):
            moved = {window.article.nickname: window.through_version_inclusive for window in windows}
            known = self.replica.info()
            after = replace(
                known,
                captured={**info.captured, **moved},
                article_versions=info.article_versions,
                table_ids=info.table_ids,
            )
            if after != known:
                self.replica.save_info(after)
            return [PhaseCounts() for _ in windows]
        from mergerepl.spark.plain import plain_errors

        with plain_errors(f"capturing '{self.replica.root}'"):
            if self.in_process and all(_is_plain(window) for window in windows):
                choice = EngineChoice(uses_arrow=True, in_process=True, spark_of=self.spark_of)
                try:
                    with choice.rules():
                        return self._record(info, windows, choice)
                except NeedsSparkError:
                    # Nothing was recorded.
                    pass
            return self._record(info, windows, self._on_spark(windows))

    def _on_spark(self, windows: Sequence[CaptureWindow]) -> EngineChoice:
        from mergerepl.spark import session as engine

        spark = self.spark_of()
        if all(window.is_small for window in windows):
            spark = engine.interpreting(spark)
        return EngineChoice(uses_arrow=False, spark_of=lambda: spark)

    def _record(
        self, info: ReplicaInfo, windows: Sequence[CaptureWindow], choice: EngineChoice
    ) -> list[PhaseCounts]:
        from mergerepl.merge.capture.capture import (
            CapturedArticle,
            CaptureJob,
            commit_changes,
            open_generations,
            read_changes,
            remove_leftovers,
        )
        from mergerepl.merge.capture.partitions import Capturing, filtered_publications, with_memberships

        replica, priorities = self.replica, self.priorities
        remove_leftovers(replica, info)
        genhistory = replica.genhistory(from_generation_exclusive=last_sent(replica, priorities))
        captured: list[CapturedArticle] = []
        filtered = filtered_publications(replica, list(priorities))
        images_of = {publication.pubid for publication in filtered}
        try:
            for window, generation in zip(windows, open_generations(genhistory, windows, info), strict=True):
                self.progress.step("capture", article=window.article.name)
                priority = priorities[window.article.pubid]
                with_images = window.article.pubid in images_of
                job = CaptureJob(replica, window, info, priority, generation, with_images=with_images)
                captured.append(read_changes(choice.for_rules, job))
            captured = list(
                with_memberships(Capturing(replica, genhistory, info, choice), filtered, captured)
            )
            commit_changes(replica, captured, genhistory, info)
        finally:
            for item in captured:
                item.release()
        return [PhaseCounts(item.inserts, item.updates, item.deletes) for item in captured]


def _is_plain(window: CaptureWindow) -> bool:
    """Whether few rows of one segment changed, which this process may capture."""
    if not window.has_changes:
        return True
    if window.gap is not None:
        # Whole versions of a small table.
        return True
    one = len(window.segments) == 1 and window.segments[0].is_one_metadata
    return one and window.is_small and window.state is not None
