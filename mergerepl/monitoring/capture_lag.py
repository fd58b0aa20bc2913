"""Warnings of commits that are not captured though half of the time has passed for which Delta keeps what they need."""

from datetime import UTC, datetime
from functools import partial
from typing import Final

from mergerepl.delta.marks import is_own_of_merge
from mergerepl.delta.tables import TableState
from mergerepl.delta.vacuum import Lag, lag_of
from mergerepl.errors import StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.waiting import Uncaptured
from mergerepl.store.location import Location
from mergerepl.systables.replinfo import ReplicaInfo

WARNED, GRAVE = 0.5, 0.8
"""Parts of the shorter of file and log retention from which on an uncaptured commit is a warning, or critical."""

REMEDY: Final = "Run `mergerepl sync` or `mergerepl capture`"


def article_lag(article: PublishedArticle, look: Uncaptured, info: ReplicaInfo) -> Lag | None:
    """Return the lag of an article's oldest uncaptured commit; None if all are captured, or the log is damaged."""
    window = look.window
    if window is None or not look.commits:
        return None
    first = window.changes(partial(is_own_of_merge, replid=info.replid, nickname=article.nickname))[0]
    try:
        return lag_of(window.table, first.version)
    except (StoreError, OSError):
        # The damaged log is reported for itself.
        return None


def lag_warning(
    name: str, table: TableState, first_uncaptured: int, *, now: datetime | None = None
) -> tuple[str, bool] | None:
    """Return the warning about an article's table and whether it is critical; None if nothing is at risk."""
    try:
        lag = lag_of(table, first_uncaptured)
    except (StoreError, OSError):
        # The damaged log is reported for itself.
        return None
    return None if lag is None else warning_of_lag(name, table.path, lag, now=now)


def warning_of_lag(
    name: str, table: Location, lag: Lag, *, warned: float = WARNED, now: datetime | None = None
) -> tuple[str, bool] | None:
    """Return the warning about a lag and whether it is critical; None below the part `warned` of the retention."""
    used = lag.used(now or datetime.now(UTC))
    if used < warned:
        return None
    until = lag.since + lag.retention
    text = (
        f"Article '{name}': commits of '{table}' since {lag.since:%Y-%m-%d %H:%M}Z are not captured. From "
        f"{until:%Y-%m-%d %H:%M}Z on Delta may remove files or log entries that capture needs. {REMEDY} before."
    )
    return text, used >= GRAVE
