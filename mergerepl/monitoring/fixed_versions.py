"""Both ends of a subscription at their captured versions, and the rows whose changes have not been synchronized yet.

Nothing is locked: sessions and users may go on. Both ends are read again until their control tables did not
change during the read. Rows outside of the unsent changes are equal at both ends, else the replicas have diverged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from enumeration.plan import Destination, Enumeration, enumeration
from mergerepl.changes import GENERATION, OTHER_SIDE, PUBLISHER, ROW, ROWGUID, SUBSCRIBER
from mergerepl.errors import LeaseError, StoreError
from mergerepl.merge.partitions.filtered import FilteredPublication, filtered_publication
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.waiting import Uncaptured, source_of, uncaptured
from mergerepl.replica.partition_generations import generations_for
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import captured_position, require_same_session
from mergerepl.systables.catalog import SubscriptionRow
from mergerepl.systables.replinfo import ReplicaInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mergerepl.spark.in_memory import Kept

_ATTEMPTS = 5


@dataclass(frozen=True)
class FixedEnd:
    """One end of a subscription at one moment: `other` is its row about the other end, `sent` what that end lacks."""

    replica: Replica
    info: ReplicaInfo
    other: SubscriptionRow
    sent: Enumeration
    filtered: FilteredPublication | None = None

    def version(self, article: PublishedArticle) -> int:
        """Return the captured version of an article's table.

        Raises: CaptureError if MSmerge_replinfo lacks it.
        """
        return captured_position(self.replica, article, self.info).version

    def unsent(self, article: PublishedArticle) -> int:
        """Return the number of an article's changes that the other end lacks."""
        return sum(row.changecount for row in self.sent.generations if row.art_nick == article.nickname)

    def uncaptured(self, article: PublishedArticle) -> Uncaptured:
        """Return the commits after the captured version.

        Raises: StoreError if the table does not have that version any more.
        """
        found = uncaptured(self.replica, article, self.info)
        window = found.window
        if window is None or window.head_version is None or window.is_older or window.is_another_commit:
            raise StoreError(found.problem or "", table=str(self.replica.table(article)))
        return found


def fixed_ends(publisher: Replica, subscriber: Replica, pubid: str) -> dict[str, FixedEnd]:
    """Return both ends of a subscription, by side.

    Raises: PublicationError if an end has no active subscription; EnumerationError if the watermarks do not fit together;
    LeaseError if the ends changed at each attempt.
    """
    ends = {PUBLISHER: publisher, SUBSCRIBER: subscriber}
    for _ in range(_ATTEMPTS):
        known = _known(ends, pubid)
        about = {name: row for name, (_, row) in known.items()}
        if not all(row is not None and row.is_active for row in about.values()):
            require_same_session(publisher, subscriber, about)
        found = {
            name: FixedEnd(
                replica,
                known[name][0],
                row,
                enumeration(
                    source_of(replica, row, replica.articles_of(pubid)),
                    Destination(
                        str(ends[OTHER_SIDE[name]].root), ends[OTHER_SIDE[name]].held, about[OTHER_SIDE[name]]
                    ),
                ),
                filtered_publication(replica, pubid),
            )
            for name, replica in ends.items()
            if (row := about[name]) is not None
        }
        if _known(ends, pubid) == known:
            return found
    raise LeaseError(
        f"'{publisher.root}' and '{subscriber.root}' were synchronized each time they were read. Wait for the session, "
        "then run again.",
        replica=str(subscriber.root),
    )


def _known(ends: Mapping[str, Replica], pubid: str) -> dict[str, tuple[ReplicaInfo, SubscriptionRow | None]]:
    infos = {name: replica.info() for name, replica in ends.items()}

    def about(name: str) -> SubscriptionRow | None:
        rows = [
            row
            for row in ends[name].relations(pubid)
            if row.replid == infos[OTHER_SIDE[name]].replid and not row.is_ended
        ]
        return next((row for row in rows if row.is_active), rows[0] if rows else None)

    return {name: (infos[name], about(name)) for name in ends}


def unsent_rows(
    spark: "SparkSession",
    ends: Mapping[str, FixedEnd],
    articles: Mapping[str, PublishedArticle],
    kept: "Kept",
) -> "DataFrame | None":
    """Return the keys (rowguid, and identity fields) of an article's rows that wait at an end for a sync; None without any.

    `articles` is the article as each side has it. A row may be there more than once.
    """
    found = []
    for name, end in ends.items():
        article = articles[name]
        rows = sent_rows(spark, end, article, kept)
        if rows is not None:
            fields = (f"{ROW}.{field}" for field in article.identity_fields)
            found.append(rows.select(ROWGUID, *fields))
        moved = moved_rows(spark, end, article, kept)
        if moved is not None:
            found.append(moved)
    return kept.keep(reduce(lambda one, other: one.unionByName(other), found)) if found else None


def recorded_keys(
    spark: "SparkSession",
    ends: Mapping[str, FixedEnd],
    articles: Mapping[str, PublishedArticle],
    after: Mapping[str, int],
    kept: "Kept",
) -> "DataFrame":
    """Return the keys (identity fields) of an article's rows that a run of an end after the given one recorded."""
    from mergerepl.replica.runs import ArticleRuns

    found = []
    for name, end in ends.items():
        runs = ArticleRuns.of(spark, end.replica, articles[name], end.info.last_seq)
        fields = (f"{ROW}.{field}" for field in articles[name].identity_fields)
        found.append(runs.read(from_seq_exclusive=after[name]).select(*fields))
    return kept.keep(reduce(lambda one, other: one.unionByName(other), found).distinct())


def sent_rows(
    spark: "SparkSession | None", end: FixedEnd, article: PublishedArticle, kept: "Kept"
) -> "DataFrame | None":
    """Return CHANGES that one end has still to send, of a filtered article those of all partitions; None without any."""
    from mergerepl.merge.stage.article import Enumerated, side_changes

    sent = end.sent.of_articles([article.nickname])
    # In process there is no session.
    return side_changes(spark, Enumerated(end.replica, article, end.info.last_seq, sent, None, False), kept)  # type: ignore[arg-type]


def moved_rows(
    spark: "SparkSession", end: FixedEnd, article: PublishedArticle, kept: "Kept"
) -> "DataFrame | None":
    """Return the keys of the rows that enter, stay in or leave the subscriber's partition with the unsent generations.

    None if the end sends all rows of the article, or none.
    """
    sent = end.sent.of_articles([article.nickname])
    if end.filtered is None or article.nickname not in end.filtered.tablenicks or not sent.generations:
        return None
    from mergerepl.frames import F
    from mergerepl.merge.partitions.runs import read_mappings
    from mergerepl.replica.runs import ArticleRuns, current_rows

    wanted = [row.generation for row in sent.generations]
    named = generations_for(
        end.replica, end.filtered.number, end.other, from_generation_exclusive=sent.from_generation_exclusive
    )
    first = min((row.first_seq for row in named if row.generation in wanted), default=None)
    if first is None or end.other.partition_id is None:
        return None
    mappings = read_mappings(
        spark,
        end.replica.folder,
        article.nickname,
        end.other,
        from_seq_inclusive=first,
        through_seq_inclusive=end.info.last_seq,
    )
    moved = kept.keep(mappings.where(F.col(GENERATION).isin(wanted)).select(ROWGUID).distinct())
    runs = ArticleRuns.of(spark, end.replica, article, end.info.last_seq)
    recent = runs.read(from_seq_exclusive=first - 1).join(moved, on=ROWGUID, how="left_semi")
    fields = (f"{ROW}.{field}" for field in article.identity_fields)
    return current_rows(recent, [ROW]).select(ROWGUID, *fields)
