"""Options of articles meet in every pair: with row filters a history comes to what it does without, cut to each partition.

With `--log-cli-level=INFO` the pairs are listed. A failure names the seed; `MERGEREPL_TEST_SEED` plays it again.
"""

import logging
import os
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.properties.option_networks import Engine, Twins
from tests.properties.option_pairs import FEW, OPTIONS, Choice, covering, is_possible, pairs, pairs_of

log = logging.getLogger(__name__)

SEED = int(os.environ.get("MERGEREPL_TEST_SEED", "0"))
AT_ONCE = 4
"""So many articles share the sessions of one history, beside those that they follow."""


@pytest.mark.parametrize("options", [FEW, OPTIONS], ids=["few", "all"])
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_drawn_articles_have_every_pair_of_options_that_go_together(
    options: dict[str, Sequence[object]], seed: int
) -> None:
    choices = covering(options, seed)
    assert all(map(is_possible, choices))
    assert set(pairs(options)) <= set().union(*map(pairs_of, choices))


def listed(choices: Sequence[Choice]) -> str:
    """Return the pairs that articles have, a line for two options."""
    found: dict[str, set[str]] = defaultdict(set)
    for (one, value), (other, another) in set().union(*map(pairs_of, choices)):
        found[f"{one} with {other}"].add(f"{value}+{another}")
    return "\n".join(
        f"{names} ({len(each)}): {' '.join(sorted(each))}" for names, each in sorted(found.items())
    )


def play(
    folder: Path,
    choices: Sequence[Choice],
    seed: int,
    engines: tuple[Engine, Engine],
    *subscribers: str,
    is_long: bool = True,
) -> None:
    """Play a history with a session that dies, a long one also with late writes, on both networks."""
    log.info("%d articles, seed %d, engines %s:\n%s", len(choices), seed, engines, listed(choices))
    first, *others = subscribers
    twins = Twins(folder, choices, seed, engines, subscribers)
    twins.write(moves=True)
    if is_long:
        twins.sync(first, late=True)
        for name in others:
            twins.sync(name)
        twins.write()
    twins.sync(first, dies_at="stage.after_manifest")
    for name in (*others, *subscribers, *others):
        twins.sync(name)
    problems = twins.problems()
    assert problems == [], (f"MERGEREPL_TEST_SEED={seed}", len(problems), *problems[:20])


@pytest.mark.spark
def test_pairs_of_options_come_to_what_they_do_without_filters(
    spark: SparkSession, replica_dir: Path
) -> None:
    # These sessions run in process; Spark's take twenty times as long.
    choices = [
        each
        for each in covering(FEW, SEED)
        if each["resolver"] == "priority" and not each["compensate_for_errors"]
    ][:2]
    play(replica_dir, choices, SEED, ("auto", "auto"), "north", is_long=False)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engines", [("auto", "spark"), ("spark", "auto")], ids=["auto", "spark"])
def test_every_pair_of_all_options_comes_to_what_it_does_without_filters(
    spark: SparkSession, replica_dir: Path, engines: tuple[Engine, Engine]
) -> None:
    seed = SEED or random.SystemRandom().randrange(1, 1_000_000)
    choices = covering(OPTIONS, seed)
    for start in range(0, len(choices), 6 * AT_ONCE):
        folder = replica_dir / str(start)
        folder.mkdir()
        play(folder, choices[start : start + 6 * AT_ONCE], seed + start, engines, "north", "south")
