"""Drawn attacks on a filtered publication in two buckets: kills at any request and a faulty network, while users edit.

Syncs run in two processes that keep what they know of the replicas, so that each meets what the other one left. In the end
the subscriber has its part of the publisher's rows, and no user's value is lost: it is in a table, among the conflicts,
or a later edit replaced it where it was seen.
"""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from obstore.store import S3Store

from mergerepl.cli.main import main
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from tests.store.order_tables import command
from tests.store.proxy import CONFLICT, CUT, LOST, SLOW_DOWN, Fault, Proxy, Request

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["tests.store.order_tables", "mergerepl.cli.main"])

FIRST = {
    "customers": pa.table(
        {"id": pa.array(range(6), pa.int64()), "region": list("NSNSNS"), "note": ["first"] * 6}
    ),
    "orders": pa.table(
        {"id": pa.array(range(12), pa.int64()), "customer": pa.array([n % 6 for n in range(12)], pa.int64())}
    ).append_column("note", pa.array(["first"] * 12)),
    "rates": pa.table({"id": pa.array(range(4), pa.int64()), "note": ["first"] * 4}),
}
FILTERED = """publication: sales
publisher: {hq}
articles:
  - {{name: customers, key: [id], filter: "region = HOST_NAME()"}}
  - {{name: orders, key: [id]}}
  - {{name: rates, key: [id]}}
joins:
  - {{article: orders, parent: customers, on: "customers.id = orders.customer", unique: true}}
subscriptions:
  - {{subscriber: {north}, name: north, host_name: N}}
"""
WHOLE = """publication: sales
publisher: {hq}
articles:
  - {{name: orders, key: [id]}}
subscriptions:
  - {{subscriber: {north}, name: north}}
"""
PATH = {"PYTHONPATH": str(Path(__file__).parents[2])}
Row = dict[str, Any]
Edit = tuple[str, str, int, Row | None]
"""A table, what is done, the key and values: the row is inserted, updated in some columns, or deleted."""


def write_tables(root: Location, names: Sequence[str]) -> None:
    for name in names:
        write_deltalake(str(root / name), FIRST[name], storage_options=storage_options(root))


def opened(root: Location, name: str) -> DeltaTable:
    return DeltaTable(str(root / name), storage_options=storage_options(root))


def rows_of(root: Location, name: str) -> dict[int, Row]:
    return {row["id"]: row for row in opened(root, name).to_pyarrow_table().to_pylist()}


def tables(root: Location, names: Sequence[str]) -> dict[str, dict[int, Row]]:
    return {name: rows_of(root, name) for name in names}


def edit(root: Location, edits: list[Edit]) -> tuple[set[str], set[str]]:
    """Make a user's edits; return the notes that they wrote and replaced. Those of absent rows, and inserts of others, are
    left out.
    """
    written, replaced = set(), set()
    for name, what, key, values in edits:
        table = opened(root, name)
        there = rows_of(root, name).get(key)
        if (there is None) is not (what == "insert"):
            continue
        if there is not None:
            replaced.add(there["note"])
        if values is not None:
            written.add(values["note"])
        if values is None:
            table.delete(f"id = {key}")
        elif what == "insert":
            write_deltalake(table, pa.Table.from_pylist([values], schema=FIRST[name].schema), mode="append")
        else:
            quoted = {
                column: f"'{value}'" if isinstance(value, str) else str(value)
                for column, value in values.items()
            }
            table.update(updates=quoted, predicate=f"id = {key}")
    return written, replaced


def command_with_engine(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run a command, which may start an engine: it does if users edited between a kill and the next sync."""
    os.chdir(folder)
    done = CliRunner().invoke(main, [*words])
    return done.exit_code, done.stdout, done.stderr


def serve(channel: Connection) -> None:
    """Call functions for the test until it closes the channel."""
    while True:
        try:
            function, arguments = channel.recv()
        except EOFError:
            return
        channel.send(function(*arguments))


class Worker:
    """A process that runs commands one after another; another one takes its place once it was killed."""

    process: Any = None

    def start(self, function: Any, *arguments: Any) -> None:
        if self.process is None or not self.process.is_alive():
            self.channel, other = FORKED.Pipe()
            self.process = FORKED.Process(target=serve, args=(other,), daemon=True)
            self.process.start()
            other.close()
        self.channel.send((function, arguments))

    def result(self) -> Any:
        """Return what the function did; None if the process was killed."""
        try:
            return self.channel.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return None

    def call(self, function: Any, *arguments: Any) -> Any:
        self.start(function, *arguments)
        return self.result()

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        if self.process is not None:
            self.channel.close()
            self.process.join()
            self.process = None


@dataclass
class Attack:
    """Two replicas, the processes that work on them, and the notes that users wrote and replaced."""

    folder: Path
    hq: Location
    north: Location
    proxy: Proxy
    names: tuple[str, ...] = tuple(FIRST)
    """The articles; the others of FIRST are not published."""
    command: Any = command
    """Runs a command; by default it fails if the command asks for an engine."""
    user: Worker = field(default_factory=Worker)
    agents: tuple[Worker, Worker] = field(default_factory=lambda: (Worker(), Worker()))
    written: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def state(self, project: str) -> None:
        """Write the tables and the project file."""
        self.user.call(write_tables, self.hq, self.names)
        (self.folder / "mergerepl.yml").write_text(project.format(hq=self.hq, north=self.north))

    def run(self, *words: str, by: int = 0) -> tuple[int, str, str]:
        found: tuple[int, str, str] = self.agents[by].call(self.command, self.folder, *words)
        return found

    def succeed(self, *words: str) -> str:
        code, shown, error = self.run(*words)
        assert code == 0, error
        return shown

    def edit(self, drawn: random.Random, most: int) -> None:
        for root in (self.hq, self.north):
            edits = [
                draw_edit(drawn, self.names, f"{root.name}-{next(self.numbers)}")
                for _ in range(drawn.randint(0, most))
            ]
            written, replaced = self.user.call(edit, root, edits)
            self.written |= written
            self.replaced |= replaced
            self.told.append(f"{root.name}: {edits}")

    def struck(self, drawn: random.Random) -> None:
        """Sync under a drawn fault; it may fail, but never by a bug."""
        by, kind = drawn.randrange(2), drawn.choice(("kill", "kill", "network"))
        agent = self.agents[by]
        self.proxy.reset()
        if kind == "kill":
            number, is_stored = drawn.randint(1, 250), drawn.random() < 0.5
            fault = (
                Fault(is_lost=True, after=agent.kill) if is_stored else Fault(is_cut=True, before=agent.kill)
            )
            rule = lambda request: fault if request.number == number else None  # noqa: E731
            self.told.append(f"agent {by} is killed at request {number}, stored: {is_stored}")
        else:
            seed, rate = drawn.random(), drawn.choice((0.02, 0.06))
            rule = network(random.Random(seed), rate)
            self.told.append(f"agent {by} with a network that breaks {rate} of the requests, {seed}")
        agent.start(self.command, self.folder, "sync")
        self.proxy.rule = rule
        done = agent.result()
        self.proxy.rule = None
        self.told.append(f"{len(self.proxy.requests)} requests: {done and (done[0], done[2][-200:])}")
        assert done is None or "bug in mergerepl" not in done[2], self.told

    def end(self) -> None:
        """Sync until nothing is left to do; check rows and notes."""
        for number in range(4):
            code, shown, error = self.run("sync", "--json", by=number % 2)
            assert code == 0, (shown, error, self.told)
            (done,) = json.loads(shown)["sessions"]
            if done["status"] == "nothing_to_do":
                break
        assert done["status"] == "nothing_to_do", (done, self.told)
        hq, north = (self.user.call(tables, root, self.names) for root in (self.hq, self.north))
        assert north == (part_of(hq) if len(self.names) > 1 else hq), self.told
        logged = json.dumps(
            [json.loads(self.succeed("conflicts", "show", "--table", name, "--json")) for name in self.names]
        )
        kept = {row["note"] for of in (hq, north) for rows in of.values() for row in rows.values()}
        lost = {note for note in self.written - self.replaced - kept if f'"{note}"' not in logged}
        assert not lost, (lost, self.told)


def network(drawn: random.Random, rate: float) -> Any:
    """Return a rule that breaks a part of the requests, conditional writes also by 409."""

    def rule(request: Request) -> Fault | None:
        if drawn.random() >= rate:
            return None
        also = (CONFLICT,) if request.kind == "PUT-IF" else ()
        return drawn.choice((LOST, CUT, SLOW_DOWN, Fault(delay=0.5), *also))

    return rule


def part_of(hq: dict[str, dict[int, Row]]) -> dict[str, dict[int, Row]]:
    """Return the rows that the subscriber should have."""
    customers = {key: row for key, row in hq["customers"].items() if row["region"] == "N"}
    orders = {key: row for key, row in hq["orders"].items() if row["customer"] in customers}
    return {"customers": customers, "orders": orders, "rates": hq["rates"]}


def draw_edit(drawn: random.Random, names: Sequence[str], note: str) -> Edit:
    name = drawn.choice((*names, "orders"))
    most = {"customers": 8, "orders": 16, "rates": 5}[name]
    what = drawn.choice(("insert", "update", "update", "update", "delete"))
    key = drawn.randrange(most)
    if what == "delete":
        return name, what, key, None
    values: Row = {"note": note}
    if name == "customers" and (what == "insert" or drawn.random() < 0.4):
        values["region"] = drawn.choice("NS")
    if name == "orders" and (what == "insert" or drawn.random() < 0.3):
        values["customer"] = drawn.randrange(8)
    return name, what, key, values | ({"id": key} if what == "insert" else {})


@pytest.fixture
def attack(tmp_path: Path, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attack]:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "0.3")
    with urlopen(HttpRequest(f"{proxy.url}/{bucket}-2", method="PUT"), timeout=30):
        pass
    made = Attack(tmp_path, Location.of(f"s3://{bucket}/hq"), Location.of(f"s3://{bucket}-2/north"), proxy)
    yield made
    for worker in (made.user, *made.agents):
        worker.end()


def objects(attack: Attack) -> dict[tuple[str, str], bytes]:
    return {
        (root.bucket, each["path"]): bytes(S3Store(root.bucket).get(each["path"]).bytes())
        for root in (attack.hq, attack.north)
        for page in S3Store(root.bucket).list()
        for each in page
    }


def put_back(attack: Attack, before: dict[tuple[str, str], bytes]) -> None:
    for root in (attack.hq, attack.north):
        store = S3Store(root.bucket)
        store.delete([each["path"] for page in store.list() for each in page])
    for (bucket, key), data in before.items():
        S3Store(bucket).put(key, data)


def carry_out(attack: Attack, seeds: list[int], rounds: int) -> None:
    before = objects(attack)
    for seed in seeds:
        drawn = random.Random(f"attack {seed}")
        attack.written, attack.replaced, attack.told = set(), set(), [f"seed {seed}"]
        for _ in range(drawn.randint(1, rounds)):
            attack.edit(drawn, 4)
            attack.struck(drawn)
        attack.end()
        for worker in attack.agents:
            worker.end()
        if seed != seeds[-1]:
            put_back(attack, before)


@pytest.mark.slow
def test_an_attack_ends_equal_and_loses_nothing(attack: Attack) -> None:
    attack.names = ("orders",)
    attack.state(WHOLE)
    attack.succeed("apply")
    carry_out(attack, [0], 1)


@pytest.mark.slow
def test_attacks_on_a_filtered_publication_end_equal_and_lose_nothing(attack: Attack) -> None:
    attack.command = command_with_engine
    attack.state(FILTERED)
    # The first copy of a part of the rows needs an engine.
    subprocess.run(
        [sys.executable, "-m", "mergerepl", "apply"], cwd=attack.folder, check=True, env=os.environ | PATH
    )
    first, most = (
        int(os.environ.get("MERGEREPL_TEST_SEED", "100")),
        int(os.environ.get("MERGEREPL_ATTACKS", "30")),
    )
    carry_out(attack, [*range(first, first + most)], 4)
