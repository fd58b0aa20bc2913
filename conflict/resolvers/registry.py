"""Resolvers by name. A replica stores only the name; the agent resolves it here."""

from collections.abc import Iterable
from typing import Final

from conflict.errors import ResolverInfoError, UnknownResolverError
from conflict.resolvers import custom, priority, values
from conflict.resolvers.adapter import by_rules
from conflict.resolvers.base import Decide, Rule
from mergerepl.model.article import PublishedArticle
from mergerepl.model.resolvers import CUSTOM, RESOLVERS, resolver_info
from mergerepl.model.session_terms import ArticleTerms

RULES: Final[dict[str, Rule]] = {
    rule.resolver.name: rule for rule in (*priority.RULES, *values.RULES, *custom.RULES)
}


def require_resolver(article: PublishedArticle) -> None:
    """Check that the resolver named by an article exists, and can use the article's settings.

    Raises: UnknownResolverError naming the known ones; ResolverInfoError.
    """
    if article.resolver not in RULES:
        raise UnknownResolverError(article.name, article.resolver, known=RULES)
    try:
        info = resolver_info(article.resolver_info)
    except ValueError as error:
        raise ResolverInfoError(article.name, str(error)) from error
    resolver = RESOLVERS[article.resolver]
    missing = next((name for name in info.columns if name not in article.value_columns), None)
    is_custom = resolver.name == CUSTOM
    if (
        missing is not None
        or bool(info.columns) != (resolver.reads is not None)
        or is_custom != (info.function is not None)
    ):
        raise ResolverInfoError(article.name, f"resolver_info is {article.resolver_info!r}")


def resolver_of(articles: Iterable[tuple[PublishedArticle, ArticleTerms]]) -> Decide:
    """Return the resolver for the conflicts of some articles, by the rules that their terms name.

    Raises: as `require_resolver`.
    """
    chosen = list(articles)
    for article, _ in chosen:
        require_resolver(article)
    return by_rules(chosen, RULES)
