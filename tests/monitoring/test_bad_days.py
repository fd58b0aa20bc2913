"""What happens to a publication that lives for years: copies put back, a wrong clock, a lowered retention, two cleanups.

Each is one clear error that changes nothing, or goes on; nothing is lost. No engine.
"""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

from mergerepl import Project
from mergerepl.errors import EnumerationError, MergeReplError, SubscriptionExpiredError
from mergerepl.replica.replica import Replica
from mergerepl.spark import session as engine
from mergerepl.systables import catalog, conflicts_info, genhistory, replinfo
from tests.networks import Hub, edit_by_delta_rs, publish, versions_but_history

pytestmark = pytest.mark.slow

ENDS = ("hq", "north", "south")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def published(worker_folder: Path) -> Hub:
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    hub.table("orders", {"id": list(range(1, 9)), "note": list("abcdefgh")})
    publish(
        hub.folder, "sales", [{"name": "orders", "key": ["id"]}], [{"subscriber": f"./{n}"} for n in ENDS[1:]]
    )
    return hub


@pytest.fixture
def hub(published: Hub, replica_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    monkeypatch.setattr(engine, "session", lambda **_: pytest.fail("few rows need no engine"))
    return published.copied(replica_dir)


def project(hub: Hub) -> Project:
    return Project.load(hub.root("hq"))


def write(hub: Hub, name: str, key: int, note: str) -> None:
    edit_by_delta_rs(hub.root(name) / "orders", f"update t set note = '{note}' where id = {key}")


def rows(hub: Hub) -> dict[int, str]:
    """Return the rows, which are the same everywhere."""
    found = [
        {
            row["id"]: row["note"]
            for row in DeltaTable(str(hub.root(n) / "orders")).to_pyarrow_table().to_pylist()
        }
        for n in ENDS
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


def logged(hub: Hub) -> list[str | None]:
    return sorted(row.rowkey["id"] for row in Replica(hub.root("hq")).control.rows(conflicts_info.TABLE))


def refused(hub: Hub, error: type[MergeReplError], words: str, call: Callable[[], object]) -> None:
    before = versions_but_history(hub.folder)
    with pytest.raises(error, match=words):
        call()
    assert versions_but_history(hub.folder) == before


def put_back(hub: Hub, name: str, since: Callable[[], None]) -> None:
    """Put a replica back to its state before some sessions."""
    former = hub.folder / "former"
    shutil.copytree(hub.root(name), former)
    since()
    shutil.rmtree(hub.root(name))
    shutil.move(former, hub.root(name))


@pytest.mark.parametrize("name", ["hq", "north"])
def test_a_replica_that_was_put_back_is_refused_and_comes_back_with_its_rows(hub: Hub, name: str) -> None:
    write(hub, "north", 1, "before")
    assert project(hub).sync().ok

    def since() -> None:
        write(hub, "hq", 2, "hq")
        write(hub, "north", 3, "north")
        assert project(hub).sync().ok
        assert project(hub).sync().ok

    put_back(hub, name, since)
    write(hub, "north", 7, "unsent")
    write(hub, "hq", 8, "unsent")
    ends = ENDS[1:] if name == "hq" else ("north",)
    for end in ends:
        for dry_run in (False, True):
            refused(
                hub,
                EnumerationError,
                f"do not end with the same session.*mergerepl reinit {end} -f",
                lambda: project(hub).sync(end, dry_run=dry_run),  # noqa: B023
            )
    for end in ends:
        project(hub).reinit(end, upload_first=True)
    assert project(hub).sync().ok
    assert project(hub).sync().ok
    found = rows(hub)
    for key, note in ((1, "before"), (2, "hq"), (3, "north"), (7, "unsent"), (8, "unsent")):
        assert found[key] == note or str(key) in logged(hub)
    if name == "north":
        assert logged(hub) == []


def shift(hub: Hub, by: timedelta, *, last: timedelta) -> None:
    """Let all that happened be as much earlier; the last stored time is so long ago."""
    for name in ENDS:
        replica = Replica(hub.root(name))
        history = replica.control.rows(genhistory.TABLE)
        replica.control.replace(
            genhistory.TABLE, [replace(row, coldate=row.coldate and row.coldate - by) for row in history]
        )
        replica.control.edit(
            catalog.SUBSCRIPTIONS,
            lambda known: [
                replace(r, last_sync_date=r.last_sync_date and r.last_sync_date - by) for r in known
            ],
        )
        then = datetime.now(UTC) - last
        replica.control.replace(replinfo.TABLE, [replace(replica.info(), last_time=then)])


@pytest.mark.parametrize("years", [9, -9])
def test_inv_40_a_clock_that_jumped_by_years_expires_nobody_and_keeps_losers(hub: Hub, years: int) -> None:
    write(hub, "hq", 2, "waits")
    assert project(hub).sync("south").ok
    jump = timedelta(days=365 * years)
    shift(hub, jump, last=jump)
    for number in range(2):
        write(hub, "north", 3, "north")
        for name in ("hq", "south"):
            write(hub, name, 5 + number, name)
        assert project(hub).sync("south").ok
        # Conflicts are purged once a day.
        for name in ENDS:
            (hub.root(name) / "_mergerepl" / "quiet" / "conflicts-purged.json").unlink(missing_ok=True)
        assert project(hub).cleanup().ok
    assert [row.expired_at for row in Replica(hub.root("hq")).relations()] == [None, None]
    assert project(hub).sync().ok
    assert project(hub).sync().ok
    found = rows(hub)
    assert (found[2], found[3], logged(hub)) == ("waits", "north", ["5", "6"])


def test_a_retention_lowered_to_an_hour_refuses_who_was_away_and_loses_nothing(hub: Hub) -> None:
    write(hub, "hq", 2, "hq")
    write(hub, "north", 3, "north")
    assert project(hub).sync("south").ok
    shift(hub, timedelta(days=2), last=timedelta(minutes=30))
    assert project(hub).sync("south").ok
    file = hub.folder / "sales.yml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "retention": "1 hour"}))
    Project.load(file).apply()
    assert project(hub).cleanup().ok
    refused(hub, SubscriptionExpiredError, "mergerepl reinit north -f", lambda: project(hub).sync("north"))
    assert project(hub).sync("south").ok
    project(hub).reinit("north", upload_first=True)
    assert project(hub).sync().ok
    found = rows(hub)
    assert (found[2], found[3], logged(hub)) == ("hq", "north", [])


def test_two_cleanups_and_a_sync_at_once_wait_or_say_so(hub: Hub) -> None:
    for number in range(4):
        write(hub, "hq", 2, f"h{number}")
        write(hub, "north", 3, f"n{number}")
        assert project(hub).sync().ok
    words = ["cleanup", "--older-than", "0s", "--yes"]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "mergerepl", *each, "-f", str(hub.root("hq"))],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each in (words, words, ["sync"])
    ]
    ended = [(each.communicate()[1], each.returncode) for each in running]
    assert {code for _, code in ended} <= {0, 3}
    assert all(code == 0 or "is in use: mergerepl " in said for said, code in ended)
    write(hub, "south", 4, "south")
    for _ in range(2):
        assert project(hub).sync().ok
    assert (rows(hub)[4], logged(hub)) == ("south", [])
