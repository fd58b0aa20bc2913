"""From a table's change feed to one net change per row (design section 3). Pure.

All changes of a row in a window, also within one commit, become one image before and one after.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import StructType

from mergerepl.changes import ROW
from mergerepl.frames import Column, DataFrame, F, cached
from mergerepl.rows.images import all_true, identity_value, image_hash, image_type, row_image, same_image
from mergerepl.spark.expression_cost import where_computed

BEFORE = "before"
AFTER = "after"
EXISTED = "existed"
EXISTS = "exists"
DOUBTFUL = "doubtful"
DUPLICATED = "duplicated"
HALF_UPDATES = "half_updates"

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"


@dataclass(frozen=True)
class RowShape:
    """The columns of a table in a row's image, and those that identify the row.

    `fields` names the image's fields; empty: column i is its field `c<i>`.
    `is_guid`: the one identity column holds GUIDs, compared without regard to case.
    """

    columns: tuple[str, ...]
    identity: tuple[str, ...]
    is_guid: bool = False
    fields: tuple[str, ...] = ()

    @property
    def identity_fields(self) -> tuple[str, ...]:
        """The image fields of the identity columns."""
        places = (self.columns.index(name) for name in self.identity)
        return tuple(self.fields[i] if self.fields else f"c{i}" for i in places)


def net_changes(feed: DataFrame, shape: RowShape) -> DataFrame:
    """Return one row per key whose row differs before and after the feed's versions.

    Within one commit the pre-images (update_preimage, delete) are the row before it and the post-images the
    row after it, whatever their order; so the first commit's pre-image and the last commit's post-image span
    the whole range. An UPDATE that changes the key pairs with nothing and becomes a delete and an insert.

    This holds for one row. If a key had two rows for a while, its first and last event may be of different rows: such a
    key is `doubtful`, and only the table before and after gives its change.

    `half_updates` is the number of post-images of updates of a key, minus its pre-images: 1 if an update gave a row
    this key, -1 if it removed the key. Over all keys the sum is 0, unless a writer leaves pre-images out (some engines
    do): then the feed has neither the former row nor its key. So keys with a difference are returned even without a net
    change (`is_change`).

    Reads: the feed of commits that count. Returns: existed, before, exists, after (row images), doubtful, duplicated
    (False: a feed does not show unchanged rows), half_updates.
    """
    events = feed.select(row_image(shape.columns, shape.fields).alias(ROW), *of_event())
    image = image_type(events, ROW)
    spans = spans_of_events(events, _aliased_keys(shape), image)
    return where_computed(spans, counts(image) | (F.col(HALF_UPDATES) != 0))


def spans_of_events(
    events: DataFrame, keys: Sequence[Column], image: StructType, *, also: Mapping[str, Column] | None = None
) -> DataFrame:
    """Return the first and the last row of each key, as `net_changes`, also of keys without a change.

    `events` has `row` and the columns of `of_event`, `keys` identify a row, and `image` has the fields of `row` to
    compare; `row` may have others. `also` are further aggregates of a key's events.
    """
    others = [value.alias(name) for name, value in (also or {}).items()]
    by_key = events.groupBy(*keys).agg(*_of_key(image), *others)
    return by_key.select(*_of_span(image), *(also or ()))


@cached
def is_before() -> Column:
    """Return whether a feed's row is a pre-image, whatever the writer calls it, rather than a post-image."""
    return F.col(CHANGE_TYPE).isin("update_preimage", "delete").alias("is_before")


@cached
def of_event() -> tuple[Column, ...]:
    """Return the facts of an event besides its row, from the columns of a feed."""
    return (is_before(), F.col(CHANGE_TYPE).alias("type"), F.col(COMMIT_VERSION).alias("version"))


@cached
def _of_key(image: StructType) -> tuple[Column, ...]:
    order = F.struct("version", ~F.col("is_before"))
    half = F.when(F.col("type") == "update_postimage", 1).when(F.col("type") == "update_preimage", -1)
    return (
        F.min_by(F.struct("is_before", ROW), order).alias("first"),
        F.max_by(F.struct(~F.col("is_before"), ROW), order).alias("last"),
        F.sum(F.when(F.col("is_before"), -1).otherwise(1)).alias("balance"),
        F.bit_xor(image_hash(ROW, image)).alias("left_over"),
        F.sum(half.otherwise(0)).alias(HALF_UPDATES),
    )


@cached
def _of_span(image: StructType) -> tuple[Column, ...]:
    existed, exists = F.col("first.is_before"), F.col("last.col1")
    # One row adds its last image and removes its first; images in between are added and removed. Another balance means
    # more rows; other remaining images mean that one row replaced another.
    is_odd = F.col("balance") != exists.cast("bigint") - existed.cast("bigint")
    of_one_row = (
        F.when(existed, image_hash(f"first.{ROW}", image))
        .otherwise(0)
        .bitwiseXOR(F.when(exists, image_hash(f"last.{ROW}", image)).otherwise(0))
    )
    return (
        existed.alias(EXISTED),
        F.col(f"first.{ROW}").alias(BEFORE),
        exists.alias(EXISTS),
        F.col(f"last.{ROW}").alias(AFTER),
        (is_odd | (F.col("left_over") != of_one_row)).alias(DOUBTFUL),
        F.lit(False).alias(DUPLICATED),
        F.col(HALF_UPDATES),
    )


def compared_versions(before: DataFrame, after: DataFrame, shape: RowShape) -> DataFrame:
    """Return the result of `net_changes` from two whole versions of the table instead of its feed.

    For gaps in the feed (CDF switched off and on, vacuumed change files). Rows of one key are counted: two rows that
    were inserted while the feed was off would otherwise be two changes of one row. A key that had several rows before
    and one now counts as inserted: other replicas' row is unknown.

    Reads: the table at the position and at the window's end.
    """
    return _compared(_images(before, shape), _images(after, shape), shape)


def decided(net: DataFrame, before: DataFrame, after: DataFrame, shape: RowShape) -> DataFrame:
    """Decide the doubtful keys of net changes by two whole versions of the table.

    Reads: `net_changes`, the table before the feed's versions and after them.
    """
    doubtful = net.where(DOUBTFUL).select(F.col(AFTER).alias(ROW)).select(*_aliased_keys(shape))
    # NULL is the same key as NULL.
    has_key = all_true([key.eqNullSafe(F.col(f"k{i}")) for i, key in enumerate(_keys(shape))])
    old, new = (_images(rows, shape).join(doubtful, on=has_key, how="left_semi") for rows in (before, after))
    settled = _compared(old, new, shape)
    others = net.where(~F.col(DOUBTFUL)).withColumn(HALF_UPDATES, F.lit(0).cast("bigint"))
    return others.select(*settled.columns).unionByName(settled)


def _images(rows: DataFrame, shape: RowShape) -> DataFrame:
    return rows.select(row_image(shape.columns, shape.fields).alias(ROW))


def _compared(before: DataFrame, after: DataFrame, shape: RowShape) -> DataFrame:
    old, new = (
        rows.withColumn("is_before", F.lit(is_old)) for rows, is_old in ((before, True), (after, False))
    )
    by_key = sides_of(old.unionByName(new), _aliased_keys(shape))
    exists = F.col("rows_after") > 0
    spans = by_key.select(
        ((F.col("rows_before") > 0) & (~exists | (F.col("rows_before") == 1))).alias(EXISTED),
        F.coalesce(BEFORE, AFTER).alias(BEFORE),
        exists.alias(EXISTS),
        F.coalesce(AFTER, BEFORE).alias(AFTER),
        F.lit(False).alias(DOUBTFUL),
        (F.col("rows_after") > 1).alias(DUPLICATED),
        F.lit(0).cast("bigint").alias(HALF_UPDATES),
    )
    return spans.where(counts(image_type(spans, BEFORE)))


def sides_of(images: DataFrame, keys: Sequence[Column]) -> DataFrame:
    """Return an image before and one after of each key (or NULL), and the numbers of both.

    Reads: `row`, `is_before`. Returns: the keys, before, after, rows_before, rows_after.
    """
    is_old, is_new = F.col("is_before"), ~F.col("is_before")
    return images.groupBy(*keys).agg(
        F.first(F.when(is_old, F.col(ROW)), ignorenulls=True).alias(BEFORE),
        F.first(F.when(is_new, F.col(ROW)), ignorenulls=True).alias(AFTER),
        F.count_if(is_old).alias("rows_before"),
        F.count_if(is_new).alias("rows_after"),
    )


@cached
def counts(image: StructType) -> Column:
    """Return whether a row, with images of this type, is a change or a key to decide or refuse."""
    return is_change(image) | F.col(DOUBTFUL) | F.col(DUPLICATED)


@cached
def is_change(image: StructType) -> Column:
    """Return whether a row, with images of this type, differs before and after."""
    never_there = ~F.col(EXISTED) & ~F.col(EXISTS)
    unchanged = F.col(EXISTED) & F.col(EXISTS) & same_image(BEFORE, AFTER, image)
    return ~(never_there | unchanged)


def has_null_key(shape: RowShape) -> Column:
    """Return whether a surviving row has a NULL in its key."""
    is_null: Column = F.lit(False)
    for name in shape.identity_fields:
        is_null = is_null | F.col(f"{AFTER}.{name}").isNull()
    return F.col(EXISTS) & is_null


def _keys(shape: RowShape) -> list[Column]:
    existing = shape.is_guid
    return [identity_value(F.col(f"{ROW}.{field}"), existing=existing) for field in shape.identity_fields]


def _aliased_keys(shape: RowShape) -> list[Column]:
    return [key.alias(f"k{i}") for i, key in enumerate(_keys(shape))]
