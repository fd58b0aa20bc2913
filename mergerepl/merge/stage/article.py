"""Stage an article: the changes that a side sends, and its changeset, written and counted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from conflict.ancestor import versions
from enumeration.enum_changes import enum_changes
from enumeration.plan import Enumeration
from mergerepl import changes
from mergerepl.changes import BASE, GENERATION
from mergerepl.delta.tables import write_files
from mergerepl.errors import StoreError
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.merge.capture.capture import CapturedArticle
from mergerepl.merge.stage.invisible import without_invisible
from mergerepl.model.article import PublishedArticle
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import SEQ, ArticleRuns, current_rows
from mergerepl.replica.staged_rows import RowKind, staged_kinds, with_conflict_hash
from mergerepl.rows.key_bounds import bound_measures, bounds_found
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.spark.in_memory import Kept, in_one_task
from mergerepl.store.changeset import ArticleWork
from mergerepl.store.location import Location
from mergerepl.systables import genhistory


@dataclass(frozen=True)
class Enumerated:
    """One side of one article: the start of its enumeration, its rows in memory and its rows not to send.

    `is_complete_in_memory`: this session captured everything after the start. `rows` counts the rows of the generations
    after the start, including those that the destination knows.
    """

    replica: Replica
    article: PublishedArticle
    through_seq_inclusive: int
    sent: Enumeration
    captured: CapturedArticle | None
    is_complete_in_memory: bool

    @property
    def rows(self) -> int:
        """The maximum of rows that the enumeration reads."""
        return sum(row.changecount for row in (*self.sent.generations, *self.sent.known))

    def runs(self, spark: SparkSession) -> ArticleRuns:
        """Return the runs that it enumerates."""
        return ArticleRuns.of(spark, self.replica, self.article, self.through_seq_inclusive)


def side_changes(spark: SparkSession, side: Enumerated, kept: Kept) -> DataFrame | None:
    """Return the CHANGES of one article that one side has to send to the other, or None."""
    if not side.sent.generations:
        return None
    captured = side.captured.rows if side.captured is not None else None
    if captured is not None and BASE in captured.columns:
        captured = captured.select(*(name for name in captured.columns if name != BASE))
    if side.is_complete_in_memory:
        return captured
    runs = side.runs(spark).read(from_generation_exclusive=side.sent.from_generation_exclusive)
    if side.sent.elsewhere:
        # The same versions again, for another destination. This destination must find them in their former generation.
        runs = runs.where(~F.col(GENERATION).isin([row.generation for row in side.sent.elsewhere]))
    if captured is not None:
        # It is being committed concurrently, or never (a dry run); its rows are newer than every run read here.
        uncommitted = captured.withColumn(SEQ, query_parameter(side.through_seq_inclusive + 1, "bigint"))
        runs = runs.unionByName(uncommitted)
    changes_to_send = enum_changes(
        current_rows(in_one_task(runs, side.rows)),
        from_generation_exclusive=side.sent.from_generation_exclusive,
        known_generations=[row.generation for row in side.sent.known],
    )
    changes_to_send = kept.keep(changes_to_send)
    if side.replica.publishes(side.article.pubid) or not side.article.has_ended_fields:
        return changes_to_send
    found = without_invisible(
        changes_to_send,
        side.runs(spark),
        side.replica.genhistory(),
        side.replica.info().nickname,
        from_generation_exclusive=side.sent.from_generation_exclusive,
        kept=kept,
    )
    return kept.keep(found)


def side_versions(spark: SparkSession, side: Enumerated) -> DataFrame:
    """Return the versions of an article's rows that one side has recorded (`ancestor.versions`)."""
    runs = side.runs(spark).read(with_base=True)
    if side.captured is not None and side.captured.rows is not None:
        uncommitted = side.captured.rows.withColumn(
            SEQ, query_parameter(side.through_seq_inclusive + 1, "bigint")
        )
        runs = runs.unionByName(uncommitted)
    return versions(runs, SEQ)


@dataclass(frozen=True)
class StagedArticle:
    """Counts of one staged article: conflicts, merged or resolved rows, and undone rows.

    By side: `works` are its work; `waiting` are its own changes that the other side's table refuses, `refused_again` those
    among them that waited before, and `refused_by` the conditions of its table.
    """

    works: Mapping[str, ArticleWork]
    conflicts: int
    resolved: int
    waiting: Mapping[str, int] = field(default_factory=dict)
    refused_again: Mapping[str, int] = field(default_factory=dict)
    refused_by: Mapping[str, str] = field(default_factory=dict)
    undone: int = 0

    @property
    def rows(self) -> int:
        """The rows that both sides record."""
        return sum(work.live + work.deleted for work in self.works.values())


def stage_article(
    rows: DataFrame, folder: Location, article: PublishedArticle, *, from_versions: Mapping[str, int]
) -> StagedArticle:
    """Write the RESOLVED rows of one article and return their counts.

    The write computes the bounds of their keys. Arrow counts the rows in the written files, in a small part of Spark's
    time (decision 0024).

    Raises: StoreError if a side is sent generations that it cannot number.
    """
    bounds = write_files(with_conflict_hash(rows), folder, _key_bounds(article))
    return staged_article(staged_kinds(folder), bounds, article, from_versions=from_versions)


def staged_article(
    kinds: Sequence[RowKind],
    bounds: Mapping[str, Any],
    article: PublishedArticle,
    *,
    from_versions: Mapping[str, int],
) -> StagedArticle:
    """Count a staged article; `kinds` are all its rows, and `bounds` the values of `_key_bounds`.

    Raises: StoreError if a side is sent generations that it cannot number.
    """
    works, waiting, again = {}, {}, {}
    for side, sender in changes.OTHER_SIDE.items():
        acted_on = [kind for kind in kinds if kind.actions[side] is not None]
        if unnumbered := _rows(kind for kind in acted_on if not kind.has_generation[side]):
            raise _unknown_generations(article, sender, unnumbered)
        works[side] = _work(side, acted_on, bounds, article, from_versions[side])
        waits = [kind for kind in acted_on if kind.verdict == changes.Verdict.REFUSED]
        waiting[side] = _rows(waits)
        again[side] = _rows(kind for kind in waits if kind.has_note and not kind.is_conflict)
    return StagedArticle(
        works,
        _rows(kind for kind in kinds if kind.is_conflict),
        _rows(kind for kind in kinds if kind.verdict in changes.OF_TWO),
        waiting,
        again,
        undone=_rows(kind for kind in kinds if kind.verdict == changes.Verdict.UNDONE),
    )


def _rows(kinds: Iterable[RowKind]) -> int:
    return sum(kind.rows for kind in kinds)


def _unknown_generations(article: PublishedArticle, sender: str, rows: int) -> StoreError:
    return StoreError(
        f"Article '{article.name}': {rows} changed rows of the {sender} belong to generations that its system table "
        f"'{genhistory.NAME}' does not know: it was edited, or restored to an earlier version alone. Nothing was applied. "
        "Restore its '_mergerepl' folder from a copy taken together with the tables, or fill the subscribers again "
        "(`mergerepl reinit`).",
        article=article.name,
    )


@cached
def _key_bounds(article: PublishedArticle) -> tuple[Column, ...]:
    """Return the bounds of the keys that each side writes, as aggregates (`bound_measures`)."""
    measures = _bounds_of_side(changes.PUBLISHER, article) | _bounds_of_side(changes.SUBSCRIBER, article)
    return tuple(measure.alias(name) for name, measure in measures.items())


def _bounds_of_side(side: str, article: PublishedArticle) -> dict[str, Column]:
    action = F.col(changes.ACTION_OF[side])
    changes_row = F.coalesce(action.isin([a.value for a in changes.DATA_ACTIONS]), F.lit(False))
    return bound_measures(
        article, lambda field: F.when(changes_row, F.col(f"{changes.ROW}.{field}")), prefix=f"{side}_"
    )


def _work(
    side: str,
    acted_on: Sequence[RowKind],
    bounds: Mapping[str, Any],
    article: PublishedArticle,
    from_version: int,
) -> ArticleWork:
    deleted = _rows(
        kind for kind in acted_on if kind.is_deleted or kind.actions[side] == changes.Action.LEAVE
    )
    return ArticleWork(
        nickname=article.nickname,
        from_version=from_version,
        actions={
            a.value: _rows(kind for kind in acted_on if kind.actions[side] == a) for a in changes.Action
        },
        live=_rows(acted_on) - deleted,
        deleted=deleted,
        bounds=bounds_found(article, bounds, prefix=f"{side}_"),
    )
