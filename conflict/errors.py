"""Errors of conflict resolution."""

from collections.abc import Iterable
from os import PathLike

from mergerepl.errors import ConflictError


class ResolverInfoError(ConflictError):
    """A replica's system tables have unreadable data for an article's resolver, or data of another article."""

    def __init__(self, article: str, reason: str) -> None:
        """Name the article and the data found."""
        super().__init__(
            f"Article '{article}': sysmergearticles says of its resolver what cannot be used ({reason}): it was edited. "
            "Run `mergerepl apply`, which writes what the file says.",
            article=article,
        )


class UnknownResolverError(ConflictError):
    """An article names a resolver that this agent does not have."""

    def __init__(self, article: str, resolver: str, *, known: Iterable[str]) -> None:
        """Name the article, its resolver and the known ones."""
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
        """Name the article, its function, the known ones, and the agent file that may define more."""
        ConflictError.__init__(
            self,
            f"Article '{article}' names the function '{function}', which this agent does not have. It has: "
            f"{', '.join(sorted(known)) or 'none'} (`mergerepl conflicts resolvers`). Functions come from `resolvers:` of "
            f"the agent's file '{agent_file}' (MERGEREPL_AGENT_CONFIG names another one), and from the entry points "
            "`mergerepl.resolvers` of installed packages. Add it there; or correct its name in the publication's file and "
            "run `mergerepl apply`.",
            article=article,
            resolver=function,
        )


class ResolverError(ConflictError):
    """A resolver of the agent's own could not be loaded, failed, or gave an answer that cannot be used."""

    def __init__(self, article: str, function: str, problem: str) -> None:
        """Name the article, the function and the problem."""
        super().__init__(
            f"Article '{article}': its resolver '{function}' {problem}. The session ended and nothing was changed. Correct "
            "the function, or name another resolver in the file and run `mergerepl apply`.",
            article=article,
            resolver=function,
        )
