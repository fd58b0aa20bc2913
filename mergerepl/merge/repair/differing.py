"""The rows of an article that differ between both sides, with their images and rowguids."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.changes import PUBLISHER, ROW, ROWGUID, SUBSCRIBER
from mergerepl.errors import PublicationError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.results import KeyDifference
from mergerepl.monitoring.compare_tables import row_hash
from mergerepl.publish.snapshot import DIFFERENT, EXTRA, KEY_PREFIX, MISSING, compared_rows
from mergerepl.rows.images import all_true, image_type, readable, rowguid_of_image, stored_type
from mergerepl.rows.sql import quote

IMAGE = {PUBLISHER: "ours", SUBSCRIBER: "theirs"}
"""Side -> the column with its row; NULL: the side lacks it."""

SHOWN = 20
_KINDS = {MISSING: "missing_at_subscriber", EXTRA: "missing_at_publisher", DIFFERENT: "different"}
_GUID = "mergerepl guid"
_MOST_DUPLICATES = 5


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


def without_equal(rows: Mapping[str, DataFrame], article: PublishedArticle) -> dict[str, DataFrame]:
    """Return both sides' rows without those that each side has once and alike, by hashes of the rows.

    Of large tables that hardly differ, keys and hashes are shuffled in place of whole rows.
    """
    keys = [F.col(quote(name)) for name in article.identity]
    if article.rowguid_column is not None:
        keys = [F.lower(key) for key in keys]
    # No published column has such a name.
    names = [f"mergerepl key {i}" for i in range(len(keys))]
    hashed = [
        each.select(
            *(key.alias(name) for key, name in zip(keys, names, strict=True)),
            F.lit(int(side == PUBLISHER)).alias("ours"),
            row_hash(article.columns, each.schema).alias("hash"),
        )
        for side, each in rows.items()
    ]
    by_key = hashed[0].unionByName(hashed[1]).groupBy(*map(quote, names))
    found = by_key.agg(
        F.count(F.lit(1)).alias("rows"),
        F.sum("ours").alias("ours"),
        F.min("hash").alias("low"),
        F.max("hash").alias("high"),
    )
    is_equal = (F.col("rows") == 2) & (F.col("ours") == 1) & (F.col("low") == F.col("high"))
    differing = found.where(~is_equal).select(*map(quote, names))
    is_there = all_true([key.eqNullSafe(F.col(quote(name))) for key, name in zip(keys, names, strict=True)])
    return {side: each.join(differing, on=is_there, how="left_semi") for side, each in rows.items()}


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
    of_keys = both.join(chosen.select(*keys).distinct(), on=list(keys), how="left_semi")
    twice = of_keys.groupBy(*keys).agg(F.count(F.lit(1)).alias("rows"), F.max("times").alias("times"))
    twice = twice.where((F.col("rows") > 1) | (F.col("times") > 1)).select(*keys)
    is_null = ~all_true([F.col(name).isNotNull() for name in keys])
    found = twice.unionByName(chosen.where(is_null).select(*keys)).limit(_MOST_DUPLICATES).collect()
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
