"""The rows of an article that differ between both sides, with their images and rowguids."""

from collections.abc import Mapping, Sequence

from mergerepl.changes import PUBLISHER, ROW, ROWGUID, SUBSCRIBER
from mergerepl.errors import PublicationError
from mergerepl.frames import DataFrame, F
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import KeyDifference
from mergerepl.monitoring.compare_tables import HALVES, HASH, half_of_hash, key_hash, row_hash
from mergerepl.publish.snapshot import DIFFERENT, EXTRA, KEY_PREFIX, MISSING, compared_rows
from mergerepl.rows.images import all_true, image_type, readable, rowguid_of_image, stored_type
from mergerepl.rows.sql import quote
from mergerepl.spark.in_memory import Kept, broadcast_if_few

IMAGE = {PUBLISHER: "ours", SUBSCRIBER: "theirs"}
"""Side -> the column with its row; NULL: the side lacks it."""

SHOWN = 20
_KINDS = {MISSING: "missing_at_subscriber", EXTRA: "missing_at_publisher", DIFFERENT: "different"}
_GUID = "mergerepl guid"
_MOST_DUPLICATES = 5
# No published column has such a name.
_BUCKET = "mergerepl bucket"
_FEWEST_BUCKETS = 64
_ROWS_OF_BUCKET = 32
"""Rows of both sides: 100 scattered differences among 1,000,000 rows leave 3,200 of them to compare."""


def key_columns(article: PublishedArticle) -> list[str]:
    """Return the columns of a comparison with an article's key, in its order."""
    return [f"{KEY_PREFIX}{i}" for i in range(len(article.identity))]


def compared(rows: Mapping[str, DataFrame], article: PublishedArticle) -> DataFrame:
    """Return both sides' rows of an article by key, as `compared_rows`; a GUID in another case is the same row."""
    key: Sequence[str] = article.identity
    if article.rowguid_column is not None:
        guid = F.lower(F.col(quote(article.rowguid_column)))
        rows, key = {side: each.withColumn(_GUID, guid) for side, each in rows.items()}, [_GUID]
    return compared_rows(rows[PUBLISHER], rows[SUBSCRIBER], article.columns, key)


def without_equal(
    rows: Mapping[str, DataFrame], article: PublishedArticle, *, count: int, kept: Kept
) -> dict[str, DataFrame]:
    """Return both sides' rows without most of those that both have alike, by sums of their hashes.

    `count` is the number of rows of both. One query sums the hashes in buckets of a few rows, so it shuffles no rows; then
    only the rows of buckets that differ are compared. Rows that both sides have twice alike count as equal.
    """
    buckets = max(_FEWEST_BUCKETS, count // _ROWS_OF_BUCKET)
    of_rows = {
        side: each.withColumn(_BUCKET, F.pmod(key_hash(article.identity, each.schema), F.lit(buckets)))
        for side, each in rows.items()
    }
    hashed = [
        each.select(
            _BUCKET,
            F.lit(1 if side == PUBLISHER else -1).cast("bigint").alias("sign"),
            row_hash(article.columns, each.schema).alias(HASH),
        )
        for side, each in of_rows.items()
    ]
    measures = [F.lit(1), *(half_of_hash(half) for half in HALVES)]
    sums = [F.sum(F.col("sign") * each).alias(f"sum{i}") for i, each in enumerate(measures)]
    by_bucket = hashed[0].unionByName(hashed[1]).groupBy(_BUCKET).agg(*sums)
    is_equal = all_true([F.col(f"sum{i}") == 0 for i, _ in enumerate(measures)])
    differing = kept.keep(by_bucket.where(~is_equal).select(_BUCKET))
    found = differing.count()
    if found > buckets // 2:
        return dict(rows)
    of_few = broadcast_if_few(differing, found)
    return {
        side: each.join(of_few, on=_BUCKET, how="left_semi").drop(_BUCKET) for side, each in of_rows.items()
    }


def with_images(rows: DataFrame, article: PublishedArticle) -> DataFrame:
    """Return compared rows with images of the published types, the row of either side (`row`), and the rowguid."""
    declared = stored_type(article)
    images = rows.select(
        "kind", *key_columns(article), *(F.col(each).cast(declared).alias(each) for each in IMAGE.values())
    ).withColumn(ROW, F.coalesce(*IMAGE.values()))
    is_guid = article.rowguid_column is not None
    guid = rowguid_of_image(ROW, image_type(images, ROW), article.identity_fields, existing=is_guid)
    return images.withColumn(ROWGUID, guid)


def examples(rows: DataFrame, article: PublishedArticle) -> tuple[KeyDifference, ...]:
    """Return the first keys of rows with images, as text."""
    image = image_type(rows, ROW)
    texts = [readable(F.col(f"{ROW}.{f}"), image[f].dataType).alias(f) for f in article.identity_fields]
    first = rows.orderBy(*(f"{ROW}.{f}" for f in article.identity_fields)).limit(SHOWN)
    columns = list(zip(article.identity, article.identity_fields, strict=True))
    return tuple(
        KeyDifference({name: row[f] for name, f in columns}, _KINDS[row["kind"]])
        for row in first.select(*texts, "kind").collect()
    )


def refuse_duplicates(
    both: DataFrame, chosen: DataFrame, article: PublishedArticle, *, done: str, remedy: str
) -> None:
    """Refuse keys without a value, and keys of several rows at a side. `chosen` are some of the compared rows.

    Raises: PublicationError naming up to five keys; `done` is what the article cannot be.
    """
    keys = key_columns(article)
    is_null = ~all_true([F.col(name).isNotNull() for name in keys])
    is_twice = (F.col("rows") > 1) | (F.col("times") > 1)
    of_keys = both
    if chosen is not both:
        # A join finds no NULL.
        of_keys = both.join(chosen.select(*keys).distinct(), on=list(keys), how="left_semi")
        of_null = chosen.where(is_null).select(*keys, F.lit(1).cast("bigint").alias("times"))
        of_keys = of_keys.select(*keys, "times").unionByName(of_null)
    by_key = of_keys.groupBy(*keys).agg(F.count(F.lit(1)).alias("rows"), F.max("times").alias("times"))
    found = by_key.where(is_twice | is_null).select(*keys).limit(_MOST_DUPLICATES).collect()
    if found:
        named = "; ".join(
            ", ".join(f"{name}={value}" for name, value in zip(article.identity, row, strict=True))
            for row in found
        )
        raise PublicationError(
            f"Article '{article.name}' cannot be {done}: several rows of a side have one key, or it is NULL: {named}. "
            f"{remedy}",
            article=article.name,
        )
