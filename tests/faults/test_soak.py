"""Users write at three replicas while two agents synchronise them; every write is followed to its end (I1, I2, I6, I7).

They write between the sessions, as jobs that hold `mergerepl.lock` do; `test_late_commits.py` has those that write in the
middle of one. `MERGEREPL_SOAK_SECONDS` says for how long they write.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql import SparkSession

import mergerepl
from tests.faults.soak_writer import KEYS
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.reference import Subscriber

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("MERGEREPL_SOAK_SECONDS", "40"))
WRITERS = {"ann": "hub", "bob": "hub", "cleo": "north", "dora": "south"}
SUBSCRIBERS = ("north", "south")
PATIENCE_S = 600.0
DELETE_LOST = 4
"""The type of a conflict in which a delete lost: it has no losing row."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Write:
    """One journalled write; `over` is the token of the row that its user found and replaced, `version` its commit's."""

    key: str
    token: str
    kind: str
    over: str | None = None
    replica: str = "hub"
    version: int = 0


Logged = list[tuple[str, int, str | None]]
"""Key, conflict type and the losing row's token, of every logged conflict."""


class Ledger:
    """What became of every write."""

    def __init__(self, writes: Iterable[Write], rows: Mapping[str, str | None], logged: Logged) -> None:
        self.writes, self.rows, self.logged = list(writes), rows, logged
        self.updates = {(w.key, w.token): w.over for w in self.writes if w.kind == "update"}

    def lost(self) -> list[Write]:
        """Return writes that are not in a row, nor replaced by a user who saw them, nor logged."""
        kept = {*self.rows.items(), *((key, token) for key, _, token in self.logged)}
        replaced = {(write.key, write.over) for write in self.writes}
        undone = {key for key, kind, _ in self.logged if kind == DELETE_LOST}
        inserted = {
            (w.replica, w.key): w.version
            for w in sorted(self.writes, key=lambda write: write.version)
            if w.kind == "insert"
        }

        def is_lost(write: Write) -> bool:
            if write.kind == "delete":
                # It leaves no token: neither the row nor an update of it may be there silently.
                # Where the key was inserted anew, that insert has its own fate: it may lose to the row that was deleted.
                is_replaced = inserted.get((write.replica, write.key), -1) > write.version
                return not is_replaced and write.over in self._past(write.key) and write.key not in undone
            return (write.key, write.token) not in kept | replaced

        return [write for write in self.writes if is_lost(write)]

    def _past(self, key: str) -> list[str | None]:
        """Return the token of a key's row and those that users updated to come to it."""
        tokens = [self.rows[key]] if key in self.rows else []
        while tokens and (key, tokens[-1]) in self.updates:
            tokens.append(self.updates[key, tokens[-1]])
        return tokens

    def invented(self) -> list[tuple[str, str | None]]:
        """Return (key, token) that nobody wrote."""
        written = {(write.key, write.token) for write in self.writes if write.kind != "delete"}
        logged = [(key, token) for key, kind, token in self.logged if kind != DELETE_LOST]
        return [item for item in (*self.rows.items(), *logged) if item not in written]

    def twice(self) -> list[str | None]:
        """Return tokens that are in two rows, logged twice, or both in a row and logged."""
        logged = [token for _, kind, token in self.logged if kind != DELETE_LOST]
        return [token for token, times in Counter([*self.rows.values(), *logged]).items() if times > 1]


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
    anew = Write("k", "t4", "insert", version=1)
    assert problems([first, second, deleted, anew], {"k": "t2"}, [("k", 1, "t4")]) == (0, 0, 0)
    assert problems([first, second, deleted, anew], {"k": "t2"}, []) == (1, 0, 0)
    elsewhere = replace(anew, replica="north")
    assert problems([first, second, deleted, elsewhere], {"k": "t2"}, [("k", 1, "t4")]) == (1, 0, 0)
    deleted_again = Write("k", "t5", "delete", "t2", version=2)
    assert problems([first, second, anew, deleted_again], {"k": "t2"}, [("k", 1, "t4")]) == (1, 0, 0)
    assert problems([first], {"k": "t1", "j": "t9"}, []) == (0, 1, 0)
    assert problems([first], {"j": "t1"}, []) == (1, 1, 0)
    assert problems([first], {"k": "t1"}, [("k", 1, "t1")]) == (0, 0, 1)


class Agent:
    """`mergerepl sync --interval` for one subscriber, in a process of its own."""

    def __init__(self, network: Path, subscriber: str) -> None:
        self._printed = network.with_name(f"agent-{subscriber}.out")
        self._said = network.with_name(f"agent-{subscriber}.err")
        command = [sys.executable, "-m", "mergerepl", "sync", str(network)]
        command += ["--subscriber", str(network.with_name(subscriber)), "--interval", "1s", "--json"]
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
        """Return how often it was told to try again, because a replica was in use."""
        return sum("error" in line for line in self._rounds())


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for something that other processes do."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def write_all(folder: Path) -> list[Write]:
    """Let all users write for the given time; return what they committed."""
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
        wait_until(lambda: all(agent.moved() for agent in agents), "the agents' first sessions")
        before = [agent.moved() for agent in agents]
        writes = starts + write_all(replica_dir)
        sessions = [agent.moved() - first for agent, first in zip(agents, before, strict=True)]
        for agent in agents:
            agent.end()
    for _ in range(2):
        for name in SUBSCRIBERS:
            engine.sync(name)
    assert [engine.sync(name).status for name in SUBSCRIBERS] == ["nothing_to_do"] * 2
    validation = mergerepl.validate(engine.path("hub"))
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
        "turned away": [agent.turned_away() for agent in agents],
    }
    record_property("soak", json.dumps(counts))
    log.info("%s", counts)
    assert (ledger.lost(), ledger.invented(), ledger.twice()) == ([], [], [])
    assert sum(sessions) > 0, counts
