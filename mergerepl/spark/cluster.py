"""Spark on a cluster: its executors run elsewhere."""

from pyspark.sql import SparkSession


def is_on_cluster(spark: SparkSession) -> bool:
    """Whether a session's tasks run outside of its driver."""
    return not str(spark.sparkContext.master).startswith("local")
