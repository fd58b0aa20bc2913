"""A dry run changes no file, refuses what the run refuses, and ends with its code. No Spark."""

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from mergerepl.cli.main import main
from mergerepl.store import rehearsal
from mergerepl.store.location import Location
from mergerepl.store.storage import file_system_now_ns
from mergerepl.tracking import counters
from mergerepl.tracking.database import Database, create_tables
from tests.networks import Network


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".sock")
    }


def run(folder: Path, *words: str) -> Result:
    before = Path.cwd()
    os.chdir(folder)
    try:
        return CliRunner().invoke(main, [*words, "--quiet"])
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    "words",
    [
        ("capture", "-f", "hq"),
        ("capture", "-f", "nowhere"),
        ("conflicts", "retry", "-f", "hq"),
        ("conflicts", "retry", "-f", "hq", "--table", "nothing"),
        ("conflicts", "drop", "-f", "hq", "--older-than", "0s", "--yes"),
        ("partitions", "add", "-f", "hq", "--host-name", "East"),
        ("partitions", "drop", "7", "-f", "hq", "--yes"),
        ("abort", "4f0c", "-f", "hq", "--yes"),
        ("cleanup", "-f", "hq"),
        # Both take Spark; tests/golden has the dry run.
        pytest.param(("reinit", "north", "-f", "hq", "--yes"), marks=pytest.mark.slow),
        ("resume", "orders", "-f", "hq"),
        ("repair", "-f", "hq", "--publication", "other", "--yes"),
        ("touch", "nothing", "-f", "hq", "--all"),
        ("cdc", "disable", "--all", "-f", "hq", "--yes"),
        ("cdc", "disable", "orders", "--name", "nobody", "-f", "hq", "--yes"),
        ("cdc", "relocate", "-f", "hq"),
        ("cdc", "enable", "orders", "orders", "-f", "hq"),
        ("cdc", "enable", "orders", "nothing", "-f", "hq"),
        ("cdc", "jobs", "add", "capture", "-f", "hq"),
        ("tracking", "enable", "nothing", "-f", "hq", "--key", "id"),
        ("tracking", "forget", "c", "-f", "hq", "--yes"),
        ("tracking", "adopt", "-f", "hq"),
        ("apply", "-f", "sales.yml"),
        ("tune", "-f", "hq"),
        ("init", "hq"),
        ("init", "nowhere"),
    ],
    ids=" ".join,
)
def test_a_dry_run_changes_nothing_and_ends_as_the_run(tmp_path: Path, words: tuple[str, ...]) -> None:
    Network(tmp_path)
    before = files_below(tmp_path)
    rehearsed = run(tmp_path, *words, "--dry-run")
    assert files_below(tmp_path) == before
    done = run(tmp_path, *words)
    assert rehearsed.exit_code == done.exit_code, (rehearsed.output, done.output)
    if done.exit_code == 2:
        assert rehearsed.stderr == done.stderr
        assert files_below(tmp_path) == before


def test_a_rehearsal_ends_at_the_first_write(tmp_path: Path) -> None:
    done = []

    def work() -> int:
        done.append("read")
        rehearsal.before_write()
        done.append("written")
        return 7

    assert rehearsal.rehearsed(True, work) is rehearsal.REHEARSED
    assert done == ["read"]
    assert rehearsal.rehearsed(False, work) == 7
    assert rehearsal.rehearsed(True, lambda: 5) == 5
    assert not rehearsal.is_rehearsal()


def test_a_rehearsal_registers_no_consumer(tmp_path: Path) -> None:
    counters.create_database(Location.of(tmp_path))
    create_tables(Database(Location.of(tmp_path)), retention=timedelta(days=14))
    anchors = {"lbsn": 0, "lcsn": 0, "ebsn": 1, "ecsn": 1}
    window = {"consumer": "c", "anchors": anchors, "nonce": None, "initial": [], "enumeration": "exact"}
    (tmp_path / "window.json").write_text(json.dumps(window))
    before = files_below(tmp_path)
    shown = run(tmp_path, "tracking", "acknowledge", "c", "-f", ".", "--window", "window.json", "--dry-run")
    assert (shown.exit_code, files_below(tmp_path)) == (0, before), shown.output


def test_a_rehearsal_does_not_touch_the_clock_of_a_folder(tmp_path: Path) -> None:
    assert rehearsal.rehearsed(True, lambda: file_system_now_ns(Location.of(tmp_path))) > 0
    assert not list(tmp_path.iterdir())


def test_a_rehearsal_stops_its_own_threads_and_no_others() -> None:
    """An agent rehearses a command that was handed over while its jobs write."""
    has_begun, may_end, written = threading.Event(), threading.Event(), []

    def write(name: str) -> None:
        rehearsal.before_write()
        written.append(name)

    def rehearse() -> None:
        has_begun.set()
        assert may_end.wait(10)
        with rehearsal.worker_threads(2) as pool:
            list(pool.map(write, ["worker"]))

    with ThreadPoolExecutor(1) as agent:
        done = agent.submit(rehearsal.rehearsed, True, rehearse)
        assert has_begun.wait(10)
        write("job")
        # One that begins and ends beside it changes nothing for it.
        assert rehearsal.rehearsed(True, lambda: write("another")) is rehearsal.REHEARSED
        write("job")
        may_end.set()
        assert done.result() is rehearsal.REHEARSED
        agent.submit(write, "next command").result()
    assert written == ["job", "job", "next command"]


def test_no_thread_pool_of_the_product_forgets_a_rehearsal() -> None:
    package = Path(rehearsal.__file__).parents[1]
    pools = {
        str(file.relative_to(package))
        for file in package.rglob("*.py")
        if re.search(r"[( ]ThreadPoolExecutor[()]", file.read_text(encoding="utf-8"))
    }
    # JARs go to the cache of this machine, also in a rehearsal.
    assert pools == {"agents/loop.py", "store/rehearsal.py", "spark/jars.py"}


@pytest.mark.parametrize(
    "words",
    [
        ("abort", "4f"),
        ("partitions", "drop", "3"),
        # It compares the replicas before it asks.
        pytest.param(("reinit", "--all"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_rows_that_go_need_a_yes(tmp_path: Path, words: tuple[str, ...]) -> None:
    network = Network(tmp_path)
    head = DeltaTable(str(network.root("hq") / "orders")).version()
    shown = run(tmp_path, *words, "-f", "hq")
    assert shown.exit_code == 2
    assert "Say --yes to go on" in shown.stderr
    assert "/hq" in shown.stderr
    assert DeltaTable(str(network.root("hq") / "orders")).version() == head


def test_a_rehearsal_of_a_recovery_says_that_nothing_is_left(tmp_path: Path) -> None:
    counters.create_database(Location.of(tmp_path))
    create_tables(Database(Location.of(tmp_path)), retention=timedelta(days=14))
    shown = run(tmp_path, "tracking", "recover", "-f", ".", "--dry-run")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("Nothing is left to finish.\n")
