"""Capture with row filters: the captured rows, with the memberships that they moved.

Only the publisher evaluates filters. A capture evaluates a whole publication: rows follow those of other articles.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from mergerepl.changes import PARTCHANGEGEN, ROW, ROWGUID
from mergerepl.delta.engine_choice import EngineChoice
from mergerepl.errors import CaptureError
from mergerepl.frames import DataFrame, F
from mergerepl.merge.capture.capture import CapturedArticle, open_generation
from mergerepl.merge.partitions.filtered import FilteredPublication, filtered_publication
from mergerepl.merge.partitions.membership import (
    AFTER,
    WRITTEN,
    Changed,
    MembershipPass,
    base_rows,
    group_rows,
)
from mergerepl.merge.partitions.runs import Events
from mergerepl.merge.partitions.versions import with_metadata
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import ArticleRuns
from mergerepl.spark.in_memory import Kept, in_one_task, released_on_error
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.partition_mappings import has_events, is_touched, partition_events


def filtered_publications(replica: Replica, pubids: Collection[str]) -> list[FilteredPublication]:
    """Return the publications that this replica publishes with row filters."""
    found = [filtered_publication(replica, pubid) for pubid in pubids]
    return [each for each in found if each is not None]


@dataclass(frozen=True)
class Capturing:
    """A publisher during its capture: its generations, its bookkeeping before, and the engine."""

    replica: Replica
    genhistory: Sequence[Generation]
    info: ReplicaInfo
    choice: EngineChoice


def with_memberships(
    at: Capturing, publications: Iterable[FilteredPublication], captured: Sequence[CapturedArticle]
) -> tuple[CapturedArticle, ...]:
    """Add the unchanged rows that moved, and the mappings of all rows.

    Raises: CaptureError if an article that the filters name was not captured.
    """
    for publication in publications:
        captured = _of_publication(at, publication, captured)
    return tuple(captured)


def _of_publication(
    at: Capturing, publication: FilteredPublication, captured: Sequence[CapturedArticle]
) -> list[CapturedArticle]:
    items = {item.article.name: item for item in captured if item.article.pubid == publication.pubid}
    # Where columns are followed, a window has columns that the replica's bookkeeping does not have yet.
    articles = {
        name: items[name].article if name in items else each for name, each in publication.articles.items()
    }
    publication = replace(publication, articles=articles)
    changed = {
        name: Changed(images.withColumn(WRITTEN, F.lit(True)), items[name].changes)
        for name in publication.articles
        if name in items and (images := items[name].images) is not None
    }
    if not changed:
        return list(captured)
    missing = [name for name in publication.articles if name not in items]
    if missing:
        raise CaptureError(
            f"Article '{missing[0]}' of '{at.replica.root}' cannot be captured, and the row filters need it. Nothing was "
            "captured. Fix its table, then run again.",
            replica=str(at.replica.root),
            article=missing[0],
        )
    versions = {item.article.nickname: item.window.through_version_inclusive for item in items.values()}
    kept = Kept()
    with released_on_error(kept):
        spark = at.choice.for_rules
        pass_ = MembershipPass(
            publication,
            group_rows(spark, publication.groups),
            base_rows(spark, at.replica, publication.articles, versions),
            kept,
        )
        found = pass_.run(changed)
        found = {name: rows for name, rows in found.items() if publication.filters.is_filtered(name)}
        return _joined(at, publication, captured, found, event_counts(found, pass_.counts), kept)


def event_counts(found: Mapping[str, DataFrame], counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return each article's number of touched rows and of rows with mappings, from its MEMBERSHIPS.

    One job counts them. `counts` are all of its MEMBERSHIPS.
    """
    if not found:
        return {}
    frames = [
        in_one_task(rows, counts[name])
        .agg(F.count_if(is_touched()).alias("touched"), F.count_if(has_events()).alias("events"))
        .select(F.lit(name).alias("name"), "touched", "events")
        for name, rows in found.items()
    ]
    return {row.name: (row.touched, row.events) for row in reduce(DataFrame.unionByName, frames).collect()}


def touched_rows(memberships: DataFrame) -> DataFrame:
    """Return the rows (rowguid, row) with a changed membership only."""
    return memberships.where(is_touched()).select(ROWGUID, F.col(AFTER).alias(ROW))


def _joined(
    at: Capturing,
    publication: FilteredPublication,
    captured: Sequence[CapturedArticle],
    found: Mapping[str, DataFrame],
    counts: Mapping[str, tuple[int, int]],
    kept: Kept,
) -> list[CapturedArticle]:
    new = (item.generation.generation for item in captured if item.generation is not None)
    last = max([at.info.last_generation, *new])
    joined = []
    for item in captured:
        name = item.article.name
        touched, events = counts.get(name, (0, 0)) if item.article.pubid == publication.pubid else (0, 0)
        if not events:
            joined.append(item)
            continue
        generation = item.generation
        if generation is None:
            generation = open_generation(at.genhistory, item.article, at.info, last + 1)
            last = max(last, generation.generation)
        rows = item.rows
        if touched:
            runs = ArticleRuns.of(at.choice.for_rules, at.replica, item.article, at.info.last_seq)
            moved = with_metadata(runs, touched_rows(found[name]), count=touched, kept=kept)
            moved = moved.withColumn(PARTCHANGEGEN, F.lit(generation.generation).cast("bigint"))
            # A row without a change has no `base`: it is recorded as it was published.
            rows = moved if rows is None else rows.unionByName(moved, allowMissingColumns=True)
        joined.append(
            replace(
                item,
                rows=rows,
                generation=replace(generation, changecount=generation.changecount + touched),
                touched=touched,
                events=Events(
                    publication.number,
                    item.article.nickname,
                    partition_events(found[name], generation=generation.generation),
                ),
            )
        )
    # Releasing the last one frees the rows that all of them read.
    if joined:
        joined[-1] = replace(joined[-1], in_memory=(*joined[-1].in_memory, *kept.frames))
    return joined
