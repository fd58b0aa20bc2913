"""`apply`, `sync` and what looks at replicas, with replicas in a bucket and in folders, by default without Java.

Commands and edits run in another process: delta-rs holds Python's lock in some calls, and this process has the server.
"""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mergerepl.store.location import Location
from mergerepl.store.storage import files_below, storage
from tests.store.order_tables import add, agent_rounds, command, edit, rows_of, write_orders
from tests.store.proxy import SECRETS, STRIPPED, Proxy


@dataclass(frozen=True)
class Sites:
    """A publisher and a subscriber, each in a bucket or in a folder, and the process that works on them."""

    folder: Path
    hq: Location
    north: Location
    call: Callable[..., Any]

    def set_up(self) -> None:
        self.call(write_orders, self.hq)
        (self.folder / "mergerepl.yml").write_text(
            f"publication: sales\npublisher: {self.hq}\narticles:\n  - {{name: orders, key: [id]}}\n"
            f"subscriptions:\n  - {{subscriber: {self.north}, name: north}}\n"
        )

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command; return what it prints."""
        exit_code, shown, error = self.call(command, self.folder, *words)
        assert exit_code == code, error
        return str(shown)

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", code=code))

    def rows(self, root: Location) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.call(rows_of, root)
        return found


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    """Another process; it has the environment of the first test."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def sites(tmp_path: Path, bucket: str, pool: ProcessPoolExecutor) -> Callable[[str, str], Sites]:
    """Make the two replicas."""

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        return pool.submit(function, *arguments).result()

    def make(hq: str, north: str) -> Sites:
        places = {"store": Location.of(f"s3://{bucket}"), "folder": Location.of(tmp_path)}
        made = Sites(tmp_path, places[hq] / "hq", places[north] / "north", call)
        made.set_up()
        return made

    return make


README = Path(__file__).parents[2] / "README.md"


def secrets_in(*roots: Location) -> list[str]:
    """Return the files below some roots that hold a secret."""
    files = [file for root in roots for file in files_below(root)]
    assert len(files) > 20
    found = []
    for file in files:
        stored = storage(file).read(file)
        assert stored is not None
        found += [str(file) for secret in SECRETS if secret.encode() in stored[0]]
    return found


def test_a_publisher_in_a_bucket_and_a_subscriber_in_a_folder_are_synchronized(
    sites: Callable[[str, str], Sites], proxy: Proxy
) -> None:
    both = sites("store", "folder")
    (both.folder / "mergerepl.yml").unlink()
    block = README.read_text(encoding="utf-8").partition("## Replicas in a bucket")[2].split("```")[1]
    lines = [
        line for line in block.replace("lake", both.hq.bucket).splitlines() if line.startswith("mergerepl ")
    ]
    assert [line.split()[1] for line in lines] == ["init", "apply", "sync"]
    shown = [both.run(*line.split()[1:], "--verbose") for line in lines]
    assert both.rows(both.hq) == both.rows(both.north)
    proxy.reset()
    assert both.json("sync")["sessions"][0]["status"] == "nothing_to_do"
    # A note, the register, the last commit of the table and whether it has a successor.
    assert proxy.counts() == {"GET": 2, "HEAD": 2}
    _change_both(both)
    proxy.reset()
    (done,) = both.json("sync")["sessions"]
    assert len(proxy.requests) <= MOST_REQUESTS, len(proxy.requests)
    _check_both(both, done)
    shown += [both.run(*words, "--verbose") for words in (("status",), ("conflicts", "list"))]
    assert [text for text in shown for secret in SECRETS if secret in text] == []
    assert secrets_in(both.hq, both.north) == []
    (begun, *rounds) = both.call(agent_rounds, both.folder, 2)
    assert (begun, rounds) == (
        "agent: its jobs run",
        [f"sync: hq with {both.north}: up 0, down +1, conflicts 0"],
    )
    assert both.rows(both.hq) == both.rows(both.north)
    (agent,) = both.json("agent", "status")["agents"]
    assert (agent["pid"], [each["job_type"] for each in agent["jobs"]]) == (None, ["sync"])


LOOKS = (
    "status",
    "pending",
    "history",
    "conflicts show --table orders",
    "row orders --key id=4",
    "apply --dry-run",
    "sync --dry-run",
    "tune --dry-run",
    "cleanup",
    "validate",
)
"""Commands that need no engine, either."""

ENDS = [("folder", "store", "auto"), ("store", "store", "auto"), ("store", "store", "spark")]


@pytest.mark.slow
@pytest.mark.parametrize(("hq", "north", "engine"), ENDS)
def test_replicas_in_buckets_and_folders_are_synchronized(
    sites: Callable[[str, str], Sites], hq: str, north: str, engine: str
) -> None:
    both = sites(hq, north)
    both.run("apply")
    _change_both(both)
    (done,) = both.json("sync", "--engine", engine)["sessions"]
    _check_both(both, done)
    (done,) = both.json("sync")["sessions"]
    assert done["status"] == "nothing_to_do", done
    for line in LOOKS:
        assert both.run(*line.split()), line


@pytest.mark.slow
def test_a_column_that_is_added_in_a_bucket_travels(sites: Callable[[str, str], Sites]) -> None:
    both = sites("store", "store")
    both.run("apply")
    words = ("schema", "alter", "orders", "--ddl", "ADD COLUMN note STRING")
    (answer,) = both.json(*words, "--dry-run")["answers"]
    assert answer["answer"] == "follows"
    assert {len(row) for row in both.rows(both.hq)} == {3}
    both.run(*words)
    both.call(edit, both.hq, ("note='new'", "id = 1"))
    both.run("sync")
    assert both.rows(both.hq) == both.rows(both.north)
    assert both.rows(both.north)[1][3] == "new"


POINTS = ("stage.before_manifest", "stage.after_manifest", "publisher.after_merge", "session.before_drop")


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_session_in_a_bucket_that_was_cut_short_is_finished(
    sites: Callable[[str, str], Sites], point: str
) -> None:
    both = sites("store", "store")
    both.run("apply")
    _change_both(both)
    assert both.call(cut_short, both.folder, point) != 0
    both.run("sync")
    _check_both(both)
    (done,) = both.json("sync")["sessions"]
    assert done["status"] == "nothing_to_do", done


def cut_short(folder: Path, point: str) -> int:
    """Run a sync that ends at a failpoint."""
    os.environ["MERGEREPL_FAILPOINT"] = f"{point}=raise"
    try:
        return command(folder, "sync")[0]
    finally:
        del os.environ["MERGEREPL_FAILPOINT"]


MOST_REQUESTS = 112
"""Of a sync of five updates, two deletes and inserts, and a conflict, in a process that has run `apply`. Only lower it."""


MOST_IN_A_NEW_PROCESS = 120
MOST_OF_TWO_BUCKETS = 80
"""Of a sync of five edits at the publisher, both replicas in buckets, in the process of the last sync and after the sync
of another new process. Only lower them.
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_a_sync_of_two_buckets_stays_within_its_budget_of_requests(
    sites: Callable[[str, str], Sites], proxy: Proxy, processes: int
) -> None:
    both = sites("store", "store")
    both.run("apply")
    for value in (50, 60):
        both.call(edit, both.hq, (f"qty={value}", "id < 5"))
        proxy.reset()
        both.run("sync")
    assert len(proxy.requests) <= MOST_OF_TWO_BUCKETS, len(proxy.requests)
    for _ in range(processes):
        both.call(edit, both.hq, ("qty=qty+1", "id < 5"))
        proxy.reset()
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as new:
            assert new.submit(command, both.folder, "sync").result()[0] == 0
    assert len(proxy.requests) <= MOST_IN_A_NEW_PROCESS, len(proxy.requests)
    assert both.rows(both.hq) == both.rows(both.north)
    both.call(edit, both.north, ("item='lost'", "id = 7"))
    (done,) = both.json("reinit", "north", "--discard-local", "--yes")["articles"]
    assert (done["updates"], done["kept"]) == (1, 1)
    assert both.rows(both.hq) == both.rows(both.north)


def _change_both(both: Sites) -> None:
    both.call(edit, both.hq, ("qty=77", "id < 5"), ("delete", "id = 9"))
    both.call(edit, both.north, ("item='north'", "id = 4 or id > 17"))
    both.call(add, both.north, 100)


def _check_both(both: Sites, done: Any = None) -> None:
    assert done is None or done["status"] == "succeeded", done
    rows = both.rows(both.hq)
    assert rows == both.rows(both.north)
    assert len(rows) == 20
    changed = [row[1:] for row in rows if row[0] in (3, 4, 18, 100)]
    assert changed == [("i3", 77), ("i4", 77), ("north", 3), ("i0", 0)]


def test_apply_refuses_a_store_that_ignores_conditions(
    sites: Callable[[str, str], Sites], proxy: Proxy
) -> None:
    both = sites("store", "folder")
    before = list(storage(both.hq).files_below(both.hq))
    with proxy.breaking(STRIPPED, lambda request: request.condition != "", times=999):
        exit_code, _, error = both.call(command, both.folder, "apply")
    assert exit_code == 1
    assert "ignores If-None-Match (tried through obstore): commits of two writers would overwrite" in error
    assert list(storage(both.hq).files_below(both.hq)) == before
    assert not (both.folder / "north").exists()
