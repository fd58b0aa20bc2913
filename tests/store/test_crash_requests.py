"""A sync that is killed at any of its requests is finished by the next one, as if nothing had happened."""

import os
import random
from pathlib import Path

import pytest

from mergerepl.store.location import Location
from tests.store.killed import LEASE_S, Site
from tests.store.order_tables import add, edit, write_orders
from tests.store.proxy import Proxy

DRAWN = 40
"""Points of one run; each takes some five seconds of a quiet machine. A sync has two for each of about 130 requests."""


@pytest.fixture
def site(tmp_path: Path, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Replicas that are edited at both sides, with a conflict; a sync is due."""
    monkeypatch.setenv("MERGEREPL_LEASE_S", LEASE_S)
    root = Location.of(f"s3://{bucket}")
    made = Site(tmp_path, root / "hq", root / "north", proxy)
    made.call(write_orders, made.hq)
    (tmp_path / "mergerepl.yml").write_text(
        f"publication: sales\npublisher: {made.hq}\narticles:\n  - {{name: orders, key: [id]}}\n"
        f"subscriptions:\n  - {{subscriber: {made.north}, name: north}}\n"
    )
    made.run("apply")
    made.call(edit, made.hq, ("qty=77", "id < 2"), ("delete", "id = 9"))
    made.call(edit, made.north, ("item='north'", "id = 1 or id > 18"))
    made.call(add, made.north, 100)
    return made


@pytest.mark.slow
def test_a_sync_that_is_killed_at_a_request_is_finished(site: Site) -> None:
    before = site.objects()
    points = site.points(("sync",), before)
    wanted = site.outcome()
    assert wanted["hq"] == wanted["north"]
    drawn = random.Random(os.environ.get("MERGEREPL_TEST_SEED", "0")).sample(points, DRAWN)
    for point, is_stored in drawn:
        site.put_back(before)
        killed = site.killed_at(point, ("sync",), is_stored=is_stored)
        site.run("sync")
        assert site.outcome() == wanted, f"killed at {killed}, stored: {is_stored}"
