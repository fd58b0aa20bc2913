"""The versions up to which a session leaves its two sides informed."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """The lowest values of the rows of sysmergesubscriptions at both sides once a session is complete.

    `through` and `knows` are about the subscriber, `settled` and `known` the subscriber's own.
    """

    through: int = 0
    knows: int = 0
    settled: int = 0
    known: int = 0


NOTHING_SETTLES: Final = Horizon()
"""Leaves both sides as they are."""
