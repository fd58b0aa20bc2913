"""The values of a dropped field that only this subscriber has: into the conflict table, with their rows (schema.md 5)."""

from mergerepl.changes import (
    CHANGE_COLUMNS,
    COLV1,
    DELETED,
    GENERATION,
    LINEAGE,
    PRIORITY,
    PUBLISHER,
    ROW,
    SUBSCRIBER,
    UNKNOWN,
)
from mergerepl.delta.marks import CommitMark
from mergerepl.errors import SchemaStoppedError
from mergerepl.failpoints import failpoint
from mergerepl.merge.apply.conflict_log import (
    NamedEnd,
    append_conflicts,
    info_rows,
    losing_rows,
    microseconds,
    rejected,
)
from mergerepl.merge.capture.record import Recorder
from mergerepl.merge.schema.waiting import dropped_session
from mergerepl.model.article import PublishedArticle
from mergerepl.model.definition import PublishedField
from mergerepl.model.words import DROPPED_COLUMN
from mergerepl.replica.expiry import present
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import ArticleRuns, current_rows
from mergerepl.rows.lineage_columns import replica_nickname
from mergerepl.systables import conflicts_info
from mergerepl.systables.genhistory import GenStatus


def log_dropped_values(
    recorder: Recorder,
    replica: Replica,
    article: PublishedArticle,
    fields: list[PublishedField],
    version: int,
) -> None:
    """Log the rows of a subscriber with values of fields that end, and that the publisher does not hold; each once.

    These are rows of generations that were not sent; with column tracking, those where this replica set such a field
    since. `article` has the columns before, `version` is the definition that lacks the fields.

    Raises: SchemaStoppedError if the replica has no subscription, not even one that ended.
    """
    # A subscription that ended since has the last generation that was sent, too.
    relations = sorted(replica.relations(article.pubid), key=lambda row: row.is_ended)
    if not relations:
        raise SchemaStoppedError(
            f"Article '{article.name}' at '{replica.root}': columns were dropped, and no subscription says which of their "
            "values were sent. Nothing was changed. Take the article's table back with RESTORE TABLE, or run `mergerepl "
            "apply` at the publisher.",
            replica=str(replica.root),
            article=article.name,
        )
    relation = relations[0]
    known = [row for row in replica.genhistory() if row.art_nick == article.nickname]
    unsent = [
        row.generation
        for row in known
        if row.generation > relation.sentgen and row.genstatus in (GenStatus.OPEN, GenStatus.CLOSED)
    ]
    if not unsent:
        return
    failpoint("schema.before_dropped_values")
    from pyspark.sql import functions as F

    from mergerepl.rows import lineage_columns as lineage

    info, spark = replica.info(), recorder.spark_of()
    sent = max((row.maxversion or 0 for row in known if row.generation <= relation.sentgen), default=0)
    runs = ArticleRuns.of(spark, replica, article, info.last_seq)
    rows = current_rows(runs.read(from_generation_exclusive=relation.sentgen), CHANGE_COLUMNS)
    rows = rows.where(F.col(GENERATION).isin(unsent) & ~F.col(DELETED))
    # The fields whose values are only here.
    lost = F.filter(
        F.array(*(F.lit(each.key) for each in fields)),
        lambda field: ~F.coalesce(F.array_contains(UNKNOWN, field), F.lit(False)),
    )
    if article.column_tracking:
        entry = F.col(COLV1)
        lost = F.filter(
            lost,
            # A version that was made under row tracking has no entries.
            lambda field: (
                entry.isNull()
                | F.coalesce(
                    # Also what its users wrote while a session ran.
                    (replica_nickname(entry[field]["nickname"]) == info.nickname)
                    & (entry[field]["version"] > sent),
                    F.lit(False),
                )
            ),
        )
    rows = rows.withColumn("lost", lost).where(F.size("lost") > 0)
    names = F.create_map(*(F.lit(part) for each in fields for part in (each.key, each.name)))
    named = F.transform("lost", lambda field: names[field])
    note = F.concat(
        F.lit("The publisher does not publish "),
        F.array_join(named, ", "),
        F.lit(" any more, and this value was not sent."),
    )
    seed = f"{info.replid} {article.nickname} {' '.join(each.key for each in fields)} {version}"
    loser = F.struct(DELETED, LINEAGE, PRIORITY, UNKNOWN, ROW)
    nobody = F.lit(None).cast("double").alias(PRIORITY)
    found = rejected(
        rows,
        row=ROW,
        loser=loser,
        winner=F.struct(lineage.empty_lineage().alias(LINEAGE), nobody),
        names=named,
        publisher_wins=True,
        resolver=DROPPED_COLUMN,
        note=note,
        seed=seed,
    )
    at = {
        PUBLISHER: NamedEnd(relation.subscriber_server, relation.replid),
        SUBSCRIBER: NamedEnd(str(replica.root), info.replid),
    }
    now = microseconds(present(info))
    session = dropped_session(article.nickname, version)
    mark = CommitMark(session, "schema:dropped", info.replid)
    table = replica.folder / article.conflict_table
    append_conflicts(spark, table, losing_rows(found, article, at, now), mark)
    failpoint("schema.between_dropped_values")
    infos = info_rows(found, article, at, now, session)
    append_conflicts(spark, replica.folder / conflicts_info.NAME, infos, mark)
    failpoint("schema.after_dropped_values")
