"""The effect of foreign commits, commit by commit: the final stamps of a row, and the tombstones left (compact.md 10).

Pure. An event is the effect of one commit on one key. A foreign commit counts by the bits of the user's columns: a row
rewritten without a change keeps its stamps, also if the writer lost or copied them. Each event of a key is applied to the
state after the earlier ones.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mergerepl.model.tracking import TrackingOptions
from mergerepl.systables.tracking import CHANGE_BSN, CONTEXT, INSERT_BSN

VERSION, BSN, CSN, TIME, BY = "version", "bsn", "csn", "time", "by"
IS_OWN, BEFORE, AFTER, DIFFERS, SHARED = "is_own", "before", "after", "differs", "shared"
"""Columns of an event: version, numbers, time and context of its commit; whether it is ours; the stamps of the row before
and after as structs, NULL without a row; whether the user's columns differ; whether two rows had the key."""

EVENT = (VERSION, BSN, CSN, TIME, BY, IS_OWN, BEFORE, AFTER, DIFFERS, SHARED)

WAS_ABSENT = "was_absent"
IS_THERE, LAST_IS_OWN, TOMBSTONES, CHANGED = "is_there", "last_is_own", "tombstones", "changed_versions"

_STAMPS = f"struct<{CHANGE_BSN}:binary,{INSERT_BSN}:binary,{CONTEXT}:string>"
_TOMBSTONE = "struct<bsn:binary,csn:bigint,insert_bsn:binary,time:timestamp,by:string>"


def folded(events: DataFrame, keys: list[str], options: TrackingOptions) -> DataFrame:
    """Return one row per key: its correct tracking columns, whether the row exists, and its tombstones.

    Reads: events (keys, EVENT). Returns: keys, the tracking columns, IS_THERE, LAST_IS_OWN (a commit of ours came last and
    has the stamps already), TOMBSTONES, CHANGED (the versions of the foreign commits that changed the row), WAS_ABSENT
    (the first event found no row), SHARED (the events do not fit one row: the key had two at a time).
    """
    in_order = F.array_sort(F.collect_list(F.struct(*EVENT)))
    grouped = events.groupBy(*keys).agg(in_order.alias("events"))
    nothing = F.struct(
        F.lit(None).cast(_STAMPS).alias("stamps"),
        F.lit(False).alias("is_known"),
        F.lit(False).alias("is_there"),
        F.lit(False).alias("shared"),
        F.expr(f"cast(array() as array<{_TOMBSTONE}>)").alias("tombstones"),
        F.expr("cast(array() as array<bigint>)").alias("changed"),
    )
    state = F.aggregate("events", nothing, lambda state, event: _after(state, event, options))
    first, last = F.element_at("events", 1), F.element_at("events", -1)
    return grouped.select(*keys, state.alias("state"), first.alias("first"), last.alias("last")).select(
        *keys,
        *(F.col(f"state.stamps.{name}").alias(name) for name in (CHANGE_BSN, INSERT_BSN, CONTEXT)),
        F.col(f"last.{AFTER}").isNotNull().alias(IS_THERE),
        F.col(f"last.{IS_OWN}").alias(LAST_IS_OWN),
        F.col("state.tombstones").alias(TOMBSTONES),
        F.col("state.changed").alias(CHANGED),
        F.col(f"first.{BEFORE}").isNull().alias(WAS_ABSENT),
        F.col("state.shared").alias(SHARED),
    )


def _after(state: Column, event: Column, options: TrackingOptions) -> Column:
    before, after = event[BEFORE], event[AFTER]
    # The first event shows the row's stamps; foreign writers may have changed those of later ones.
    stamps = F.when(state["is_known"], state["stamps"]).otherwise(before)
    is_own = event[IS_OWN]
    is_born = ~is_own & before.isNull() & after.isNotNull()
    is_gone = ~is_own & before.isNotNull() & after.isNull()
    is_updated = ~is_own & before.isNotNull() & after.isNotNull() & event[DIFFERS]
    stamped = _stamps(event[BSN], event[BSN], event[BY])
    born = stamped if TrackingOptions.INSERT in options else F.lit(None).cast(_STAMPS)
    updated = (
        _stamps(event[BSN], stamps[INSERT_BSN], event[BY]) if TrackingOptions.UPDATE in options else stamps
    )
    now = (
        F.when(is_own, after)
        .when(is_born, born)
        .when(is_gone, F.lit(None).cast(_STAMPS))
        .when(is_updated, updated)
        .otherwise(stamps)
    )
    tombstone = F.struct(
        event[BSN].alias("bsn"),
        event[CSN].alias("csn"),
        stamps[INSERT_BSN].alias("insert_bsn"),
        event[TIME].alias("time"),
        event[BY].alias("by"),
    ).cast(_TOMBSTONE)
    tombstones = state["tombstones"]
    if TrackingOptions.DELETE in options:
        tombstones = F.when(is_gone, F.array_append(tombstones, tombstone)).otherwise(tombstones)
    is_change = is_born | is_gone | is_updated
    changed = F.when(is_change, F.array_append(state["changed"], event[VERSION])).otherwise(state["changed"])
    does_not_fit = state["is_known"] & (state["is_there"] != before.isNotNull())
    return F.struct(
        now.alias("stamps"),
        F.lit(True).alias("is_known"),
        after.isNotNull().alias("is_there"),
        (state["shared"] | event[SHARED] | does_not_fit).alias("shared"),
        tombstones.alias("tombstones"),
        changed.alias("changed"),
    )


def _stamps(change_bsn: Column, insert_bsn: Column, context: Column) -> Column:
    return F.struct(change_bsn.alias(CHANGE_BSN), insert_bsn.alias(INSERT_BSN), context.alias(CONTEXT))
