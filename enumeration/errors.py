"""Errors of enumeration."""

from mergerepl.errors import INITIALISE_AGAIN, EnumerationError


class UnknownGenerationError(EnumerationError):
    """One side's watermark names a generation the other side does not have: a restore or a copy."""


def lost_by_publisher(publisher: str, subscriber: str) -> EnumerationError:
    """Return the error for a subscriber with generations that its publisher has lost."""
    return EnumerationError(
        f"'{subscriber}' received changes in a session that its publisher '{publisher}' does not know of: the publisher "
        "was put back to an older state, or that session's folder was removed before it was finished. Nothing was changed. "
        f"{INITIALISE_AGAIN}",
        publisher=publisher,
        subscriber=subscriber,
    )
