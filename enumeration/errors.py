"""Errors of enumeration."""

from mergerepl.errors import EnumerationError


class UnknownGenerationError(EnumerationError):
    """One side's watermark names a generation the other side does not have: a restore or a copy."""
