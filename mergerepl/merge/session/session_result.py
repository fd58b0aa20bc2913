"""The result of a session, as `sync` returns it and the history keeps it."""

from collections.abc import Iterable

from mergerepl.merge.session.carry_out import Outcome
from mergerepl.model.results import PhaseCounts, SessionResult
from mergerepl.replica.replica import Replica


def session_result(
    publication: str, subscriber: Replica, outcome: Outcome, duration_s: float, recovered: int
) -> SessionResult:
    """Return what a carried-out session did, summed up over its articles."""
    return SessionResult(
        publication,
        str(subscriber.root),
        "succeeded",
        upload=summed(article.upload for article in outcome.articles),
        download=summed(article.download for article in outcome.articles),
        articles=outcome.articles,
        duration_s=round(duration_s, 3),
        recovered=recovered,
        late_changes=outcome.late_changes,
    )


def summed(counts: Iterable[PhaseCounts]) -> PhaseCounts:
    """Return the sum of counts."""
    total = PhaseCounts()
    for item in counts:
        total = total + item
    return total
