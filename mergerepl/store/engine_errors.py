"""What Spark, py4j, delta-rs and the file system raise, as our errors: at the edge of the work that uses them."""

from collections.abc import Iterator
from contextlib import contextmanager

from delta.exceptions import DeltaConcurrentModificationException
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from mergerepl.errors import CommitConflictError, EngineLostError, StoreError

_AGAIN = (
    "Mend the cause and run again: a session that was staged is finished first; else nothing was changed."
)


@contextmanager
def told_plainly(doing: str) -> Iterator[None]:
    """Turn engine failures into one message that says what was being done.

    Raises: EngineLostError, CommitConflictError (run again); StoreError for anything that could not be done.
    """
    try:
        yield
    except DeltaConcurrentModificationException as error:
        raise CommitConflictError(
            f"Another writer won a commit while {doing}: {_first_line(error)}. {_AGAIN}"
        ) from error
    except (Py4JNetworkError, ConnectionError) as error:
        raise EngineLostError(f"The Spark engine ended while {doing}. {_AGAIN}") from error
    except Py4JJavaError as error:
        raise StoreError(
            f"Spark failed while {doing}: {_first_line(error.java_exception)}. {_AGAIN}"
        ) from error
    except (PySparkException, Py4JError) as error:
        if "Answer from Java side is empty" in str(error) or "error while sending" in str(error).lower():
            raise EngineLostError(f"The Spark engine ended while {doing}. {_AGAIN}") from error
        raise StoreError(f"Spark failed while {doing}: {_first_line(error)}. {_AGAIN}") from error
    except (DeltaError, OSError) as error:
        raise StoreError(
            f"A file could not be read or written while {doing}: {_first_line(error)}. {_AGAIN}"
        ) from error


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".")[:500] if lines else type(error).__name__
