"""What Spark, py4j, delta-rs and the file system raise, as our errors: at the edge of the work that uses them."""

from collections.abc import Iterator
from contextlib import contextmanager

from delta import exceptions
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from mergerepl.errors import CommitConflictError, EngineLostError, StoreError

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
"""What Delta raises if another writer's commit came first: in Python these have no base in common, as they have in Java."""

_AGAIN = (
    "Mend the cause and run again: a session that was staged is finished first; else nothing was changed."
)
_DEEP = (
    "java.lang.StackOverflowError, which a table of very many columns may lead to. Start Spark with "
    "spark.driver.extraJavaOptions=-Xss16m, or let mergerepl start its own; or publish fewer columns (`columns:`)."
)


@contextmanager
def told_plainly(doing: str) -> Iterator[None]:
    """Turn engine failures into one message that says what was being done.

    Raises: EngineLostError, CommitConflictError (run again); StoreError for anything that could not be done.
    """
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        # What pyspark and py4j raise once the JVM is gone has many types and texts, by the call it met.
        if not engine_answers():
            raise EngineLostError(f"The Spark engine ended while {doing}. {_AGAIN}") from error
        if isinstance(error, COMMIT_CONFLICTS):
            raise CommitConflictError(
                f"Another writer won a commit while {doing}: {_first_line(error)}. {_AGAIN}"
            ) from error
        cause = error.java_exception if isinstance(error, Py4JJavaError) else error
        if "StackOverflowError" in str(cause):
            raise StoreError(f"Spark failed while {doing}: {_DEEP} {_AGAIN}") from error
        raise StoreError(f"Spark failed while {doing}: {_first_line(cause)}. {_AGAIN}") from error
    except (DeltaError, OSError) as error:
        raise StoreError(
            f"A file could not be read or written while {doing}: {_first_line(error)}. {_AGAIN}"
        ) from error


def engine_answers() -> bool:
    """Ask Spark's JVM for anything; a session without a JVM of its own (Spark Connect) counts as answering."""
    gateway = SparkContext._gateway
    if gateway is None:
        return True
    try:
        gateway.jvm.System.nanoTime()
    except (Py4JError, OSError):
        return False
    return True


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:500] if lines else type(error).__name__
