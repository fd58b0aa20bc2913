"""The engine does what the reference model does, history by history (invariants I1, I2, I6 to I9, I12 to
I18).

Exhaustive small scope: two replicas, three slots, five operations, a row that is there at the start and one
that is not: 2 x 5^6 = 31,250 histories for each tracking. Random deep histories: several subscribers, several
schedules.
"""

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.properties.engine_network import COLUMNS, EngineNetwork, Setting, differing_keys
from tests.properties.reference import Network, Subscriber

Write = Callable[[str, str, str, int], None]
OPERATIONS = ("none", "set a", "set b", "set a+b", "delete or insert")
START = {"a": "a0", "b": "b0", "c": None}


def play(model: Network, replica: str, key: str, operation: str, slot: int) -> None:
    """Do one operation in the model: `a` gets a token of the writer, `b` the same value everywhere."""
    is_there = key in model.rows(replica)
    values = {"a": f"{replica}{slot}", "b": f"b{slot}"}
    if operation == "delete or insert":
        model.write(replica, key, "delete" if is_there else "insert", None if is_there else values)
    elif operation != "none" and is_there:
        chosen = operation.removeprefix("set ").split("+")
        model.write(replica, key, "update", {name: values[name] for name in chosen})


class Together:
    """Model and engine, given the same operations slot by slot."""

    def __init__(
        self, spark: SparkSession, folder: Path, setting: Setting, snapshot: dict[str, dict[str, str | None]]
    ):
        self.model = Network(
            setting.subscribers,
            columns=COLUMNS,
            snapshot=snapshot,
            tracking=setting.tracking,  # type: ignore[arg-type]
            resolution=setting.resolution,  # type: ignore[arg-type]
        )
        self.engine = EngineNetwork(spark, folder, setting, snapshot)

    def slot(self, replica: str, operations: dict[str, str], number: int) -> None:
        """Let one replica's user do one operation per key, in one commit."""
        before = {key: dict(row) for key, row in self.model.rows(replica).items()}
        for key, operation in operations.items():
            play(self.model, replica, key, operation, number)
        after = self.model.rows(replica)
        self.engine.write(replica, {k: after.get(k) for k in operations if after.get(k) != before.get(k)})

    def sync(self, subscriber: str, direction: str = "both") -> None:
        """Run one session of both."""
        self.model.sync(subscriber, direction)  # type: ignore[arg-type]
        self.engine.sync(subscriber, direction)

    def check(self, told: Callable[[str], object]) -> None:
        """Compare, naming the first differing histories."""
        differing = differing_keys(self.engine, self.model)
        lines = [f"{key} {told(key)}: {problems}" for key, problems in sorted(differing.items())[:5]]
        assert not differing, f"{len(differing)} histories differ; " + "\n".join(lines)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("tracking", [pytest.param("row", marks=pytest.mark.slow), "column"])
def test_every_history_of_two_replicas_and_three_slots(
    spark: SparkSession, replica_dir: Path, tracking: str
) -> None:
    histories = list(itertools.product(OPERATIONS, repeat=6))
    keys = {f"{start}{number:05d}": history for start in "pn" for number, history in enumerate(histories)}
    snapshot = {key: dict(START) for key in keys if key.startswith("p")}
    setting = Setting((Subscriber("north", "server", 75.0),), tracking)
    together = Together(spark, replica_dir, setting, snapshot)
    for slot in range(3):
        for position, replica in enumerate(("hub", "north")):
            together.slot(replica, {key: history[2 * slot + position] for key, history in keys.items()}, slot)
        together.sync("north")
    together.check(lambda key: keys[key])
    assert together.engine.sync("north").status == "nothing_to_do"
    assert together.engine.rows("hub") == together.engine.rows("north")


SETTINGS = [
    pytest.param(
        11,
        Setting((Subscriber("north", "server", 75.0), Subscriber("south", "client")), "row"),
        id="row-server-client",
    ),
    pytest.param(
        12,
        Setting((Subscriber("north", "server", 20.0), Subscriber("south", "server", 80.0)), "column"),
        id="column-two-servers",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        13,
        Setting(
            (
                Subscriber("north", "client"),
                Subscriber("south", "server", 50.0),
                Subscriber("west", "client"),
            ),
            "column",
            "columns",
        ),
        id="column-resolution-columns",
    ),
    pytest.param(
        14,
        Setting((Subscriber("north", "server", 50.0), Subscriber("south", "server", 50.0)), "row"),
        id="row-equal",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "setting"), SETTINGS)
def test_random_deep_histories(spark: SparkSession, replica_dir: Path, seed: int, setting: Setting) -> None:
    drawn = random.Random(seed)
    keys = [f"k{number:04d}" for number in range(2500)]
    snapshot = {key: dict(START) for key in keys if drawn.random() < 0.7}
    together = Together(spark, replica_dir, setting, snapshot)
    told: dict[str, list[tuple[str, int, str]]] = {key: [] for key in keys}
    names = [s.name for s in setting.subscribers]
    schedule: list[str] = []
    for slot in range(8):
        writer = drawn.choice(together.engine.names)
        operations = {key: drawn.choice(OPERATIONS) for key in keys if drawn.random() < 0.6}
        for key, operation in operations.items():
            told[key].append((writer, slot, operation))
        together.slot(writer, operations, slot)
        if drawn.random() < 0.7:
            subscriber, direction = drawn.choice(names), drawn.choice(("both", "both", "upload", "download"))
            schedule.append(f"after {slot}: {subscriber} {direction}")
            together.sync(subscriber, direction)
    for subscriber in names * 2:
        together.sync(subscriber)
    together.check(lambda key: (f"seed {seed}", told[key], schedule))
    assert all(together.engine.rows(name) == together.engine.rows("hub") for name in names)
