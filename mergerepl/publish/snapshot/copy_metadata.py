"""Give a new subscriber the publisher's metadata: lineage and colv of the rows that ever changed.

Without it the subscriber's first change of such a row would look concurrent with changes it already holds.
Reads contents and tombstone of the publisher; writes one run of each at the subscriber.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.appended import append, read
from mergerepl.delta.transactions import Transaction
from mergerepl.failpoints import failpoint
from mergerepl.systables import contents, tombstone
from mergerepl.systables.contents import (
    BORN_GENERATION,
    GENERATION,
    MARKER,
    ROWGUID,
    SEQ,
    TABLENICK,
    row_column,
)
from mergerepl.systables.table import FOLDER


def copy_metadata(
    spark: SparkSession,
    publisher: Path,
    subscriber: Path,
    tablenicks: Sequence[int],
    *,
    generations: Mapping[int, int],
    through_seq_inclusive: int,
    seq: int,
    transaction: Transaction,
    only: Mapping[int, DataFrame] | None = None,
) -> None:
    """Append the current contents and tombstone rows of some articles to a subscriber's, as one run.

    Args:
        spark: The session.
        publisher: Root that has the rows.
        subscriber: Root that gets them.
        tablenicks: The articles.
        generations: The publisher's generation numbers to the subscriber's.
        through_seq_inclusive: The publisher's last committed run.
        seq: The run at the subscriber.
        transaction: What marks the two commits.
        only: By tablenick the rowguids whose metadata is copied, without tombstones; of others everything is.
    """
    latest = _latest(spark, publisher, tablenicks, through_seq_inclusive)
    for table, names in ((contents.NAME, contents.TABLE.names), (tombstone.NAME, tombstone.TABLE.names)):
        rows = _runs(spark, publisher, table, tablenicks, through_seq_inclusive)
        current = rows.join(latest, [TABLENICK, ROWGUID, SEQ], "left_semi")
        if only:
            current = _only(current, only, is_tombstone=table == tombstone.NAME)
        values = {
            **{name: F.col(name) for name in names},
            # cleanup may have removed a generation from genhistory; the row then belongs to none
            GENERATION: F.coalesce(_renumbered(F.col(GENERATION), generations), F.lit(0).cast("bigint")),
            MARKER: F.lit(transaction.mark.session),
            SEQ: F.lit(seq).cast("bigint"),
        }
        if BORN_GENERATION in values:
            values[BORN_GENERATION] = _renumbered(F.col(BORN_GENERATION), generations)
        images = [F.col(row_column(nickname)) for nickname in tablenicks]
        copied = current.select(*(value.alias(name) for name, value in values.items()), *images)
        append(copied, subscriber / FOLDER / table, transaction)
        failpoint("initialise.between_appends")


def _runs(
    spark: SparkSession, root: Path, table: str, tablenicks: Sequence[int], through_seq: int
) -> DataFrame:
    rows = read(spark, root / FOLDER / table)
    return rows.where(F.col(TABLENICK).isin(*tablenicks) & (F.col(SEQ) <= through_seq))


def _only(rows: DataFrame, only: Mapping[int, DataFrame], *, is_tombstone: bool) -> DataFrame:
    """Leave out of filtered articles what is not the subscriber's: all tombstones, and rows outside of its partition."""
    kept = rows.where(~F.col(TABLENICK).isin(*only))
    if is_tombstone:
        return kept
    for nickname, guids in only.items():
        theirs = rows.where(F.col(TABLENICK) == nickname)
        kept = kept.unionByName(theirs.join(guids, on=ROWGUID, how="left_semi"))
    return kept


def _latest(spark: SparkSession, root: Path, tablenicks: Sequence[int], through_seq: int) -> DataFrame:
    """Return the latest run of each row, over both tables: a delete supersedes contents, and vice versa."""
    runs = [
        _runs(spark, root, table, tablenicks, through_seq).select(TABLENICK, ROWGUID, SEQ)
        for table in (contents.NAME, tombstone.NAME)
    ]
    return runs[0].unionByName(runs[1]).groupBy(TABLENICK, ROWGUID).agg(F.max(SEQ).alias(SEQ))


def _renumbered(generation: Column, numbers: Mapping[int, int]) -> Column:
    """Return the subscriber's number of a generation, NULL if it has none."""
    pairs = [F.lit(number).cast("bigint") for pair in numbers.items() for number in pair]
    return F.try_element_at(F.create_map(*pairs), generation)
