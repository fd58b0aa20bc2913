"""Spark's temporary files: never in the folder of a subscriber that must not have all rows (I35)."""

from collections.abc import Callable

from pyspark.sql import SparkSession

from mergerepl.errors import EngineError
from mergerepl.merge.partitions.filtered import publication_with_filters
from mergerepl.replica.replica import Replica
from mergerepl.roots import overlap
from mergerepl.spark.session import scratch_folders
from mergerepl.store.location import Location


def require_scratch_outside(
    spark: SparkSession, publisher: Replica, pubid: str, subscriber: Location
) -> None:
    """Check that a session's temporary files lie outside of a subscriber that gets only part of the rows.

    Raises: EngineError if they lie inside; the message names the folder.
    """
    if publication_with_filters(publisher, pubid) is None:
        return
    for folder in scratch_folders(spark):
        if overlap(str(folder), str(subscriber)) in ("same", "inside"):
            raise EngineError(
                f"Spark keeps its temporary files in '{folder}', inside of the subscriber '{subscriber}': rows outside of "
                "its partition would lie there for a while. Nothing was sent. Set TMPDIR to a folder outside of all "
                "replicas (of a Spark session of your own: spark.local.dir and -Djava.io.tmpdir), then run again.",
                subscriber=str(subscriber),
            )


def with_scratch_outside(
    spark_of: Callable[[], SparkSession], publisher: Replica, pubid: str, subscriber: Location
) -> Callable[[], SparkSession]:
    """Return a function that starts the session of `spark_of` after that check."""

    def checked() -> SparkSession:
        spark = spark_of()
        require_scratch_outside(spark, publisher, pubid, subscriber)
        return spark

    return checked
