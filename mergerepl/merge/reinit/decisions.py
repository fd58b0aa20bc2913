"""The rows of an article that a reinitialisation decides: the subscriber gets the publisher's row, or keeps its own.

The rows that differ, and those of which the publisher has metadata. A change that the subscriber has not sent is compared
by value, not by lineage: its publisher may have forgotten what that lineage must include. If both rows are equal it falls
away; else it is a conflict with the publisher's row, or a new row if the publisher has none.
"""

from dataclasses import replace

from pyspark.sql import SparkSession

from enumeration.get_metadata import no_conflict
from mergerepl import changes
from mergerepl.changes import (
    BORN_GENERATION,
    CHANGE_COLUMNS,
    COLV1,
    DELETED,
    GENERATION,
    LINEAGE,
    METADATA_COLUMNS,
    PARTCHANGEGEN,
    PRIORITY,
    PUBLISHER,
    PUBLISHER_ACTION,
    PUBLISHER_GENERATION,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    SUBSCRIBER_ACTION,
    SUBSCRIBER_GENERATION,
    TOMBSTONE_TYPE,
    UNKNOWN,
    VERDICT,
    Action,
    Verdict,
)
from mergerepl.delta.tables import read_columns
from mergerepl.frames import Column, DataFrame, F
from mergerepl.merge.partitions.membership import with_rowguid
from mergerepl.merge.reinit.differences import STATE, ReinitArticle, known_rows
from mergerepl.merge.repair.stamp import changed_fields
from mergerepl.merge.stage.decision import Changed, decided, resolved
from mergerepl.model import resolvers
from mergerepl.model.article import PublishedArticle
from mergerepl.model.session_terms import SessionTerms, terms_of
from mergerepl.publish.snapshot import DIFFERENT, EXTRA, MISSING
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import stored_image
from mergerepl.rows.lineage_value import agent_nickname, late_nickname
from mergerepl.spark.in_memory import Kept
from mergerepl.systables.tombstone import TombstoneType

_HERE = 1
"""The generation of all changes that are compared: each side gives them the number of its new one."""

_NO_ROUND = 1023


def unsent_rows(spark: SparkSession, of: ReinitArticle, rows: DataFrame, kept: Kept) -> DataFrame | None:
    """Return the decided rows in which a change of the subscriber that was not sent differs, with that change as `sent`.

    A deleted row has its last values in `sent`. None without such changes.
    """
    known = known_rows(spark, of.sides[SUBSCRIBER], of.nickname) if of.unsent else None
    if known is None:
        return None
    sent = known.where(F.col(GENERATION).isin(*of.unsent))
    sent = sent.select(ROWGUID, F.struct(*CHANGE_COLUMNS[1:]).alias("sent"))
    return kept.keep(rows.where(F.col("kind").isNotNull()).join(sent, on=ROWGUID))


def deletes_outside(spark: SparkSession, of: ReinitArticle, rows: DataFrame, kept: Kept) -> DataFrame | None:
    """Return the deletes that were not sent, of rows that the publisher has outside of the partition; None without any.

    Both sides lack them in the comparison. Columns: `row`, `kind`.
    """
    known = known_rows(spark, of.sides[SUBSCRIBER], of.nickname) if of.unsent and of.partition else None
    if known is None:
        return None
    deleted = known.where(F.col(GENERATION).isin(*of.unsent) & F.col(DELETED)).select(ROWGUID, ROW)
    unseen = deleted.join(rows.where(F.col("kind").isNotNull()), on=ROWGUID, how="left_anti")
    found = kept.keep_if_any(unseen)
    if found is None:
        return None
    article, publisher = of.article, of.sides[PUBLISHER]
    table = read_columns(
        spark, publisher.replica.table(article), publisher.info.captured[of.nickname], article.columns
    )
    held = with_rowguid(table.select(stored_image(article).alias(ROW)), article).select(ROWGUID)
    live = found.join(held, on=ROWGUID, how="left_semi")
    return kept.keep_if_any(live.select(ROW, F.lit(MISSING).alias("kind")))


def publishers_rows(of: ReinitArticle, rows: DataFrame) -> DataFrame:
    """Return RESOLVED of decided rows that the subscriber gets from the publisher.

    A subscriber that keeps its rows gets the version of each row that both have, so that its next change of the row does
    not conflict.
    """
    kind = F.col("kind")
    gone = F.lit(Action.DELETE.value)
    if of.partition is not None:
        # A row without metadata here is one that left, or one that the publisher never had.
        gone = F.when(F.col("is_recorded"), Action.DELETE.value).otherwise(Action.LEAVE.value)
    action = (
        F.when(kind == MISSING, Action.INSERT.value)
        .when(kind == DIFFERENT, Action.UPDATE.value)
        .when(kind == EXTRA, gone)
        .otherwise(Action.METADATA.value)
    )
    if of.keeps_rows:
        rows = rows.where(kind.isNull() | ((kind == DIFFERENT) & F.col("is_recorded")))
        rows = rows.withColumn(ROW, F.coalesce("theirs", ROW))
        action = F.lit(Action.METADATA.value)
    number = F.when(F.col("is_recorded"), F.lit(of.generations[SUBSCRIBER])).otherwise(F.lit(of.void))
    flat = rows.select(ROWGUID, f"{STATE}.*", ROW, "kind", "is_recorded")
    values = {
        # No other replica lacks it because of this row here.
        BORN_GENERATION: F.lit(None).cast("bigint"),
        VERDICT: F.lit(Verdict.DOWNLOAD.value),
        PUBLISHER_ACTION: F.lit(None).cast("string"),
        PUBLISHER_GENERATION: F.lit(None).cast("bigint"),
        SUBSCRIBER_ACTION: action,
        SUBSCRIBER_GENERATION: number.cast("bigint"),
        **no_conflict(flat.schema),
    }
    return flat.withColumns(values).select(*changes.RESOLVED_COLUMNS)


def conflicting_rows(of: ReinitArticle, unsent: DataFrame, count: int, kept: Kept) -> DataFrame:
    """Return RESOLVED of `count` unsent rows.

    A change of a row whose version at the publisher the subscriber has received, or which was born after the start and
    which the publisher lacks, replaces it. Any other is a conflict that the article's resolver decides, whatever the
    lineages say. A new version is above the publisher's lineage; with column tracking only the columns that differ get it.
    """
    article, publisher = of.article, of.sides[PUBLISHER]
    agent, clock, at = agent_nickname(publisher.info.nickname), of.clock, of.generations
    is_gone, is_gone_there = F.col("theirs").isNull(), F.col(f"{STATE}.{DELETED}")
    known, known_colv = F.col(f"{STATE}.{LINEAGE}"), F.col(f"{STATE}.{COLV1}")
    is_born = F.coalesce(F.col(f"sent.{BORN_GENERATION}") > of.start, F.lit(False)) & is_gone_there
    rows = unsent.withColumns(
        {"changed": changed_fields(unsent, article), "follows": is_born | _is_received(of, F.col(STATE))}
    )
    follows = F.col("follows")
    own = F.create_map(F.lit(_writer(of)), F.lit(clock).cast("bigint"))
    at_subscriber = {
        ROWGUID: F.col(ROWGUID),
        DELETED: is_gone,
        TOMBSTONE_TYPE: F.when(is_gone, F.lit(int(TombstoneType.USER_DELETE))),
        GENERATION: F.lit(_HERE).cast("bigint"),
        PARTCHANGEGEN: F.lit(None).cast("bigint"),
        BORN_GENERATION: F.when(is_born, F.col(f"sent.{BORN_GENERATION}")),
        LINEAGE: F.when(follows, _with(known, agent, clock + 1)).otherwise(own),
        COLV1: F.when(follows, _stamped(known_colv, article, agent, clock + 1, is_gone)).otherwise(
            _stamped(known_colv, article, _writer(of), clock, is_gone)
        ),
        PRIORITY: F.col(f"sent.{PRIORITY}"),
        UNKNOWN: F.col(f"sent.{UNKNOWN}"),
        ROW: F.coalesce("theirs", f"sent.{ROW}"),
    }
    # An entry of its own lets neither side's lineage cover the other one, whoever wrote the rows.
    at_publisher = {
        **{name: F.col(f"{STATE}.{name}") for name in METADATA_COLUMNS},
        ROWGUID: F.col(ROWGUID),
        GENERATION: F.lit(_HERE).cast("bigint"),
        LINEAGE: F.when(follows, known).otherwise(_with(known, agent, clock)),
        COLV1: F.when(follows, known_colv).otherwise(
            _stamped(known_colv, article, agent, clock, is_gone_there)
        ),
        ROW: F.col(ROW),
    }
    sent, held = (
        kept.keep(rows.select(*(value[name].alias(name) for name in CHANGE_COLUMNS)))
        for value in (at_subscriber, at_publisher)
    )
    terms = SessionTerms(
        upload=True,
        download=True,
        resolver_nickname=agent,
        client_subscription=publisher.other.is_client,
        publisher_generations={_HERE: at[PUBLISHER]},
        subscriber_generations={_HERE: at[SUBSCRIBER]},
        upload_start=of.start,
    )
    resolver = resolvers.RESOLVERS[article.resolver]
    if of.keeps_rows:
        article = replace(article, resolver=resolvers.SUBSCRIBER_WINS, resolver_info=None)
    elif resolver.makes_value or article.resolver == resolvers.CUSTOM or article.rejects is not None:
        # They read the row before both changes, which may be forgotten; or are of a direction that ends.
        article = replace(article, resolver=resolvers.PRIORITY, resolver_info=None)
    of_article = terms_of(
        article, resolved_at_publisher=at[PUBLISHER], resolved_at_subscriber=at[SUBSCRIBER], clock=clock
    )
    changed = Changed(article, of_article, held, sent, count)
    outcome = resolved(changed, decided([changed], terms, kept), terms)
    outcome = outcome.join(unsent.select(ROWGUID, STATE, "is_recorded", F.col(ROW).alias("held")), on=ROWGUID)
    return kept.keep(_as_decided(of, outcome))


def _as_decided(of: ReinitArticle, outcome: DataFrame) -> DataFrame:
    """Return RESOLVED as each side records it: where the publisher wins it keeps its version, which the subscriber gets."""
    at, stays = of.generations, F.coalesce(F.col(changes.PUBLISHER_WINS), F.lit(False))
    number = F.when(~stays | F.col("is_recorded"), F.lit(at[SUBSCRIBER])).otherwise(F.lit(of.void))
    kept_state = {
        name: F.when(stays, F.col(f"{STATE}.{name}")).otherwise(F.col(name)) for name in (COLV1, PRIORITY)
    }
    decided_lineage = F.map_filter(LINEAGE, lambda nickname, _: nickname != _writer(of))
    values = {
        # The publisher's new generation counts the rows of these verdicts.
        VERDICT: F.when(stays, Verdict.DOWNLOAD.value)
        .when(F.col(VERDICT) == Verdict.UPLOAD.value, Verdict.MERGE.value)
        .otherwise(F.col(VERDICT)),
        LINEAGE: F.when(stays, F.col(f"{STATE}.{LINEAGE}")).otherwise(decided_lineage),
        **kept_state,
        PUBLISHER_ACTION: F.when(~stays, F.col(PUBLISHER_ACTION)),
        PUBLISHER_GENERATION: F.when(~stays, F.lit(at[PUBLISHER]).cast("bigint")),
        SUBSCRIBER_ACTION: F.coalesce(SUBSCRIBER_ACTION, F.lit(Action.METADATA.value)),
        SUBSCRIBER_GENERATION: number.cast("bigint"),
    }
    return outcome.withColumns(values).select(*changes.RESOLVED_COLUMNS)


def _is_received(of: ReinitArticle, state: Column) -> Column:
    """Whether the subscriber has received the publisher's version of a row.

    One without metadata it has, unless the publisher has cleaned up more than the subscriber received.
    """
    publisher, about = of.sides[PUBLISHER], of.sides[SUBSCRIBER].other
    cleaned = publisher.info.cleaned.get(of.nickname, 0)
    marks = {row.generation: row.guidsrc for row in publisher.genhistory}
    is_same = about.recgen == 0 or marks.get(about.recgen) == about.recguid
    if cleaned > about.recgen or not is_same:
        return F.lit(False)
    return ~F.col("is_recorded") | (state[GENERATION] <= about.recgen)


def _writer(of: ReinitArticle) -> int:
    """Return a nickname that no lineage has, for the subscriber's change while it is compared."""
    return late_nickname(of.sides[SUBSCRIBER].info.nickname, _NO_ROUND)


def _with(known: Column, nickname: int, version: int) -> Column:
    return lineage.with_version(known, F.lit(nickname), F.lit(version).cast("bigint"))


def _stamped(colv: Column, article: PublishedArticle, nickname: int, version: int, is_gone: Column) -> Column:
    if not article.column_tracking:
        return lineage.no_colv()
    fields = lineage.fields_to_stamp(F.lit(True), colv, F.col("changed"), article.value_fields)
    changed = lineage.with_columns_changed(
        F.coalesce(colv, lineage.empty_colv()), fields, F.lit(nickname), F.lit(version)
    )
    return F.when(~is_gone, changed).otherwise(lineage.no_colv())
