"""Conversion of engine errors into ours, for work that often ends before the engine is loaded."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_errors(doing: str, **terms: str) -> Iterator[None]:
    """Turn engine failures into one message, as `spark.errors.plain_errors` does; Spark is loaded only after a failure.

    Raises: EngineLostError, CommitConflictError (run again); StoreError for any other failure.
    """
    try:
        yield
    except Exception:
        from mergerepl.spark import errors

        with errors.plain_errors(doing, **terms):
            raise
