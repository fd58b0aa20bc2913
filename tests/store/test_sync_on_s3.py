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
from unittest.mock import patch

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.storage import storage
from tests.store.proxy import STRIPPED, Proxy

ORDERS = pa.table(
    {
        "id": pa.array(range(20), pa.int64()),
        "item": [f"i{n}" for n in range(20)],
        "qty": pa.array([n % 5 for n in range(20)], pa.int32()),
    }
)


def orders(root: Location) -> DeltaTable:
    return DeltaTable(str(root / "orders"), storage_options=storage_options(root))


def rows_of(root: Location) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in orders(root).to_pyarrow_table().to_pylist())


def write_orders(root: Location) -> None:
    write_deltalake(str(root / "orders"), ORDERS, storage_options=storage_options(root))


def edit(root: Location, *steps: tuple[str, str]) -> None:
    """Make a user's changes: (values or "delete", condition)."""
    for change, where in steps:
        if change == "delete":
            orders(root).delete(where)
        else:
            name, _, value = change.partition("=")
            orders(root).update(updates={name: value}, predicate=where)


def add(root: Location, number: int) -> None:
    row = ORDERS.slice(0, 1).set_column(0, "id", pa.array([number], pa.int64()))
    write_deltalake(orders(root), row, mode="append")


def command(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it prints."""
    from mergerepl.cli.main import main
    from mergerepl.spark import session as engine

    def refuse(**_: Any) -> None:
        raise AssertionError("small tables need no engine")

    os.chdir(folder)
    with patch.object(engine, "session", engine.session if "spark" in words else refuse):
        done = CliRunner().invoke(main, [*words])
    return done.exit_code, done.stdout, done.stderr


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


ENDS = [
    ("store", "folder", "auto"),
    pytest.param("folder", "store", "auto", marks=pytest.mark.slow),
    pytest.param("store", "store", "auto", marks=pytest.mark.slow),
    pytest.param("store", "store", "spark", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("hq", "north", "engine"), ENDS)
def test_replicas_in_buckets_and_folders_are_synchronized(
    sites: Callable[[str, str], Sites], hq: str, north: str, engine: str
) -> None:
    both = sites(hq, north)
    both.run("apply")
    assert both.rows(both.hq) == both.rows(both.north)
    both.call(edit, both.hq, ("qty=77", "id < 5"), ("delete", "id = 9"))
    both.call(edit, both.north, ("item='north'", "id = 4 or id > 17"))
    both.call(add, both.north, 100)
    (done,) = both.json("sync", "--engine", engine)["sessions"]
    assert done["status"] == "succeeded", done
    rows = both.rows(both.hq)
    assert rows == both.rows(both.north)
    assert len(rows) == 20
    assert [row[1:] for row in rows if row[0] in (3, 4, 18, 100)] == [
        ("i3", 77),
        ("i4", 77),
        ("north", 3),
        ("i0", 0),
    ]
    (done,) = both.json("sync")["sessions"]
    assert done["status"] == "nothing_to_do", done


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
