"""The state of a subscription, table or replica as one level and a few words: the same in the graph and in the tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from mergerepl.model.alerts import EXPIRATION
from mergerepl.model.cdc import SourceStatus
from mergerepl.model.delivery import DeliveryState
from mergerepl.model.relation import Relation
from mergerepl.model.replica_status import SubscriptionStatus
from mergerepl.model.tasks import CRITICAL, UNKNOWN, WARNING, StatusWarning
from mergerepl.model.words import counted

OK = "ok"
_GRAVITY = (OK, WARNING, UNKNOWN, CRITICAL)


@dataclass(frozen=True)
class State:
    """A level (ok, warning, unknown, critical) and the words for it."""

    level: str
    words: str


def worst(*states: State) -> State:
    """Return the gravest state; the first one of several."""
    return max(states, key=lambda each: _GRAVITY.index(each.level))


def state_of(relation: Relation) -> State:
    """Return the state of a subscription."""
    if relation.status == "expired":
        return State(CRITICAL, "expired")
    if isinstance(relation, DeliveryState):
        if relation.status == "inactive":
            return State(CRITICAL, "inactive")
        if relation.stopped_since is not None:
            return State(CRITICAL, "stopped")
    if isinstance(relation, SubscriptionStatus) and relation.schema_stop:
        return State(CRITICAL, "schema change stops it")
    if isinstance(relation, SubscriptionStatus) and relation.diverged:
        return State(CRITICAL, "diverged")
    if relation.failures >= 3:
        return State(CRITICAL, "keeps failing")
    if not relation.is_reachable:
        return State(UNKNOWN, "out of reach")
    if relation.status not in ("active",):
        return State(WARNING, "no first copy")
    if relation.last_sync_status == "failed":
        return State(WARNING, "last run failed")
    if relation.retention_used is not None and relation.retention_used >= EXPIRATION:
        return State(WARNING, "expires soon")
    return State(OK, _waiting(relation))


def _waiting(relation: Relation) -> str:
    up, down = relation.upload or 0, relation.download or 0
    unread = relation.uncaptured_commits or 0
    if not (up or down or unread):
        return "in step"
    ways = [f"{number:,} {way}" for number, way in ((down, "down"), (up, "up")) if number]
    return " · ".join(ways) if ways else f"{unread:,} to capture"


def state_of_source(source: SourceStatus) -> State:
    """Return the state of a captured table."""
    if source.status != "active":
        return State(CRITICAL, "paused")
    if not source.has_feed:
        return State(WARNING, "feed is off")
    if source.unread_commits:
        return State(OK, f"{source.unread_commits:,} unread")
    return State(OK, "in step")


def state_of_problems(problems: tuple[StatusWarning, ...]) -> State:
    """Return the state of a whole place."""
    counts = {level: sum(each.level == level for each in problems) for level in (CRITICAL, UNKNOWN, WARNING)}
    said = [
        counted(count, level) if level == WARNING else f"{count:,} {level}"
        for level, count in counts.items()
        if count
    ]
    if not said:
        return State(OK, "All is well")
    return State(next(level for level, count in counts.items() if count), ", ".join(said))


def used_of(source: SourceStatus, now: datetime) -> float | None:
    """Return the part of the shorter retention that the oldest unread commit has waited."""
    limits = [each for each in (source.vacuum_safe_until, source.log_safe_until) if each is not None]
    if source.oldest_unread is None or not limits:
        return None
    whole = min(limits) - source.oldest_unread
    return max((now - source.oldest_unread) / whole, 0.0) if whole else 1.0
