"""One side's late commits after a merge, and what a late round stages of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from mergerepl import changes
from mergerepl.frames import DataFrame, F
from mergerepl.merge.apply.side import Side
from mergerepl.merge.capture.capture import new_generation
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.staged_rows import read_staged
from mergerepl.store.changeset import ArticleWork
from mergerepl.store.location import Location
from mergerepl.systables.genhistory import Generation, GenStatus
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.window import CaptureWindow


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
