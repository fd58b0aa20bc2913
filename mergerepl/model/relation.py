"""The progress of one subscription, in the same terms for all products that have subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One subscription as the replica that was read knows it; a value that cannot be read is None, never 0.

    Attributes:
        status: inactive, active, deleted (merge); subscribed, active, inactive (transactional); expired.
        upload: Rows that wait for the way to the publisher; None if the subscriber is out of reach, or sends nothing.
        download: Rows or commands that wait for the way to the subscriber.
        uncaptured_commits: Commits of the articles' tables, at the ends in reach, that no capture has read.
        waiting_since: Time of the oldest change that waits for the subscriber.
        retention_used: Part of the time after which the subscription expires that this change has waited; 1 is expired.
        last_sync_date: End of the last session or batch.
        last_sync_status: Its outcome.
        failures: Rounds that failed one after the other, up to 3: a session with its `--retries` is one.
        is_reachable: Whether the replica at the other end can be read.
        validated: The last validation that found all articles equal.
        diverged: Article that a validation found different -> level and time of it.
    """

    publication: str
    subscriber: str
    status: str
    upload: int | None = None
    download: int | None = None
    uncaptured_commits: int | None = None
    waiting_since: datetime | None = None
    retention_used: float | None = None
    last_sync_date: datetime | None = None
    last_sync_status: str = ""
    failures: int = 0
    is_reachable: bool = True
    validated: datetime | None = None
    diverged: Mapping[str, str] = field(default_factory=dict)


def added(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of the known numbers; None if none is known."""
    known = [each for each in numbers if each is not None]
    return sum(known) if known else None
