"""Errors of conflict resolution."""

from collections.abc import Iterable

from mergerepl.errors import ConflictError


class UnknownResolverError(ConflictError):
    """An article names a resolver that this agent does not have."""

    def __init__(self, article: str, resolver: str, *, known: Iterable[str]) -> None:
        """Name the article, its resolver and those there are."""
        super().__init__(
            f"Article '{article}' names the resolver '{resolver}', which this agent does not have. "
            f"Known: {', '.join(sorted(known))}. Correct it in the file and run `mergerepl apply`.",
            article=article,
            resolver=resolver,
        )
