"""A sync or an apply that is killed at any of its requests is finished by the next one, as if nothing had happened."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from mergerepl.store.location import Location
from tests.store.killed import LEASE_S, Site
from tests.store.order_tables import add, edit, write_orders
from tests.store.proxy import Proxy

DRAWN = 40
"""Points of one run; each takes some five seconds of a quiet machine. A sync has two for each of about 130 requests."""


@pytest.fixture
def stated(tmp_path: Path, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A table in a bucket, and a file that publishes it."""
    monkeypatch.setenv("MERGEREPL_LEASE_S", LEASE_S)
    root = Location.of(f"s3://{bucket}")
    made = Site(tmp_path, root / "hq", root / "north", proxy)
    made.call(write_orders, made.hq)
    (tmp_path / "mergerepl.yml").write_text(
        f"publication: sales\npublisher: {made.hq}\narticles:\n  - {{name: orders, key: [id]}}\n"
        f"subscriptions:\n  - {{subscriber: {made.north}, name: north}}\n"
    )
    return made


@pytest.fixture
def site(stated: Site) -> Site:
    """Replicas that are edited at both sides, with a conflict; a sync is due."""
    stated.run("apply")
    stated.call(edit, stated.hq, ("qty=77", "id < 2"), ("delete", "id = 9"))
    stated.call(edit, stated.north, ("item='north'", "id = 1 or id > 18"))
    stated.call(add, stated.north, 100)
    return stated


def check_drawn(site: Site, command: str, drawn: int, end: Callable[[], object]) -> None:
    """Kill a command at drawn requests, run it again, and compare with the outcome without a kill."""
    before = site.objects()
    points = site.points((command,), before)
    end()
    wanted = site.outcome()
    assert wanted["hq"] == wanted["north"]
    seed = os.environ.get("MERGEREPL_TEST_SEED", "0")
    for point, is_stored in random.Random(seed).sample(points, drawn):
        site.put_back(before)
        killed = site.killed_at(point, (command,), is_stored=is_stored)
        site.run(command)
        end()
        assert site.outcome() == wanted, f"killed at {killed}, stored: {is_stored}"


@pytest.mark.slow
def test_a_sync_that_is_killed_at_a_request_is_finished(site: Site) -> None:
    check_drawn(site, "sync", DRAWN, lambda: None)


@pytest.mark.slow
def test_an_apply_that_is_killed_at_a_request_is_finished(stated: Site) -> None:
    def edit_and_sync() -> None:
        stated.call(edit, stated.north, ("item='north'", "id = 1"))
        stated.call(add, stated.hq, 100)
        stated.run("sync")

    check_drawn(stated, "apply", DRAWN // 4, edit_and_sync)
