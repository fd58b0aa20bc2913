"""Errors of change tracking."""

from mergerepl.errors import CaptureError


class DuplicateKeyError(CaptureError):
    """Two rows of an article have one key."""


class NullKeyError(CaptureError):
    """A row of an article has a NULL in its key."""


class FeedGapError(CaptureError):
    """The change feed lacks versions and the old version is gone too."""
