"""Compare one article's rows at two replicas: `sync_type: none` promises that they are the same."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.rows.images import image_type, row_image, same_image
from mergerepl.rows.sql import quote

KEY_PREFIX = "k"

MISSING, TWICE, EXTRA, DIFFERENT = (
    "missing at the subscriber",
    "twice at the subscriber",
    "missing at the publisher",
    "different",
)


def compared_rows(
    publisher: DataFrame, subscriber: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> DataFrame:
    """Return every key of both sides once: k0, k1, …, the images `ours` and `theirs`, and `kind`, the kind of difference.

    `times` is the number of rows at the subscriber. `kind` is NULL where both sides have the same row. The order of rows,
    of columns and of files does not matter.
    """
    names = [f"{KEY_PREFIX}{i}" for i in range(len(key))]
    keys = [F.col(quote(name)).alias(alias) for name, alias in zip(key, names, strict=True)]
    ours = publisher.select(*keys, row_image(columns).alias("ours"))
    theirs = subscriber.select(*keys, row_image(columns).alias("theirs"))
    # A key of several rows of the subscriber, or of none, must not count as one row.
    counted = theirs.groupBy(*names).agg(F.count(F.lit(1)).alias("times"), F.first("theirs").alias("theirs"))
    both = ours.join(counted, names, "full_outer")
    kind = (
        F.when(F.col("theirs").isNull(), F.lit(MISSING))
        .when(F.col("times") > 1, F.lit(TWICE))
        .when(F.col("ours").isNull(), F.lit(EXTRA))
        .when(~same_image("ours", "theirs", image_type(both, "ours")), F.lit(DIFFERENT))
    )
    return both.select(*names, "ours", "theirs", "times", kind.alias("kind"))


def differing_rows(
    publisher: DataFrame, subscriber: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> DataFrame:
    """Return the keys (k0, k1, …) of the rows that differ between both sides, with the kind of difference in `kind`."""
    rows = compared_rows(publisher, subscriber, columns, key).where(F.col("kind").isNotNull())
    return rows.drop("ours", "theirs", "times")
