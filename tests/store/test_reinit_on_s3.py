"""`reinit` where replicas are in buckets: the outcome of folders, and a run that is killed at any request is finished."""

import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mergerepl.cli.main import main
from mergerepl.delta.commits import read_commit
from mergerepl.delta.marks import FENCE
from mergerepl.replica.replica import Replica
from mergerepl.store.lease import lease
from mergerepl.store.location import Location
from mergerepl.store.storage import storage
from mergerepl.systables import catalog
from tests.store.killed import LEASE_S, Site
from tests.store.order_tables import add, command, edit, write_orders
from tests.store.proxy import Proxy

pytestmark = pytest.mark.slow

DRAWN = 3
"""Points of one run of each kind; each takes some ten seconds of a quiet machine."""


def expire(root: Location, name: str) -> None:
    """Let a subscription be expired, as `cleanup` does."""
    publisher = Replica(root)
    with lease(root, purpose="expiring"):
        (about,) = (row for row in publisher.relations() if row.subscriber_server.endswith(name))
        change = {"expired_at": datetime.now(UTC)}
        publisher.control.change_where(catalog.SUBSCRIPTIONS, change, subid=about.subid)


@pytest.fixture
def make(tmp_path: Path, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make two replicas: 1 differs at both, 3 changed, 4 is gone and 100 new at north; 9 is gone at hq. North expired."""
    monkeypatch.setenv("MERGEREPL_LEASE_S", LEASE_S)
    places = {"store": Location.of(f"s3://{bucket}"), "folder": Location.of(tmp_path)}

    def made(hq: str, north: str, resolver: str = "") -> Site:
        site = Site(tmp_path, places[hq] / "hq", places[north] / "north", proxy)
        site.call(write_orders, site.hq)
        stated = f", resolver: {{name: {resolver}}}" if resolver else ""
        (tmp_path / "mergerepl.yml").write_text(
            f"publication: sales\npublisher: {site.hq}\narticles:\n  - {{name: orders, key: [id]{stated}}}\n"
            f"subscriptions:\n  - {{subscriber: {site.north}, name: north}}\n"
        )
        site.run("apply")
        site.call(edit, site.hq, ("item='hq'", "id = 1"), ("delete", "id = 9"))
        site.call(edit, site.north, ("item='north'", "id = 1 or id = 3"), ("delete", "id = 4"))
        site.call(add, site.north, 100)
        if not resolver:
            site.call(expire, site.hq, "north")
        return site

    return made


def check(site: Site, *, is_kept: bool) -> None:
    found = site.outcome()
    assert found["hq"] == found["north"]
    items = {row[0]: row[1] for row in found["hq"]}
    assert (items[1], 9 in items) == ("hq", False)
    assert (items[3], 4 in items, 100 in items) == (
        ("north", False, True) if is_kept else ("i3", True, False)
    )
    assert [each[1] for each in found["conflicts"]] == (["{'id': '1'}"] if is_kept else [])
    (done,) = json.loads(site.run("sync", "--json"))["sessions"]
    assert done["status"] == "nothing_to_do", done


UPLOAD = ("reinit", "north", "--upload-first", "--yes")
DISCARD = ("reinit", "north", "--discard-local", "--yes")
ENDS = [
    ("store", "store", UPLOAD),
    ("store", "folder", DISCARD),
    ("folder", "store", UPLOAD),
    ("store", "store", DISCARD),
]


@pytest.mark.parametrize(("hq", "north", "words"), ENDS)
def test_a_subscriber_is_filled_again(make: Any, hq: str, north: str, words: tuple[str, ...]) -> None:
    site = make(hq, north)
    site.run(*words)
    check(site, is_kept=words == UPLOAD)


@pytest.mark.parametrize("words", [UPLOAD, DISCARD])
def test_one_that_is_killed_at_a_request_is_finished(make: Any, words: tuple[str, ...]) -> None:
    site = make("store", "store")
    before = site.objects()
    points = site.points(words, before)
    check(site, is_kept=words == UPLOAD)
    wanted = site.outcome()
    drawn = random.Random(os.environ.get("MERGEREPL_TEST_SEED", "0")).sample(points, DRAWN)
    for point, is_stored in drawn:
        site.put_back(before)
        killed = site.killed_at(point, words, is_stored=is_stored)
        exit_code, _, error = site.call(command, site.folder, "sync")
        if exit_code:
            # Nothing was staged: the subscription is expired still.
            assert exit_code == 1, error
            site.run(*words)
        assert site.outcome() == wanted, f"killed at {killed}, stored: {is_stored}"


def test_a_table_that_is_gone_is_made_again(make: Any) -> None:
    site = make("store", "store")
    for key in site.objects():
        if key.startswith("north/orders/"):
            storage(site.north).delete(Location.of(f"s3://{site.north.bucket}/{key}"))
    site.run(*DISCARD)
    # Version 1 is its fence, before any other commit.
    mark = site.call(mark_of, site.north / "orders", 1)
    assert mark == FENCE
    check(site, is_kept=False)


def mark_of(table: Location, version: int) -> str | None:
    mark = read_commit(table, version).mark
    return mark.kind if mark is not None else None


def with_engine(folder: Path, *words: str) -> tuple[int, str, str]:
    os.chdir(folder)
    done = CliRunner().invoke(main, [*words])
    return done.exit_code, done.stdout, done.stderr


def test_an_article_that_was_upload_only_is_compared_by_apply(make: Any) -> None:
    site = make("store", "store", resolver="upload_only")
    file = site.folder / "mergerepl.yml"
    file.write_text(file.read_text().replace("upload_only", "priority"))
    exit_code, _, error = site.call(with_engine, site.folder, "apply")
    assert exit_code == 0, error
    found = site.outcome()
    assert found["hq"] == found["north"]
    assert {3: "north", 100: "i0"}.items() <= {row[0]: row[1] for row in found["hq"]}.items()
    (done,) = json.loads(site.run("sync", "--json"))["sessions"]
    assert done["status"] == "nothing_to_do", done
