"""What Spark keeps in memory."""

from pyspark.sql import SparkSession


def frames_in_memory(spark: SparkSession) -> set[int]:
    """Return the ids of the frames that Spark keeps in memory: not those of Delta, which have names."""
    kept = spark.sparkContext._jsc.getPersistentRDDs()
    return {number for number in kept if kept[number].name() is None}
