"""Users write at three replicas while two agents synchronise them; every write is followed to its end (I1, I2, I6, I7).

They write between the sessions, as jobs that hold `mergerepl.lock` do; `test_writers.py` has those that write in the
middle of one. `MERGEREPL_SOAK_SECONDS` says for how long they write.
"""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql import SparkSession

from tests.calls import validated
from tests.faults.soak_writer import KEYS
from tests.faults.tokens import DELETE_LOST, Ledger, Logged, Write
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber
from tests.waiting import waited

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("MERGEREPL_SOAK_SECONDS", "40"))
WRITERS = {"ann": "hub", "bob": "hub", "cleo": "north", "dora": "south"}
SUBSCRIBERS = ("north", "south")
PATIENCE_S = 600.0
log = logging.getLogger(__name__)


def test_the_ledger_notices_what_it_is_for() -> None:
    first, second = Write("k", "t1", "insert"), Write("k", "t2", "update", "t1")
    deleted = Write("k", "t3", "delete", "t2")

    def problems(writes: list[Write], rows: Mapping[str, str | None], logged: Logged) -> tuple[int, int, int]:
        ledger = Ledger(writes, rows, logged)
        return len(ledger.lost()), len(ledger.invented()), len(ledger.twice())

    assert problems([first, second], {"k": "t2"}, []) == (0, 0, 0)
    assert problems([first, second], {}, [("k", 3, "t2")]) == (0, 0, 0)
    assert problems([first, second, deleted], {}, []) == (0, 0, 0)
    assert problems([first, second, deleted], {"k": "t2"}, [("k", DELETE_LOST, None)]) == (0, 0, 0)
    assert problems([first, second], {}, []) == (1, 0, 0)
    assert problems([first, second, deleted], {"k": "t2"}, []) == (1, 0, 0)
    updated = Write("k", "t6", "update", "t2", replica="north")
    assert problems([first, second, deleted, updated], {"k": "t6"}, [("k", DELETE_LOST, None)]) == (0, 0, 0)
    assert problems([first, second, deleted, updated], {"k": "t6"}, []) == (1, 0, 0)
    again = Write("k", "t4", "insert", version=1)
    assert problems([first, second, deleted, again], {"k": "t2"}, [("k", 1, "t4")]) == (0, 0, 0)
    assert problems([first, second, deleted, again], {"k": "t2"}, []) == (1, 0, 0)
    elsewhere = replace(again, replica="north")
    assert problems([first, second, deleted, elsewhere], {"k": "t2"}, [("k", 1, "t4")]) == (1, 0, 0)
    deleted_again = Write("k", "t5", "delete", "t2", version=2)
    assert problems([first, second, again, deleted_again], {"k": "t2"}, [("k", 1, "t4")]) == (1, 0, 0)
    assert problems([first], {"k": "t1", "j": "t9"}, []) == (0, 1, 0)
    assert problems([first], {"j": "t1"}, []) == (1, 1, 0)
    # One conflict speaks for the deletes of one version of the row.
    third = Write("k", "t7", "update", "t2", replica="north", version=3)
    deleted_later = Write("k", "t8", "delete", "t7", version=4)
    both = [first, second, replace(deleted, version=1), third, deleted_later]
    assert problems(both, {"k": "t7"}, [("k", DELETE_LOST, None)]) == (2, 0, 0)
    assert problems(both, {"k": "t7"}, [("k", DELETE_LOST, None)] * 2) == (0, 0, 0)
    # Deletes of two replicas that were merged before lose as one.
    elsewhere = replace(deleted_later, replica="south")
    assert problems([*both[:4], elsewhere], {"k": "t7"}, [("k", DELETE_LOST, None)]) == (0, 0, 0)
    assert problems([first], {"k": "t1"}, [("k", 1, "t1")]) == (0, 0, 1)


class Agent:
    """`mergerepl sync --interval` for one subscriber, in a process of its own."""

    def __init__(self, network: Path, subscriber: str) -> None:
        self._printed = network.with_name(f"agent-{subscriber}.out")
        self._said = network.with_name(f"agent-{subscriber}.err")
        command = [sys.executable, "-m", "mergerepl", "sync", "-f", str(network)]
        command += [subscriber, "--interval", "1s", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "MERGEREPL_MEMORY": "1g"}
        with self._printed.open("w") as out, self._said.open("w") as err:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)

    def __enter__(self) -> Self:
        return self

    def end(self) -> None:
        """End it as a service manager does: it finishes its session first."""
        assert self._process.poll() is None, self._said.read_text()
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_S) == 0, self._said.read_text()

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def _rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._printed.read_text().split("\n")[:-1]]

    def moved(self) -> int:
        """Return how many sessions carried something out."""
        assert not self._process.poll(), self._said.read_text()
        sessions = [session for line in self._rounds() for session in line.get("sessions", ())]
        return sum(session["status"] not in ("nothing_to_do", "failed") for session in sessions)

    def turned_away(self) -> int:
        """Return how often it was refused because a replica was in use."""
        return sum("error" in line for line in self._rounds())


def write_all(folder: Path) -> list[Write]:
    """Let all users write for a while; return what they committed."""
    running = {}
    for name, replica in WRITERS.items():
        table, journal = folder / replica / "t", folder / f"{name}.jsonl"
        running[name] = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.soak_writer", str(table), name, str(SECONDS), str(journal)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        for name, process in running.items():
            assert process.wait(SECONDS + PATIENCE_S) == 0, name
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    lines = [line for name in WRITERS for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return [Write(**json.loads(line)) for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_S + SECONDS)
def test_inv_01_02_06_07_users_and_agents_at_once(
    spark: SparkSession, replica_dir: Path, record_property: Callable[[str, object], None]
) -> None:
    setting = Setting((Subscriber("north", "server", 75.0), Subscriber("south", "client")), "row")
    engine = EngineNetwork(spark, replica_dir, setting, {})
    starts = [Write(key, f"start-{key}", "insert") for key in KEYS[::2]]
    engine.write("hub", {write.key: {"a": write.token, "b": None, "c": None} for write in starts})
    network = replica_dir / "network.yml"
    with ExitStack() as stack:
        agents = [stack.enter_context(Agent(network, name)) for name in SUBSCRIBERS]
        # Each carries the first rows over: then its engine is warm, and the users' time is spent beside sessions.
        waited(
            lambda: all(each.moved() for each in agents),
            seconds=PATIENCE_S,
            every_s=0.2,
            what=lambda: "the agents' first sessions",
        )
        before = [each.moved() for each in agents]
        writes = starts + write_all(replica_dir)
        sessions = [each.moved() - first for each, first in zip(agents, before, strict=True)]
        for each in agents:
            each.end()
    for _ in range(2):
        for name in SUBSCRIBERS:
            engine.sync(name)
    assert [engine.sync(name).status for name in SUBSCRIBERS] == ["nothing_to_do"] * 2
    validation = validated(engine.path("hub"))
    assert len(validation) == 2
    assert all(article.ok for articles in validation.values() for article in articles), validation
    rows, logged = engine.rows("hub"), engine.conflicts()
    assert all(engine.rows(name) == rows for name in SUBSCRIBERS)
    ledger = Ledger(
        writes,
        {key: values[0] for key, values in rows.items()},
        [(key, kind, values and values[0]) for key, kind, _, _, values in logged],
    )
    counts = {
        "writes": len(writes),
        "conflicts": len(logged),
        "sessions while users wrote": sessions,
        "turned away": [each.turned_away() for each in agents],
    }
    record_property("soak", json.dumps(counts))
    log.info("%s", counts)
    assert (ledger.lost(), ledger.invented(), ledger.twice()) == ([], [], [])
    assert sum(sessions) > 0, counts
