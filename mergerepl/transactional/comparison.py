"""Compare a subscriber with its publisher, each at the version of the last batch: writers need not stop."""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mergerepl.rows.images import image_type, readable, row_image, same_image
from mergerepl.rows.sql import quote
from mergerepl.systables.transactional import ArticleRow

SHOWN = 20


@dataclass(frozen=True)
class Difference:
    """The number of differing keys, and some of them as text."""

    publisher_rows: int
    subscriber_rows: int
    count: int
    keys: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Some keys, with commas."""
        return "; ".join(self.keys[:3])


def differing(publisher: DataFrame, subscriber: DataFrame, article: ArticleRow) -> Difference:
    """Return the keys that one side lacks, or has with another row, bit for bit."""
    names = [f"k{i}" for i in range(len(article.key_columns))]

    def keyed(rows: DataFrame, side: str) -> DataFrame:
        keys = [
            F.col(quote(name)).alias(alias) for name, alias in zip(article.key_columns, names, strict=True)
        ]
        return rows.select(*keys, row_image(article.columns).alias(side))

    joined = keyed(publisher, "p").join(keyed(subscriber, "s"), on=names, how="full_outer")
    has_both = F.col("p").isNotNull() & F.col("s").isNotNull()
    is_same = has_both & same_image("p", "s", image_type(joined, "p"))
    counted = joined.agg(
        F.count("p").alias("p"), F.count("s").alias("s"), F.count_if(~is_same).alias("differ")
    ).collect()[0]
    keys: tuple[str, ...] = ()
    if counted["differ"]:
        shown = joined.where(~is_same).select(
            *(readable(F.col(name), joined.schema[name].dataType).alias(name) for name in names)
        )
        keys = tuple(
            ", ".join(
                f"{column} = {row[name]}" for column, name in zip(article.key_columns, names, strict=True)
            )
            for row in shown.limit(SHOWN).collect()
        )
    return Difference(counted["p"], counted["s"], counted["differ"], keys)
