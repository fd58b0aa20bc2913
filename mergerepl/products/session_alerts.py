"""Warnings about the last session of each subscription: how long it took, how fast it was, how many conflicts it met."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from mergerepl.model.alerts import Alerts
from mergerepl.model.replica_status import conflicts_of
from mergerepl.model.tasks import WARNING, Run, StatusWarning
from mergerepl.model.words import counted
from mergerepl.store.location import Location

_LEAST_ROWS = 50
"""A session of fewer rows says nothing about speed, as in SQL Server's monitor."""


def session_warnings(runs: Iterable[Run], alerts: Alerts) -> Iterator[StatusWarning]:
    """Yield what the last run of each subscription exceeds; `runs` are the newest first. Pure."""
    last: dict[tuple[str, str], Run] = {}
    for run in runs:
        if run.kind in ("session", "batch"):
            last.setdefault((run.publication, run.subscriber), run)
    for run in last.values():
        for text in _exceeded(run, alerts):
            name = shlex.quote(Location.of(run.subscriber).name)
            see = f"See `mergerepl history {name}`."
            yield StatusWarning(run.subscriber, WARNING, f"The last {run.kind} {text}. {see}")


def _exceeded(run: Run, alerts: Alerts) -> Iterator[str]:
    if alerts.run_seconds is not None and run.duration_s > alerts.run_seconds:
        yield f"took {run.duration_s:,.1f} s, longer than {alerts.run_seconds:g} s"
    if alerts.min_rows_per_second is not None and run.changes >= _LEAST_ROWS and run.duration_s:
        rate = run.changes / run.duration_s
        if rate < alerts.min_rows_per_second:
            yield f"carried {rate:,.1f} rows a second, fewer than {alerts.min_rows_per_second:g}"
    conflicts = conflicts_of(run.details)
    if alerts.conflicts_per_session is not None and conflicts > alerts.conflicts_per_session:
        yield f"met {counted(conflicts, 'conflict')}, more than {alerts.conflicts_per_session:,}"
