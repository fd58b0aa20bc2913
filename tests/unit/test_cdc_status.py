"""When `cdc status --check` and `doctor` warn: cases of unread commits and of paused sources."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from mergerepl.cdc.monitoring import warnings_of
from mergerepl.model.cdc import DatabaseStatus, SourceStatus

NOW = datetime(2026, 3, 10, tzinfo=UTC)


def source(
    unread_for: timedelta | None, status: str = "active", kept: timedelta = timedelta(days=8)
) -> SourceStatus:
    oldest = None if unread_for is None else NOW - unread_for
    until = None if oldest is None else oldest + kept
    return SourceStatus(
        *("orders", 1, status, 4, 5, int(oldest is not None), oldest, until),
        *(None if oldest is None else oldest + timedelta(days=30), "NOTHING", None, "why", ()),
    )


def test_what_is_unread_is_warned_of_before_it_may_go() -> None:
    cases = [
        ("nothing_is_unread", source(None), []),
        ("unread_for_a_moment", source(timedelta(seconds=30)), []),
        ("unread_for_longer", source(timedelta(seconds=31)), ["warning"]),
        ("unread_and_paused", source(timedelta(hours=1), "paused"), ["critical"]),
        ("a_quarter_of_the_time_is_left", source(timedelta(days=6)), ["warning"]),
        ("less_than_a_quarter_is_left", source(timedelta(days=6, seconds=1)), ["warning"]),
        ("no_time_is_left", source(timedelta(days=8)), ["critical"]),
        ("the_log_may_be_cut_later_than_files", source(timedelta(days=29)), ["critical", "warning"]),
        ("a_paused_source", source(None, "paused"), ["critical"]),
        ("a_feed_that_is_off", replace(source(None), has_feed=False), ["warning"]),
        ("files_are_kept_for_long", source(timedelta(days=8), kept=timedelta(days=30)), ["warning"]),
    ]
    for name, each, expected in cases:
        status = DatabaseStatus("/r", "d", 1, None, None, None, (each,), has_plan=False)
        assert [warning.level for warning in warnings_of(status, NOW)] == expected, name
