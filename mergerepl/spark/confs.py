"""The configuration of the embedded session, each setting with its reason."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mergerepl.errors import EngineError
from mergerepl.settings import umask

EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
WRITES = {
    # By default INT96, which other engines take for nanoseconds in 64 bits: 9999-12-31 becomes 1816-03-29.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # LEGACY stores days before 1582-10-15 in the Julian calendar, which only Spark reads back.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    # Lists, maps and decimals in the standard format, not in that of Spark 1.4.
    "spark.sql.parquet.writeLegacyFormat": "false",
    # Columns mapped by id are found by it.
    "spark.sql.parquet.fieldId.write.enabled": "true",
}
"""With these, every engine reads back the bits that Spark writes."""

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""With these, queries are interpreted. For few rows compiling takes longer than running."""

TIMESTAMP_TYPE = ("spark.sql.timestampType", "TIMESTAMP_LTZ")
"""A conf and the value with which the word timestamp means an instant, as in Delta's logs."""

PASSES_OVER_FILES = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
"""If one is true, a read returns fewer rows instead of failing: a gap in the feed would look like no changes."""

ADAPTIVE = "spark.sql.adaptive.enabled"
"""Whether Spark replans a query while it runs."""

UMASK = "fs.permissions.umask-mode"
"""Hadoop's conf of the permissions that new files lack; its default is 022."""

_SIZE = re.compile(r"([0-9]{1,9})([mg])")


def session_confs(*, scratch: Path, cores: int, long_running: bool) -> dict[str, str]:
    """Return the confs of the embedded session."""
    # A task costs more than the few rows of a small change set; a large one needs every core.
    shuffle_partitions = cores if long_running else min(cores, 8)
    return {
        # Delta's SQL commands (MERGE, RESTORE …) and its tables by name.
        "spark.sql.extensions": EXTENSION,
        "spark.sql.catalog.spark_catalog": CATALOG,
        # Replicas are found by path; a Hive metastore starts slowly and leaves files in the working folder.
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        # A command of seconds needs no page, and takes no port.
        "spark.ui.enabled": "false",
        # The command line draws its own progress.
        "spark.ui.showConsoleProgress": "false",
        # Nothing listens on the network, and no host name needs to resolve: laptops change both.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # The default of 200 makes a tiny MERGE take 10 s and more on two cores.
        "spark.sql.shuffle.partitions": str(max(2, shuffle_partitions)),
        # Splits and joins by real sizes. MERGEs were several times slower without it in a mixed session.
        ADAPTIVE: "true",
        # Few rows are joined in one task. Spark only guesses their size, as the product of both sides.
        "spark.sql.maxSinglePartitionBytes": "1024t",
        # The same, for rebuilding a Delta log's state: default 50 tasks.
        "spark.databricks.delta.snapshotPartitions": str(max(1, min(cores // 2, 8))),
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(max(2, cores)),
        # Articles' plans alternate: at the default of 100 their generated classes evict each other.
        "spark.sql.codegen.cache.maxEntries": "5000",
        # Java never compiles a longer method than this. Spark then makes many short ones instead (default 65535).
        "spark.sql.codegen.hugeMethodLimit": "8000",
        # Delta's own rows (a log's actions) have 138 fields; above this limit (default 100) every task of a
        # query writes and formats the code of its projections again: a fourth of all the tasks' time (measured).
        "spark.sql.codegen.maxFields": "200",
        # An unreadable file is an error, whatever a spark-defaults.conf says.
        **dict.fromkeys(PASSES_OVER_FILES, "false"),
        # Every writer gives each page of a file a checksum; the embedded session makes no `.crc` files.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        # Files of replicas have the same permissions as other files of this user. Hadoop does not read the process'
        # umask.
        f"spark.hadoop.{UMASK}": f"{umask():03o}",
        # Times in system tables and filters mean the same on every machine.
        "spark.sql.session.timeZone": "UTC",
        **WRITES,
        # No column appears in a user's table because a source had it: schema changes are a separate step.
        "spark.databricks.delta.schema.autoMerge.enabled": "false",
        # Rows cross between Python and the JVM as Arrow: 2 to 5 times faster than pickled.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Recording the Python line of every column expression costs two calls to the JVM for each.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # An agent runs for weeks; the history of its queries serves only the user interface, which is off.
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
    }


def usable_cores() -> int:
    """Return the number of cores this process may use; in a container, fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def heap_mb(*, long_running: bool) -> int:
    """Return the JVM's largest heap in MiB: `$MERGEREPL_MEMORY` ("512m", "4g"), else a share of the memory.

    Raises: EngineError: `$MERGEREPL_MEMORY` is not a size.
    """
    if chosen := os.environ.get("MERGEREPL_MEMORY"):
        return parse_memory_mb(chosen)
    share, most_mb = (2, 16 * 1024) if long_running else (4, 4 * 1024)
    return max(1024, min(memory_mb() // share, most_mb))


def parse_memory_mb(text: str) -> int:
    """Return a size such as "512m" or "4g" in MiB.

    Raises: EngineError: It is not such a size, or less than Spark can start with.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    mb = int(found[1]) * {"m": 1, "g": 1024}[found[2]] if found else 0
    if mb < 512:
        raise EngineError(f"MERGEREPL_MEMORY is {text[:40]!r}: give a size of at least 512m, such as 2g.")
    return mb


def memory_mb() -> int:
    """Return this machine's memory in MiB, or its container's limit if that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [physical]
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limit = Path(limit_file).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            limits.append(int(limit))
    return min(limits) // (1024 * 1024)
