"""The caller's active session, which no call of ours changes.

A notebook finds its session by `SparkSession.getActiveSession()`. If it found one of ours that carries a Delta
transaction, Delta would silently skip the user's own writes. Three rules prevent that. Rows become frames in
`in_memory` alone, since `SparkSession.createDataFrame` makes its session the active one of the process.
`active_session` alone makes one active in the JVM. Public functions leave through `callers_session`.

This module loads Spark only if the caller has.
"""

import ast
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, wraps
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from mergerepl.errors import full_disk_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS: "WeakSet[SparkSession]" = WeakSet()
"""The sessions that this package made in addition to the caller's."""

GIVEN: ContextVar["SparkSession | None"] = ContextVar("GIVEN", default=None)
"""The session that a caller gave to the object whose method runs."""

_PROCESS = os.getpid()

_Class = TypeVar("_Class", bound=type)


@contextmanager
def callers_session() -> Iterator[None]:
    """Restore the active session, in Python and in the JVM, also after an error or an interrupt.

    py4j gives up its connection when a call to the JVM is interrupted. The next connection uses another thread of the
    JVM, without an active session.
    """
    put_back = _remember()
    try:
        yield
    finally:
        try:
            put_back()
        except KeyboardInterrupt:
            put_back()
            raise


@contextmanager
def active_session(session: "SparkSession") -> Iterator[None]:
    """Make a session the active one of this thread in the JVM, as Delta's own readers and tables mapped by id require."""
    with callers_session():
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
        yield


@cache
def keeps_callers_session(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function keep the caller's active session, and name a full disk."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with full_disk_named("A file"), callers_session():
            return function(*args, **kwargs)

    return call


def methods_keep_callers_session(kind: _Class) -> _Class:
    """Make the public methods of a class keep the caller's active session."""
    for name, method in list(vars(kind).items()):
        if isinstance(method, FunctionType) and (name == "__exit__" or not name.startswith("_")):
            setattr(kind, name, keeps_callers_session(method))
    return kind


def public_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package whose `__init__.pyi` imports its public names.

    A name is loaded on first use; a function keeps the caller's active session. A name that is gone is answered with the
    new one.
    """
    stub = ast.parse(pkgutil.get_data(package, "__init__.pyi") or b"")
    homes = {
        alias.name: str(node.module)
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    names = sorted(homes)

    def load(name: str) -> Any:
        if name not in homes:
            from mergerepl.model.renamed import missing

            raise missing(package, f"module '{package}'", name)
        found = getattr(import_module(homes[name]), name)
        return keeps_callers_session(found) if isinstance(found, FunctionType) else found

    return names, load, lambda: names


def _remember() -> Callable[[], None]:
    spark = sys.modules.get("pyspark.sql")
    context = None if spark is None else sys.modules["pyspark"].SparkContext._active_spark_context
    # The connection of a forked process is its parent's.
    if spark is None or context is None or context._jsc is None or os.getpid() != _PROCESS:
        return lambda: None
    from py4j.protocol import Py4JError

    python: Any = spark.SparkSession
    named = python._activeSession
    try:
        java = python._get_j_spark_session_class(context._jvm)
        found = java.getActiveSession()
        active = found.get() if found.isDefined() else None
    except (Py4JError, OSError):
        # This JVM ended.
        return lambda: None

    def put_back() -> None:
        # Another thread of the caller may have chosen another of its sessions since.
        if python._activeSession in OURS:
            python._activeSession = named
        if context is not sys.modules["pyspark"].SparkContext._active_spark_context:
            return
        with suppress(Py4JError, OSError):
            if active is None:
                java.clearActiveSession()
            else:
                java.setActiveSession(active)

    return put_back
