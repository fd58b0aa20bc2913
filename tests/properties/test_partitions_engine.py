"""The engine does with filtered articles what the reference model says, in many worlds at once (I32 to I35)."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.interpreted import interpreted
from tests.properties.partition_engine import (
    REPLICAS,
    PartitionEngine,
    difference,
    drawn_write,
    expected,
    worlds_of,
)

WORLDS = 12


def play(folder: Path, variant: str, seed: int, sessions: int, *, with_late: bool) -> None:
    """Play one schedule in all worlds; what both come to is compared after every session."""
    rng = random.Random(f"{seed} {variant}")
    worlds = worlds_of(seed, variant, WORLDS)
    rows = {w: {a: dict(t) for a, t in net.hub.tables.items()} for w, net in enumerate(worlds)}
    engine = PartitionEngine(folder, variant, WORLDS, worlds[0].filters, rows)
    for name in REPLICAS:
        assert difference(engine.rows(name), expected(engine, worlds, name)) == [], f"initialised {name}"

    def session(name: str, *, late: bool) -> None:
        told = []
        for world, net in enumerate(worlds):
            of_hub = [drawn_write(rng, net, "hub") for _ in range(rng.randint(0, 2))] if late else []
            of_sub = [drawn_write(rng, net, name) for _ in range(rng.randint(0, 2))] if late else []
            net.sync(name, late_hub=of_hub, late_sub=of_sub)
            told += [(world, change) for change in net.taken()]
        engine.sync(name, told)
        for replica in ("hub", name):
            problem = difference(engine.rows(replica), expected(engine, worlds, replica))
            assert problem == [], f"{variant}, seed {seed}: {replica} after {name}: {problem[:6]}"

    for number in range(sessions):
        for net in worlds:
            for replica in ("hub", *REPLICAS):
                for _ in range(rng.choice((0, 0, 1, 2))):
                    net.write(replica, *drawn_write(rng, net, replica))
        engine.write((world, change) for world, net in enumerate(worlds) for change in net.taken())
        session(rng.choice(sorted(REPLICAS)), late=with_late and number % 2 == 1)
    for _ in range(2):
        for name in REPLICAS:
            session(name, late=False)
    if not with_late:
        assert engine.conflicts() == sum(len(net.losers) for net in worlds)
    current, past = engine.netted()
    nets = [net.netted() for net in worlds]
    assert len(current) == sum(len(each) for each, _ in nets)
    assert sorted(why for *_, why in past) == sorted(e.reason for _, each in nets for *_, e in each)
    for name in REPLICAS:
        assert engine.sync(name).status == "nothing_to_do"


@pytest.mark.slow
@pytest.mark.parametrize("with_late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("variant", ["or", "many", "terms"])
def test_engine_equals_model(spark: SparkSession, tmp_path: Path, variant: str, with_late: bool) -> None:
    with interpreted(spark):
        play(tmp_path, variant, 0, 8, with_late=with_late)
