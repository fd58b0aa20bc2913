"""Who expires, and when `status` warns: on system tables alone, without an engine."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mergerepl.delta.log import head_version
from mergerepl.errors import LeaseError
from mergerepl.merge.session.clean_up import clean_up_files, clean_up_metadata, cleanable
from mergerepl.merge.session.history_cleanup import KEPT_SESSIONS, purge_history
from mergerepl.merge.session.session_history import note_cleaned, note_presence
from mergerepl.monitoring.status import replica_status
from mergerepl.replica.expiry import expire_overdue, present
from mergerepl.replica.replica import Replica
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.systables import catalog, replinfo, sessions
from mergerepl.systables.sessions import SessionRow
from tests.networks import PUBID, generation, make_pair

NOW = datetime.now(UTC)
DAYS = {"retention": 14, "retention_period_unit": 0}


def pair(
    folder: Path, waits_days: float, *, last_days: float | None = 0.5, publication: Any = DAYS, **more: Any
) -> tuple[Replica, Replica]:
    """Return a publisher at which a change has waited for its subscriber, and was written to, for so many days."""
    hq, north = make_pair(folder)
    info = hq.info()
    row = generation(info.last_generation + 1, coldate=NOW - timedelta(days=waits_days), **more)
    last = None if last_days is None else NOW - timedelta(days=last_days)
    if waits_days == 0:
        hq.control.replace(replinfo.TABLE, [replace(info, last_time=last)])
    hq.append_generations([row], seq=info.last_seq)
    hq.control.replace(
        replinfo.TABLE, [replace(info, last_generation=info.last_generation + 1, last_time=last)]
    )
    hq.control.change_where(catalog.PUBLICATIONS, publication, pubid=PUBID)
    return Replica(hq.root), north


@pytest.mark.parametrize(
    ("waits_days", "others", "expected"),
    [
        pytest.param(11.9, {}, None, id="below four fifths"),
        pytest.param(12.1, {}, "warning", id="from four fifths on"),
        pytest.param(14.9, {}, "warning", id="a day of grace"),
        pytest.param(15.1, {}, "expired", id="over"),
        pytest.param(15.1, {"changecount": 0}, None, id="no change waits"),
        pytest.param(15.1, {"nicknames": (1, 2)}, None, id="it came from there"),
        pytest.param(15.1, {"waits_for": "another"}, None, id="it waits for another one"),
        pytest.param(15.1, {"waits_for": "replica-2"}, None, id="the subscriber's table refused it"),
        pytest.param(15.1, {"publication": {"retention": 0}}, None, id="for ever"),
        pytest.param(
            9000, {"last_days": 8999}, "warning", id="the clock jumped, or the publisher stood still"
        ),
        pytest.param(15.1, {"last_days": None}, "warning", id="never written"),
        pytest.param(15.1, {"last_days": -9000}, "expired", id="the clock went back"),
    ],
)
def test_who_expires(tmp_path: Path, waits_days: float, others: dict[str, Any], expected: str | None) -> None:
    hq, _ = pair(tmp_path, waits_days, **others)
    expire_overdue(hq, present(hq.info()))
    (about,) = hq.relations()
    assert (about.expired_at is not None) == (expected == "expired")
    said = [
        each.text
        for each in replica_status(hq.root, table_problems=lambda *_: []).warnings
        if "subscription expires" in each.text or "expired on" in each.text
    ]
    assert len(said) == (expected is not None)
    assert ("expired on" in str(said)) == (expected == "expired")


@pytest.mark.parametrize(("synced_days", "expires"), [(None, True), (15, True), (1.1, False)])
def test_inv_37_a_subscription_whose_sessions_leave_changes_out_does_not_expire(
    tmp_path: Path, synced_days: float | None, expires: bool
) -> None:
    hq, _ = pair(tmp_path, 15.1)
    (about,) = hq.relations()
    last = None if synced_days is None else NOW - timedelta(days=synced_days)
    hq.control.change_where(catalog.SUBSCRIPTIONS, {"last_sync_date": last}, subid=about.subid)
    expire_overdue(hq, NOW, only="another")
    assert hq.relations()[0].expired_at is None
    for only in (about.subid, None):
        expire_overdue(hq, NOW, only=only)
        assert (hq.relations()[0].expired_at is not None) == expires
    (said,) = [
        each.text
        for each in replica_status(hq.root, table_problems=lambda *_: []).warnings
        if "UTC" in each.text
    ]
    assert ("though it is synchronized" in said) == (not expires)
    # A session that brings nothing over says so once a day.
    table, seen = hq.folder / "sysmergesubscriptions", []
    for _ in range(2):
        note_presence(hq, about.subid)
        seen.append(head_version(table))
        assert NOW - timedelta(hours=1) < (hq.relations()[0].last_sync_date or NOW)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(("last_days", "stays"), [(13, False), (15, True), (-1, True)])
def test_inv_40_the_stored_time_neither_jumps_nor_goes_back(
    tmp_path: Path, last_days: float, stays: bool
) -> None:
    hq, _ = pair(tmp_path, 1, last_days=last_days)
    before = hq.info()
    hq.save_info(before)
    assert (Replica(hq.root).info().last_time == before.last_time) == stays


@pytest.mark.parametrize(("last_days", "removed"), [(13, 5), (15, 0)])
def test_inv_40_nothing_is_removed_by_age_until_a_clock_that_jumped_is_accepted(
    tmp_path: Path, last_days: float, removed: int
) -> None:
    hq, _ = pair(tmp_path, 1, last_days=last_days)
    old = NOW - timedelta(days=40)
    agent, of = hq.relations()[0].subid, {"publication": "sales", "subscriber": "north"}
    rows = [
        SessionRow(session_id=str(number), agent_id=agent, start_time=old, end_time=old, **of)
        for number in range(KEPT_SESSIONS + 5)
    ]
    hq.control.append(sessions.SESSIONS, rows)
    assert purge_history(hq.root, dry_run=True).sessions == removed
    assert (Replica(hq.root).present() == hq.info().last_time) == (removed == 0)
    Replica(hq.root).accept_clock()
    assert purge_history(hq.root).sessions == 5


def test_inv_40_a_change_of_a_clock_that_went_back_is_no_older_than_the_stored_time(tmp_path: Path) -> None:
    # The clock says 9,000 days ago.
    hq, _ = pair(tmp_path, 0, last_days=-9000)
    (row,) = hq.genhistory(from_generation_exclusive=hq.info().last_generation - 1)
    assert row.coldate is not None
    assert row.coldate >= NOW + timedelta(days=8999)
    expire_overdue(hq, present(hq.info()))
    assert hq.relations()[0].expired_at is None


def test_inv_40_changes_of_a_clock_that_was_years_ahead_are_forgotten_with_the_next_ones(
    tmp_path: Path,
) -> None:
    hq, _ = make_pair(tmp_path)
    info, first = hq.info(), hq.info().last_generation + 1
    history = [
        generation(first + i, coldate=NOW - timedelta(days=age), maxversion=5, genstatus=1)
        for i, age in enumerate((-3000, 30, -3000))
    ]
    hq.append_generations(history, seq=info.last_seq)
    hq.control.replace(replinfo.TABLE, [replace(info, last_generation=first + 2)])
    hq.control.change_where(catalog.PUBLICATIONS, DAYS, pubid=PUBID)
    hq.control.change_where(
        catalog.SUBSCRIPTIONS, {"sentgen": first + 2, "known": 9, "settled": 9}, pubid=PUBID
    )
    assert {*cleanable(Replica(hq.root))[0].values()} == {first + 1}


def test_a_session_forgets_a_day_of_generations_at_most(tmp_path: Path) -> None:
    hq, _ = make_pair(tmp_path)
    info, first = hq.info(), hq.info().last_generation + 1
    days = (30, 29.5, 28, 20)
    history = [
        generation(first + i, coldate=NOW - timedelta(days=age), maxversion=5, genstatus=1)
        for i, age in enumerate(days)
    ]
    hq.append_generations(history, seq=info.last_seq)
    hq.control.replace(replinfo.TABLE, [replace(info, last_generation=first + 3)])
    hq.control.change_where(catalog.PUBLICATIONS, DAYS | {"retention": 1}, pubid=PUBID)
    hq.control.change_where(
        catalog.SUBSCRIPTIONS, {"sentgen": first + 3, "known": 9, "settled": 9}, pubid=PUBID
    )
    found = [cleanable(Replica(hq.root), at_most=at_most)[0] for at_most in (timedelta(days=1), None)]
    assert [{*each.values()} for each in found] == [{first + 1}, {first + 3}]


@pytest.mark.parametrize("clean", [clean_up_metadata, clean_up_files, purge_history])
def test_a_second_cleanup_is_told_who_is_at_work(tmp_path: Path, clean: Callable[[Location], object]) -> None:
    hq, _ = make_pair(tmp_path)
    with (
        lease(hq.root, purpose="mergerepl cleanup"),
        pytest.raises(LeaseError, match="mergerepl cleanup by process"),
    ):
        clean(hq.root)


def ended(session: str) -> SessionRow:
    """Return the row of a session."""
    return SessionRow(
        session_id=session, publication="sales", subscriber="north", start_time=NOW, end_time=NOW
    )


def test_a_session_says_how_many_rows_of_metadata_it_removed(tmp_path: Path) -> None:
    hq, north = make_pair(tmp_path)
    for replica in (hq, north):
        replica.control.append(sessions.SESSIONS, [ended(name) for name in ("a", "b")])
    note_cleaned((hq, north), "b", {hq.root: 7, north.root: 0})
    seen = [
        {row.session_id: row.metadata_rows_cleanedup for row in replica.control.rows(sessions.SESSIONS)}
        for replica in (hq, north)
    ]
    assert seen == [{"a": 0, "b": 7}, {"a": 0, "b": 0}]
