"""The stamps of a transaction in the three tracking columns of a row, and its tombstones (compact.md 3). Pure.

| tracked | effect when tracked | when not tracked |
|---|---|---|
| insert | both BSN and the context are set | all three NULL: the row is as old as the table to consumers |
| update | change BSN and context are set, the insert BSN stays | all three stay |
| delete | a tombstone with the insert BSN that the row had | none: consumers keep the row |

Where inserts are not tracked, a key that is there before and after a transaction counts as updated, also if it was deleted
and inserted again: a tombstone alone would take a live row from consumers.
"""

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.model.tracking import TrackingOptions
from mergerepl.systables.compact import CHANGE_BSN, CONTEXT, INSERT_BSN


@dataclass(frozen=True)
class Stamps:
    """The values of the three columns, as Column expressions."""

    change_bsn: Column
    insert_bsn: Column
    context: Column

    def named(self) -> list[Column]:
        """Return them under their names, in the order of the table."""
        return [
            self.change_bsn.alias(CHANGE_BSN),
            self.insert_bsn.alias(INSERT_BSN),
            self.context.alias(CONTEXT),
        ]


def stamps_of(
    options: TrackingOptions, *, existed: Column, reborn: Column, was: Stamps, bsn: Column, context: Column
) -> Stamps:
    """Return the stamps of a row that is there after a transaction that changed it.

    Args:
        options: What is tracked.
        existed: Whether the key was there before.
        reborn: Whether the transaction deleted it and inserted it again.
        was: The stamps before; what they are where the row was not there does not matter.
        bsn: BSN of the transaction, as it is stored.
        context: Its context when it changed the row.
    """
    is_born = ~existed | reborn if TrackingOptions.INSERT in options else ~existed
    born_bsn, born_context = (
        (bsn, context) if TrackingOptions.INSERT in options else (_none("binary"), _none("string"))
    )
    if TrackingOptions.UPDATE in options:
        kept = Stamps(bsn, was.insert_bsn, context)
    else:
        kept = was
    return Stamps(
        F.when(is_born, born_bsn).otherwise(kept.change_bsn),
        F.when(is_born, born_bsn).otherwise(kept.insert_bsn),
        F.when(is_born, born_context).otherwise(kept.context),
    )


def leaves_tombstone(
    options: TrackingOptions, *, existed: Column, present: Column, reborn: Column
) -> Column | None:
    """Return whether a changed key leaves a tombstone; None if none does."""
    if TrackingOptions.DELETE not in options:
        return None
    is_replaced = reborn if TrackingOptions.INSERT in options else F.lit(False)
    return existed & (~present | is_replaced)


def _none(type_: str) -> Column:
    return F.lit(None).cast(type_)
