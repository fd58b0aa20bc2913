"""The benchmark's tables: how they are written, edited and merged by hand, and what their logs say."""

import time
from collections.abc import Callable
from pathlib import Path

from delta.tables import DeltaTable
from deltalake import DeltaTable as LogTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def write_table(spark: SparkSession, path: Path, rows: int, files: int | None = None) -> None:
    """Write the benchmark's table: id, region, qty, price, note."""
    spark.range(0, rows, 1, files).selectExpr(
        "id",
        "concat('region-', id % 17) as region",
        "cast(id % 100 as int) as qty",
        "cast(id % 10000 as double) / 7 as price",
        "concat('note ', id) as note",
    ).write.format("delta").option("delta.enableChangeDataFeed", "true").save(str(path))


def edit(spark: SparkSession, path: Path, ids: tuple[int, int], add: int) -> None:
    """Update the quantity of a range of ids."""
    if ids[0] == ids[1]:
        return
    table = DeltaTable.forPath(spark, str(path))
    table.update((F.col("id") >= ids[0]) & (F.col("id") < ids[1]), {"qty": F.col("qty") + add})


def changes_of(spark: SparkSession, table: Path) -> DataFrame:
    """Return what the last commit of a table changed, as its feed has it."""
    head = DeltaTable.forPath(spark, str(table)).history(1).first()["version"]
    feed = spark.read.format("delta").option("readChangeFeed", "true")
    changed = feed.option("startingVersion", head).option("endingVersion", head).load(str(table))
    return changed.where("_change_type in ('insert', 'update_postimage', 'delete')")


def merge_changes(spark: SparkSession, table: Path, source: DataFrame) -> None:
    """MERGE changes into a table."""
    columns = {column: f"s.{column}" for column in ("id", "region", "qty", "price", "note")}
    (
        DeltaTable.forPath(spark, str(table))
        .alias("t")
        .merge(source.alias("s"), "t.id = s.id")
        .whenMatchedDelete("s._change_type = 'delete'")
        .whenMatchedUpdate(set=columns)
        .whenNotMatchedInsert("s._change_type != 'delete'", values=columns)
        .execute()
    )


def timed(work: Callable[[], None]) -> float:
    """Return the seconds some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def merge_seconds(table: Path) -> float:
    """Return the seconds that a table's last MERGE took, as its writer says."""
    merges = [c for c in LogTable(str(table)).history(5) if c["operation"] == "MERGE"]
    metrics = merges[0]["operationMetrics"]
    # Delta on Spark and delta-rs name it differently.
    return int(metrics.get("executionTimeMs") or metrics["execution_time_ms"]) / 1000


def next_job(spark: SparkSession) -> int:
    """Return the number of the next Spark job (one is run to learn it)."""
    tag = f"bench-{time.time_ns()}"
    spark.sparkContext.setJobGroup(tag, tag)
    spark.range(1).collect()
    number = max(spark.sparkContext.statusTracker().getJobIdsForGroup(tag))
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
    return int(number)


def commits_below(folder: Path) -> dict[str, int]:
    """Return the number of commits of every Delta table below a folder."""
    logs = folder.rglob("_delta_log")
    return {str(log.parent.relative_to(folder)): len(list(log.glob("*.json"))) for log in logs}
