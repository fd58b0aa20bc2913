"""From a table's change feed to the changes of each commit (cdc.md 5). Pure except for the rows it keeps in memory.

Per version and key, the pre-images (update_preimage, delete) are the row before the commit and the post-images (insert,
update_postimage) the row after it, whatever a writer calls them. So RESTORE and INSERT OVERWRITE show only differing rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mergerepl.changes import ROW
from mergerepl.delta.commit_files import feed_of_files, frame_here
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.feed.net_changes import AFTER, BEFORE, CHANGE_TYPE, COMMIT_VERSION, RowShape, is_before
from mergerepl.delta.feed.window import Segment
from mergerepl.delta.reads import feed_as_stored, feed_through_delta
from mergerepl.delta.table import TableState
from mergerepl.delta.update_keys import has_key, update_keys
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.rows.encodings import encoded
from mergerepl.rows.images import image_type, key_hash, row_image, same_image
from mergerepl.spark.in_memory import in_one_task, keep_in_memory
from mergerepl.store.location import Location

VERSION = "version"
ROW_HASH = "row_hash"
"""The first 9 bytes of SHA-256 over the key; without a key over the whole row and its number among equal rows."""

HASH_BYTES = 9

_EVENTS = "events"
_HALF = "half"
_IS_BEFORE = "is_before"
_NET = "net"


@dataclass(frozen=True)
class KeptEvents:
    """The events of some commits by version and key, kept in memory, with facts about them.

    `several`: the number of keys with more than one row before or after one of these commits. `half_updates`: the
    versions whose updates lack rows before or after (some engines leave them out), so that their feed cannot be used.
    """

    kept: DataFrame
    shape: RowShape
    groups: int
    several: int
    half_updates: tuple[int, ...] = ()


def keep_events(feed: DataFrame, shape: RowShape, *, rows: int | None = None) -> KeptEvents:
    """Read the feed once and keep its events; `rows` is its approximate maximum size, if known.

    Reads: the feed of commits that count: the table's columns, `_change_type`, `_commit_version`.
    """
    events = feed.select(*_of_event(shape))
    keys = [F.col(f"{ROW}.{name}").alias(f"k{i}") for i, name in enumerate(shape.identity_fields)]
    if not shape.identity:
        keys = [encoded(F.col(ROW), image_type(events, ROW)).alias("k0")]
    half = F.sum(F.col(_HALF)).alias(_HALF)
    if shape.identity:
        collected = F.collect_list(F.struct(_IS_BEFORE, ROW))
        grouped = events.groupBy(VERSION, *keys).agg(collected.alias(_EVENTS), half)
        is_several = ~_is_single()
    else:
        net = F.sum(F.when(F.col(_IS_BEFORE), -1).otherwise(1)).alias(_NET)
        grouped = events.groupBy(VERSION, *keys).agg(net, F.first(ROW).alias(ROW), half)
        is_several = F.lit(False)
    kept = keep_in_memory(grouped)
    counted = in_one_task(kept, rows).agg(
        F.count(F.lit(1)).alias("groups"),
        F.count_if(is_several).alias("several"),
        F.count_if(F.col(_HALF) != 0).alias(_HALF),
    )
    found = counted.collect()[0]
    half_updates: tuple[int, ...] = ()
    if found[_HALF]:
        # An UPDATE of keys balances them over the whole version.
        unbalanced = kept.groupBy(VERSION).agg(F.sum(_HALF).alias(_HALF)).where(F.col(_HALF) != 0)
        half_updates = tuple(sorted(row[VERSION] for row in unbalanced.select(VERSION).collect()))
    return KeptEvents(kept, shape, found["groups"], found["several"], half_updates)


@cached
def _of_event(shape: RowShape) -> tuple[Column, ...]:
    kind = F.col(CHANGE_TYPE)
    half = F.when(kind == "update_postimage", 1).when(kind == "update_preimage", -1).otherwise(0)
    return (
        F.col(COMMIT_VERSION).cast("bigint").alias(VERSION),
        is_before(),
        row_image(shape.columns, shape.fields).alias(ROW),
        half.alias(_HALF),
    )


def as_feed(before: DataFrame, after: DataFrame, version: int) -> DataFrame:
    """Return two versions of a table, with the same columns, as the feed of one commit that replaced all rows."""
    images = ((before, "delete"), (after, "insert"))
    one, other = (
        rows.select("*", F.lit(kind).alias(CHANGE_TYPE), F.lit(version).cast("bigint").alias(COMMIT_VERSION))
        for rows, kind in images
    )
    return one.unionByName(other)


def commit_changes(events: KeptEvents) -> DataFrame:
    """Return one row for each row that a commit changed.

    An update is a row with both images; an update that changes no column is left out. If a key had several rows before
    or after a commit, equal images cancel out, and deletes and inserts remain.

    Returns: version, row_hash (9 bytes), before, after (row images; NULL without a row).
    """
    kept, shape = events.kept, events.shape
    if not shape.identity:
        return _counted_rows(kept.select(VERSION, _NET, ROW), image_type(kept, ROW))
    image = kept.schema[_EVENTS].dataType.elementType[ROW].dataType  # type: ignore[attr-defined]
    singles = kept
    if events.several:
        singles = kept.where(_is_single())
        left = _counted_rows(_left_over(kept.where(~_is_single()), image), image, shape)
    before, after = (F.get(side, F.lit(0))[ROW] for side in (_images_before(), _images_after()))
    changed = singles.select(VERSION, before.alias(BEFORE), after.alias(AFTER))
    is_idle = F.col(BEFORE).isNotNull() & F.col(AFTER).isNotNull() & same_image(BEFORE, AFTER, image)
    changed = changed.where(~is_idle)
    there = F.coalesce(AFTER, BEFORE)
    rows = changed.select(VERSION, _hash(_key(there, image, shape)).alias(ROW_HASH), BEFORE, AFTER)
    return rows.unionByName(left) if events.several else rows


def changes_by(changes: DataFrame, shape: RowShape) -> DataFrame:
    """Return the changes of commits, as `commit_changes`, with their images paired by another key.

    Both keys leave out the same rows, those with equal images. So the images of the changes are all that is needed.
    """
    sides = ((BEFORE, True), (AFTER, False))
    images = (
        changes.where(F.col(name).isNotNull()).select(
            VERSION, F.lit(is_before).alias(_IS_BEFORE), F.col(name).alias(ROW)
        )
        for name, is_before in sides
    )
    events = reduce(lambda one, other: one.unionByName(other), images)
    keys = [F.col(f"{ROW}.{name}").alias(f"k{i}") for i, name in enumerate(shape.identity_fields)]
    grouped = events.groupBy(VERSION, *keys).agg(F.collect_list(F.struct(_IS_BEFORE, ROW)).alias(_EVENTS))
    return commit_changes(KeptEvents(grouped, shape, groups=0, several=1))


def _images_before() -> Column:
    return F.filter(_EVENTS, lambda event: event[_IS_BEFORE])


def _images_after() -> Column:
    return F.filter(_EVENTS, lambda event: ~event[_IS_BEFORE])


def _is_single() -> Column:
    """Return whether a key had at most one row before a commit and at most one after it."""
    return (F.size(_images_before()) <= 1) & (F.size(_images_after()) <= 1)


def _left_over(groups: DataFrame, image: StructType) -> DataFrame:
    """Return the images of which a key has more, or fewer, after a commit than before it."""
    events = groups.select(VERSION, F.explode(_EVENTS).alias("event")).select(VERSION, "event.*")
    net = F.sum(F.when(F.col(_IS_BEFORE), -1).otherwise(1)).alias(_NET)
    coded = encoded(F.col(ROW), image).alias("image")
    return events.groupBy(VERSION, coded).agg(net, F.first(ROW).alias(ROW)).select(VERSION, _NET, ROW)


def _counted_rows(rows: DataFrame, image: StructType, shape: RowShape | None = None) -> DataFrame:
    """Return deletes and inserts, each as often as it remains. Without a key, the hash of each includes a number."""
    left = rows.where(F.col(_NET) != 0)
    numbered = left.select(
        VERSION, _NET, ROW, F.explode(F.sequence(F.lit(0), F.abs(_NET).cast("int") - 1)).alias("number")
    )
    if shape is None:
        number = F.concat(F.lit("#"), F.col("number").cast("string")).cast("binary")
        coded = _hash(F.sha2(F.concat(encoded(F.col(ROW), image), number), 256))
    else:
        coded = _hash(_key(F.col(ROW), image, shape))
    is_insert = F.col(_NET) > 0
    return numbered.select(
        VERSION,
        coded.alias(ROW_HASH),
        F.when(~is_insert, F.col(ROW)).alias(BEFORE),
        F.when(is_insert, F.col(ROW)).alias(AFTER),
    )


def _key(row: Column, image: StructType, shape: RowShape) -> Column:
    return key_hash([(row.getField(name), image[name].dataType) for name in shape.identity_fields])


def _hash(digest: Column) -> Column:
    return F.unhex(F.substring(digest, 1, 2 * HASH_BYTES))


def feed_here(
    table: TableState, columns: Sequence[str], versions: Iterable[int], segment: Segment, key: Sequence[str]
) -> DataFrame:
    """Return the feed of a segment's versions that count, in process, from the files of their commits.

    `table` is at the last of them. Raises: NeedsSparkError if Arrow does not read the rows as Spark does, or a key is NULL.
    """
    found = {version: update_keys(table.path, version, key) for version in segment.by_keys}
    # A file may be gone since the segment was planned.
    keys = {version: each for version, each in found.items() if each.doubt is None}
    by_files = {version: version in segment.by_files or version in found for version in versions}
    rows = feed_of_files(table, columns, by_files, keys)
    if any(rows[name].null_count for name in key):
        raise NeedsSparkError("a key is NULL", table.path)
    return frame_here(rows, table)


def read_segment(spark: SparkSession, table: Location, segment: Segment) -> DataFrame | None:
    """Return the rows that changed in a segment, without the left-out versions.

    Returns: The table's columns at the segment's end, `_change_type`, `_commit_version`, `_commit_timestamp`. None with
        another Delta (Databricks) that cannot read versions by their files.
    """
    bounds = segment.from_version_inclusive, segment.through_version_inclusive
    is_one_metadata = segment.is_one_metadata
    keys = {version: update_keys(table, version, segment.key) for version in segment.by_keys}
    # A file may be gone since the segment was planned.
    some = [version for version, each in keys.items() if each.doubt is None]
    whole = [*segment.by_files, *(keys.keys() - some)]
    feed = feed_as_stored(spark, table, *bounds, is_one_metadata=is_one_metadata)
    if feed is None and (whole or some):
        return None
    if feed is None:
        feed = feed_through_delta(spark, table, *bounds)
    version = F.col(COMMIT_VERSION)
    others = [*segment.left_out, *whole, *some]
    stored = feed.where(~version.isin(others)) if others else feed
    if not (whole or some):
        return stored
    # Delta reads the version as a partition column here: files of the other versions are not opened.
    of_files = feed_as_stored(spark, table, *bounds, by_files=True, is_one_metadata=is_one_metadata)
    if of_files is None:
        return None
    if whole:
        stored = stored.unionByName(of_files.where(version.isin(whole)))
    if some:
        is_changed = F.expr(has_key([keys[each] for each in some]))
        stored = stored.unionByName(of_files.where(version.isin(some) & is_changed))
    return stored
