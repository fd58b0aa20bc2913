"""Sessions that are paused or die at a failpoint, and the edits that people make during that time."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import mergerepl
from mergerepl.failpoints import FailpointError
from tests.faults.deaths import armed, dies
from tests.properties.engine_network import EngineNetwork
from tests.properties.reference import Subscriber


def row(a: str | None, b: str | None, c: str | None = None) -> dict[str, str | None]:
    return {"a": a, "b": b, "c": c}


@contextmanager
def paused(sync: Callable[[], mergerepl.SessionResult], point: str, gate: Path) -> Iterator[list[Any]]:
    """Run a session beside a block, which begins when the session has come to a failpoint; after it the session goes on.

    Its result is then in the list.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(sync())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    with armed(point, f"pause:{gate}"):
        thread.start()
        reached = gate.with_name(gate.name + ".reached")
        deadline = time.monotonic() + 300
        while not reached.exists() and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert reached.exists(), outcome
        try:
            yield outcome
        finally:
            gate.touch()
            thread.join(600)
    assert isinstance(outcome[0], mergerepl.SessionResult), (point, outcome)


def edit(engine: EngineNetwork) -> None:
    """Edit both sides: k1 at both, k4 by deleting it at one."""
    engine.write("hub", {"k0": row("hub", "b"), "k1": row("hub", "b"), "k4": row("hub", "b")})
    engine.write("north", {"k1": row("north", "b"), "k2": row("north", "b"), "k3": None, "k4": None})


def check_all_there(engine: EngineNetwork) -> None:
    """After two rounds all replicas are the same, and every value that anybody wrote is in them or logged."""
    for _ in range(2):
        for name in engine.names[1:]:
            engine.sync(name)
    rows = engine.rows("hub")
    assert all(engine.rows(name) == rows for name in engine.names)
    kept = {(key, values[0]) for key, values in rows.items()}
    kept |= {(key, lost[0]) for key, *_, lost in engine.conflicts() if lost is not None}
    assert {("k0", "hub"), ("k1", "hub"), ("k1", "north"), ("k2", "north"), ("k4", "hub")} <= kept
    assert "k3" not in rows
    for name in engine.names[1:]:
        assert engine.sync(name).status == "nothing_to_do"


NORTH = Subscriber("north", "server", 75.0)


def die(engine: EngineNetwork, point: str, *, direction: str = "both") -> None:
    """Let a session die at a failpoint."""
    with dies(point):
        engine.sync("north", direction)


def edit_file(engine: EngineNetwork, **stated: object) -> None:
    """Change the publication's file."""
    file = engine.folder / "network.yml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **stated}))


def apply_without_north(engine: EngineNetwork) -> None:
    """Apply the publication without its subscription; the file is afterwards as before."""
    stated = (engine.folder / "network.yml").read_text()
    edit_file(engine, subscriptions=[])
    mergerepl.Project.load(engine.folder / "network.yml").apply()
    (engine.folder / "network.yml").write_text(stated)


def stop_at(point: str, engine: EngineNetwork, *, action: str = "stop") -> None:
    """Run a session that dies at a failpoint."""
    assert stopped_at(point, engine, action=action), point


def stopped_at(point: str, engine: EngineNetwork, *, action: str = "stop") -> bool:
    """Run a session that stops at a failpoint with all that it does at once; return whether it came there."""
    with armed(point, action):
        try:
            engine.sync("north")
        except FailpointError:
            return True
    return False
