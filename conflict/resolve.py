"""Decide every row of a session: its final state, the actions of both sides, and the losing changes.

Merge session step: after get_metadata and detect, before staging. Pure. A resolution is a new event: its lineage covers
both sides and adds a version of the resolving agent, so that it covers both at every replica (design section 5).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from conflict.detect import is_conflict
from conflict.merge_columns import PUBLISHER_ROW, SUBSCRIBER_ROW, is_changed_for, merged_colv, of_subscriber
from conflict.resolvers import custom
from conflict.resolvers.adapter import one_deleted
from conflict.resolvers.base import Decide
from mergerepl import changes
from mergerepl.changes import (
    ARTICLE,
    BORN_GENERATION,
    BY_COLUMNS,
    CLOCK,
    COLUMN_TRACKING,
    COLV1,
    DELETED,
    LINEAGE,
    MADE,
    OF_SUBSCRIBER,
    PARTCHANGEGEN,
    PRIORITY,
    PUBLISHER,
    PUBLISHER_WINS,
    ROW,
    SENT,
    STATE_COLUMNS,
    SUBSCRIBER,
    TABLENICK,
    TOMBSTONE_TYPE,
    UNKNOWN,
    UPLOADED_PRIORITY,
    VERDICT,
    Action,
    Verdict,
)
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.model.session_terms import ArticleTerms, SessionTerms
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import image_type, no_fields
from mergerepl.rows.nested import INTERPRETED, Fields
from mergerepl.spark.expression_cost import parameter_column, where_computed
from mergerepl.systables.conflicts_info import ConflictType
from mergerepl.systables.tombstone import TombstoneType

_NICKNAMES = "other_writers"
_VERSIONS = "versions_of_other_writers"
_RESOLVERS = "version_of_resolver"
"""The two lineages joined where fields are written out: the entry of the resolving agent (NULL: none), and all others."""
_JOINED = "joined_lineage"
_VERSION = "resolution_version"


def resolve(
    detected: DataFrame,
    decide: Decide,
    terms: SessionTerms,
    fields: Fields = INTERPRETED,
    *,
    is_any_unknown: bool = False,
) -> DataFrame:
    """Return DECIDED: a row that only one side changed is sent unchanged, others are merged or resolved.

    Rows that both sides hold already get no action; neither do rows of a direction that the session does not run.

    Reads: `detect`. Returns: DECIDED, the column of made values of each article whose resolver makes values, and the typed
    rows of both sides if the changes came with them.
    """
    rows = decide(detected)
    made = changes.all_made_columns(rows.columns)
    is_any_made = bool(made)
    for columns in _joined(terms.resolver_nickname, fields):
        rows = rows.withColumns(columns)
    rows = rows.withColumns(_of_both(fields, is_any_made=is_any_made, is_any_unknown=is_any_unknown))
    state = _state(
        terms.resolver_nickname,
        terms.upload,
        terms.unpublished,
        fields,
        is_any_made=is_any_made,
        is_any_answered=custom.ANSWER in rows.columns,
        is_any_unknown=is_any_unknown,
    )
    rows = rows.withColumns(state)
    sends_rows = all(ROW in image_type(rows, side).names for side in (PUBLISHER, SUBSCRIBER))
    outcome = dict(
        _outcome(
            terms.upload,
            terms.download,
            fields,
            is_any_made=is_any_made,
            is_any_unknown=is_any_unknown,
            sends_rows=sends_rows,
        )
    )
    if REJECTED in rows.columns:
        outcome |= outcome_of_rejected(outcome, F.col(_JOINED))
    typed = [
        F.col(f"{side}.{ROW}").alias(name)
        for side, name in ((PUBLISHER, PUBLISHER_ROW), (SUBSCRIBER, SUBSCRIBER_ROW))
        if sends_rows
    ]
    return rows.select(
        *(outcome.get(name, F.col(name)).alias(name) for name in changes.DECIDED_COLUMNS), *made, *typed
    )


def acted_on(rows: DataFrame) -> DataFrame:
    """Return the detected rows that need a decision."""
    is_sent = F.coalesce(changes.PUBLISHER_ACTION, changes.SUBSCRIBER_ACTION).isNotNull()
    return where_computed(rows, _is_of_two() | is_sent)


def _is_of_two() -> Column:
    return F.col(VERDICT).isin(*changes.OF_TWO)


def _is_merge() -> Column:
    return F.col(VERDICT) == Verdict.MERGE.value


def _lineages() -> tuple[Column, Column]:
    return F.col(f"{PUBLISHER}.{LINEAGE}"), F.col(f"{SUBSCRIBER}.{LINEAGE}")


@cached
def _joined(resolver_nickname: int, fields: Fields) -> tuple[dict[str, Column], ...]:
    """Return the columns of the joined lineage: each mapping reads those before."""
    if not fields.is_written_out:
        return ({_JOINED: F.when(_is_of_two(), lineage.merge(*_lineages()))},)
    # As a map it would be made once more with the entry of the resolution.
    resolver = F.lit(resolver_nickname)
    of_resolver = lineage.later_version(*_lineages(), resolver)
    others = F.array_remove(lineage.writers(*_lineages()), resolver)
    versions = lineage.versions_of(*_lineages(), F.col(_NICKNAMES))
    return (
        {_NICKNAMES: F.when(_is_of_two(), others)},
        {_VERSIONS: F.when(_is_of_two(), versions), _RESOLVERS: F.when(_is_of_two(), of_resolver)},
        {_JOINED: _lineage_with(resolver, F.col(_RESOLVERS))},
    )


def _lineage_with(resolver: Column, version: Column) -> Column:
    return lineage.of_entries(F.col(_NICKNAMES), F.col(_VERSIONS), resolver, version)


@cached
def _of_both(fields: Fields, *, is_any_made: bool, is_any_unknown: bool) -> dict[str, Column]:
    clock = parameter_column(f"{ARTICLE}.{CLOCK}")
    takes_columns = _is_merge() | (F.col(f"{ARTICLE}.{BY_COLUMNS}") & ~one_deleted())
    return {
        _VERSION: F.greatest(*(lineage.next_version(each, floor=clock) for each in _lineages())).cast(
            "bigint"
        ),
        OF_SUBSCRIBER: of_subscriber(
            takes_columns, ~one_deleted() if is_any_made else None, fields, is_any_unknown=is_any_unknown
        ),
    }


@cached
def _state(
    resolver_nickname: int,
    upload: bool,
    unpublished: str | None,
    fields: Fields,
    *,
    is_any_made: bool,
    is_any_answered: bool,
    is_any_unknown: bool,
) -> dict[str, Column]:
    """Return the final state of a row: as sent, or as decided if both sides changed it."""
    wins, joined, version = F.col(PUBLISHER_WINS), F.col(_JOINED), F.col(_VERSION)
    deleted = F.when(_is_merge() | wins, F.col(f"{PUBLISHER}.{DELETED}")).otherwise(
        F.col(f"{SUBSCRIBER}.{DELETED}")
    )
    if is_any_answered:
        deleted = deleted | custom.is_delete()
    nickname = F.lit(resolver_nickname)
    if fields.is_written_out:
        both = _lineage_with(nickname, F.when(_is_merge(), F.col(_RESOLVERS)).otherwise(version))
    else:
        both = F.when(_is_merge(), joined).otherwise(lineage.with_version(joined, nickname, version))
    # A row that is restored after a delete has the winner's columns: the other side did not change columns.
    winner_colv = F.when(wins, F.col(f"{PUBLISHER}.{COLV1}")).otherwise(F.col(f"{SUBSCRIBER}.{COLV1}"))
    winner_colv = F.when(F.col(f"{ARTICLE}.{COLUMN_TRACKING}"), winner_colv)
    stamp = F.struct(nickname.alias("nickname"), version.alias("version"))
    if is_any_unknown:
        # ... and those of the tombstone, of which it said nothing: the resolution changed these.
        stamped = lineage.with_columns_changed(winner_colv, _taken_from_tombstone(), nickname, version)
        winner_colv = F.coalesce(stamped, winner_colv)
    colv = merged_colv(stamp, is_any_made=is_any_made, is_any_unknown=is_any_unknown, fields=fields)
    of_two = {
        DELETED: deleted,
        TOMBSTONE_TYPE: F.when(deleted, F.lit(int(TombstoneType.USER_DELETE))),
        PARTCHANGEGEN: F.lit(None).cast("bigint"),
        BORN_GENERATION: F.lit(None).cast("bigint"),
        LINEAGE: both,
        COLV1: F.when(~deleted, F.when(one_deleted(), winner_colv).otherwise(colv)),
        PRIORITY: _priority(upload, unpublished).cast("double"),
        UNKNOWN: _unknown(deleted, is_any_answered=is_any_answered) if is_any_unknown else no_fields(),
    }
    return {
        name: F.when(_is_of_two(), of_two[name]).otherwise(F.col(f"{SENT}.{name}")) for name in STATE_COLUMNS
    }


def _unknown(deleted: Column, *, is_any_answered: bool) -> Column:
    """Return the fields of which the final row says nothing: neither side does.

    A subscriber's row that wins over a delete takes the others from the tombstone, and says them from then on: otherwise an
    older change of a third replica would replace them, and no conflict table would have them. The publisher's row is whole.
    """
    at_publisher, at_subscriber = (F.col(f"{side}.{UNKNOWN}") for side in (PUBLISHER, SUBSCRIBER))
    of_neither = F.array_intersect(at_publisher, at_subscriber)
    unknown = F.when(one_deleted() & ~deleted & F.col(PUBLISHER_WINS), at_publisher).otherwise(of_neither)
    return F.when(~custom.is_row(), unknown) if is_any_answered else unknown


def _taken_from_tombstone() -> Column:
    """Return the fields that the subscriber's row takes where it wins over a delete: the tombstone says something of them.

    NULL for other rows, and if there are none.
    """
    at_publisher, at_subscriber = (F.col(f"{side}.{UNKNOWN}") for side in (PUBLISHER, SUBSCRIBER))
    said = F.coalesce(at_publisher, F.array().cast("array<string>"))
    return F.when(one_deleted() & ~F.col(PUBLISHER_WINS), F.array_except(at_subscriber, said))


def _priority(upload: bool, unpublished: str | None) -> Column:
    publisher_priority, uploaded = F.col(f"{PUBLISHER}.{PRIORITY}"), F.col(UPLOADED_PRIORITY)
    # A row merged by a download-only session keeps the subscriber's priority: it has not reached the publisher yet.
    merged = F.greatest(publisher_priority, uploaded) if upload else uploaded
    if unpublished is not None:
        merged = F.col(f"{unpublished}.{PRIORITY}")
    return F.when(_is_merge(), merged).when(F.col(PUBLISHER_WINS), publisher_priority).otherwise(uploaded)


@cached
def _outcome(
    upload: bool, download: bool, fields: Fields, *, is_any_made: bool, is_any_unknown: bool, sends_rows: bool
) -> dict[str, Column]:
    """Return the action and the generation of each side for the final state, and the loser."""
    wins = F.col(PUBLISHER_WINS)
    of_loser = (*changes.LOSER_COLUMNS, ROW) if sends_rows else changes.LOSER_COLUMNS

    def of_two(name: str, value: Column) -> Column:
        return F.when(_is_of_two(), value).otherwise(F.col(name))

    return {
        **{
            changes.ACTION_OF[side]: of_two(
                changes.ACTION_OF[side],
                _action(side, fields, runs=runs, is_any_made=is_any_made, is_any_unknown=is_any_unknown),
            )
            for side, runs in ((PUBLISHER, upload), (SUBSCRIBER, download))
        },
        **{
            name: of_two(name, parameter_column(f"{ARTICLE}.{resolved_at}"))
            for name, resolved_at in (
                (changes.PUBLISHER_GENERATION, changes.RESOLVED_AT_PUBLISHER),
                (changes.SUBSCRIBER_GENERATION, changes.RESOLVED_AT_SUBSCRIBER),
            )
        },
        changes.CONFLICT_TYPE: _conflict_type(),
        changes.MADE_COLUMNS: F.map_keys(MADE) if is_any_made else F.lit(None).cast("array<string>"),
        changes.LOSER: F.when(wins, _contender(SUBSCRIBER, of_loser)).when(
            ~wins, _contender(PUBLISHER, of_loser)
        ),
        changes.WINNER: F.when(wins, _contender(PUBLISHER, changes.WINNER_COLUMNS)).when(
            ~wins, _contender(SUBSCRIBER, changes.WINNER_COLUMNS)
        ),
    }


def _action(side: str, fields: Fields, *, runs: bool, is_any_made: bool, is_any_unknown: bool) -> Column:
    if not runs:
        return F.lit(None).cast("string")
    is_deleted, was_deleted = F.col(DELETED), F.col(f"{side}.{DELETED}")
    return (
        F.when(is_deleted & was_deleted, Action.METADATA.value)
        .when(is_deleted, Action.DELETE.value)
        .when(was_deleted, Action.INSERT.value)
        .when(
            is_changed_for(side, is_any_made=is_any_made, is_any_unknown=is_any_unknown, fields=fields),
            Action.UPDATE.value,
        )
        .otherwise(Action.METADATA.value)
    )


def _conflict_type() -> Column:
    kind = (
        F.when(one_deleted() & F.col(DELETED), int(ConflictType.UPDATE_DELETE_WINS))
        .when(one_deleted(), int(ConflictType.UPDATE_WINS_DELETE))
        .when(F.col(f"{ARTICLE}.{COLUMN_TRACKING}"), int(ConflictType.COLUMN_UPDATE))
        .otherwise(int(ConflictType.UPDATE))
    )
    return F.when(is_conflict(), kind)


def _contender(side: str, columns: Sequence[str]) -> Column:
    return F.struct(*(F.col(f"{side}.{name}").alias(name) for name in columns))


REJECTED: Final = "rejected"
"""Column of PAIRS: the verdict of a row that only one side changed and whose article rejects that; NULL for others."""

_SENT_BY = {PUBLISHER: Verdict.DOWNLOAD.value, SUBSCRIBER: Verdict.UPLOAD.value}


def with_rejected(pairs: DataFrame, articles: Collection[ArticleTerms], terms: SessionTerms) -> DataFrame:
    """Return PAIRS in which changes that these articles reject are candidates, with `rejected`.

    A change in a direction that does not run is not rejected yet.
    """
    runs = {PUBLISHER: terms.download, SUBSCRIBER: terms.upload}
    is_rejected = F.lit(False)
    for side, verdict in _SENT_BY.items():
        tablenicks = [each.tablenick for each in articles if each.rejects == side]
        if tablenicks and runs[side]:
            is_rejected |= F.col(TABLENICK).isin(tablenicks) & (F.col(VERDICT) == verdict)
    candidate = F.when(F.col(REJECTED).isNotNull(), Verdict.CANDIDATE.value).otherwise(F.col(VERDICT))
    return pairs.withColumn(REJECTED, F.when(is_rejected, F.col(VERDICT))).withColumn(VERDICT, candidate)


def without_equal(detected: DataFrame) -> DataFrame:
    """Return detected rows in which a rejected change is sent after all if both sides' rows are equal."""
    is_equal = F.col(VERDICT) == Verdict.MERGE.value
    verdict = F.when(is_equal & F.col(REJECTED).isNotNull(), F.col(REJECTED)).otherwise(F.col(VERDICT))
    return detected.withColumn(VERDICT, verdict)


def outcome_of_rejected(outcome: Mapping[str, Column], joined_lineage: Column) -> dict[str, Column]:
    """Return the columns of DECIDED in which rejected changes differ from a conflict.

    Args:
        outcome: The outcome of a conflict, by column.
        joined_lineage: The lineage that covers both sides' versions.
    """
    is_rejected = is_conflict() & F.col(REJECTED).isNotNull()
    is_not_sent = is_rejected & (F.col(REJECTED) == _SENT_BY[PUBLISHER])
    nothing = F.lit(None)
    not_sent = {
        VERDICT: F.lit(_SENT_BY[PUBLISHER]),
        LINEAGE: joined_lineage,
        COLV1: F.col(f"{SUBSCRIBER}.{COLV1}"),
        PRIORITY: F.col(f"{SUBSCRIBER}.{PRIORITY}"),
        changes.PUBLISHER_ACTION: nothing,
        changes.PUBLISHER_GENERATION: nothing,
        changes.SUBSCRIBER_ACTION: F.lit(Action.METADATA.value),
        changes.SUBSCRIBER_GENERATION: F.col(changes.SUBSCRIBER_GENERATION),
    }
    found = {
        name: F.when(is_not_sent, value).otherwise(outcome.get(name, F.col(name)))
        for name, value in not_sent.items()
    }
    kind = F.when(is_rejected, int(ConflictType.RESOLUTION))
    return found | {changes.CONFLICT_TYPE: kind.otherwise(outcome[changes.CONFLICT_TYPE])}
