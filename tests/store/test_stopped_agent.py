"""An agent that is stopped in mid-session and goes on after another one has taken over: two real processes."""

import os
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.delta.fences import FENCE_APP_ID
from mergerepl.store.lease import LOCK_FILE
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.register import state_of
from mergerepl.store.storage import files_in, storage
from tests.store.processes import Agent
from tests.store.proxy import Fault, Proxy, Request

LEASE_S = "2"
ROWS = pa.table({"id": pa.array(range(20), pa.int64()), "qty": pa.array([0] * 20, pa.int32())})


def opened(table: Location) -> DeltaTable:
    return DeltaTable(str(table), storage_options=storage_options(table))


def rows(root: Location) -> list[tuple[int, int]]:
    return sorted(tuple(row.values()) for row in opened(root / "orders").to_pyarrow_table().to_pylist())


def heads(*roots: Location) -> dict[str, int]:
    """Return the version of each table of some roots."""
    tables = [table for root in roots for table in (root / "orders", *files_in(root / "_mergerepl"))]
    logs = {str(table): storage(table).list_from(table / "_delta_log") for table in tables}
    return {table: sum(name.endswith(".json") for name in names) for table, names in logs.items() if names}


@pytest.fixture
def sites(tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Location, Location]:
    """A publisher and a subscriber in a bucket, with five edits to send."""
    monkeypatch.setenv("MERGEREPL_LEASE_S", LEASE_S)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    )
    hq, north = (Location.of(f"s3://{bucket}/{name}") for name in ("hq", "north"))
    write_deltalake(str(hq / "orders"), ROWS, storage_options=storage_options(hq))
    (tmp_path / "mergerepl.yml").write_text(
        f"publication: sales\npublisher: {hq}\narticles:\n  - {{name: orders, key: [id]}}\n"
        f"subscriptions:\n  - {{subscriber: {north}, name: north}}\n"
    )
    Agent(tmp_path, "apply").end(0)
    opened(hq / "orders").update(updates={"qty": "7"}, predicate="id < 5")
    return hq, north


# What it sends when it is stopped. Rows of its MERGE: the table is open by then, and the commit has not been sent. The
# manifest: the subscriber points to the session, and the publisher's register does not name it yet.
POINTS = [("/north/orders/part-", True), ("/manifest.json", False)]


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "is_staged"), POINTS)
def test_an_agent_that_was_stopped_commits_nothing_after_it_was_displaced(
    sites: tuple[Location, Location], proxy: Proxy, tmp_path: Path, sent: str, is_staged: bool
) -> None:
    hq, north = sites
    first = Agent(tmp_path, "sync")

    def is_point(request: Request) -> bool:
        return request.method == "PUT" and sent in request.key

    with proxy.breaking(Fault(before=first.stop), is_point) as broken:
        while not broken and first.process.poll() is None:
            time.sleep(0.05)
    assert broken, first.end(0)
    (session,) = state_of(north).pointers
    assert list(state_of(hq).sessions) == ([session] if is_staged else [])
    assert "is held: mergerepl sync" in Agent(tmp_path, "status").end(0, printed=True)
    error = Agent(tmp_path, "sync").end(0)
    assert "Watching for up to 2 s whether it is alive" in error
    assert rows(hq) == rows(north) == [(n, 7 if n < 5 else 0) for n in range(20)]
    assert (state_of(hq).sessions, state_of(north).pointers) == ({}, {})
    before = heads(hq, north)
    assert opened(north / "orders").transaction_version(FENCE_APP_ID) == state_of(north).fence
    os.kill(first.process.pid, signal.SIGCONT)
    assert "was taken over by another agent" in first.end(3)
    assert heads(hq, north) == before
    assert storage(hq).list_from(hq.join("_mergerepl", "staging")) == []
    for root in (hq, north):
        assert (state_of(root).holder, state_of(root).in_flight) == (None, False)
    assert storage(hq).exists(hq / LOCK_FILE)
    opened(north / "orders").update(updates={"qty": "8"}, predicate="id = 9")
    Agent(tmp_path, "sync").end(0)
    assert rows(hq) == rows(north)
    assert rows(hq)[9] == (9, 8)
