"""Errors of the engine become ours at the edge of work that often ends before the engine is loaded."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def plain_errors(doing: str) -> Iterator[None]:
    """Turn engine failures into one message, as `engine.errors.plain_errors` does; Spark is loaded after a failure only.

    Raises: EngineLostError, CommitConflictError (run again); StoreError for anything that could not be done.
    """
    try:
        yield
    except Exception:
        from mergerepl.spark import errors

        with errors.plain_errors(doing):
            raise
