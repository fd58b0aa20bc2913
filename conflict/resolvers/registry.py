"""Resolvers by name. A name is all that a replica stores; what it means is decided here, by the agent."""

from collections.abc import Callable
from typing import Final

from pyspark.sql import Column

from conflict.errors import UnknownResolverError
from conflict.resolvers import priority

Resolver = Callable[[], Column]

_RESOLVERS: Final[dict[str, Resolver]] = {"priority": priority.publisher_wins}


def resolver(name: str, *, article: str) -> Resolver:
    """Return the resolver of an article.

    Raises: UnknownResolverError naming those there are.
    """
    try:
        return _RESOLVERS[name]
    except KeyError:
        raise UnknownResolverError(
            f"Article '{article}' names the resolver '{name}', which this agent does not have. "
            f"Known: {', '.join(sorted(_RESOLVERS))}. Correct it in the file and run `mergerepl apply`.",
            article=article,
            resolver=name,
        ) from None
