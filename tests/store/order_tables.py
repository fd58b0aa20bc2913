"""A table of orders in a bucket or a folder, edited as users do, and the commands that a test runs there."""

import os
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options

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


def agent_rounds(folder: Path, rounds: int) -> list[str]:
    """Run an agent for some rounds; return what it reports. After the first of several a row is added at the publisher."""
    from mergerepl.agents.agent import Agent

    os.chdir(folder)
    agent, pauses = Agent("mergerepl.yml"), count(1)
    texts: list[str] = []

    def pause(_: float) -> None:
        number = next(pauses)
        if number == rounds:
            os.kill(os.getpid(), signal.SIGTERM)
            # The main thread sees it.
            time.sleep(0.5)
        elif number == 1:
            add(Location.of(agent.roots[0]), 200)

    agent.run(interval=0.0, report=lambda event: texts.append(f"{event.job}: {event.text}"), pause=pause)
    return texts
