"""Compute the actions of both sides for the rows of a filtered article, after the decision and the memberships.

Merge session step: after detect and resolve, before staging. Pure. Rules: filters 4.3. A subscriber keeps a row of its
partition, gets the whole row when it enters, and loses it (LEAVE) when it leaves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, BooleanType, DataType, IntegerType, LongType, StringType, StructType

from enumeration.enum_changes import EVENT_GENERATION, HAD, HAS, WHY
from mergerepl import changes
from mergerepl.changes import (
    BORN_GENERATION,
    DELETED,
    GENERATION,
    PARTCHANGEGEN,
    RESOLVED_COLUMNS,
    ROW,
    ROWGUID,
    STATE_COLUMNS,
    TOMBSTONE_TYPE,
    VERDICT,
    Action,
    Verdict,
)
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.rows import lineage_columns as lineage
from mergerepl.rows.images import image_type, no_names, same_image
from mergerepl.spark.expression_cost import query_parameter
from mergerepl.spark.in_memory import in_one_task
from mergerepl.systables.partitions import EVERYBODY, Reason
from mergerepl.systables.tombstone import TombstoneType

_MINE, _OUTCOME, _PASS, _WINDOW, _VERSION = "mine", "outcome", "pass", "window", "version"
_FRESH = "fresh"
_WINDOW_TYPE = f"struct<{HAD}:boolean,{HAS}:boolean,{EVENT_GENERATION}:bigint,{WHY}:int>"


@dataclass(frozen=True)
class PartitionTerms:
    """The terms of a session for one filtered article.

    `received` maps the publisher's generations that have changes for the partition to those the subscriber receives them
    under; `held` are those after `start` that the subscriber has already. `own_at_publisher` and `own_at_subscriber` are
    the numbers of the publisher's own generation in which the session moves rows.
    """

    partition_id: int
    start: int
    held: tuple[int, ...]
    received: Mapping[int, int]
    own_at_publisher: int
    own_at_subscriber: int


@dataclass(frozen=True)
class PartitionRows:
    """The frames of one filtered article; None: no row.

    Attributes:
        versions: The publisher's metadata of all rows in the other frames that it knows (CHANGES).
        sent: The subscriber's changes (CHANGES).
        outcome: Their resolution (RESOLVED), without rows that both sides hold in the same version.
        memberships: MEMBERSHIPS of all rows that are sent, and of those that they move.
        window: WINDOW of the subscriber's partition.
        most: Upper bound of the rows in any of them; None: unknown.
    """

    versions: DataFrame
    sent: DataFrame | None = None
    outcome: DataFrame | None = None
    memberships: DataFrame | None = None
    window: DataFrame | None = None
    most: int | None = None


def without_strangers(
    sent: DataFrame, known: DataFrame, *, fresh_after: int, most: int | None = None
) -> tuple[DataFrame, DataFrame]:
    """Return CHANGES of both sides in which two unrelated rows of one key are not compared as versions of one row.

    A row that was born at the subscriber after its generation `fresh_after` is its own. Against the tombstone of another
    row it is a new insert: both count as that row, which merges. Its tombstone, against another, live row, is the delete
    of a row that no other replica had: it precedes the live one.

    `most` is an upper bound of the rows that are sent; None: unknown.
    """
    metadata = tuple(name for name in sent.columns if name != ROWGUID)
    sides = [
        in_one_task(rows.select(ROWGUID, _struct(metadata, name)), most)
        for rows, name in ((sent, _MINE), (known, _VERSION))
    ]
    both = in_one_task(sides[0].join(sides[1], on=ROWGUID, how="left"), most)
    sent_fields, known_fields = _without_strangers(metadata)
    start = query_parameter(fresh_after, "bigint")
    both = both.withColumn(_FRESH, lineage.is_fresh(F.col(f"{_MINE}.{BORN_GENERATION}"), start))
    return (
        both.select(ROWGUID, *sent_fields),
        both.where(F.col(_VERSION).isNotNull()).select(ROWGUID, *known_fields),
    )


@cached
def _without_strangers(metadata: tuple[str, ...]) -> tuple[list[Column], list[Column]]:
    mine, theirs = F.col(_MINE), F.col(_VERSION)
    is_stranger = theirs.isNotNull() & F.col(_FRESH)
    inserted = is_stranger & ~mine[DELETED] & theirs[DELETED]
    dropped = is_stranger & mine[DELETED] & ~theirs[DELETED]

    def field(side: Column, name: str) -> Column:
        return side[name].alias(name)

    sent_fields = [
        F.when(dropped, lineage.empty_lineage()).otherwise(mine[name]).alias(name)
        if name == changes.LINEAGE
        else field(mine, name)
        for name in metadata
    ]
    of_row = (DELETED, TOMBSTONE_TYPE, changes.COLV1, changes.PRIORITY, changes.UNKNOWN, ROW)
    known_fields = [
        F.when(inserted, mine[name]).otherwise(theirs[name]).alias(name)
        if name in of_row
        else field(theirs, name)
        for name in metadata
    ]
    return sent_fields, known_fields


def partition_actions(rows: PartitionRows, terms: PartitionTerms) -> DataFrame:
    """Return RESOLVED: the final state of each row, with the actions and generations of both sides."""
    image = image_type(rows.versions, ROW)
    # A row that was only read because a row that it follows moved, and that itself stays: it needs no action.
    joined = _joined(rows, image).where(F.col(_VERSION).isNotNull() | F.col(_OUTCOME).isNotNull())
    joined = joined.withColumns(_final()).withColumns(_membership(terms.partition_id))
    joined = joined.withColumns(
        {
            changes.SUBSCRIBER_ACTION: _subscriber_action(joined, image, terms),
            changes.PUBLISHER_ACTION: _publisher_action(joined, image),
        }
    )
    moved = F.when(F.col("has_moved"), query_parameter(terms.own_at_publisher, "bigint"))
    values = {
        **_outcome(),
        PARTCHANGEGEN: F.coalesce(moved, f"{_VERSION}.{PARTCHANGEGEN}").alias(PARTCHANGEGEN),
        changes.PUBLISHER_GENERATION: _publisher_generation(terms).alias(changes.PUBLISHER_GENERATION),
        changes.SUBSCRIBER_GENERATION: _subscriber_generation(terms).alias(changes.SUBSCRIBER_GENERATION),
    }
    acted = joined.where(_is_acted_on())
    return acted.select(*(values[name] for name in RESOLVED_COLUMNS))


@cached
def _final() -> dict[str, Column]:
    return {f"final_{name}": _state(name) for name in (*STATE_COLUMNS, ROW)}


@cached
def _membership(partition_id: int) -> dict[str, Column]:
    """Return the existence and membership of each row, for a subscriber of the partition."""
    return {
        "is_gone": F.coalesce("final_deleted", F.lit(True)),
        HAD: _had(partition_id),
        HAS: _has(partition_id),
        "has_moved": F.coalesce(F.col(f"{_PASS}.was") != F.col(f"{_PASS}.is"), F.lit(False)),
        "is_written": F.coalesce(f"{_PASS}.written", F.lit(False)),
    }


@cached
def _is_acted_on() -> Column:
    return F.coalesce(changes.PUBLISHER_ACTION, changes.SUBSCRIBER_ACTION).isNotNull()


@cached
def _outcome() -> dict[str, Column]:
    """Return the columns of RESOLVED that do not depend on the numbers of a session."""
    final = {name: F.col(f"final_{name}") for name in (*STATE_COLUMNS, ROW)}
    final[DELETED] = F.col("is_gone")
    final[TOMBSTONE_TYPE] = F.when(
        F.col("is_gone"), F.coalesce(f"final_{TOMBSTONE_TYPE}", F.lit(int(TombstoneType.USER_DELETE)))
    )
    outcome = {
        VERDICT: F.coalesce(f"{_OUTCOME}.{VERDICT}", F.lit(Verdict.DOWNLOAD.value)),
        changes.CONFLICT_COLUMNS: F.coalesce(f"{_OUTCOME}.{changes.CONFLICT_COLUMNS}", no_names()),
        **{
            name: F.col(f"{_OUTCOME}.{name}")
            for name in (
                changes.CONFLICT_TYPE,
                changes.PUBLISHER_WINS,
                changes.RESOLVER,
                changes.MADE_COLUMNS,
                changes.NOTE,
                changes.LOSER,
                changes.WINNER,
            )
        },
    }
    values = {**final, **outcome}
    return {name: values.get(name, F.col(name)).alias(name) for name in RESOLVED_COLUMNS}


def _joined(rows: PartitionRows, image: StructType) -> DataFrame:
    """Return one row for each rowguid in any frame, with a struct of each (NULL: not in it)."""
    version = _struct_type(rows.versions)
    winner = StructType([version[name] for name in changes.WINNER_COLUMNS])
    loser = StructType([version[name] for name in (*changes.LOSER_COLUMNS, ROW)])
    ids = ArrayType(IntegerType())
    membership = (
        StructType().add("was", ids).add("is", ids).add("written", BooleanType()).add("before", image)
    )
    outcome = StructType([version[name] for name in (*STATE_COLUMNS, ROW)])
    outcome.add(VERDICT, StringType()).add(changes.PUBLISHER_GENERATION, LongType())
    outcome.add(changes.CONFLICT_TYPE, IntegerType()).add(changes.CONFLICT_COLUMNS, ArrayType(StringType()))
    outcome.add(changes.PUBLISHER_WINS, BooleanType()).add(changes.RESOLVER, StringType())
    outcome.add(changes.MADE_COLUMNS, ArrayType(StringType())).add(changes.NOTE, StringType())
    outcome.add(changes.LOSER, loser).add(changes.WINNER, winner)
    parts: list[tuple[str, DataFrame | None, str | DataType]] = [
        (_MINE, rows.sent, StructType([version[name] for name in (DELETED, ROW)])),
        (_OUTCOME, rows.outcome, outcome),
        (_PASS, rows.memberships, membership),
        (_WINDOW, rows.window, _WINDOW_TYPE),
    ]

    def struct_of(frame: DataFrame, name: str) -> DataFrame:
        return in_one_task(_as_struct(frame, name), rows.most)

    keys = [frame.select(ROWGUID) for _, frame, _ in parts if frame is not None]
    joined = keys[0]
    for more in keys[1:]:
        joined = joined.unionByName(more)
    joined = in_one_task(joined, rows.most).distinct()
    joined = in_one_task(joined.join(struct_of(rows.versions, _VERSION), on=ROWGUID, how="left"), rows.most)
    for name, frame, type_ in parts:
        if frame is None:
            joined = joined.withColumn(name, F.lit(None).cast(type_))
        else:
            joined = in_one_task(joined.join(struct_of(frame, name), on=ROWGUID, how="left"), rows.most)
    return joined


def _as_struct(rows: DataFrame, name: str) -> DataFrame:
    return rows.select(ROWGUID, _struct(tuple(each for each in rows.columns if each != ROWGUID), name))


@cached
def _struct(columns: tuple[str, ...], name: str) -> Column:
    return F.struct(*columns).alias(name)


def _struct_type(rows: DataFrame) -> StructType:
    return StructType([each for each in rows.schema if each.name != ROWGUID])


def _state(name: str) -> Column:
    return F.when(F.col(_OUTCOME).isNotNull(), F.col(f"{_OUTCOME}.{name}")).otherwise(
        F.col(f"{_VERSION}.{name}")
    )


def is_seen(members: str, *partition_ids: int) -> Column:
    """True if a subscriber of one of the partitions sees a row of these `members`."""
    return F.arrays_overlap(F.col(members), F.array(*map(F.lit, partition_ids), F.lit(EVERYBODY)))


def _had(partition_id: int) -> Column:
    """True if the subscriber has the row; for a row that it sends, if that is live."""
    return (
        F.when(F.col(_MINE).isNotNull(), ~F.col(f"{_MINE}.{DELETED}"))
        .when(F.col(_WINDOW).isNotNull(), F.col(f"{_WINDOW}.{HAD}"))
        .otherwise(is_seen(f"{_PASS}.was", partition_id))
    )


def _has(partition_id: int) -> Column:
    """True if the subscriber shall have the row: the session's moves override the recorded membership."""
    return F.when(F.col(_PASS).isNotNull(), is_seen(f"{_PASS}.is", partition_id)).otherwise(
        F.col(f"{_WINDOW}.{HAS}")
    )


def _is_sent() -> Column:
    return F.col(_MINE).isNotNull()


def _subscriber_action(joined: DataFrame, image: StructType, terms: PartitionTerms) -> Column:
    gone, had, has = F.col("is_gone"), F.col(HAD), F.col(HAS)
    verdict = F.col(f"{_OUTCOME}.{VERDICT}")
    why = F.coalesce(f"{_WINDOW}.{WHY}", F.lit(0))
    is_delete = gone & (why.isin(0, int(Reason.DELETED)) | _is_sent())
    is_of_subscriber = verdict.isNull() | (verdict == Verdict.UPLOAD.value)
    same = same_image(f"{_MINE}.{ROW}", f"final_{ROW}", image)
    return (
        F.when((gone | ~has) & had, F.when(is_delete, Action.DELETE.value).otherwise(Action.LEAVE.value))
        # The subscriber made this delete, or has it too: its lineage is the publisher's now.
        .when(gone & _is_sent() & ~is_of_subscriber, Action.METADATA.value)
        .when(gone | ~has, None)
        .when(_is_sent() & is_of_subscriber, None)
        .when(_is_sent() & had & same, Action.METADATA.value)
        .when(~had, Action.INSERT.value)
        .when(_is_sent() | _is_news(terms), Action.UPDATE.value)
    )


def _is_news(terms: PartitionTerms) -> Column:
    """True if the subscriber never received the publisher's version, as a generation or as part of one."""
    generation = F.col(f"{_VERSION}.{GENERATION}")
    held = F.array(*(F.lit(number) for number in terms.held)).cast("array<bigint>")
    return (generation > query_parameter(terms.start, "bigint")) & ~F.array_contains(held, generation)


def _publisher_action(joined: DataFrame, image: StructType) -> Column:
    is_there, gone = F.col(f"{_PASS}.before").isNotNull(), F.col("is_gone")
    same = same_image(f"{_PASS}.before", f"final_{ROW}", image)
    written = (
        F.when(~is_there & gone, Action.METADATA.value)
        .when(~is_there, Action.INSERT.value)
        .when(gone, Action.DELETE.value)
        .when(same, Action.METADATA.value)
        .otherwise(Action.UPDATE.value)
    )
    return F.when(F.col("is_written"), written).when(F.col("has_moved"), Action.METADATA.value)


def _publisher_generation(terms: PartitionTerms) -> Column:
    is_uploaded = F.col(f"{_OUTCOME}.{VERDICT}") == Verdict.UPLOAD.value
    return (
        F.when(F.col("is_written") & is_uploaded, F.col(f"{_OUTCOME}.{changes.PUBLISHER_GENERATION}"))
        .when(F.col("is_written"), query_parameter(terms.own_at_publisher, "bigint"))
        .otherwise(F.col(f"{_VERSION}.{GENERATION}"))
    )


def _subscriber_generation(terms: PartitionTerms) -> Column:
    own = query_parameter(terms.own_at_subscriber, "bigint")
    version, event = (
        _number(terms.received, F.col(name))
        for name in (f"{_VERSION}.{GENERATION}", f"{_WINDOW}.{EVENT_GENERATION}")
    )
    return F.when(F.col("is_written"), own).otherwise(
        F.coalesce(version, F.when(F.col("has_moved"), own), event, own)
    )


def _number(numbers: Mapping[int, int], generation: Column) -> Column:
    if not numbers:
        return F.lit(None).cast("bigint")
    keys, values = (
        F.array(*(F.lit(number).cast("bigint") for number in each)) for each in (numbers, numbers.values())
    )
    return F.try_element_at(F.map_from_arrays(keys, values), generation)
