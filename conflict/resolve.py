"""Decide every row of a session: its final state, what each side does, and who lost what.

Merge session step: after get_metadata and detect, before staging. Pure. A resolution is a new event: its
lineage covers both sides and adds a version of the resolving agent, so that it dominates both wherever it
travels (design section 5).
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField

from conflict.detect import DIFFERENT, PUBLISHER_CHANGED, SIDES, SUBSCRIBER_CHANGED, value_fields
from mergerepl import changes
from mergerepl.changes import (
    BORN_GENERATION,
    COLV1,
    DELETED,
    GENERATION,
    LINEAGE,
    PARTCHANGEGEN,
    PRIORITY,
    PUBLISHER,
    PUBLISHER_WINS,
    ROW,
    ROWGUID,
    SUBSCRIBER,
    TOMBSTONE_TYPE,
    VERDICT,
    Action,
    Verdict,
)
from mergerepl.engine.passed import passed
from mergerepl.lineage import columns as lineage
from mergerepl.model.article import PublishedArticle
from mergerepl.model.publication import PUBLISHER_PRIORITY, Resolution
from mergerepl.rows.images import image_type, same_image
from mergerepl.rows.sql import unlike_any
from mergerepl.systables.conflicts_info import ConflictType
from mergerepl.systables.tombstone import TombstoneType

_STATE = (DELETED, TOMBSTONE_TYPE, PARTCHANGEGEN, BORN_GENERATION, LINEAGE, COLV1, PRIORITY, ROW)


@dataclass(frozen=True)
class SessionTerms:
    """What resolve needs to know of the session.

    `publisher_generations` maps the subscriber's generation numbers to those the publisher receives them
    under, `subscriber_generations` the other way round; `resolved_at_*` are the generations that merged and
    resolved rows join. `unpublished` is the side whose change the publisher does not get in this session, if there is one:
    a row merged with it keeps its priority.
    """

    upload: bool
    download: bool
    resolver_nickname: int
    client_subscription: bool
    publisher_generations: dict[int, int]
    subscriber_generations: dict[int, int]
    resolved_at_publisher: int
    resolved_at_subscriber: int
    upload_start: int = 0
    download_start: int = 0
    unpublished: str | None = None

    @property
    def uploaded_priority(self) -> Column:
        """Priority of the subscriber's change once the publisher holds it: a client's own, 0.0, is the publisher's then.

        What a client holds of somebody else's change keeps the priority that it came with, if that is above 0.
        """
        told = F.col(f"{SUBSCRIBER}.{PRIORITY}")
        if self.client_subscription and self.upload:
            return F.when(told > 0, told).otherwise(F.lit(PUBLISHER_PRIORITY))
        return told


def one_sided(pairs: DataFrame, terms: SessionTerms) -> DataFrame:
    """Return RESOLVED of the rows that only one side has news of: they go over as they are.

    Reads: PAIRS. Rows with another verdict, and directions the session does not run, are left out.
    """
    verdicts = [
        v.value for v, runs in ((Verdict.UPLOAD, terms.upload), (Verdict.DOWNLOAD, terms.download)) if runs
    ]
    is_upload = F.col(VERDICT) == Verdict.UPLOAD.value

    def state(side: str, priority: Column) -> Column:
        told = {name: F.col(f"{side}.{name}") for name in _STATE} | {PRIORITY: priority}
        return F.struct(*(value.alias(name) for name, value in told.items()))

    final = F.when(is_upload, state(SUBSCRIBER, terms.uploaded_priority)).otherwise(
        state(PUBLISHER, F.col(f"{PUBLISHER}.{PRIORITY}"))
    )
    to_publisher = _sent(SUBSCRIBER, PUBLISHER, start=terms.upload_start)
    to_subscriber = _sent(PUBLISHER, SUBSCRIBER, start=terms.download_start)
    received_at_publisher = _mapped(F.col(f"{SUBSCRIBER}.{GENERATION}"), terms.publisher_generations)
    received_at_subscriber = _mapped(F.col(f"{PUBLISHER}.{GENERATION}"), terms.subscriber_generations)
    nobody = F.lit(None).cast(_told_type(pairs))
    values = {
        changes.PUBLISHER_ACTION: F.when(is_upload, to_publisher),
        changes.PUBLISHER_GENERATION: F.when(is_upload, received_at_publisher),
        changes.SUBSCRIBER_ACTION: F.when(~is_upload, to_subscriber),
        changes.SUBSCRIBER_GENERATION: F.when(~is_upload, received_at_subscriber),
        changes.CONFLICT_TYPE: F.lit(None).cast("int"),
        changes.CONFLICT_COLUMNS: F.expr("cast(array() as array<string>)"),
        changes.PUBLISHER_WINS: F.lit(None).cast("boolean"),
        changes.LOSER: nobody,
        changes.WINNER: nobody,
    }
    chosen = pairs.where(F.col(VERDICT).isin(verdicts))
    named = chosen.select(ROWGUID, VERDICT, final.alias("final"), *(v.alias(n) for n, v in values.items()))
    flat = named.select(ROWGUID, VERDICT, "final.*", *values)
    return flat.select(*changes.RESOLVED_COLUMNS)


def final_states(
    detected: DataFrame, article: PublishedArticle, terms: SessionTerms, *, whole_rows: bool = False
) -> DataFrame:
    """Return merged and resolved rows with their final state beside what the two sides told.

    Reads: `detect`. Returns: its columns and deleted, tombstone_type, partchangegen, born_generation, lineage, colv1,
    priority, row.
    """
    is_merge = F.col(VERDICT) == Verdict.MERGE.value
    wins = F.col(PUBLISHER_WINS)
    publisher_deleted, subscriber_deleted = F.col(f"{PUBLISHER}.{DELETED}"), F.col(f"{SUBSCRIBER}.{DELETED}")
    one_deleted = publisher_deleted != subscriber_deleted
    joined = lineage.merge(F.col(f"{PUBLISHER}.{LINEAGE}"), F.col(f"{SUBSCRIBER}.{LINEAGE}"))
    version = lineage.next_version(joined, floor=article.maxversion_at_cleanup)
    resolved = lineage.with_version(joined, F.lit(terms.resolver_nickname), version)
    is_divisible = article.column_tracking and not whole_rows
    by_columns = is_divisible and article.resolution == Resolution.COLUMNS.value
    deleted = F.when(is_merge | wins, publisher_deleted).otherwise(subscriber_deleted)
    publisher_row, subscriber_row = F.col(f"{PUBLISHER}.{ROW}"), F.col(f"{SUBSCRIBER}.{ROW}")
    winner_row = F.when(wins, publisher_row).otherwise(subscriber_row)
    takes_columns = is_merge | (F.lit(by_columns) & ~one_deleted)
    # A row that comes back from a delete is the winner's, column by column: nobody changed one to anything else.
    winner_colv = F.when(wins, F.col(f"{PUBLISHER}.{COLV1}")).otherwise(F.col(f"{SUBSCRIBER}.{COLV1}"))
    colv = _merged_colv(article, version, terms, by_columns=by_columns)
    # What a download-only session merges keeps the subscriber's priority: it has not reached the publisher
    # yet.
    publisher_priority, uploaded = F.col(f"{PUBLISHER}.{PRIORITY}"), terms.uploaded_priority
    merged_priority = F.greatest(publisher_priority, uploaded) if terms.upload else uploaded
    if terms.unpublished is not None:
        merged_priority = F.col(f"{terms.unpublished}.{PRIORITY}")
    priority = F.when(is_merge, merged_priority).when(wins, publisher_priority).otherwise(uploaded)
    final = detected.withColumns(
        {
            DELETED: deleted,
            TOMBSTONE_TYPE: F.when(deleted, F.lit(int(TombstoneType.USER_DELETE))),
            PARTCHANGEGEN: F.lit(None).cast("bigint"),
            BORN_GENERATION: F.lit(None).cast("bigint"),
            LINEAGE: F.when(is_merge, joined).otherwise(resolved),
            COLV1: F.when(~deleted, F.when(one_deleted, winner_colv).otherwise(colv)),
            PRIORITY: priority.cast("double"),
            ROW: F.when(takes_columns, _merged_row(detected, article)).otherwise(winner_row),
        }
    )
    return _with_generated(final, article) if article.generated else final


def _with_generated(final: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return the final states with generated columns as Delta will compute them: a row of two halves has values
    that neither side told.
    """
    state = unlike_any("state", article.columns)
    by_name = (
        F.col(f"{ROW}.{f}").alias(name) for name, f in zip(article.columns, article.fields, strict=True)
    )
    named = final.select(F.struct("*").alias(state), *by_name)
    # A key stays as it is: it is the row's identity, and the same in both halves.
    text_of = {
        article.fields[article.columns.index(name)]: text
        for name, text in article.generated
        if name not in article.identity
    }

    def value(field: StructField) -> Column:
        if field.name not in text_of:
            return F.col(f"{state}.{ROW}.{field.name}")
        return F.expr(text_of[field.name]).cast(field.dataType)

    row = F.struct(*(value(field).alias(field.name) for field in image_type(final, ROW)))
    told = {name: F.col(f"{state}.{name}") for name in final.columns} | {ROW: row}
    return named.select(*(value.alias(name) for name, value in told.items()))


def _merged_row(detected: DataFrame, article: PublishedArticle) -> Column:
    """Return the row whose columns come from the side that changed them; clashing ones from the winner."""
    values = set(value_fields(article).values())
    image = image_type(detected, f"{PUBLISHER}.{ROW}")
    publisher_prevails = F.coalesce(F.col(PUBLISHER_WINS), F.lit(True))

    def value(field: str) -> Column:
        at_publisher, at_subscriber = (
            F.col(f"{PUBLISHER}.{ROW}.{field}"),
            F.col(f"{SUBSCRIBER}.{ROW}.{field}"),
        )
        if field not in values:
            return at_publisher
        by_publisher = F.col(f"{SIDES}.{field}.{PUBLISHER_CHANGED}")
        by_subscriber = F.col(f"{SIDES}.{field}.{SUBSCRIBER_CHANGED}")
        return F.when(by_subscriber & ~(by_publisher & publisher_prevails), at_subscriber).otherwise(
            at_publisher
        )

    return F.struct(*(value(field.name).alias(field.name) for field in image))


def _merged_colv(
    article: PublishedArticle, version: Column, terms: SessionTerms, *, by_columns: bool
) -> Column:
    """Return colv1 of both sides joined: per column the entry of the side that changed it, the publisher's if both
    did, which is the one that other subscribers may know; the later one if neither did.

    In a conflict a column whose loser's change is overridden gets the resolution's version instead. A column
    the loser left alone keeps its entry, or an edit made with knowledge of it would conflict with a change
    that never was.
    """
    if not article.column_tracking:
        return lineage.no_colv()
    stamp = F.struct(
        F.lit(terms.resolver_nickname).alias("nickname"), version.cast("bigint").alias("version")
    )

    def entry(name: str, field: str) -> Column:
        at_publisher = F.try_element_at(F.col(f"{PUBLISHER}.{COLV1}"), F.lit(name))
        at_subscriber = F.try_element_at(F.col(f"{SUBSCRIBER}.{COLV1}"), F.lit(name))
        by_publisher = F.col(f"{SIDES}.{field}.{PUBLISHER_CHANGED}")
        by_subscriber = F.col(f"{SIDES}.{field}.{SUBSCRIBER_CHANGED}")
        merged = (
            F.when(by_subscriber & ~by_publisher, at_subscriber)
            .when(by_publisher, at_publisher)
            .otherwise(_later(at_publisher, at_subscriber))
        )
        by_loser = F.when(F.col(PUBLISHER_WINS), by_subscriber).otherwise(by_publisher)
        overridden = (by_publisher & by_subscriber) if by_columns else by_loser
        is_conflict = F.col(VERDICT) == Verdict.CONFLICT.value
        return F.when(is_conflict & overridden & F.col(f"{SIDES}.{field}.{DIFFERENT}"), stamp).otherwise(
            merged
        )

    return lineage.colv_from([(name, entry(name, field)) for name, field in value_fields(article).items()])


def _later(one: Column, other: Column) -> Column:
    """Return the entry with the higher (version, nickname); a missing one is lower than any."""
    one_is_later = (one["version"] > other["version"]) | (
        (one["version"] == other["version"]) & (one["nickname"] >= other["nickname"])
    )
    return F.when(other.isNull() | one_is_later, one).otherwise(other)


def with_actions(final: DataFrame, terms: SessionTerms) -> DataFrame:
    """Return RESOLVED of merged and resolved rows: what each side does to get to the final state, and who
    lost.

    Reads: `final_states`.
    """
    image = image_type(final, ROW)

    def change(side: str) -> Column:
        deleted = F.col(f"{side}.{DELETED}")
        return (
            F.when(F.col(DELETED) & deleted, Action.METADATA.value)
            .when(F.col(DELETED), Action.DELETE.value)
            .when(deleted, Action.INSERT.value)
            .when(same_image(ROW, f"{side}.{ROW}", image), Action.METADATA.value)
            .otherwise(Action.UPDATE.value)
        )

    no_action = F.lit(None).cast("string")
    wins = F.col(PUBLISHER_WINS)
    values = {
        changes.PUBLISHER_ACTION: change(PUBLISHER) if terms.upload else no_action,
        changes.PUBLISHER_GENERATION: passed(terms.resolved_at_publisher, "bigint"),
        changes.SUBSCRIBER_ACTION: change(SUBSCRIBER) if terms.download else no_action,
        changes.SUBSCRIBER_GENERATION: passed(terms.resolved_at_subscriber, "bigint"),
        changes.CONFLICT_TYPE: _conflict_type(),
        changes.LOSER: F.when(wins, _told(SUBSCRIBER)).when(~wins, _told(PUBLISHER)),
        changes.WINNER: F.when(wins, _told(PUBLISHER)).when(~wins, _told(SUBSCRIBER)),
    }
    return final.withColumns(values).select(*changes.RESOLVED_COLUMNS)


def _conflict_type() -> Column:
    one_deleted = F.col(f"{PUBLISHER}.{DELETED}") != F.col(f"{SUBSCRIBER}.{DELETED}")
    is_tracked_by_column = F.col(f"{PUBLISHER}.{COLV1}").isNotNull()
    kind = (
        F.when(one_deleted & F.col(DELETED), int(ConflictType.UPDATE_DELETE_WINS))
        .when(one_deleted, int(ConflictType.UPDATE_WINS_DELETE))
        .when(is_tracked_by_column, int(ConflictType.COLUMN_UPDATE))
        .otherwise(int(ConflictType.UPDATE))
    )
    return F.when(F.col(VERDICT) == Verdict.CONFLICT.value, kind)


def _told(side: str) -> Column:
    return F.struct(*(F.col(f"{side}.{name}").alias(name) for name in (DELETED, LINEAGE, PRIORITY, ROW)))


def _told_type(pairs: DataFrame) -> DataType:
    # Not as text: names of nested fields would need quotes in it.
    return pairs.select(_told(PUBLISHER).alias("told")).schema["told"].dataType


def _sent(source: str, destination: str, *, start: int) -> Column:
    """Say what a change is to a side that has nothing newer: an insert if that side cannot have the row."""
    born_after_start = F.col(f"{source}.{BORN_GENERATION}") > passed(start, "bigint")
    was_deleted = F.coalesce(F.col(f"{destination}.{DELETED}"), F.lit(False))
    return (
        F.when(F.col(f"{source}.{DELETED}"), Action.DELETE.value)
        .when(F.coalesce(born_after_start, F.lit(False)) | was_deleted, Action.INSERT.value)
        .otherwise(Action.UPDATE.value)
    )


def _mapped(generation: Column, numbers: dict[int, int]) -> Column:
    if not numbers:
        return F.lit(None).cast("bigint")
    keys = F.array(*(F.lit(number).cast("bigint") for number in numbers))
    values = F.array(*(F.lit(number).cast("bigint") for number in numbers.values()))
    return F.try_element_at(F.map_from_arrays(keys, values), generation)
