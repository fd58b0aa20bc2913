"""The rows of an article that a reinitialisation decides: the subscriber gets the publisher's row, or keeps its own.

The rows that differ, and those of which the publisher has metadata. A change that the subscriber has not sent is compared
by value, not by lineage: its publisher may have forgotten what that lineage must include. If both rows are equal it falls
away; else it is a conflict with the publisher's row, or a new row if the publisher has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from enumeration.get_metadata import no_conflict
from mergerepl import changes
from mergerepl.changes import (
    BASE,
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
from mergerepl.delta.tables import open_table, read_columns
from mergerepl.frames import Column
from mergerepl.merge.partitions.filtered import FilteredPublication
from mergerepl.merge.partitions.membership import base_rows, subscribed_rows, with_rowguid
from mergerepl.merge.partitions.versions import published_state
from mergerepl.merge.repair.differing import compared, refuse_duplicates, with_images, without_equal
from mergerepl.merge.session.sides import SideState
from mergerepl.merge.stage.decision import Changed, decided, resolved
from mergerepl.model import resolvers
from mergerepl.model.article import PublishedArticle
from mergerepl.model.session_terms import SessionTerms, terms_of
from mergerepl.monitoring.compare_tables import row_count
from mergerepl.publish.snapshot import DIFFERENT, EXTRA, MISSING
from mergerepl.replica.runs import SEQ, ArticleRuns, current_rows
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import differing_columns, image_type, stored_image
from mergerepl.rows.lineage_value import agent_nickname, late_nickname
from mergerepl.spark.in_memory import Kept
from mergerepl.spark.session import require_utc
from mergerepl.systables.tombstone import TombstoneType
from triggers.schema_checks import require_columns

_HERE = 1
"""The generation of all changes that are compared: each side gives them the number of its new one."""

_NO_ROUND = 1023

_MANY = 100_000
"""From this number of rows in each table on, one more query finds the few rows to compare (`without_equal`)."""

_STATE = "state"
"""The publisher's version of a row, as METADATA_COLUMNS; `is_recorded`: it has metadata of it."""


@dataclass(frozen=True)
class ReinitArticle:
    """One article, as both sides captured it, and the terms of its reinitialisation.

    `generations` has its new generation at each side. `void` is the subscriber's last generation that does not count any
    more: rows without metadata at the publisher get it. `clock` is that of both sides. `unsent` are the subscriber's
    generations with changes that the publisher lacks, those after `start`; none is taken if it is empty. `keeps_rows`: the
    article is upload_only, so the subscriber gets versions from the publisher but no rows.
    """

    sides: Mapping[str, SideState]
    nickname: int
    generations: Mapping[str, int]
    void: int
    clock: int
    start: int
    unsent: frozenset[int]
    keeps_rows: bool = False

    @property
    def article(self) -> PublishedArticle:
        """The article at the publisher."""
        return self.sides[PUBLISHER].articles[self.nickname]

    @property
    def partition(self) -> FilteredPublication | None:
        """The filters, if the subscriber gets a part of the publisher's rows."""
        filtered = self.sides[PUBLISHER].filtered
        return filtered if filtered is not None and self.nickname in filtered.tablenicks else None

    @property
    def versions(self) -> dict[str, int]:
        """The captured versions of its tables."""
        return {name: side.info.captured[self.nickname] for name, side in self.sides.items()}


def decided_rows(spark: SparkSession, of: ReinitArticle, kept: Kept) -> DataFrame:
    """Return the rows that differ between both tables, and those of which the publisher has metadata; kept in memory.

    With row filters those of the subscriber's partition count, and rows of the subscriber outside of it.

    Columns: rowguid, `state`, `is_recorded`, `row`, and as compared `ours`, `theirs`, `kind` (NULL: equal).

    Raises: PublicationError if a key has several rows; SchemaMismatchError; EngineError.
    """
    article, rows, counts = of.article, {}, []
    for name, side in of.sides.items():
        table = open_table(side.replica.table(side.articles[of.nickname]), of.versions[name])
        require_utc(spark, article.name, table.path, table.metadata.timestamp_partitions)
        require_columns(article, table.path, [field["name"] for field in table.fields])
        rows[name] = read_columns(spark, table.path, table.version, article.columns)
        counts.append(row_count(table.path, table.version))
    seen = None
    if of.partition is not None:
        seen = _seen(spark, of, of.partition, kept)
        named = zip(article.fields, article.columns, strict=True)
        rows[PUBLISHER] = seen.select(*(F.col(f"{ROW}.{field}").alias(name) for field, name in named))
    if min(counts) >= _MANY:
        rows = without_equal(rows, article, count=sum(counts), kept=kept)
    differ = kept.keep(compared(rows, article).where(F.col("kind").isNotNull()))
    refuse_duplicates(
        differ, differ, article, done="reinitialised", remedy="Nothing was changed. Remove the duplicates."
    )
    images = with_images(differ, article).select(
        ROWGUID, "ours", "theirs", "kind", F.col(ROW).alias("either")
    )
    known = known_rows(spark, of.sides[PUBLISHER], of.nickname)
    if known is not None and seen is not None:
        known = _known_here(known, seen, images, article)
    published = published_state(article)
    if known is None:
        joined = images.withColumn("known", F.lit(None).cast(f"struct<{DELETED}:boolean>"))
        of_known = {name: F.lit(None) for name in (*METADATA_COLUMNS, ROW)}
    else:
        recorded = known.select(ROWGUID, F.struct(*METADATA_COLUMNS, ROW).alias("known"))
        joined = images.join(recorded, on=ROWGUID, how="full_outer")
        of_known = {name: F.col(f"known.{name}") for name in (*METADATA_COLUMNS, ROW)}
    is_recorded = F.col("known").isNotNull()
    is_gone = F.when(F.col("kind").isNotNull(), F.col("ours").isNull()).otherwise(of_known[DELETED])
    gone = {
        DELETED: F.lit(True),
        TOMBSTONE_TYPE: F.lit(int(TombstoneType.USER_DELETE)),
        LINEAGE: lineage.empty_lineage(),
        COLV1: lineage.no_colv(),
    }
    state = {
        name: F.when(is_recorded, of_known[name])
        .when(is_gone, gone.get(name, published[name]))
        .otherwise(published[name])
        for name in METADATA_COLUMNS
    } | {DELETED: is_gone}
    return kept.keep(
        joined.select(
            ROWGUID,
            F.struct(*(value.alias(name) for name, value in state.items())).alias(_STATE),
            is_recorded.alias("is_recorded"),
            F.coalesce("ours", of_known[ROW], "either").alias(ROW),
            "ours",
            "theirs",
            "kind",
        )
    )


def _seen(spark: SparkSession, of: ReinitArticle, publication: FilteredPublication, kept: Kept) -> DataFrame:
    """Return the publisher's rows of the subscriber's partition, as images; kept in memory."""
    publisher = of.sides[PUBLISHER]
    base = base_rows(spark, publisher.replica, publication.articles, publisher.info.captured)
    partition_id = publisher.other.partition_id
    return kept.keep(subscribed_rows(spark, publication, partition_id, base, of.article.name, kept))


def _known_here(known: DataFrame, seen: DataFrame, images: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return the publisher's metadata of rows of the partition, and of deleted rows that the subscriber still has.

    Of other rows the subscriber learns nothing: one that it has left its partition.
    """
    live = known.where(~F.col(DELETED))
    live = live.join(with_rowguid(seen, article).select(ROWGUID), on=ROWGUID, how="left_semi")
    held = images.where(F.col("kind") == EXTRA).select(ROWGUID)
    return live.unionByName(known.where(DELETED).join(held, on=ROWGUID, how="left_semi"))


def known_rows(spark: SparkSession, side: SideState, nickname: int) -> DataFrame | None:
    """Return CHANGES: the latest recorded version of an article's rows at a side, with those just captured; or None."""
    captured = side.captured_article(nickname)
    runs = []
    if side.info.last_seq:
        runs.append(ArticleRuns.of(spark, side.replica, side.articles[nickname], side.info.last_seq).read())
    if captured is not None and captured.rows is not None:
        rows = captured.rows.select(*(name for name in captured.rows.columns if name != BASE))
        runs.append(rows.withColumn(SEQ, F.lit(side.info.last_seq + 1).cast("bigint")))
    if not runs:
        return None
    return current_rows(runs[0] if len(runs) == 1 else runs[0].unionByName(runs[1]))


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
    flat = rows.select(ROWGUID, f"{_STATE}.*", ROW, "kind", "is_recorded")
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
    is_gone, is_gone_there = F.col("theirs").isNull(), F.col(f"{_STATE}.{DELETED}")
    known, known_colv = F.col(f"{_STATE}.{LINEAGE}"), F.col(f"{_STATE}.{COLV1}")
    is_born = F.coalesce(F.col(f"sent.{BORN_GENERATION}") > of.start, F.lit(False)) & is_gone_there
    rows = unsent.withColumns(
        {"changed": _changed(unsent, article), "follows": is_born | _is_received(of, F.col(_STATE))}
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
        **{name: F.col(f"{_STATE}.{name}") for name in METADATA_COLUMNS},
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
    outcome = outcome.join(
        unsent.select(ROWGUID, _STATE, "is_recorded", F.col(ROW).alias("held")), on=ROWGUID
    )
    return kept.keep(_as_decided(of, outcome))


def _as_decided(of: ReinitArticle, outcome: DataFrame) -> DataFrame:
    """Return RESOLVED as each side records it: where the publisher wins it keeps its version, which the subscriber gets."""
    at, stays = of.generations, F.coalesce(F.col(changes.PUBLISHER_WINS), F.lit(False))
    number = F.when(~stays | F.col("is_recorded"), F.lit(at[SUBSCRIBER])).otherwise(F.lit(of.void))
    kept_state = {
        name: F.when(stays, F.col(f"{_STATE}.{name}")).otherwise(F.col(name)) for name in (COLV1, PRIORITY)
    }
    decided_lineage = F.map_filter(LINEAGE, lambda nickname, _: nickname != _writer(of))
    values = {
        # The publisher's new generation counts the rows of these verdicts.
        VERDICT: F.when(stays, Verdict.DOWNLOAD.value)
        .when(F.col(VERDICT) == Verdict.UPLOAD.value, Verdict.MERGE.value)
        .otherwise(F.col(VERDICT)),
        LINEAGE: F.when(stays, F.col(f"{_STATE}.{LINEAGE}")).otherwise(decided_lineage),
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


def _changed(rows: DataFrame, article: PublishedArticle) -> Column:
    """Return the fields that differ, all of a row that a side lacks; NULL in a row-tracked article."""
    if not article.column_tracking:
        return F.lit(None).cast("array<string>")
    names = zip(article.value_fields, article.value_fields, strict=True)
    every = lineage.field_names(article.value_fields)
    differ = differing_columns("ours", "theirs", image_type(rows, "ours"), names)
    return F.when(F.col("kind") == DIFFERENT, differ).otherwise(every)


def _stamped(colv: Column, article: PublishedArticle, nickname: int, version: int, is_gone: Column) -> Column:
    if not article.column_tracking:
        return lineage.no_colv()
    fields = lineage.fields_to_stamp(F.lit(True), colv, F.col("changed"), article.value_fields)
    changed = lineage.with_columns_changed(
        F.coalesce(colv, lineage.empty_colv()), fields, F.lit(nickname), F.lit(version)
    )
    return F.when(~is_gone, changed).otherwise(lineage.no_colv())
