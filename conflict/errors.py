"""Errors of conflict resolution."""

from mergerepl.errors import ConflictError


class UnknownResolverError(ConflictError):
    """An article names a resolver that this agent does not have."""
