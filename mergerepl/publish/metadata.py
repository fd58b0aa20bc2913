"""The publisher's lineage, colv and generations for a new subscriber, in the subscriber's own numbering.

Without the metadata of all rows that ever changed, the subscriber's first change of such a row would look concurrent
with changes it already has.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from enumeration.generations import make_generation, received_generation
from mergerepl.delta.appended import append, delete_where, read
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.tables import Transaction, head_version
from mergerepl.failpoints import failpoint
from mergerepl.merge.apply.side import next_seq
from mergerepl.publish.carry_out import ApplyRun
from mergerepl.publish.rows import change_info
from mergerepl.publish.stored import ReplicaState
from mergerepl.replica.application_ids import DELETE_APP_ID, RUN_APP_ID
from mergerepl.replica.replica import Replica
from mergerepl.replica.runs import current_rows, delete_runs_after
from mergerepl.store.location import Location
from mergerepl.systables import catalog, contents, tombstone
from mergerepl.systables.contents import (
    BORN_GENERATION,
    GENERATION,
    MARKER,
    PARTCHANGEGEN,
    ROWGUID,
    SEQ,
    TABLENICK,
    is_row_column,
)
from mergerepl.systables.genhistory import Generation
from mergerepl.systables.table import FOLDER

_TABLES = (contents.NAME, tombstone.NAME)


def give_metadata(
    run: ApplyRun,
    publisher: ReplicaState,
    nicknames: Sequence[int],
    root: Location,
    nickname: int,
    mark: CommitMark,
    *,
    only: Mapping[int, DataFrame],
) -> None:
    """Copy the publisher's metadata of some articles to the subscriber at `root`, which has `nickname`.

    Writes nothing if the publisher has no metadata. `only` has, by tablenick, the rowguids to copy without tombstones;
    other articles are copied whole.
    """
    theirs = _closed_generations(publisher, nicknames)
    if not theirs:
        return
    assert publisher.info is not None
    subscriber = Replica(root)
    info = subscriber.info()
    numbers = _numbers(theirs, subscriber.genhistory(), info.last_generation)
    seq = next_seq(root, info.last_seq)
    through = publisher.info.last_seq
    contents_runs, tombstones = (
        _runs(run.spark, publisher.root, table, nicknames, through).select(TABLENICK, ROWGUID, SEQ)
        for table in _TABLES
    )
    # A delete supersedes contents, and vice versa.
    latest = current_rows(contents_runs.unionByName(tombstones), [SEQ], keys=[TABLENICK, ROWGUID])
    # One run at the subscriber: the current rows of contents and tombstone, under its own numbers.
    for table, names in ((contents.NAME, contents.TABLE.names), (tombstone.NAME, tombstone.TABLE.names)):
        rows = _runs(run.spark, publisher.root, table, nicknames, through)
        current = rows.join(latest, [TABLENICK, ROWGUID, SEQ], "left_semi")
        if only:
            current = _only(current, only, is_tombstone=table == tombstone.NAME)
        values = {
            **{name: F.col(name) for name in names},
            # cleanup may have removed a generation from genhistory; the row then has no generation
            GENERATION: F.coalesce(_renumbered(F.col(GENERATION), numbers), F.lit(0).cast("bigint")),
            MARKER: F.lit(mark.session),
            SEQ: F.lit(seq).cast("bigint"),
        }
        values[BORN_GENERATION] = _renumbered(F.col(BORN_GENERATION), numbers)
        if PARTCHANGEGEN in values:
            values[PARTCHANGEGEN] = F.lit(None).cast("bigint")
        images = [F.col(name) for name in current.columns if is_row_column(name, nicknames)]
        copied = current.select(*(value.alias(name) for name, value in values.items()), *images)
        append(copied, root / FOLDER / table, Transaction(RUN_APP_ID, seq, mark))
        failpoint("initialise.between_appends")
    failpoint("initialise.after_metadata")
    now = datetime.now(UTC)
    received = [
        received_generation(row, generation=numbers[row.generation], nickname=nickname, now=now)
        for row in theirs
    ]
    subscriber.drop_uncounted_generations()
    failpoint("initialise.before_genhistory")
    subscriber.append_generations(received, seq=seq)
    failpoint("initialise.after_genhistory")
    change_info(root, last_seq=seq, last_generation=max(info.last_generation, *numbers.values()))


def _runs(
    spark: SparkSession, root: Location, table: str, tablenicks: Sequence[int], through_seq: int
) -> DataFrame:
    cleaned = Replica(root).info().cleaned
    is_there = F.lit(True)
    for nickname in (each for each in tablenicks if cleaned.get(each)):
        is_there &= (F.col(TABLENICK) != nickname) | (F.col(GENERATION) > cleaned[nickname])
    rows = read(spark, root / FOLDER / table)
    return rows.where(F.col(TABLENICK).isin(*tablenicks) & (F.col(SEQ) <= through_seq) & is_there)


def _only(rows: DataFrame, only: Mapping[int, DataFrame], *, is_tombstone: bool) -> DataFrame:
    """Drop rows of filtered articles that are not the subscriber's: all tombstones, and rows outside of its partition."""
    kept = rows.where(~F.col(TABLENICK).isin(*only))
    if is_tombstone:
        return kept
    for nickname, guids in only.items():
        theirs = rows.where(F.col(TABLENICK) == nickname)
        kept = kept.unionByName(theirs.join(guids, on=ROWGUID, how="left_semi"))
    return kept


def _renumbered(generation: Column, numbers: Mapping[int, int]) -> Column:
    """Return the subscriber's number of a generation, or NULL."""
    pairs = [F.lit(number).cast("bigint") for pair in numbers.items() for number in pair]
    return F.try_element_at(F.create_map(*pairs), generation)


def _numbers(
    theirs: Sequence[Generation], here: Sequence[Generation], last_generation: int
) -> dict[int, int]:
    """Map the publisher's generation numbers to the subscriber's.

    A generation that an earlier attempt entered keeps its number: a session in between may have named it in a watermark.
    """
    known = {row.guidsrc: row.generation for row in here}
    next_number = last_generation + 1
    numbers = {}
    for row in theirs:
        numbers[row.generation] = known.get(row.guidsrc, next_number)
        next_number += row.guidsrc not in known
    return numbers


def _closed_generations(publisher: ReplicaState, nicknames: Sequence[int]) -> list[Generation]:
    """Close the articles' open generations and return all they have, by number.

    Later captured changes must not join a generation that counts as sent.
    """
    replica = Replica(publisher.root)
    theirs = [row for row in replica.genhistory() if row.art_nick in nicknames]
    left_open = [row.guidsrc for row in theirs if row.is_open]
    if left_open:
        replica.close_generations(left_open)
    return make_generation(theirs)


def last_generation(root: Location, pubid: str) -> tuple[int, str | None]:
    """Return number and guid of a publication's highest generation at a replica, or (0, None)."""
    last = Replica(root).last_generation(pubid)
    return (last.generation, last.guidsrc) if last is not None else (0, None)


def forget_metadata(run: ApplyRun, replica: ReplicaState, nicknames: Sequence[int]) -> None:
    """Remove a subscriber's metadata of these articles from an unfinished or former subscription.

    Closed generations stay, without changes: the watermarks of another publication may name them. An open one is
    removed: it would collect more changes under a number that the watermarks have passed.
    """
    assert replica.info is not None
    for name in _TABLES:
        path = replica.root / FOLDER / name
        if head_version(path) > 0:
            delete_runs_after(path, through_seq_inclusive=replica.info.last_seq)
            delete_where(run.spark, path, F.col(TABLENICK).isin(*nicknames), DELETE_APP_ID)
        failpoint("initialise.forgetting")
    there = Replica(replica.root)
    if nicknames:
        there.forget_generations(nicknames)
    failpoint("initialise.forgetting")
    # Last: by these rows a run that starts over knows the articles that left the publication.
    there.control.remove_where(catalog.ARTICLES, nickname={*nicknames})
    failpoint("initialise.forgetting")
