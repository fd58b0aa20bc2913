"""The edits of a subscriber's table as messages of the queue: which commits are read, and what their rows say.

The queue is the table's own log. It is read in runs: a run ends at each commit of ours, so that all its edits were made on
what one batch had left (docs/decisions/0121).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType

from mergerepl.delta.appended import union_all
from mergerepl.delta.feed.commit_changes import VERSION
from mergerepl.delta.feed.net_changes import AFTER, BEFORE
from mergerepl.delta.tables import Commit
from mergerepl.logreader.consumer import COMPARE, PauseSource, ReadRows
from mergerepl.logreader.plan import SourcePlan
from mergerepl.logreader.read import read_source
from mergerepl.logreader.sources import SourceLook, Unit, look_at, readings
from mergerepl.rows.images import key_hash, readable, same_value
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import Kept, broadcast_if_few
from mergerepl.store.location import Location
from mergerepl.systables.conflicts_info import REASONS, ConflictType
from mergerepl.systables.logreader import LogReaderRow
from mergerepl.systables.transactional import QueueRow
from mergerepl.transactional.article_procedures import Shape
from mergerepl.transactional.call_syntax import NEW_VERSION, OLD_VERSION
from mergerepl.transactional.commands import row_version
from mergerepl.transactional.judge import bounded_keys, bounds_text
from mergerepl.transactional.position import is_own_commit

_ALWAYS_NS = (1 << 63) - 1
_MOST_COMMITS = 10_000
_TAKEN = "is_taken"


class UnreadableQueueError(Exception):
    """Why the edits of a table cannot be read, as a clause."""


def _unreadable(reason: str) -> UnreadableQueueError:
    """Return the error of a queue for the reason for which the log reader would pause a table."""
    return UnreadableQueueError(reason.partition(" Its capture is paused")[0].rstrip("."))


@dataclass(frozen=True)
class Run:
    """The edits between two commits of ours: what a look at the log has of them."""

    look: SourceLook

    @property
    def through(self) -> int:
        """The version of the last edit."""
        return self.look.through_version_inclusive


def source_row(queue: QueueRow, path: str) -> LogReaderRow:
    """Return the position of a queue as the log reader has it."""
    return LogReaderRow(
        source_object_id=queue.article_id,
        source_path=path,
        table_id=queue.table_id,
        position=queue.position,
        position_commit=queue.position_commit,
        columns=queue.columns,
    )


def queue_row(guid: str, number: int, source: LogReaderRow) -> QueueRow:
    """Return the position of a queue from that of the log reader."""
    return QueueRow(
        subscription_guid=guid,
        article_id=source.source_object_id,
        number=number,
        table_id=source.table_id,
        position=source.position,
        position_commit=source.position_commit,
        columns=source.columns,
    )


def look(root: Location, source: LogReaderRow) -> SourceLook:
    """Return the commits of a table after its position. Without Spark.

    Raises: UnreadableQueueError if it is gone, is another one, or its log is damaged.
    """
    found = look_at(root, source, began_ns=_ALWAYS_NS, most=_MOST_COMMITS, on_gap=COMPARE)
    if found.paused is not None:
        raise _unreadable(found.paused.reason)
    return found


def unsent_commits(found: SourceLook, guid: str) -> list[int]:
    """Return the versions of the commits that may have edits and were not sent.

    Raises: UnreadableQueueError if rows were replaced, or a gap has lost them.
    """
    units = [unit for unit in found.units if not unit.is_ddl and not is_own_commit(unit.commit.mark, guid)]
    for unit in units:
        _require_readable(unit)
    return [unit.version for unit in units]


def next_run(found: SourceLook, guid: str, *, through: int | None = None) -> Run | None:
    """Return the first run of edits; None without any. `through`: the end of a run that was decided before.

    Raises: UnreadableQueueError if rows were replaced, or a gap has lost them.
    """
    own = {each.version for each in found.commits if is_own_commit(each.mark, guid)}
    units: list[Unit] = []
    for unit in found.units:
        if unit.version in own or (through is not None and unit.version > through):
            continue
        if units and any(units[-1].version < version < unit.version for version in own):
            break
        _require_readable(unit)
        units.append(unit)
    if not units:
        return None
    last = units[-1].version
    return Run(
        replace(
            found,
            units=tuple(units),
            through_version_inclusive=last,
            commits=tuple(each for each in found.commits if each.version <= last),
            columns=tuple(each for each in found.columns if each.version <= last),
        )
    )


def _require_readable(unit: Unit) -> None:
    commit: Commit = unit.commit
    if unit.gap is not None:
        raise UnreadableQueueError(f"{unit.gap} (versions {unit.from_version} to {unit.version})")
    if unit.is_replaced or commit.replaces_rows or commit.operation == "RESTORE":
        raise UnreadableQueueError(f"its version {unit.version} replaced rows ({commit.operation})")


@dataclass(frozen=True)
class Messages:
    """The edits of a run, one for each row that it changed, kept in memory.

    `rows`: kh (hash of the key), k1…, old, new (c1…; NULL: no row), old_version, new_version. `columns` of the article are
    known. `bounds` are conditions on the key of a table `t`, each followed by AND.
    """

    rows: DataFrame
    columns: tuple[str, ...]
    count: int
    bounds: str

    @property
    def is_in_bounds(self) -> Column:
        """A condition on a table `t`: it may have a key of the messages."""
        return F.expr(self.bounds.removesuffix(" AND ")) if self.bounds else F.lit(True)


def messages(
    spark: SparkSession, root: Location, run: Run, article: Shape, columns: Sequence[str], kept: Kept
) -> Messages:
    """Return the messages of a run for some columns of an article, the key among them.

    Raises: UnreadableQueueError if changes cannot be read, or a row has NULL in its key.
    """
    source = SourcePlan(
        article.article_id,
        run.look.row.source_path,
        run.look.row.position,
        run.through,
        article.key_columns,
        readings(run.look, article.key_columns),
        run.look.columns,
    )
    try:
        # Without a feed, the versions around the run are compared: no commit of ours lies between them.
        read = read_source(spark, root, source, on_gap=COMPARE)
    except PauseSource as error:
        raise _unreadable(error.reason) from error
    kept.frames += read.kept
    changes = union_all([_images(each, article, columns) for each in read.rows])
    key = [F.coalesce("new", "old").getField(f"c{columns.index(name) + 1}") for name in article.key_columns]
    types = changes.schema["new"].dataType
    assert isinstance(types, StructType)
    key_types = [types[f"c{columns.index(name) + 1}"].dataType for name in article.key_columns]
    keyed = changes.withColumns({f"k{i}": value for i, value in enumerate(key, 1)})
    names = [f"k{i}" for i in range(1, len(key) + 1)]
    hashed = keyed.withColumn(
        "kh", key_hash([(F.col(name), type_) for name, type_ in zip(names, key_types, strict=True)])
    )
    net = (
        hashed.groupBy("kh", *names)
        .agg(
            F.min_by(F.struct("old"), VERSION).alias("first"),
            F.max_by(F.struct("new"), VERSION).alias("last"),
        )
        .select("kh", *names, F.col("first.old").alias("old"), F.col("last.new").alias("new"))
    )
    versions = {OLD_VERSION: row_version(F.col("old"), types), NEW_VERSION: row_version(F.col("new"), types)}
    found = kept.keep(net.withColumns(versions).where(~F.col(OLD_VERSION).eqNullSafe(F.col(NEW_VERSION))))
    has_null = [F.col(name).isNull() for name in names]
    measures = {"messages": F.count(F.lit(1)), "nulls": F.count_if(has_null[0])}
    for i, is_null in enumerate(has_null[1:], 2):
        measures[f"nulls{i}"] = F.count_if(is_null)
    for i in bounded_keys(article):
        measures[f"lowest{i}"] = F.min(f"k{i}").cast("string")
        measures[f"highest{i}"] = F.max(f"k{i}").cast("string")
    measured = found.agg(*(each.alias(name) for name, each in measures.items())).collect()[0].asDict()
    if any(n for name, n in measured.items() if name.startswith("nulls")):
        raise UnreadableQueueError(f"a row has NULL in its key ({', '.join(article.key_columns)})")
    return Messages(found, tuple(columns), measured["messages"], bounds_text(article, measured))


def _images(read: ReadRows, article: Shape, columns: Sequence[str]) -> DataFrame:
    """Return the changes of a reading with images of some columns, of the article's types."""
    at = {name.lower(): f"c{i}" for i, name in enumerate(read.columns)}
    types = dict(zip(article.columns, article.types, strict=True))

    def image(side: str) -> Column:
        fields = []
        for k, name in enumerate(columns, 1):
            value = F.col(f"{side}.{at[name.lower()]}")
            stated: StructType = read.rows.schema[side].dataType  # type: ignore[assignment]
            if stated[at[name.lower()]].dataType.simpleString() != types[name]:
                value = value.cast(types[name])
            fields.append(value.alias(f"c{k}"))
        return F.when(F.col(side).isNotNull(), F.struct(*fields))

    return read.rows.select(VERSION, image(BEFORE).alias("old"), image(AFTER).alias("new"))


def row_of(types: dict[str, DataType], columns: Sequence[str], alias: str = "t") -> tuple[Column, StructType]:
    """Return the image of a table's row with some columns as c1…, and its type."""
    there = {name.lower(): data_type for name, data_type in types.items()}
    fields = [F.col(f"{alias}.{quote(name)}").alias(f"c{k}") for k, name in enumerate(columns, 1)]
    return F.struct(*fields), StructType(
        [StructField(f"c{k}", there[name.lower()]) for k, name in enumerate(columns, 1)]
    )


def is_key(article: Shape) -> Column:
    """Return the condition that a table's row `t` has the key of a message `s`."""
    found = F.lit(True)
    for i, name in enumerate(article.key_columns, 1):
        found = found & (F.col(f"t.{quote(name)}") == F.col(f"s.k{i}"))
    return found


def twice(rows: DataFrame, found: Messages, article: Shape) -> list[str]:
    """Return some keys of messages that several rows of the subscriber's table have, as text."""
    keys = [F.col(f"t.{quote(name)}").alias(f"k{i}") for i, name in enumerate(article.key_columns, 1)]
    there = rows.alias("t").where(found.is_in_bounds).select(*keys)
    names = [f"k{i}" for i in range(1, len(keys) + 1)]
    wanted = broadcast_if_few(found.rows.select(*names), found.count)
    several = there.join(wanted, on=names).groupBy(*names).count().where(F.col("count") > 1).limit(3)
    shown = several.select(
        *(readable(F.col(name), several.schema[name].dataType) for name in names)
    ).collect()
    return [
        ", ".join(f"{name} = {value}" for name, value in zip(article.key_columns, row, strict=True))
        for row in shown
    ]


def outcome(publisher: DataFrame, found: Messages, article: Shape) -> DataFrame:
    """Return the messages with the publisher's row before them (`theirs`) and whether they were taken (`is_taken`).

    A message whose row the publisher has already is taken, too: both sides did the same.

    Reads: the publisher's rows in the version before the messages were applied.
    """
    types = {field.name: field.dataType for field in publisher.schema}
    image, image_type_ = row_of(types, found.columns)
    keys = [F.col(f"t.{quote(name)}").alias(f"t{i}") for i, name in enumerate(article.key_columns, 1)]
    there = publisher.alias("t").where(found.is_in_bounds).select(*keys, image.alias("theirs"))
    on = F.lit(True)
    for i in range(1, len(keys) + 1):
        on = on & (F.col(f"t{i}") == F.col(f"k{i}"))
    joined = found.rows.join(there, on=on, how="left")
    version = row_version(F.col("theirs"), image_type_)
    is_taken = version.eqNullSafe(F.col(OLD_VERSION)) | version.eqNullSafe(F.col(NEW_VERSION))
    return joined.select(*found.rows.columns, "theirs", is_taken.alias(_TAKEN)).dropDuplicates(["kh"])


def losers(rows: DataFrame, found: Messages, article: Shape, number: int, guid: str) -> DataFrame:
    """Return the rows of the conflict table for the messages that were not taken, from rows of `outcome`.

    Returns: conflict_id, conflict_type, reason_text, rowkey, columns, old, losing, winning; c1… are those of the article.
    """
    lost = rows.where(~F.col(_TAKEN))
    kind = F.when(F.col("theirs").isNull(), int(ConflictType.UPDATE_DELETE_WINS)).when(
        F.col("new").isNull(), int(ConflictType.UPDATE_WINS_DELETE)
    )
    kind = kind.otherwise(int(ConflictType.UPDATE))
    reasons = F.create_map(*(F.lit(part) for each, text in REASONS.items() for part in (int(each), text)))
    types = lost.schema["new"].dataType
    assert isinstance(types, StructType)
    differing = [
        F.when(
            F.col("theirs").isNotNull()
            & F.col("new").isNotNull()
            & ~same_value(F.col(f"new.c{k}"), F.col(f"theirs.c{k}"), types[f"c{k}"].dataType),
            F.lit(name),
        )
        for k, name in enumerate(found.columns, 1)
    ]
    rowkey = [
        part
        for i, name in enumerate(article.key_columns, 1)
        for part in (F.lit(name), readable(F.col(f"k{i}"), lost.schema[f"k{i}"].dataType))
    ]
    identity = F.concat(F.lit(f"{guid}:{number}:{article.article_id}:"), F.col("kh"))

    def whole(side: str) -> Column:
        fields = [
            F.col(f"{side}.c{found.columns.index(name) + 1}").cast(type_).alias(f"c{k}")
            if name in found.columns
            else F.lit(None).cast(type_).alias(f"c{k}")
            for k, (name, type_) in enumerate(zip(article.columns, article.types, strict=True), 1)
        ]
        return F.when(F.col(side).isNotNull(), F.struct(*fields))

    return lost.select(
        F.substring(F.sha2(identity, 256), 1, 32).alias("conflict_id"),
        kind.cast("int").alias("conflict_type"),
        F.element_at(reasons, kind.cast("int")).alias("reason_text"),
        F.create_map(*rowkey).alias("rowkey"),
        F.array_compact(F.array(*differing)).cast("array<string>").alias("columns"),
        *(
            whole(side).alias(name)
            for side, name in (("old", "old"), ("new", "losing"), ("theirs", "winning"))
        ),
    )


def counted(rows: DataFrame) -> dict[str, int]:
    """Return the numbers of messages taken, by operation, and of those that lost, from rows of `outcome`."""
    is_taken, existed, exists = F.col(_TAKEN), F.col("old").isNotNull(), F.col("new").isNotNull()
    measures = {
        "inserts": is_taken & ~existed,
        "updates": is_taken & existed & exists,
        "deletes": is_taken & ~exists,
        "conflicts": ~is_taken,
    }
    row = rows.agg(*(F.count_if(each).alias(name) for name, each in measures.items())).collect()[0]
    return {name: int(row[name]) for name in measures}
