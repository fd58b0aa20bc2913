"""A session of filtered articles that dies at every step in turn ends as if it had not (I26 to I28, I32, I33, I35).

Many worlds share the session, each with histories of its own: rows enter, stay and leave, with their parents and alone,
while subscribers edit them. Then the models have had one session, and the engine has died in each part of it.
"""

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.calls import merge_capture
from tests.faults.deaths import killed
from tests.faults.ladder import CAPTURED_BEFORE, LADDER, MAPPED
from tests.faults.sessions import stop_at, stopped_at
from tests.interpreted import interpreted
from tests.properties.partition_engine import DEATHS, REPLICAS, Played

pytestmark = pytest.mark.slow

WORLDS = 24
OF_CAPTURE = LADDER[: LADDER.index("capture.before_replinfo")]
AFTER_CAPTURE = LADDER[LADDER.index("capture.before_replinfo") :]
ALL = (*OF_CAPTURE, *MAPPED, *AFTER_CAPTURE)
KILLED_AT = (
    "run.after_MSmerge_past_partition_mappings",
    "stage.after_manifest",
    "publisher.after_merge",
    "subscriber.after_merge",
)


def climb(played: Played, points: tuple[str, ...]) -> None:
    """Let sessions of north die at each point in turn; new changes are made where one comes to its end in between."""
    remaining = list(points)
    for _ in range(8):
        played.write()
        while remaining and stopped_at(remaining[0], played.engine):
            remaining.pop(0)
        played.sync("north")
        if not remaining:
            return
    assert remaining == []


@pytest.mark.timeout(1800)
def test_inv_27_28_32_35_a_session_that_dies_at_every_step_leaves_each_its_partition(
    spark: SparkSession, replica_dir: Path
) -> None:
    played = Played(replica_dir, "or", 27, WORLDS)
    with interpreted(spark):
        climb(played, ALL)
    played.write()
    for name in ("hub", "north"):
        merge_capture(replica_dir / name)
    for point in (*CAPTURED_BEFORE, *MAPPED):
        stop_at(point, played.engine)
    # One side comes to its end, the other one has done nothing.
    stop_at("publisher.before_merge", played.engine, action="raise")
    played.sync("north")
    played.finish()
    assert played.engine.sync("north").status == "nothing_to_do"
    played.no_leaks()
    for name in ("hub", "north"):
        assert not list((replica_dir / name / "_mergerepl" / "staging").glob("*"))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", ["or", "terms"])
def test_inv_28_32_33_35_others_go_on_while_a_session_that_died_waits(
    spark: SparkSession, tmp_path: Path, variant: str
) -> None:
    played = Played(tmp_path, variant, 33, WORLDS)
    with interpreted(spark):
        for number, death in enumerate(DEATHS):
            late = number % 2 == (variant == "terms")
            played.write()
            name, *others = sorted(REPLICAS)[number % 3 :] + sorted(REPLICAS)[: number % 3]
            played.die(name, death, late=late)
            for other in others:
                played.write()
                played.sync(other, late=late and other == others[0])
            played.sync(name)
        played.finish()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["kill", "killgroup"])
def test_inv_26_28_35_a_killed_sync_of_filtered_articles_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    played = Played(tmp_path, "or", 26, WORLDS)
    for point in KILLED_AT:
        played.write()
        command = [Path(sys.executable).with_name("mergerepl"), "sync", "north", "-f", "hub"]
        killed(command, point, kind, cwd=tmp_path)
        played.sync("north")
        played.no_leaks()
        played.sync("south")
    played.finish()
