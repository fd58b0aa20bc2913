"""Resolvers by name. A name is all that a replica stores; what it means is decided here, by the agent."""

from collections.abc import Mapping
from typing import Final

from conflict.errors import UnknownResolverError
from conflict.resolvers import priority
from conflict.resolvers.base import Resolver, Rule, by_rules
from mergerepl.model import resolvers

_RULES: Final[dict[str, Rule]] = {resolvers.PRIORITY: priority.publisher_wins}


def resolver_of(articles: Mapping[str, str]) -> Resolver:
    """Return what resolves the conflicts of some articles, given by name with the resolver that each names.

    Raises: UnknownResolverError naming those there are.
    """
    for article, name in articles.items():
        if name not in _RULES:
            raise UnknownResolverError(article, name, known=_RULES)
    return by_rules({name: _RULES[name] for name in dict.fromkeys(articles.values())})
