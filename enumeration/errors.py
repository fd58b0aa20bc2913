"""Errors of enumeration."""

from mergerepl.errors import INITIALISE_AGAIN, EnumerationError


class UnknownGenerationError(EnumerationError):
    """One side's watermark names a generation the other side does not have: a restore or a copy."""


class LostByPublisherError(EnumerationError):
    """A subscriber received generations from its publisher that the publisher does not have any more."""

    def __init__(self, publisher: str, subscriber: str) -> None:
        """Name both replicas."""
        super().__init__(
            f"'{subscriber}' received changes in a session that its publisher '{publisher}' does not know of: the publisher "
            "was put back to an older state, or that session's folder was removed before it was finished. Nothing was "
            f"changed. {INITIALISE_AGAIN}",
            publisher=publisher,
            subscriber=subscriber,
        )
