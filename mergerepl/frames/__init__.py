"""PySpark's columns and frames for the rules, with two executors: Spark, and this process (`in_process`).

The calling context chooses. On Spark, `F` hands each name to `pyspark.sql.functions`: nothing is translated.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql import functions as F

    from mergerepl.store.location import Location

__all__ = (
    "Column",
    "DataFrame",
    "F",
    "NeedsSparkError",
    "NotInProcessError",
    "bits_of",
    "cached",
    "in_process",
    "in_process_frames",
    "in_utc",
    "is_in_process",
    "on_spark",
)

_IS_IN_PROCESS: ContextVar[bool] = ContextVar("is_in_process", default=False)


class NeedsSparkError(Exception):
    """Only Spark reads, computes or writes these rows correctly; nothing was written. The message is a clause: why."""

    def __init__(self, reason: str, table: "Location | None" = None) -> None:
        super().__init__(reason)
        self.table = table


class NotInProcessError(NotImplementedError):
    """Only Spark computes this; the message names what is missing here."""


@contextmanager
def in_process() -> Iterator[None]:
    """Let `F` make columns for frames in this process, in this context."""
    token = _IS_IN_PROCESS.set(True)
    try:
        yield
    finally:
        _IS_IN_PROCESS.reset(token)


@contextmanager
def on_spark() -> Iterator[None]:
    """Let `F` make Spark's columns, for a step of a session in process that only Spark does."""
    token = _IS_IN_PROCESS.set(False)
    try:
        yield
    finally:
        _IS_IN_PROCESS.reset(token)


def is_in_process() -> bool:
    """Whether the calling context computes in this process."""
    return _IS_IN_PROCESS.get()


def in_process_frames() -> Any:
    """Return the module of frames in this process, which a session on Spark never loads."""
    from mergerepl.frames import dataframe

    return dataframe


def bits_of(value: "Column") -> "Column":
    """Return, in process, bytes that are equal exactly if two values have the same bits; NULL is NULL."""
    from mergerepl.frames import functions

    made: Any = functions.bits
    return made(value)  # type: ignore[no-any-return]


def in_utc(value: "Column") -> "Column":
    """Return, in process, an instant as the date and time that it is in UTC; NULL is NULL."""
    from mergerepl.frames import functions

    made: Any = functions.in_utc
    return made(value)  # type: ignore[no-any-return]


if not TYPE_CHECKING:

    class _Functions:
        """Hands each name to the functions of the calling context's executor."""

        def __getattr__(self, name: str) -> Any:
            if not _IS_IN_PROCESS.get():
                from pyspark.sql import functions as pysparks

                return getattr(pysparks, name)
            from mergerepl.frames.functions import function

            return function(name)

    class _Either(type):
        """A class of both executors: an instance of either one's is an instance of it."""

        def __instancecheck__(cls, value: object) -> bool:
            from pyspark import sql

            from mergerepl.frames import dataframe

            return isinstance(value, (getattr(dataframe, cls.__name__), getattr(sql, cls.__name__)))

    class Column(metaclass=_Either):
        """PySpark's Column, or a tree in this process."""

    class DataFrame(metaclass=_Either):
        """PySpark's DataFrame, or rows in this process."""

        @staticmethod
        def unionByName(one: Any, other: Any, allowMissingColumns: bool = False) -> Any:
            """As PySpark's, as a function of two frames."""
            return one.unionByName(other, allowMissingColumns=allowMissingColumns)

    F = _Functions()


_REMEMBERED = 256

P = ParamSpec("P")
T = TypeVar("T")


def cached(make: Callable[P, T]) -> Callable[P, T]:
    """Cache a function of hashable arguments for each executor, for the lifetime of the JVM on Spark."""
    made, made_here = lru_cache(maxsize=_REMEMBERED)(make), lru_cache(maxsize=_REMEMBERED)(make)
    jvm: list[Any] = [None]

    @wraps(make)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> T:
        if _IS_IN_PROCESS.get():
            return made_here(*args, **kwargs)  # type: ignore[arg-type]
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        if gateway is not jvm[0]:
            made.cache_clear()
            jvm[0] = gateway
        return made(*args, **kwargs)  # type: ignore[arg-type]

    return remembered
