"""From the change feed to one net change per row (design section 3).

Merge session step: capture, before lineages are bumped. Reads the feed of one article; writes nothing.
Whatever a user did to a row since the last capture (also within one commit) becomes one before and one after.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mergerepl.changes import ROW
from mergerepl.model.article import PublishedArticle
from mergerepl.store.images import image_type, row_image, same_image

BEFORE = "before"
AFTER = "after"
EXISTED = "existed"
EXISTS = "exists"
NET = "net"

_CHANGE_TYPE = "_change_type"
_COMMIT_VERSION = "_commit_version"


def net_changes(feed: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return one row per key whose row differs before and after the feed's versions.

    Within one commit the pre-images (update_preimage, delete) are the row before it and the post-images the
    row after it, whatever their order; so the first commit's pre-image and the last commit's post-image span
    the whole range. An UPDATE that changes the key pairs with nothing and becomes a delete and an insert.

    Reads: the feed without the agent's own commits. Returns: existed, before, exists, after (row images),
    net (rows that came to be minus rows that went: beyond `exists` minus `existed` the key has duplicates).
    """
    is_before = F.col(_CHANGE_TYPE).isin("update_preimage", "delete")
    events = feed.select(
        row_image(article.columns).alias(ROW),
        is_before.alias("is_before"),
        F.col(_COMMIT_VERSION).alias("version"),
    )
    first = F.min_by(F.struct("is_before", ROW), F.struct("version", ~F.col("is_before")))
    last = F.max_by(F.struct(~F.col("is_before"), ROW), F.struct("version", ~F.col("is_before")))
    by_key = events.groupBy(*_keys(article)).agg(
        first.alias("first"),
        last.alias("last"),
        F.sum(F.when(F.col("is_before"), -1).otherwise(1)).alias(NET),
    )
    spans = by_key.select(
        F.col("first.is_before").alias(EXISTED),
        F.col(f"first.{ROW}").alias(BEFORE),
        F.col("last.col1").alias(EXISTS),
        F.col(f"last.{ROW}").alias(AFTER),
        F.col(NET),
    )
    return differing(spans)


def compared_versions(before: DataFrame, after: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return what `net_changes` would, from two whole versions of the table instead of its feed.

    For gaps in the feed (CDF switched off and on, vacuumed change files). Rows of one key are counted: two
    that came to be while the feed was off would otherwise be told as two changes of one row.

    Reads: the last captured version and the head.
    """
    old, new = _one_per_key(before, BEFORE, article), _one_per_key(after, AFTER, article)
    same_key: Column = F.lit(True)
    for i, _ in enumerate(article.identity):
        same_key = same_key & F.col(f"{BEFORE}_k{i}").eqNullSafe(F.col(f"{AFTER}_k{i}"))
    # One row beyond the first is told as a row that came to be beside the row's own life.
    beyond = F.coalesce(F.col(f"{AFTER}_rows") - 1, F.lit(0))
    existed, exists = F.col(BEFORE).isNotNull(), F.col(AFTER).isNotNull()
    spans = old.join(new, on=same_key, how="full_outer").select(
        existed.alias(EXISTED),
        F.coalesce(BEFORE, AFTER).alias(BEFORE),
        exists.alias(EXISTS),
        F.coalesce(AFTER, BEFORE).alias(AFTER),
        (exists.cast("bigint") - existed.cast("bigint") + beyond).alias(NET),
    )
    return differing(spans)


def _one_per_key(rows: DataFrame, image: str, article: PublishedArticle) -> DataFrame:
    """Return one of the images of each key, its key (`<image>_k0`, …) and how many rows have it (`<image>_rows`)."""
    images = rows.select(row_image(article.columns).alias(ROW))
    keys = _keys(article, prefix=f"{image}_")
    return images.groupBy(*keys).agg(F.first(ROW).alias(image), F.count(F.lit(1)).alias(f"{image}_rows"))


def differing(spans: DataFrame) -> DataFrame:
    """Leave out rows with no net difference: they are no change. Duplicate keys stay in, to be refused by name."""
    never_there = ~F.col(EXISTED) & ~F.col(EXISTS)
    unchanged = F.col(EXISTED) & F.col(EXISTS) & same_image(BEFORE, AFTER, image_type(spans, BEFORE))
    return spans.where(~(never_there | unchanged) | has_duplicates())


def has_duplicates() -> Column:
    """Return whether more rows of the key came to be than one row's life allows."""
    return F.col(NET) != F.col(EXISTS).cast("bigint") - F.col(EXISTED).cast("bigint")


def has_null_key(article: PublishedArticle) -> Column:
    """Return whether a surviving row has a NULL in its key."""
    is_null: Column = F.lit(False)
    for name in article.identity_fields:
        is_null = is_null | F.col(f"{AFTER}.{name}").isNull()
    return F.col(EXISTS) & is_null


def _keys(article: PublishedArticle, *, prefix: str = "") -> list[Column]:
    fields = enumerate(article.identity_fields)
    return [F.col(f"{ROW}.{name}").alias(f"{prefix}k{i}") for i, name in fields]
