"""The resolver settings of an article: rules that need more than one of the keys."""

import re

from mergerepl.config.schema import ResolverKeys
from mergerepl.config.wording import shown
from mergerepl.model import refused_pairs
from mergerepl.model.publication import Tracking
from mergerepl.model.resolvers import CUSTOM, FUNCTION, RESOLVERS, OfDeletes, Resolver, ResolverInfo

_BRACKETS = re.compile(r"\[([^\]]+)\](?:\[([^\]]+)\])?")
"""A column, or a column and a delimiter, as the original has them in resolver_info."""


class ResolverKeyError(Exception):
    """A key of `resolver` that does not fit the others."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key = key
        self.problem = problem


def resolver_settings(stated: ResolverKeys, tracking: str) -> ResolverInfo:
    """Return the resolver settings. `resolver_info` is the original's form of `column` and `delimiter`.

    Raises: ResolverKeyError.
    """
    resolver = RESOLVERS[stated.name]
    if tracking == Tracking.ROW.value and not resolver.by_row:
        raise ResolverKeyError("name", refused_pairs.RESOLVER_BY_ROW.says(resolver=shown(resolver.name)))
    if resolver.name == CUSTOM:
        return ResolverInfo(function=_function(stated))
    if stated.function is not None:
        raise ResolverKeyError("function", f"is not for {shown(resolver.name)}: remove it")
    columns, delimiter = _columns(stated, resolver)
    if resolver.name == "merge_text" and delimiter is None:
        raise ResolverKeyError(
            "name", "is 'merge_text', and `delimiter` is missing: say what goes between the two texts"
        )
    if delimiter is not None and resolver.name != "merge_text":
        raise ResolverKeyError("delimiter", f"is not for {shown(resolver.name)}: remove it")
    if stated.update_delete is not None and resolver.decides_deletes:
        raise ResolverKeyError(
            "update_delete", f"is not for {shown(resolver.name)}, which decides deletes itself: remove it"
        )
    return ResolverInfo(columns, delimiter, stated.update_delete or OfDeletes.PRIORITY.value)


def _function(stated: ResolverKeys) -> str:
    """Return the agent function's name. `resolver_info` is the original's name of this key."""
    others = (
        key for key in ("column", "columns", "delimiter", "update_delete") if getattr(stated, key) is not None
    )
    if (other := next(others, None)) is not None:
        raise ResolverKeyError(other, "is not for 'custom', whose function gets whole rows: remove it")
    if stated.function is not None and stated.resolver_info is not None:
        raise ResolverKeyError("resolver_info", "and `function` exclude each other: keep one")
    key = "function" if stated.resolver_info is None else "resolver_info"
    name = getattr(stated, key)
    if name is None:
        raise ResolverKeyError("name", "is 'custom', and `function` is missing: name a function of the agent")
    if FUNCTION.fullmatch(name) is None:
        raise ResolverKeyError(
            key, f"is {shown(name)}; it is a name that the agent knows: letters, digits, `_` and `-`"
        )
    return str(name)


def _columns(stated: ResolverKeys, resolver: Resolver) -> tuple[tuple[str, ...], str | None]:
    """Return the columns that the resolver reads or makes, and the delimiter."""
    named = {
        "column": (stated.column,) if stated.column else (),
        "columns": tuple(stated.columns or ()),
        "resolver_info": (stated.resolver_info,) if stated.resolver_info else (),
    }
    given = [key for key, values in named.items() if values]
    if resolver.reads is None:
        if given:
            raise ResolverKeyError(
                given[0], f"is not for {shown(resolver.name)}, which reads no column: remove it"
            )
        return (), stated.delimiter
    if not given:
        raise ResolverKeyError(
            "name",
            f"is {shown(resolver.name)}, and `column` is missing: name the column ({resolver.reads.value})",
        )
    if len(given) > 1:
        raise ResolverKeyError(given[1], f"and `{given[0]}` exclude each other: keep one")
    columns, delimiter = named[given[0]], stated.delimiter
    if given == ["resolver_info"] and (match := _BRACKETS.fullmatch(columns[0])):
        columns = (match[1],)
        if match[2] is not None and delimiter is not None:
            raise ResolverKeyError("delimiter", "stands in `resolver_info` as well: keep one")
        delimiter = delimiter or match[2]
    if len(columns) > 1 and not resolver.makes_value:
        raise ResolverKeyError("columns", f"names {len(columns)}; {shown(resolver.name)} reads one")
    return columns, delimiter
