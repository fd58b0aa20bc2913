"""Stage a session: enumerate both sides, classify, detect, resolve, and write the changeset of each article.

The row work of one article is one Spark write: both directions come out of one join.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from conflict.detect import compared, detect
from conflict.resolve import SessionTerms, final_states, one_sided, with_actions
from enumeration.enum_changes import enum_changes
from enumeration.get_metadata import get_metadata
from mergerepl import changes
from mergerepl.agent.capture import CapturedArticle
from mergerepl.delta.plain_files import write_files
from mergerepl.engine.in_memory import Kept
from mergerepl.engine.made_once import made_once
from mergerepl.engine.passed import passed
from mergerepl.errors import StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.rows.key_bounds import bound_measures, bounds_found
from mergerepl.store.changeset import ArticleWork
from mergerepl.store.replica import Replica
from mergerepl.store.runs import SEQ, current_rows, read_runs
from mergerepl.systables import genhistory


@dataclass(frozen=True)
class Enumerated:
    """One side of one article: where its enumeration starts, and what of it is already in memory or not to be
    told.

    `is_complete_in_memory` holds if everything after the start was captured in this session.
    """

    replica: Replica
    article: PublishedArticle
    through_seq_inclusive: int
    from_generation_exclusive: int
    known_generations: tuple[int, ...]
    captured: CapturedArticle | None
    is_complete_in_memory: bool
    is_needed: bool


def side_changes(spark: SparkSession, side: Enumerated, kept: Kept) -> DataFrame | None:
    """Return the CHANGES one side has to tell the other of one article, None if there are none."""
    if not side.is_needed:
        return None
    captured = side.captured.rows if side.captured is not None else None
    if side.is_complete_in_memory:
        return captured
    runs = read_runs(
        spark,
        side.replica.folder,
        side.article,
        through_seq_inclusive=side.through_seq_inclusive,
        from_generation_exclusive=side.from_generation_exclusive,
    )
    if captured is not None:
        # It is being committed meanwhile, or never (a dry run); its rows are newer than every run read here.
        uncommitted = captured.withColumn(SEQ, passed(side.through_seq_inclusive + 1, "bigint"))
        runs = runs.unionByName(uncommitted)
    told = enum_changes(
        current_rows(runs),
        from_generation_exclusive=side.from_generation_exclusive,
        known_generations=side.known_generations,
    )
    return kept.keep(told)


def changeset_rows(
    spark: SparkSession, publisher: Enumerated, subscriber: Enumerated, terms: SessionTerms, kept: Kept
) -> DataFrame | None:
    """Return RESOLVED of one article, None if neither side has anything to tell."""
    at_publisher, at_subscriber = side_changes(spark, publisher, kept), side_changes(spark, subscriber, kept)
    if at_publisher is None and at_subscriber is None:
        return None
    return resolved_rows(at_publisher, at_subscriber, publisher.article, terms, kept)


def resolved_rows(
    at_publisher: DataFrame | None,
    at_subscriber: DataFrame | None,
    article: PublishedArticle,
    terms: SessionTerms,
    kept: Kept,
    *,
    whole_rows: bool = False,
) -> DataFrame:
    """Return RESOLVED from the two sides' CHANGES of one article.

    Rows told by one side only are a projection; those changed at both sides, if there are any, go through
    detection and resolution. `whole_rows` keeps rows that differ from being merged by columns: one side wins.
    """
    pairs = get_metadata(at_publisher, at_subscriber, floor=article.maxversion_at_cleanup)
    if at_publisher is None or at_subscriber is None:
        return one_sided(pairs, terms)
    pairs = kept.keep(pairs)
    candidates = pairs.where(F.col(changes.VERDICT) == changes.Verdict.CANDIDATE.value)
    told = one_sided(pairs, terms)
    if candidates.isEmpty():
        return told
    detected = kept.keep(detect(kept.keep(compared(candidates, article)), article, whole_rows=whole_rows))
    final = kept.keep(final_states(detected, article, terms, whole_rows=whole_rows))
    return told.unionByName(with_actions(final, terms))


@dataclass(frozen=True)
class StagedArticle:
    """Counts of one staged article: the work of each side, conflicts, and merged or resolved rows."""

    publisher: ArticleWork
    subscriber: ArticleWork
    conflicts: int
    resolved: int


def stage_article(
    rows: DataFrame, folder: Path, article: PublishedArticle, *, from_versions: Mapping[str, int]
) -> StagedArticle:
    """Write the RESOLVED rows of one article and return what they amount to, counted while they are written.

    Raises: StoreError if a side is told of generations that it cannot number.
    """
    observation = Observation()
    observed = rows.observe(observation, *_measures(article))
    write_files(observed, folder)
    found = observation.get
    for side, sender in changes.OTHER_SIDE.items():
        if found[f"{side}_unnumbered"]:
            raise _unknown_generations(article, sender, int(found[f"{side}_unnumbered"]))
    return StagedArticle(
        _work(changes.PUBLISHER, found, article, from_versions[changes.PUBLISHER]),
        _work(changes.SUBSCRIBER, found, article, from_versions[changes.SUBSCRIBER]),
        int(found["conflicts"]),
        int(found["resolved"]),
    )


def _unknown_generations(article: PublishedArticle, sender: str, rows: int) -> StoreError:
    return StoreError(
        f"Article '{article.name}': {rows} changed rows of the {sender} belong to generations that its system table "
        f"'{genhistory.NAME}' does not know: it was edited, or restored to an earlier version alone. Nothing was applied. "
        "Restore its '_mergerepl' folder from a copy taken together with the tables, or initialise the subscribers anew.",
        article=article.name,
    )


@made_once
def _measures(article: PublishedArticle) -> tuple[Column, ...]:
    measures = {
        **_side_measures(changes.PUBLISHER, article),
        **_side_measures(changes.SUBSCRIBER, article),
        "conflicts": F.count_if(F.col(changes.CONFLICT_TYPE).isNotNull()),
        "resolved": F.count_if(
            F.col(changes.VERDICT).isin(changes.Verdict.MERGE.value, changes.Verdict.CONFLICT.value)
        ),
    }
    return tuple(measure.alias(name) for name, measure in measures.items())


def _side_measures(side: str, article: PublishedArticle) -> dict[str, Column]:
    action = changes.ACTION_OF[side]

    def count(condition: Column) -> Column:
        return F.count_if(F.coalesce(condition, F.lit(False)))

    acts = F.col(action).isNotNull()
    changes_row = F.coalesce(F.col(action).isin([a.value for a in changes.DATA_ACTIONS]), F.lit(False))
    measures = {f"{side}_{a.value}": count(F.col(action) == a.value) for a in changes.Action}
    measures[f"{side}_unnumbered"] = count(acts & F.col(changes.GENERATION_OF[side]).isNull())
    measures[f"{side}_live"] = count(acts & ~F.col(changes.DELETED))
    measures[f"{side}_deleted"] = count(acts & F.col(changes.DELETED))
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
