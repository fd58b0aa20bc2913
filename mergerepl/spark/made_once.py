"""Column expressions that follow from plain arguments, made once in a JVM.

Every function of an expression is several messages between Python and the JVM, and one more when it is no longer needed:
of a session's 6,000 messages a third made the same expressions as the session before.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

from pyspark import SparkContext

_REMEMBERED = 256

P = ParamSpec("P")
T = TypeVar("T")


def made_once(make: Callable[P, T]) -> Callable[P, T]:
    """Let a function of hashable arguments give what it gave before, as long as the JVM is the same."""
    made = lru_cache(maxsize=_REMEMBERED)(make)
    jvm: list[Any] = [None]

    @wraps(make)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> T:
        gateway = SparkContext._gateway
        if gateway is not jvm[0]:
            made.cache_clear()
            jvm[0] = gateway
        return made(*args, **kwargs)  # type: ignore[arg-type]

    return remembered
