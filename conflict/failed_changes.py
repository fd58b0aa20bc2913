"""Changes that a table refuses: they stay at their source, are logged, and are sent again; or they are undone there.

Merge session step: after resolve, for rows that a rule of their destination's table would not take. Pure.
"""

from collections.abc import Collection

from pyspark.sql.types import StructType

from mergerepl import changes
from mergerepl.changes import (
    ACTION_OF,
    BORN_GENERATION,
    DELETED,
    GENERATION,
    GENERATION_OF,
    OF_TWO,
    OTHER_SIDE,
    PUBLISHER,
    ROW,
    ROWGUID,
    STATE_COLUMNS,
    SUBSCRIBER,
    VERDICT,
    Action,
    Verdict,
)
from mergerepl.frames import Column, DataFrame, F
from mergerepl.rows.images import image_type, no_names, same_image
from mergerepl.systables.conflicts_info import COMPENSATION, ConflictType

REFUSED_AT = {PUBLISHER: "refused_at_publisher", SUBSCRIBER: "refused_at_subscriber"}
"""Columns of REFUSED: the rule by which a side's table refuses the row, or NULL."""

REFUSED_COLUMNS = (ROWGUID, VERDICT, *ACTION_OF.values(), *REFUSED_AT.values())
"""Columns of REFUSED (agent -> conflict): the intended action of each row that a table refuses, and the reason."""

_LONGEST_REASON = 720
_PLANNED = "planned_action"
_SENT_BY = {PUBLISHER: Verdict.DOWNLOAD.value, SUBSCRIBER: Verdict.UPLOAD.value}
_TYPES = {
    PUBLISHER: (
        ConflictType.UPLOAD_INSERT_FAILED,
        ConflictType.UPLOAD_DELETE_FAILED,
        ConflictType.UPLOAD_UPDATE_FAILED,
    ),
    SUBSCRIBER: (
        ConflictType.DOWNLOAD_INSERT_FAILED,
        ConflictType.DOWNLOAD_DELETE_FAILED,
        ConflictType.DOWNLOAD_UPDATE_FAILED,
    ),
}


def withheld(
    sent: DataFrame, refused: DataFrame, *, side: str, generation: int, logged: Collection[int]
) -> DataFrame:
    """Return RESOLVED of one side's changes that wait: it records its own version again, in a generation that waits.

    A row that only this side sent waits here. If both sides changed a row, each side's version waits at its side. The side
    that refuses does nothing. The row is logged as a loser, with type 5 to 10, once for each version; its note is the
    rule, also if it is logged already.

    Args:
        sent: CHANGES of the side, of one article.
        refused: REFUSED.
        side: The side that sent them.
        generation: Its number of the generation in which they wait.
        logged: Its numbers of the generations whose rows were refused before by the same rules: they are logged already.
    """
    other = OTHER_SIDE[side]
    waits = F.col(VERDICT).isin(_SENT_BY[side], *OF_TWO)
    rows = sent.join(refused.where(waits).select(*REFUSED_COLUMNS), on=ROWGUID)
    rule, is_insert = F.col(REFUSED_AT[other]), F.col(ACTION_OF[other]) == Action.INSERT.value
    known = F.array(*(F.lit(number) for number in logged)).cast("array<bigint>")
    is_logged = rule.isNotNull() & ~F.array_contains(known, F.col(GENERATION))
    # For the side that lacks the row it stays an insert, even when the watermark passes.
    born = F.when(is_insert & F.col(BORN_GENERATION).isNotNull(), generation).otherwise(
        F.col(BORN_GENERATION)
    )
    winner = StructType([rows.schema[name] for name in changes.WINNER_COLUMNS])
    loser = StructType([rows.schema[name] for name in (*changes.LOSER_COLUMNS, ROW)])
    nothing = F.lit(None)

    def if_logged(value: Column) -> Column:
        return F.when(is_logged, value)

    values = {
        **{name: F.col(name) for name in (ROWGUID, *STATE_COLUMNS, ROW)},
        BORN_GENERATION: born.cast("bigint"),
        VERDICT: F.lit(Verdict.REFUSED.value),
        ACTION_OF[side]: F.lit(Action.METADATA.value),
        GENERATION_OF[side]: F.lit(generation).cast("bigint"),
        ACTION_OF[other]: nothing.cast("string"),
        GENERATION_OF[other]: nothing.cast("bigint"),
        changes.CONFLICT_TYPE: if_logged(_type(other, F.col(DELETED), is_insert)).cast("int"),
        changes.CONFLICT_COLUMNS: no_names(),
        changes.PUBLISHER_WINS: if_logged(F.lit(other == PUBLISHER)),
        changes.RESOLVER: nothing.cast("string"),
        changes.MADE_COLUMNS: nothing.cast("array<string>"),
        changes.NOTE: F.substring(rule, 1, _LONGEST_REASON),
        changes.LOSER: if_logged(F.struct(*loser.names)).cast(loser),
        changes.WINNER: nothing.cast(winner),
    }
    return rows.select(*(values[name].alias(name) for name in changes.RESOLVED_COLUMNS))


def undone(rejected: DataFrame, refused: DataFrame) -> DataFrame:
    """Return RESOLVED of a subscriber's changes that the publisher's table refuses and that are undone at the subscriber.

    They are logged with type 5, 7 or 9; the note is the rule. The publisher records nothing: its row is unchanged.

    Args:
        rejected: RESOLVED of rejected rows (`out_of_partition.rejected`).
        refused: REFUSED; only rows in both `rejected` and `refused` count.
    """
    rule = F.col(REFUSED_AT[PUBLISHER])
    planned = refused.where(rule.isNotNull()).select(
        ROWGUID, F.col(ACTION_OF[PUBLISHER]).alias(_PLANNED), rule.alias(changes.RULE)
    )
    is_insert = F.col(_PLANNED) == Action.INSERT.value
    values = {
        VERDICT: F.lit(Verdict.UNDONE.value),
        changes.CONFLICT_TYPE: _type(PUBLISHER, F.col(f"{changes.LOSER}.{DELETED}"), is_insert),
        changes.RESOLVER: F.lit(COMPENSATION),
        changes.NOTE: F.substring(changes.RULE, 1, _LONGEST_REASON),
    }
    return rejected.join(planned, on=ROWGUID).select(
        *(values.get(name, F.col(name)).alias(name) for name in changes.RESOLVED_COLUMNS)
    )


def put_back(rows: DataFrame, *, generation: int) -> DataFrame:
    """Return rows to undo, with the subscriber's action, in a separate generation.

    Rows that are equal at both sides are left out: there is nothing to undo.
    """
    gone, was_deleted = F.col(DELETED), F.col(f"{changes.LOSER}.{DELETED}")
    is_same = same_image(f"{changes.LOSER}.{ROW}", ROW, image_type(rows, ROW))
    action = (
        F.when(gone & ~was_deleted, Action.DELETE.value)
        .when(~gone & was_deleted, Action.INSERT.value)
        .when(~gone & ~is_same, Action.UPDATE.value)
    )
    values = {ACTION_OF[SUBSCRIBER]: action, GENERATION_OF[SUBSCRIBER]: F.lit(generation).cast("bigint")}
    acted = rows.select(*(values.get(name, F.col(name)).alias(name) for name in changes.RESOLVED_COLUMNS))
    return acted.where(F.col(ACTION_OF[SUBSCRIBER]).isNotNull())


def _type(refused_at: str, is_deleted: Column, is_insert: Column) -> Column:
    inserted, deleted, updated = (F.lit(int(each)) for each in _TYPES[refused_at])
    return F.when(is_deleted, deleted).when(F.coalesce(is_insert, F.lit(False)), inserted).otherwise(updated)
