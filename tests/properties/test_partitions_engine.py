"""The engine does with filtered articles what the reference model says, in many worlds at once (I32 to I35)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.interpreted import interpreted
from tests.properties.partition_engine import REPLICAS, Played
from tests.properties.partition_histories import VARIANTS

WORLDS = 12


def play(folder: Path, variant: str, seed: int, sessions: int, *, with_late: bool) -> None:
    """Play one schedule in all worlds."""
    played = Played(folder, variant, seed, WORLDS)
    for number in range(sessions):
        played.write()
        if "then" in VARIANTS[variant] and number % 2 == 0:
            played.change_filters()
            played.write()
        played.sync(played.rng.choice(sorted(REPLICAS)), late=with_late and number % 2 == 1)
    played.finish()
    if not with_late:
        assert played.engine.conflicts() == sum(len(net.losers) for net in played.worlds)


@pytest.mark.slow
@pytest.mark.parametrize("with_late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("variant", ["or", "many", "terms", "options"])
def test_engine_equals_model(spark: SparkSession, tmp_path: Path, variant: str, with_late: bool) -> None:
    with interpreted(spark):
        play(tmp_path, variant, 0, 8, with_late=with_late)


@pytest.mark.slow
@pytest.mark.parametrize("with_late", [False, True], ids=["", "late"])
@pytest.mark.parametrize("variant", ["refilter", "refilter options"])
def test_engine_equals_model_while_filters_change(tmp_path: Path, variant: str, with_late: bool) -> None:
    play(tmp_path, variant, 0, 10, with_late=with_late)
