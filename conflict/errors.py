"""Errors of conflict resolution."""

from collections.abc import Iterable
from os import PathLike

from mergerepl.errors import ConflictError


class ResolverInfoError(ConflictError):
    """What a replica's system tables state for an article's resolver cannot be read, or is not of that article."""

    def __init__(self, article: str, reason: str) -> None:
        """Name the article and what stands there."""
        super().__init__(
            f"Article '{article}': sysmergearticles says of its resolver what cannot be used ({reason}): it was edited. "
            "Run `mergerepl apply FILE`, which writes what the file says.",
            article=article,
        )


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


class UnknownFunctionError(UnknownResolverError):
    """An article names a function that this agent does not have."""

    def __init__(
        self, article: str, function: str, *, known: Iterable[str], agent_file: PathLike[str]
    ) -> None:
        """Name the article, its function, those there are, and where functions come from."""
        ConflictError.__init__(
            self,
            f"Article '{article}' names the function '{function}', which this agent does not have. It has: "
            f"{', '.join(sorted(known)) or 'none'} (`mergerepl conflicts resolvers`). Functions come from `resolvers:` of "
            f"the agent's file '{agent_file}' (MERGEREPL_AGENT_CONFIG names another one), and from the entry points "
            "`mergerepl.resolvers` of installed packages. Add it there; or correct its name in the publication's file and "
            "run `mergerepl apply FILE`.",
            article=article,
            resolver=function,
        )


class ResolverError(ConflictError):
    """A resolver of the agent's own could not be loaded, failed, or gave an answer that cannot be used."""

    def __init__(self, article: str, function: str, problem: str) -> None:
        """Name the article, the function and what is wrong with it."""
        super().__init__(
            f"Article '{article}': its resolver '{function}' {problem}. The session ended and nothing was changed. Correct "
            "the function, or name another resolver in the file and run `mergerepl apply`.",
            article=article,
            resolver=function,
        )
