"""What an article states for its resolver: the rules that need more than one of the keys."""

import re

from mergerepl.configuration.schema import ResolverKeys
from mergerepl.configuration.wording import shown
from mergerepl.model.publication import Tracking
from mergerepl.model.resolvers import RESOLVERS, OfDeletes, Resolver, ResolverInfo

_BRACKETS = re.compile(r"\[([^\]]+)\](?:\[([^\]]+)\])?")
"""A column, or a column and a delimiter, as the original has them in resolver_info."""


class ResolverKeyError(Exception):
    """A key of `resolver` that does not go with the others."""

    def __init__(self, key: str, problem: str) -> None:
        """Name the key and what is wrong with it."""
        super().__init__(key, problem)
        self.key = key
        self.problem = problem


def told_to_resolver(stated: ResolverKeys, tracking: str) -> ResolverInfo:
    """Return what is stated for the resolver. `resolver_info` is the original's form of `column` and `delimiter`.

    Raises: ResolverKeyError.
    """
    resolver = RESOLVERS[stated.name]
    if tracking == Tracking.ROW.value and not resolver.by_row:
        raise ResolverKeyError(
            "name", f"is {shown(resolver.name)}, which needs `tracking: column` in the same article"
        )
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
