"""Warnings of commits that are not captured though half of the time has passed for which Delta keeps what they need."""

from datetime import UTC, datetime
from functools import partial
from typing import Final

from mergerepl.delta.marks import is_own_of_merge
from mergerepl.delta.tables import TableState
from mergerepl.delta.vacuum import lag_of
from mergerepl.errors import StoreError
from mergerepl.model.article import PublishedArticle
from mergerepl.monitoring.waiting import Uncaptured
from mergerepl.systables.replinfo import ReplicaInfo

WARNED, GRAVE = 0.5, 0.8
"""Parts of the shorter of file and log retention from which on an uncaptured commit is a warning, or critical."""

REMEDY: Final = "Run `mergerepl sync` or `mergerepl capture`"


def article_lag(article: PublishedArticle, look: Uncaptured, info: ReplicaInfo) -> tuple[str, bool] | None:
    """Return the warning about an article's uncaptured commits, as `lag_warning`."""
    window = look.window
    if window is None or not look.commits:
        return None
    first = window.changes(partial(is_own_of_merge, replid=info.replid))[0]
    return lag_warning(article.name, window.table, first.version)


def lag_warning(
    name: str, table: TableState, first_uncaptured: int, *, now: datetime | None = None
) -> tuple[str, bool] | None:
    """Return the warning about an article's table and whether it is critical; None if nothing is at risk."""
    try:
        lag = lag_of(table, first_uncaptured)
    except (StoreError, OSError):
        # The damaged log is reported for itself.
        return None
    if lag is None:
        return None
    used = lag.used(now or datetime.now(UTC))
    if used < WARNED:
        return None
    until = lag.since + lag.retention
    text = (
        f"Article '{name}': commits of '{table.path}' since {lag.since:%Y-%m-%d %H:%M}Z are not captured. From "
        f"{until:%Y-%m-%d %H:%M}Z on Delta may remove files or log entries that capture needs. {REMEDY} before."
    )
    return text, used >= GRAVE
