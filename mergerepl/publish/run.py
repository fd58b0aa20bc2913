"""The state that the steps of one run of `apply` share, for a merge publication."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from mergerepl.delta.marks import SETUP, CommitMark
from mergerepl.delta.tables import TableState
from mergerepl.model.progress import Progress
from mergerepl.model.publication import Article, Publication
from mergerepl.publish.steps import Step
from mergerepl.store.lease import record_jvm
from mergerepl.store.location import Location
from mergerepl.systables.catalog import ArticleRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Agent:
    """The agent's functions for `apply`, at leased replicas.

    `capture` captures the changes of the publisher at a root in the publication of a pubid. `finish` finishes a staged
    session: root of the publisher, root of the subscriber (None: out of reach), name of the session. `sweep` finishes
    the decided work in a tracked folder.
    """

    capture: Callable[[Location, str], None]
    finish: Callable[[Location, Location | None, str], None]
    sweep: Callable[[Location], None] = lambda root: None


@dataclass
class ApplyRun:
    """The publication being applied, its identity and its session.

    `uncaptured` are the tables of a publication without subscribers so far, by nickname, as they were checked.
    """

    publication: Publication
    pubid: str
    publisher: Location
    agent: Agent
    progress: Progress
    held: tuple[Location, ...] = ()
    uncaptured: dict[int, TableState] | None = None
    id: str = field(default_factory=lambda: f"apply {uuid.uuid4()}")

    @cached_property
    def spark(self) -> "SparkSession":
        """The session, started when the first step needs it."""
        from mergerepl.spark.session import session

        spark = session()
        self._record_jvm()
        return spark

    def hold(self, roots: Sequence[Location]) -> None:
        """Note these replicas as leased from now on."""
        self.held = tuple(roots)
        if "spark" in self.__dict__:
            self._record_jvm()

    def _record_jvm(self) -> None:
        """Note the JVM that writes for us, so that the next process after a kill waits for its end."""
        from mergerepl.spark.session import jvm_pid

        for root in self.held:
            record_jvm(root, jvm_pid())

    @property
    def retention(self) -> timedelta:
        """The retention of metadata and files."""
        return self.publication.retention

    def mark(self, step: str) -> CommitMark:
        """Return the mark of a commit of this run."""
        return CommitMark(self.id, f"{SETUP}:{step}")

    def article(self, row: ArticleRow) -> Article:
        """Return a published article as the file states it."""
        return next(article for article in self.publication.articles if article.name == row.name)


MergeStep = Step[ApplyRun]
