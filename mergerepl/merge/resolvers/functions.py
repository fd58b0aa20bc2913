"""Custom resolvers: the places where an agent finds their functions.

A replica and a file state names only. Each agent gives a name its meaning: a function that this process registered, a
line of the agent's file, or an entry point of an installed package.
"""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from conflict.errors import ResolverError, UnknownFunctionError
from mergerepl.errors import ConfigurationError
from mergerepl.model.article import PublishedArticle
from mergerepl.model.listing import Listing
from mergerepl.model.resolvers import CUSTOM, FUNCTION, RESOLVERS, Resolver, resolver_info
from mergerepl.roots import resolved
from mergerepl.settings import agent_file
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP: Final = "mergerepl.resolvers"
"""Entry points of installed packages that are such functions."""


@dataclass(frozen=True)
class ResolverContext:
    """The context of a call, passed with the conflicts: the article and the roots of both replicas."""

    article: str
    publisher: str
    subscriber: str


ResolverFunction = Callable[["DataFrame", ResolverContext], "DataFrame"]
"""Decides the conflicts of one article: from `conflict.resolvers.custom.conflicts_of` to rowguid, outcome, and, if it
likes, row and message."""

_TIMEOUT_S: Final = 300.0

_registered: dict[str, ResolverFunction] = {}


def register_resolver(name: str, function: Callable[[DataFrame, ResolverContext], DataFrame]) -> None:
    """Register a function as a resolver that articles of this process's sessions can name.

    Raises: ConfigurationError if the name is invalid or a built-in resolver's, or the function is not callable.
    """
    _require_name(name, "register_resolver")
    if not callable(function):
        raise ConfigurationError(f"What is registered as resolver '{name}' cannot be called: {function!r}.")
    _registered[name] = function


def known_functions() -> dict[str, str]:
    """Return the function names that this agent knows, each with its `module:function`.

    Raises: ConfigurationError if the agent's file cannot be used.
    """
    found = {point.name: point.value for point in entry_points(group=GROUP)}
    found |= _stated().resolvers
    found |= {name: f"{each.__module__}:{each.__qualname__}" for name, each in _registered.items()}
    return found


def resolvers() -> Listing[Resolver]:
    """Return the resolvers that a file may name, then the functions that this agent has for `custom`.

    Raises: ConfigurationError if the agent's file cannot be used.
    """
    own = (Resolver(name, function=place) for name, place in sorted(known_functions().items()))
    return Listing([*RESOLVERS.values(), *own])


def require_function(article: PublishedArticle) -> None:
    """Check that the agent has the function that an article names, if any. The function is not loaded.

    Raises: UnknownFunctionError naming the known ones; ConfigurationError.
    """
    if article.resolver == CUSTOM:
        name = function_name(article)
        if name not in (known := known_functions()):
            raise UnknownFunctionError(article.name, name, known=known, agent_file=agent_file()[0])


def function_name(article: PublishedArticle) -> str:
    """Return the function name of an article with the resolver `custom`."""
    name = resolver_info(article.resolver_info).function
    assert name is not None
    return name


def loaded(article: PublishedArticle, name: str, roots: Sequence[Location]) -> ResolverFunction:
    """Load the function of a name; `roots` are those of the session's replicas.

    Raises: ResolverError if it cannot be loaded, or lies in a replica; ConfigurationError.
    """
    if name in _registered:
        return _registered[name]
    stated = _stated()
    place = stated.resolvers.get(name)
    if place is None:
        place = next(point.value for point in entry_points(group=GROUP) if point.name == name)
    module_name, _, attribute = place.partition(":")
    sys.path[:0] = [folder for folder in stated.python_path if folder not in sys.path]
    try:
        module = import_module(module_name)
        function = getattr(module, attribute)
    except Exception as error:
        raise ResolverError(
            article.name, name, f"cannot be loaded from '{place}': {type(error).__name__}: {error}"
        ) from error
    source = Location.of(resolved(getattr(module, "__file__", None) or "/"))
    inside = next((root for root in roots if source.is_in(Location.of(resolved(root)))), None)
    if inside is not None:
        raise ResolverError(article.name, name, f"lies in the replica '{inside}', which others may write")
    if not callable(function):
        raise ResolverError(article.name, name, f"is '{place}', which cannot be called")
    return function  # type: ignore[no-any-return]


def resolver_timeout_s() -> float:
    """Return the timeout, in seconds, of a function for the conflicts of an article.

    Raises: ConfigurationError.
    """
    return _stated().resolver_timeout_s


@dataclass(frozen=True)
class _Stated:
    """The agent's file: name -> `module:function`, folders to import from, seconds for a function."""

    resolvers: dict[str, str] = field(default_factory=dict)
    python_path: list[str] = field(default_factory=list)
    resolver_timeout_s: float = _TIMEOUT_S


def _stated() -> _Stated:
    """Read the agent's file.

    Raises: ConfigurationError.
    """
    path, is_named = agent_file()
    if not is_named and not path.exists():
        return _Stated()
    try:
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _of_file(path, "others may write it: take that right away (chmod go-w)")
        stated = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise _of_file(path, f"it cannot be read ({type(error).__name__})") from error
    is_valid = isinstance(stated, dict) and set(stated) <= {"resolvers", "python_path", "resolver_timeout_s"}
    resolvers = (stated.get("resolvers") or {}) if is_valid else None
    folders = (stated.get("python_path") or []) if is_valid else None
    if not (isinstance(resolvers, dict) and isinstance(folders, list)):
        raise _of_file(
            path,
            "it may state `resolvers` (names to `module:function`), `python_path` (folders) and `resolver_timeout_s`",
        )
    timeout_s = stated.get("resolver_timeout_s", _TIMEOUT_S)
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < inf:
        raise _of_file(
            path, f"`resolver_timeout_s` is {timeout_s!r}, and must be a number of seconds above 0"
        )
    for name, place in resolvers.items():
        _require_name(name, str(path))
        module, _, attribute = place.partition(":") if isinstance(place, str) else ("", "", "")
        if not (module.replace(".", "_").isidentifier() and attribute.isidentifier()):
            raise _of_file(path, f"resolver '{name}' is {place!r}, and must be `module:function`")
    expanded = [str(Path(str(folder)).expanduser()) for folder in folders]
    return _Stated(dict(resolvers), expanded, float(timeout_s))


def _require_name(name: object, where: str) -> None:
    if not isinstance(name, str) or FUNCTION.fullmatch(name) is None or name in RESOLVERS:
        raise ConfigurationError(
            f"{where}: {name!r} cannot be the name of a resolver: it has letters, digits, `_` and `-`, begins with a "
            "letter, and is none of the built-in ones."
        )


def _of_file(path: Path, problem: str) -> ConfigurationError:
    return ConfigurationError(f"The agent's file '{path}' cannot be used: {problem}.", path=str(path))
