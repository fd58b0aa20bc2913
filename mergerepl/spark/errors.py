"""Conversion of errors of Spark, py4j, delta-rs and the file system into ours, at the edge of the work."""

import re

from delta import exceptions
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mergerepl.errors import CommitConflictError, EngineLostError, MergeReplError, StoreError

COMMIT_CONFLICTS = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)
"""Delta's errors if another writer's commit came first: they share a base class in Java, but not in Python."""

_DEEP = (
    "java.lang.StackOverflowError, which a table of very many columns may lead to. Start Spark with "
    "spark.driver.extraJavaOptions=-Xss16m, or let mergerepl start its own; or publish fewer columns (`columns:`)."
)

_LOST_ROWS = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark's error for rows of a local checkpoint that no executor has any more."""

_NOT_OPENED = re.compile(
    r"FileNotFoundException: (/.*) \((?!No such file or directory\)$)([^()]+)\)$", re.MULTILINE
)
"""Java's message about a file that exists but could not be opened."""


_BECAUSE = re.compile(r"\s*(\x1b\[\d+m)?↳(\x1b\[\d+m)?\s*")


def plain_error(error: Exception, doing: str, again: str) -> MergeReplError | None:
    """Return our error for one of the engine or the file system (`spark.plain.plain_errors`); None for any other."""
    if isinstance(error, PySparkException | Py4JError | ConnectionError):
        # After the JVM is gone, pyspark and py4j raise many types and texts, depending on the call.
        if not engine_answers():
            return EngineLostError(
                f"The Spark engine ended while {doing}, for lack of memory, perhaps ($MERGEREPL_MEMORY gives the "
                f"embedded one more). {again}"
            )
        if isinstance(error, COMMIT_CONFLICTS):
            return CommitConflictError(
                f"Another writer won a commit while {doing}: {cause_of(error)}. {again}"
            )
        if "StackOverflowError" in str(_java_cause(error)):
            return StoreError(f"Spark failed while {doing}: {_DEEP} {again}")
        if _LOST_ROWS in str(_java_cause(error)):
            return EngineLostError(
                f"Executors of the Spark cluster ended while {doing}, and with them rows that this session had kept there. "
                f"{again}"
            )
        if (found := unopened_file(error)) is not None:
            path, why = found
            return StoreError(
                f"'{path}' could not be opened while {doing}: {why}. Check its permissions, the disk and the limit of open "
                "files, then run again: a session that was staged is finished first; else nothing was changed."
            )
        return StoreError(f"Spark failed while {doing}: {cause_of(error)}. {again}")
    if isinstance(error, DeltaError | OSError):
        return StoreError(f"A file could not be read or written while {doing}: {cause_of(error)}. {again}")
    return None


def unopened_file(error: Exception) -> tuple[str, str] | None:
    """Return an existing file that Java could not open, and why; None if an error names none.

    Java has one exception for this and for missing files, and Spark reports both as a missing file.
    """
    found = _NOT_OPENED.search(str(error))
    return (found[1], found[2]) if found else None


def gone_reason(error: Exception) -> str | None:
    """Return the missing item if an error says that a change feed (or a version) is gone, None for any other error."""
    text = str(error)
    if "blockmgr-" in text or unopened_file(error) is not None:
        # Spark's own scratch files, not the table's, for example after a cleanup of /tmp; or a file that may be opened
        # later.
        return None
    reasons = {
        "DELTA_MISSING_CHANGE_DATA": "Change Data Feed was off for some of these versions",
        "FILE_NOT_EXIST": "files of its changes were removed by VACUUM",
        "DELTA_TRUNCATED_TRANSACTION_LOG": "versions are gone from its log",
        "DELTA_VERSION_NOT_CONTIGUOUS": "versions are gone from its log",
        "DELTA_VERSIONS_NOT_CONTIGUOUS": "versions are gone from its log",
        "DELTA_VERSION_NOT_FOUND": "versions are gone from its log",
        "DELTA_LOG_FILE_NOT_FOUND": "versions are gone from its log",
        "DELTA_REMOVE_FILE_CDC_MISSING_EXTENDED_METADATA": "files were removed by a writer that records too little of them",
        "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE": "its schema changed in between",
        "FileNotFoundException": "files of its changes were removed by VACUUM",
    }
    return next((reason for code, reason in reasons.items() if code in text), None)


def engine_answers() -> bool:
    """Whether Spark's JVM answers; one that was never started counts as answering."""
    gateway = SparkContext._gateway
    if gateway is None:
        return True
    try:
        gateway.jvm.System.nanoTime()
    except (Py4JError, OSError):
        return False
    return True


def cause_of(error: Exception) -> str:
    """Return the first line of an engine's reason, without a full stop; delta-rs has a line for each cause of a cause."""
    text = _BECAUSE.sub(": ", str(_java_cause(error)))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".")[:500] if lines else type(error).__name__


def _java_cause(error: Exception) -> object:
    """Return the error wrapped by py4j, whose own text begins with the failed call."""
    return error.java_exception if isinstance(error, Py4JJavaError) else error
