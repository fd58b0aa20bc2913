"""Compare one article's rows at two replicas: `sync_type: none` promises that they are the same."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.rows.images import image_type, row_image, same_image
from mergerepl.rows.sql import quote

KEY_PREFIX = "k"


def differing_rows(
    publisher: DataFrame, subscriber: DataFrame, columns: Sequence[str], key: Sequence[str]
) -> DataFrame:
    """Return the keys (k0, k1, …) of the rows that differ between both sides, with the kind of difference in `kind`.

    The order of rows, of columns and of files does not matter.
    """
    names = [f"{KEY_PREFIX}{i}" for i in range(len(key))]
    keys = [F.col(quote(name)).alias(alias) for name, alias in zip(key, names, strict=True)]
    ours = publisher.select(*keys, row_image(columns).alias("ours"))
    theirs = subscriber.select(*keys, row_image(columns).alias("theirs"))
    # A key of several rows of the subscriber, or of none, must not count as one row.
    counted = theirs.groupBy(*names).agg(F.count(F.lit(1)).alias("times"), F.first("theirs").alias("theirs"))
    both = ours.join(counted, names, "full_outer")
    kind = (
        F.when(F.col("theirs").isNull(), F.lit("missing at the subscriber"))
        .when(F.col("times") > 1, F.lit("twice at the subscriber"))
        .when(F.col("ours").isNull(), F.lit("missing at the publisher"))
        .when(~same_image("ours", "theirs", image_type(both, "ours")), F.lit("different"))
    )
    return both.select(*names, kind.alias("kind")).where(F.col("kind").isNotNull())
