"""Who expires, and when `status` warns: on system tables alone, without an engine."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mergerepl.monitoring.status import replica_status
from mergerepl.replica.expiry import expire_overdue, present
from mergerepl.replica.replica import Replica
from mergerepl.systables import catalog, replinfo
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
    hq.append_generations([row], seq=info.last_seq)
    last = None if last_days is None else NOW - timedelta(days=last_days)
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


@pytest.mark.parametrize(("synced_days", "expires"), [(None, True), (15, True), (1, False)])
def test_inv_37_a_session_asks_only_if_the_last_one_is_long_ago(
    tmp_path: Path, synced_days: float | None, expires: bool
) -> None:
    hq, _ = pair(tmp_path, 15.1)
    (about,) = hq.relations()
    last = None if synced_days is None else NOW - timedelta(days=synced_days)
    hq.control.change_where(catalog.SUBSCRIPTIONS, {"last_sync_date": last}, subid=about.subid)
    expire_overdue(hq, NOW, only="another")
    assert hq.relations()[0].expired_at is None
    expire_overdue(hq, NOW, only=about.subid)
    assert (hq.relations()[0].expired_at is not None) == expires


@pytest.mark.parametrize(("last_days", "stays"), [(13, False), (15, True), (-1, True)])
def test_inv_40_the_stored_time_neither_jumps_nor_goes_back(
    tmp_path: Path, last_days: float, stays: bool
) -> None:
    hq, _ = pair(tmp_path, 1, last_days=last_days)
    before = hq.info()
    hq.save_info(before)
    assert (Replica(hq.root).info().last_time == before.last_time) == stays
