"""Rows that a subscriber may not write: partition_options 1 to 3 of an article keep its subscribers in their partitions.

Merge session step: after resolve, while the memberships of uploaded rows are computed. Pure. Rules: filters 5. Delta has
no trigger to refuse such a row when it is written, so it is rejected when it is uploaded: the publisher's row stands, the
subscriber gets it back or loses its row, and its version is logged.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from mergerepl import changes
from mergerepl.changes import (
    BORN_GENERATION,
    COLV1,
    DELETED,
    LINEAGE,
    PRIORITY,
    RESOLVED_COLUMNS,
    ROW,
    ROWGUID,
    TOMBSTONE_TYPE,
    UNKNOWN,
    VERDICT,
    WRITTEN_VERDICTS,
    Verdict,
)
from mergerepl.frames import Column, DataFrame, F
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import all_true, image_type, no_names, same_value
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.systables.conflicts_info import ConflictType
from mergerepl.systables.tombstone import TombstoneType

NOTE: Final = "The row is outside of the subscriber's partition (partition_options {options})."

_SENT, _KNOWN = "sent", "known"


@dataclass(frozen=True)
class Uploaded:
    """A subscriber's upload of one article and its resolution; one row per rowguid in each frame.

    Attributes:
        sent: The uploaded changes (CHANGES).
        known: The publisher's versions of these rows (CHANGES).
        outcome: RESOLVED.
    """

    sent: DataFrame
    known: DataFrame
    outcome: DataFrame


def bound_to_partition(uploaded: Uploaded, fields: Collection[str], *, fresh_after: int) -> DataFrame:
    """Return the rows (rowguid) that must be in the subscriber's partition, once they are as decided.

    These are inserts, and updates of a field (of `fields`) that decides partitions. Deletes are always allowed, and so is
    an edit of a row that the publisher moved away: the row leaves. A row born after the subscriber's generation
    `fresh_after` is an insert.
    """
    joined = _joined(uploaded).where(F.col(VERDICT).isin(*WRITTEN_VERDICTS) & ~F.col(DELETED))
    known = F.col(_KNOWN)
    start = query_parameter(fresh_after, "bigint")
    is_insert = known.isNull() | known[DELETED] | lineage.is_fresh(F.col(f"{_SENT}.{BORN_GENERATION}"), start)
    image = image_type(joined, ROW)
    same = [
        same_value(F.col(f"{ROW}.{name}"), F.col(f"{_KNOWN}.{ROW}.{name}"), image[name].dataType)
        for name in fields
    ]
    return joined.where(is_insert | ~all_true(same)).select(ROWGUID)


def rejected(
    uploaded: Uploaded, rows: DataFrame, *, note: str, resolver_nickname: int, clock: int
) -> DataFrame:
    """Return RESOLVED of rows (rowguid) that are not taken: the publisher's row stands, the subscriber's is logged.

    A row that the publisher does not have becomes a tombstone of type 6, which is never sent. The actions of both sides
    follow from the memberships (`enumeration.partition_actions`), or from `failed_changes.put_back`.
    """
    joined = _joined(uploaded).join(rows, on=ROWGUID, how="left_semi")
    mine, theirs = F.col(_SENT), F.col(_KNOWN)
    gone = theirs.isNull() | theirs[DELETED]
    both = F.when(theirs.isNull(), mine[LINEAGE]).otherwise(lineage.merge(mine[LINEAGE], theirs[LINEAGE]))
    stamped = lineage.with_version(
        both,
        F.lit(resolver_nickname),
        lineage.next_version(both, floor=query_parameter(clock, "bigint")).cast("bigint"),
    )

    def version(of: str, columns: Sequence[str]) -> Column:
        return F.struct(*(F.col(f"{of}.{name}") for name in columns))

    values = {
        ROWGUID: F.col(ROWGUID),
        VERDICT: F.lit(Verdict.CONFLICT.value),
        DELETED: gone,
        TOMBSTONE_TYPE: F.when(gone, F.lit(int(TombstoneType.SYSTEM_DELETE))),
        LINEAGE: stamped,
        COLV1: F.when(~gone, theirs[COLV1]),
        PRIORITY: F.coalesce(theirs[PRIORITY], mine[PRIORITY]),
        UNKNOWN: F.when(theirs.isNull(), mine[UNKNOWN]).otherwise(theirs[UNKNOWN]),
        ROW: F.coalesce(theirs[ROW], mine[ROW]),
        changes.CONFLICT_TYPE: F.lit(int(ConflictType.RESOLUTION)),
        changes.CONFLICT_COLUMNS: no_names(),
        changes.PUBLISHER_WINS: F.lit(True),
        changes.NOTE: F.lit(note),
        changes.LOSER: version(_SENT, (*changes.LOSER_COLUMNS, ROW)),
        changes.WINNER: version(_KNOWN, changes.WINNER_COLUMNS),
    }
    types = uploaded.outcome.schema
    return joined.select(
        *(values.get(name, F.lit(None).cast(types[name].dataType)).alias(name) for name in RESOLVED_COLUMNS)
    )


def _joined(uploaded: Uploaded) -> DataFrame:
    """Return RESOLVED with the subscriber's version and the publisher's (NULL: none) as structs."""

    def side(rows: DataFrame, name: str) -> DataFrame:
        fields = [
            field for field in (*changes.LOSER_COLUMNS, COLV1, BORN_GENERATION, ROW) if field in rows.columns
        ]
        return rows.select(ROWGUID, F.struct(*fields).alias(name))

    joined = uploaded.outcome.join(side(uploaded.sent, _SENT), on=ROWGUID)
    return joined.join(side(uploaded.known, _KNOWN), on=ROWGUID, how="left")
