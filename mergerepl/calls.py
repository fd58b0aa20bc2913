"""Shared by the methods of a place: the caller's Spark session, the wait for locks, checks of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from mergerepl.errors import ConfigurationError, full_disk_named
from mergerepl.model.listing import LONGEST_LIST
from mergerepl.spark.callers import GIVEN, callers_session
from mergerepl.store.lease import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Class = TypeVar("_Class", bound=type)


class Caller:
    """An object of a place. `spark` is the session of its methods; None: the running one, else an embedded one.

    `lock_wait_s` are the seconds that its methods wait for another process that holds a lock.
    """

    def __init__(self, spark: SparkSession | None, lock_wait_s: float) -> None:
        self.spark, self.lock_wait_s = spark, lock_wait_s

    @contextmanager
    def called(self) -> Iterator[None]:
        """Run a block with this session and wait; restores the caller's active session."""
        session, wait = GIVEN.set(self.spark or GIVEN.get()), WAIT_S.set(self.lock_wait_s)
        try:
            with full_disk_named("A file"), callers_session():
                yield
        finally:
            WAIT_S.reset(wait)
            GIVEN.reset(session)


def methods_of_caller(kind: _Class) -> _Class:
    """Make the public methods of a `Caller` run in its `called`."""
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and not name.startswith("_") and name != "called":
            setattr(kind, name, _in_call(method))
    return kind


def _in_call(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Caller, *args: Any, **kwargs: Any) -> Any:
        with self.called():
            return method(self, *args, **kwargs)

    return call


def require_choice(what: str, given: str, choices: Sequence[str]) -> None:
    """Refuse a value that a type checker would refuse; unchecked, it would silently mean another one."""
    if given not in choices:
        raise ConfigurationError(f"There is no {what} {given!r}. Choose one of {', '.join(choices)}.")


def require_limit(limit: int) -> None:
    """Refuse a limit that the query engine cannot take: its error would look like a damaged table."""
    if not 0 <= limit <= LONGEST_LIST:
        raise ConfigurationError(f"The limit is out of range: give one from 0 to {LONGEST_LIST:,}.")
