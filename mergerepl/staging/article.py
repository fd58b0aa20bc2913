"""Stage an article: what a side sends of it, and its changeset written and counted in one Spark write."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from conflict.ancestor import versions
from enumeration.enum_changes import enum_changes
from enumeration.plan import Enumeration
from mergerepl import changes
from mergerepl.changes import BASE, GENERATION
from mergerepl.delta.plain_files import write_files
from mergerepl.engine.in_memory import Kept, in_one_task
from mergerepl.engine.made_once import made_once
from mergerepl.engine.passed import passed
from mergerepl.errors import StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.key_bounds import bound_measures, bounds_found
from mergerepl.store.changeset import ArticleWork
from mergerepl.store.replica import Replica
from mergerepl.store.runs import SEQ, current_rows, read_runs
from mergerepl.store.staged_rows import with_conflict_hash
from mergerepl.systables import genhistory
from mergerepl.tracking.capture import CapturedArticle


@dataclass(frozen=True)
class Enumerated:
    """One side of one article: where its enumeration starts, and what of it is in memory or not to be sent.

    `is_complete_in_memory`: everything after the start was captured in this session. `rows` counts the rows of the
    generations after the start, with those that the destination knows.
    """

    replica: Replica
    article: PublishedArticle
    through_seq_inclusive: int
    sent: Enumeration
    captured: CapturedArticle | None
    is_complete_in_memory: bool

    @property
    def rows(self) -> int:
        """At most so many rows are read to enumerate."""
        return sum(row.changecount for row in (*self.sent.generations, *self.sent.known))


def side_changes(spark: SparkSession, side: Enumerated, kept: Kept) -> DataFrame | None:
    """Return the CHANGES of one article that one side has to send to the other, None if there are none."""
    if not side.sent.generations:
        return None
    captured = side.captured.rows if side.captured is not None else None
    if captured is not None and side.article.needs_base:
        captured = captured.select(*(name for name in captured.columns if name != BASE))
    if side.is_complete_in_memory:
        return captured
    runs = read_runs(
        spark,
        side.replica.folder,
        side.article,
        through_seq_inclusive=side.through_seq_inclusive,
        from_generation_exclusive=side.sent.from_generation_exclusive,
    )
    if side.sent.elsewhere:
        # The same versions again, for another destination. This destination must find them in their former generation.
        runs = runs.where(~F.col(GENERATION).isin([row.generation for row in side.sent.elsewhere]))
    if captured is not None:
        # It is being committed meanwhile, or never (a dry run); its rows are newer than every run read here.
        uncommitted = captured.withColumn(SEQ, passed(side.through_seq_inclusive + 1, "bigint"))
        runs = runs.unionByName(uncommitted)
    changes_to_send = enum_changes(
        current_rows(in_one_task(runs, side.rows)),
        from_generation_exclusive=side.sent.from_generation_exclusive,
        known_generations=[row.generation for row in side.sent.known],
    )
    return kept.keep(changes_to_send)


def side_versions(spark: SparkSession, side: Enumerated) -> DataFrame:
    """Return the versions of rows that one side has recorded of an article (`ancestor.versions`)."""
    runs = read_runs(
        spark,
        side.replica.folder,
        side.article,
        through_seq_inclusive=side.through_seq_inclusive,
        with_base=True,
    )
    if side.captured is not None and side.captured.rows is not None:
        uncommitted = side.captured.rows.withColumn(SEQ, passed(side.through_seq_inclusive + 1, "bigint"))
        runs = runs.unionByName(uncommitted)
    return versions(runs, SEQ)


@dataclass(frozen=True)
class StagedArticle:
    """Counts of one staged article: the work of each side, conflicts, and merged or resolved rows.

    By side: `waiting` are its own changes that the other side's table refuses, `refused_again` those among them that
    waited before, and `refused_by` the conditions of its table.
    """

    publisher: ArticleWork
    subscriber: ArticleWork
    conflicts: int
    resolved: int
    waiting: Mapping[str, int] = field(default_factory=dict)
    refused_again: Mapping[str, int] = field(default_factory=dict)
    refused_by: Mapping[str, str] = field(default_factory=dict)


def stage_article(
    rows: DataFrame, folder: Path, article: PublishedArticle, *, from_versions: Mapping[str, int]
) -> StagedArticle:
    """Write the RESOLVED rows of one article and return their counts, taken while they are written.

    Raises: StoreError if a side is sent generations that it cannot number.
    """
    found = write_files(with_conflict_hash(rows), folder, _measures(article))
    return staged_article(found, article, from_versions=from_versions)


def staged_article(
    found: Mapping[str, Any], article: PublishedArticle, *, from_versions: Mapping[str, int]
) -> StagedArticle:
    """Return the counts of a staged article from the values of `_measures`.

    Raises: StoreError if a side is sent generations that it cannot number.
    """
    for side, sender in changes.OTHER_SIDE.items():
        if found[f"{side}_unnumbered"]:
            raise _unknown_generations(article, sender, int(found[f"{side}_unnumbered"]))
    return StagedArticle(
        _work(changes.PUBLISHER, found, article, from_versions[changes.PUBLISHER]),
        _work(changes.SUBSCRIBER, found, article, from_versions[changes.SUBSCRIBER]),
        int(found["conflicts"]),
        int(found["resolved"]),
        _by_side(found, "waiting"),
        _by_side(found, "again"),
    )


def _by_side(found: Mapping[str, Any], what: str) -> dict[str, int]:
    return {side: int(found[f"{side}_{what}"]) for side in changes.OTHER_SIDE}


def _unknown_generations(article: PublishedArticle, sender: str, rows: int) -> StoreError:
    return StoreError(
        f"Article '{article.name}': {rows} changed rows of the {sender} belong to generations that its system table "
        f"'{genhistory.NAME}' does not know: it was edited, or restored to an earlier version alone. Nothing was applied. "
        "Restore its '_mergerepl' folder from a copy taken together with the tables, or initialise the subscribers again.",
        article=article.name,
    )


@made_once
def _measures(article: PublishedArticle) -> tuple[Column, ...]:
    measures = {
        **_side_measures(changes.PUBLISHER, article),
        **_side_measures(changes.SUBSCRIBER, article),
        "conflicts": F.count_if(F.col(changes.CONFLICT_TYPE).isNotNull()),
        "resolved": F.count_if(F.col(changes.VERDICT).isin(*changes.OF_TWO)),
    }
    return tuple(measure.alias(name) for name, measure in measures.items())


def _side_measures(side: str, article: PublishedArticle) -> dict[str, Column]:
    action = changes.ACTION_OF[side]

    def count(condition: Column) -> Column:
        return F.count_if(F.coalesce(condition, F.lit(False)))

    acts = F.col(action).isNotNull()
    is_deleted = F.col(changes.DELETED) | (F.col(action) == changes.Action.LEAVE.value)
    changes_row = F.coalesce(F.col(action).isin([a.value for a in changes.DATA_ACTIONS]), F.lit(False))
    measures = {f"{side}_{a.value}": count(F.col(action) == a.value) for a in changes.Action}
    waits = acts & (F.col(changes.VERDICT) == changes.Verdict.REFUSED.value)
    measures[f"{side}_waiting"] = count(waits)
    measures[f"{side}_again"] = count(
        waits & F.col(changes.CONFLICT_TYPE).isNull() & F.col(changes.NOTE).isNotNull()
    )
    measures[f"{side}_unnumbered"] = count(acts & F.col(changes.GENERATION_OF[side]).isNull())
    measures[f"{side}_live"] = count(acts & ~is_deleted)
    measures[f"{side}_deleted"] = count(acts & is_deleted)
    return measures | bound_measures(
        article, lambda field: F.when(changes_row, F.col(f"{changes.ROW}.{field}")), prefix=f"{side}_"
    )


def _work(
    side: str, found: Mapping[str, object], article: PublishedArticle, from_version: int
) -> ArticleWork:
    return ArticleWork(
        nickname=article.nickname,
        from_version=from_version,
        actions={a.value: int(str(found[f"{side}_{a.value}"])) for a in changes.Action},
        live=int(str(found[f"{side}_live"])),
        deleted=int(str(found[f"{side}_deleted"])),
        bounds=bounds_found(article, found, prefix=f"{side}_"),
    )
