"""kill -9 of a real `mergerepl sync`: of Python, of its JVM, of both at once; the next run makes up for it (I26, I28)."""

import os
import random
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.calls import merge_capture
from tests.faults.deaths import killed
from tests.faults.ladder import CAPTURED_BEFORE, LADDER
from tests.faults.sessions import NORTH
from tests.properties.engine_network import EngineNetwork, Setting
from tests.properties.side_by_side import OPERATIONS, START, Slot, Together, new_model

KINDS = ("kill", "killgroup", "jvm")
ALWAYS = ("stage.after_manifest", "kill", False)
"""What every run of the tests tries; `--long` tries everything."""


class Watched:
    """Two replicas of some dozen rows beside the model; each round every kind of change is made at both sides."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        # The sessions around the killed one need no MERGE of Spark's by default, as that one needs none.
        is_long = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"
        setting = Setting((NORTH,), "column", engines=("auto", "spark") if is_long else ("auto",))
        self.keys = [f"k{number:03d}" for number in range(60)]
        snapshot = dict.fromkeys(self.keys[:40], START)
        self.engine = EngineNetwork(spark, folder, setting, snapshot)
        self.together = Together(new_model(setting, snapshot), self.engine)
        self.number = 0

    def edit(self) -> None:
        self.number += 1
        drawn = random.Random(self.number)
        for name in self.engine.names:
            slot = Slot(name, self.number)
            self.together.slot(slot, {key: drawn.choice(OPERATIONS) for key in self.keys})


@pytest.fixture(scope="module")
def new_folder(worker_folder: Path) -> Callable[[], Path]:
    def new() -> Path:
        folder = worker_folder / uuid.uuid4().hex[:12]
        folder.mkdir()
        return folder

    return new


@pytest.fixture(scope="module")
def watched(spark: SparkSession, new_folder: Callable[[], Path]) -> Watched:
    """Two replicas in step, for all kills one after the other."""
    watched = Watched(spark, new_folder())
    watched.edit()
    watched.together.sync("north")
    return watched


def kill_sync(folder: Path, point: str, kind: str, *, engine: str) -> None:
    command = Path(sys.executable).with_name("mergerepl")
    killed([command, "sync", "north", "-f", "hub", "--engine", engine], point, kind, cwd=folder)


@pytest.mark.parametrize(
    ("point", "kind", "is_captured"),
    [
        pytest.param(*case, marks=() if case == ALWAYS else pytest.mark.slow)
        for points, is_captured in ((LADDER, False), (CAPTURED_BEFORE, True))
        for case in ((point, kind, is_captured) for point in points for kind in KINDS)
    ],
)
def test_inv_26_28_a_killed_sync_is_finished_by_the_next(
    watched: Watched, point: str, kind: str, is_captured: bool
) -> None:
    watched.edit()
    engine = watched.engine
    if is_captured:
        for name in engine.names:
            merge_capture(engine.path(name))
    # A JVM has to be there to be killed, or to finish a commit of a process that was.
    is_small = (point, kind, is_captured) == ALWAYS
    kill_sync(engine.folder, point, kind, engine="auto" if is_small else "spark")
    watched.together.sync("north")
    assert watched.together.differing() == {}
    assert engine.sync("north").status == "nothing_to_do"
    for name in engine.names:
        assert not list((engine.path(name) / "_mergerepl" / "staging").glob("*"))
