"""Small charts as inline SVG: bars over seven days, and a bar for a share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from html import escape

from mergerepl.model.tasks import Run

BINS = 56
_BAR, _GAP, _TALL = 4, 1, 30
WIDTH = BINS * (_BAR + _GAP)


def binned(
    runs: Iterable[Run], since: datetime, now: datetime, measure: Callable[[Run], float]
) -> list[float]:
    """Return the sum of a measure in each of `BINS` equal parts of the time."""
    sums, part = [0.0] * BINS, (now - since) / BINS
    for run in runs:
        if run.time is not None and since <= run.time <= now and part:
            sums[min(int((run.time - since) / part), BINS - 1)] += measure(run)
    return sums


def bars(values: Sequence[float], *, kind: str, label: str, failed: Sequence[float] = ()) -> str:
    """Return the bars of one chart; parts with a failed run are marked. `label` says what it shows."""
    most = max(values, default=0.0)
    height = _TALL - 4
    tall = [0 if not most or not value else max(2, round(value / most * height)) for value in values]
    path = "".join(_bar(number, each) for number, each in enumerate(tall) if each)
    marks = "".join(_bar(number, 3, top=1) for number, each in enumerate(failed) if each)
    return (
        f'<svg class="chart {kind}" viewBox="0 0 {WIDTH} {_TALL}" width="{WIDTH}" height="{_TALL}" role="img" '
        f'aria-label="{escape(label)}"><title>{escape(label)}</title>'
        f'<path class="base" d="M0 {_TALL - 0.5}H{WIDTH}"/>'
        f'<path class="bars" d="{path}"/>{f"<path class=failed d={chr(34)}{marks}{chr(34)}/>" if marks else ""}</svg>'
    )


def _bar(number: int, tall: int, *, top: int | None = None) -> str:
    x, y = number * (_BAR + _GAP), _TALL - 1 - tall if top is None else top
    return f"M{x} {y}h{_BAR}v{tall}h-{_BAR}z"


def share_bar(part: float | None, *, level: str, label: str) -> str:
    """Return a bar for a part of a whole with its percentage; a dash if it is unknown."""
    if part is None:
        return '<span class="faint">–</span>'
    width = round(min(max(part, 0.0), 1.0) * 80)
    return (
        f'<span class="share"><svg class="level {level}" viewBox="0 0 80 8" width="80" height="8" role="img" '
        f'aria-label="{escape(label)}"><rect class="whole" width="80" height="8" rx="4"/>'
        f'<rect class="part" width="{width}" height="8" rx="4"/></svg> {part:.0%}</span>'
    )


def count_bar(count: int, most: int) -> str:
    """Return a bar for a count beside its number."""
    width = max(2, round(count / most * 120)) if most else 0
    return (
        f'<span class="share"><svg class="level" viewBox="0 0 120 8" width="120" height="8" aria-hidden="true">'
        f'<rect class="part" width="{width}" height="8" rx="4"/></svg> {count:,}</span>'
    )


def duration_text(seconds: float) -> str:
    """Return a duration in the largest whole unit: `3.2 s`, `4 min`, `2 h`, `5 d`."""
    found = timedelta(seconds=seconds)
    if seconds < 90:
        return f"{seconds:.1f} s"
    for unit, name in ((timedelta(days=2), "d"), (timedelta(hours=2), "h")):
        if found >= unit:
            return f"{found / (unit / 2):.0f} {name}"
    return f"{seconds / 60:.0f} min"
