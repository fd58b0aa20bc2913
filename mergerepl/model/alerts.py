"""The thresholds from which `status` warns, as `alerts:` of a project file states them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Alerts:
    """Thresholds of one publication or database; None: the product's default, or no warning.

    Attributes:
        expiration: Part of the retention that changes may wait for a subscriber (0.8).
        capture_lag: Part of the retention of files and log that commits may stay uncaptured (merge 0.5, cdc 0.75).
        pending_hours: Hours that changes may wait for a subscriber.
        run_seconds: Duration of a session.
        min_rows_per_second: Rows that a session of at least 50 rows has to carry in a second.
        conflicts_per_session: Conflicts of one session.
        uninitialized: Whether a subscriber without its first rows is a warning.
    """

    expiration: float | None = None
    capture_lag: float | None = None
    pending_hours: float | None = None
    run_seconds: float | None = None
    min_rows_per_second: float | None = None
    conflicts_per_session: int | None = None
    uninitialized: bool = True

    def __or__(self, other: Alerts) -> Alerts:
        """Return the thresholds of two publications of one folder: what one leaves out is the other's."""
        pairs = {each.name: (getattr(self, each.name), getattr(other, each.name)) for each in fields(self)}
        return Alerts(**{name: one if one is not None else two for name, (one, two) in pairs.items()})

    @property
    def reads_sessions(self) -> bool:
        """Whether a threshold is about the last sessions."""
        return (self.run_seconds, self.min_rows_per_second, self.conflicts_per_session) != (None, None, None)


DEFAULT = Alerts()
EXPIRATION = 0.8
"""The part of the retention that changes may wait for a subscriber, if nothing is stated."""
