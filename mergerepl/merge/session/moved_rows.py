"""Unchanged rows that move between partitions because a definition changed: one run at the captured versions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from mergerepl.changes import PARTCHANGEGEN
from mergerepl.frames import DataFrame, F
from mergerepl.merge.capture.capture import CapturedArticle, commit_changes, open_generation, remove_leftovers
from mergerepl.merge.capture.windows import article_window, last_sent
from mergerepl.merge.partitions.filtered import FilteredPublication
from mergerepl.merge.partitions.runs import Events
from mergerepl.merge.partitions.versions import with_metadata
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import ArticleRuns
from mergerepl.replica.subscription import own_priorities
from mergerepl.spark.in_memory import Kept
from mergerepl.systables.replinfo import ReplicaInfo
from triggers.window import Followed


@dataclass(frozen=True)
class MovedRows:
    """The rows (rowguid, row) of an article that move, how many they are, and their EVENTS in a generation."""

    rows: DataFrame
    count: int
    events: Callable[[int], DataFrame]


def commit_moves(
    spark: SparkSession,
    publisher: Replica,
    publication: FilteredPublication,
    moved: Mapping[str, MovedRows],
    info: ReplicaInfo,
    kept: Kept,
) -> ReplicaInfo:
    """Append moved rows (by article name) as one run, and commit it with `info`; return MSmerge_replinfo after it."""
    priorities = {
        pubid: own for pubid, own in own_priorities(publisher).items() if pubid == publication.pubid
    }
    genhistory = publisher.genhistory(from_generation_exclusive=last_sent(publisher, priorities))
    captured, last = [], info.last_generation
    for name, article in publication.articles.items():
        if name not in moved:
            continue
        generation = open_generation(genhistory, article, info, last + 1)
        last, count = max(last, generation.generation), moved[name].count
        runs = ArticleRuns.of(spark, publisher, article, info.last_seq)
        rows = with_metadata(runs, moved[name].rows, count=count, kept=kept)
        window = article_window(
            publisher,
            article,
            info,
            through_version_inclusive=info.captured[article.nickname],
            followed=Followed(),
        )
        captured.append(
            CapturedArticle(
                window,
                rows.withColumn(PARTCHANGEGEN, F.lit(generation.generation).cast("bigint")),
                replace(generation, changecount=generation.changecount + count),
                touched=count,
                events=Events(
                    publication.number, article.nickname, moved[name].events(generation.generation)
                ),
            )
        )
    if captured:
        remove_leftovers(publisher, info)
        return commit_changes(publisher, captured, genhistory, info)
    if info != publisher.info():
        publisher.save_info(info)
    return info
