"""Agents of a publisher in a bucket, as real processes: one at a time, found out when it is stopped or killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mergerepl.store.lease import AGENT_LOCK
from mergerepl.store.location import Location
from mergerepl.store.register_state import read_register
from mergerepl.store.storage import storage
from tests.store.order_tables import add, edit, rows_of, write_orders
from tests.store.proxy import Proxy
from tests.waiting import waited

_PATIENCE_S = 120.0


class Processes:
    """Commands of a project, each a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: list[subprocess.Popen[str]] = []

    def begin(self, *words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "mergerepl", *words]
        pipe = subprocess.PIPE
        self.begun.append(subprocess.Popen(command, cwd=self.folder, stdout=pipe, stderr=pipe, text=True))
        return self.begun[-1]

    def end(self, process: "subprocess.Popen[str]", code: int = 0) -> tuple[str, str]:
        shown, error = process.communicate(timeout=_PATIENCE_S)
        assert process.returncode == code, f"{shown}\n{error}"
        return shown, error

    def run(self, *words: str, code: int = 0) -> tuple[str, str]:
        return self.end(self.begin(*words), code)

    def agent(self) -> dict[str, Any]:
        (found,) = json.loads(self.run("agent", "status", "--json")[0])["agents"]
        return dict(found)

    def kill(self) -> None:
        for each in self.begun:
            if each.poll() is None:
                each.kill()
                each.wait()


@pytest.fixture
def processes(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "2")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    started = Processes(tmp_path)
    yield started
    started.kill()


@pytest.mark.slow
def test_an_agent_captures_a_table_of_a_bucket_that_is_captured_later(
    processes: Processes, bucket: str, tmp_path: Path
) -> None:
    hq = Location.of(f"s3://{bucket}/hq")
    write_orders(hq)
    (tmp_path / "mergerepl.yml").write_text(
        f"publication: sales\npublisher: {hq}\narticles: [{{name: orders, key: [id]}}]\n"
        "subscriptions: [{subscriber: ./north}]\n"
    )
    processes.run("apply")
    agent = processes.begin("agent", "run", "--interval", "1h")
    waited(lambda: processes.agent()["pid"] == agent.pid, every_s=0.5)
    processes.run("cdc", "enable", "orders")
    edit(hq, ("qty=77", "id < 5"))

    def captured() -> int:
        runs = json.loads(processes.run("history", "--json")[0])["runs"]
        return sum(run["changes"] for run in runs if run["type"] == "cdc")

    waited(captured, every_s=2)
    processes.run("agent", "stop")
    processes.end(agent)


@pytest.mark.slow
def test_agents_of_one_bucket_work_one_at_a_time_and_take_over(
    processes: Processes, bucket: str, tmp_path: Path
) -> None:
    hq, north = (Location.of(f"s3://{bucket}/{name}") for name in ("hq", "north"))
    write_orders(hq)
    (tmp_path / "mergerepl.yml").write_text(
        f"publication: sales\npublisher: {hq}\n"
        'articles:\n  - {name: orders, key: [id], filter: "id < 300"}\n'
        f"subscriptions:\n  - {{subscriber: {north}, name: north}}\n"
    )

    def is_held() -> bool:
        found = read_register(storage(hq), hq / AGENT_LOCK)
        return found is not None and found.holder is not None

    def is_equal() -> bool:
        return rows_of(north) == [row for row in rows_of(hq) if row[0] < 300]

    processes.run("apply")
    first = processes.begin("agent", "run", "--interval", "1s")
    waited(is_held, every_s=0.5, what=lambda: processes.end(first))
    edit(hq, ("qty=77", "id < 5"))
    add(north, 100)
    add(hq, 301)
    waited(is_equal, every_s=0.5)
    assert (processes.agent()["pid"], processes.agent()["jobs"][0]["job_type"]) == (first.pid, "sync")
    # A command has the replicas between two rounds; a second agent does not get the first one's lock.
    assert "is in use: agent by process" in processes.run("agent", "run", code=3)[1]
    processes.run("validate")

    os.kill(first.pid, signal.SIGSTOP)
    second = processes.begin("agent", "run", "--interval", "1s")
    waited(lambda: processes.agent()["pid"] == second.pid, every_s=0.5)
    os.kill(first.pid, signal.SIGCONT)
    assert "was taken over by another agent" in processes.end(first, code=3)[1]
    edit(north, ("item='north'", "id = 100"))
    waited(is_equal, every_s=0.5)

    second.kill()
    processes.end(second, -signal.SIGKILL)
    assert processes.agent()["pid"] is None
    # All publishers are in buckets: it logs to the working folder.
    processes.run("agent", "run", "--interval", "1s", "--detach")
    assert processes.agent()["pid"] is not None
    assert (tmp_path / ".mergerepl.agent.log").exists()
    edit(hq, ("delete", "id = 100"))
    waited(is_equal, every_s=0.5)
    processes.run("agent", "stop")
    assert (processes.agent()["pid"], is_held()) == (None, False)
