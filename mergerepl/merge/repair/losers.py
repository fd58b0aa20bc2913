"""The rows that a repair takes away from the other side, logged as rejected changes (type 11) before anything counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl import changes
from mergerepl.changes import LINEAGE, PRIORITY, PUBLISHER, ROW, ROWGUID, SUBSCRIBER, UNKNOWN
from mergerepl.delta import appended
from mergerepl.delta.marks import CommitMark
from mergerepl.failpoints import failpoint
from mergerepl.merge.apply.conflict_log import (
    NamedEnd,
    append_conflicts,
    info_rows,
    losing_rows,
    microseconds,
    rejected,
)
from mergerepl.merge.repair.stamp import CHANGED_COLUMNS, OTHER
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.fixed_versions import FixedEnd
from mergerepl.replica.expiry import present
from mergerepl.rows.images import no_fields
from mergerepl.systables import conflicts_info

RESOLVER = NOTE = "repair"


@dataclass(frozen=True)
class Losers:
    """The repaired rows of an article: `rows` have `losing` (NULL: the other side lacks it), `changes` the new versions."""

    article: PublishedArticle
    rows: DataFrame
    changes: DataFrame


def log_losers(
    spark: SparkSession, ends: Mapping[str, FixedEnd], losers: Sequence[Losers], *, session: str, source: str
) -> None:
    """Log the rows of the other side at the replicas that keep the publication's conflicts; each once."""
    now = microseconds(max(present(end.info) for end in ends.values()))
    at = {name: NamedEnd(str(end.replica.root), end.info.replid) for name, end in ends.items()}
    mark = CommitMark(session, "repair:losers", ends[source].info.replid)
    logged = []
    for each in losers:
        rows = _conflicts(each, session, source=source)
        logged.append((each.article, rows))
    for end in _keepers(ends):
        for article, rows in logged:
            failpoint("repair.before_losing_rows")
            append_conflicts(
                spark, end.replica.folder / article.conflict_table, losing_rows(rows, article, at, now), mark
            )
        failpoint("repair.before_info")
        frames = [info_rows(rows, article, at, now, session) for article, rows in logged]
        append_conflicts(spark, end.replica.folder / conflicts_info.NAME, appended.union_all(frames), mark)


def _keepers(ends: Mapping[str, FixedEnd]) -> list[FixedEnd]:
    publisher = ends[PUBLISHER]
    row = publisher.replica.publication(pubid=publisher.other.pubid)
    kept = {PUBLISHER: row.centralized_conflicts, SUBSCRIBER: row.decentralized_conflicts}
    return [end for name, end in ends.items() if kept[name]]


def _conflicts(losers: Losers, session: str, *, source: str) -> DataFrame:
    """Return the rows as `conflict_log` reads conflicts."""
    new = losers.changes.select(
        ROWGUID, F.col(LINEAGE).alias("new_lineage"), F.col(PRIORITY).alias("new_priority")
    )
    rows = losers.rows.where(F.col("losing").isNotNull()).join(new, on=ROWGUID)
    loser = F.struct(
        F.lit(False).alias(changes.DELETED),
        F.col(f"{OTHER}.{LINEAGE}").alias(LINEAGE),
        F.lit(None).cast("double").alias(PRIORITY),
        no_fields().alias(UNKNOWN),
        F.col("losing").alias(ROW),
    )
    winner = F.struct(F.col("new_lineage").alias(LINEAGE), F.col("new_priority").alias(PRIORITY))
    return rejected(
        rows,
        row="losing",
        loser=loser,
        winner=winner,
        names=F.col(CHANGED_COLUMNS),
        publisher_wins=source == PUBLISHER,
        resolver=RESOLVER,
        note=F.lit(NOTE),
        seed=f"{session} {losers.article.nickname}",
    )
