"""Users insert, update, delete and overwrite at every step of a session, and between a crash and the next run.

Hundreds of rows at once, chosen by chance, so that every kind of write meets every kind of change that the session
brings (I6, I7, I8, I9, I25, I26). The expected result is computed from the journal of the writes alone, without a model.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.ladder import LADDER
from tests.faults.sessions import paused, stop_at
from tests.faults.tokens import BOTH, users_of

pytestmark = pytest.mark.slow

STEPS = {
    "capture.before_replinfo": ("north",),
    "stage.before_manifest": ("hub",),
    "publisher.before_merge": ("hub",),
    "subscriber.before_merge": ("north",),
    "publisher.after_merge": ("hub",),
    "subscriber.after_merge": ("north",),
    "publisher.after_done": ("hub",),
    "watermarks.before_subscriber": BOTH,
}
"""Where a session is paused, and whose table then rests: beside a MERGE that goes on, a commit might be lost with it."""

MORE_STEPS = {
    "stage.after_manifest": BOTH,
    "subscriber.after_done": ("north",),
    "watermarks.after_publisher": BOTH,
    "session.before_drop": BOTH,
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("tracking", "overwritten", "steps"),
    [
        pytest.param("row", 1, STEPS, id="row"),
        pytest.param("row", 0, STEPS | MORE_STEPS, id="row, the other way"),
        pytest.param("column", 1, STEPS | MORE_STEPS, id="column"),
        pytest.param("column", 0, STEPS, id="column, the other way"),
    ],
)
def test_inv_06_07_08_09_25_users_write_at_every_step_of_a_session(
    spark: SparkSession,
    replica_dir: Path,
    tracking: str,
    overwritten: int,
    steps: Mapping[str, tuple[str, ...]],
) -> None:
    """At every second step the whole table is overwritten."""
    users = users_of(spark, replica_dir, tracking)
    engine = users.engine
    for number, (point, replicas) in enumerate(steps.items()):
        users.edit(*BOTH)
        gate = replica_dir / f"gate{number}"
        with paused(lambda: engine.sync("north"), point, gate):
            users.edit(*replicas, by_overwriting=number % 2 == overwritten)
    for _ in range(2):
        engine.sync("north")
    users.check()
    assert engine.sync("north").status == "nothing_to_do"


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("tracking", ["row", "column"])
def test_inv_06_07_09_26_users_write_between_every_crash_and_the_next_run(
    spark: SparkSession, replica_dir: Path, tracking: str
) -> None:
    users = users_of(spark, replica_dir, tracking)
    for number, point in enumerate(LADDER):
        users.edit(*BOTH)
        stop_at(point, users.engine)
        users.edit(*BOTH, by_overwriting=number % 3 == 0)
        for _ in range(2):
            users.engine.sync("north")
        users.check()
    assert users.engine.sync("north").status == "nothing_to_do"
