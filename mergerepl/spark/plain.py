"""Conversion of engine errors into ours at the edge of the work, which often ends before the engine is loaded."""

from collections.abc import Iterator
from contextlib import contextmanager

from mergerepl.errors import MergeReplError

AGAIN = "Fix the cause and run again: a session that was staged is finished first; else nothing was changed."


@contextmanager
def plain_errors(doing: str, *, again: str = AGAIN) -> Iterator[None]:
    """Turn engine failures into one message that names the work (`doing`) and the next step (`again`).

    Spark is loaded only after such a failure.

    Raises: EngineLostError, CommitConflictError (run again); StoreError for any other failure.
    """
    try:
        yield
    except MergeReplError:
        raise
    except Exception as error:
        from mergerepl.spark.errors import plain_error

        if (plain := plain_error(error, doing, again)) is None:
            raise
        raise plain from error
