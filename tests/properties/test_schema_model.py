"""The model of schema changes holds in its golden histories, each of which needs a rule, and in drawn ones."""

import pytest

from tests.properties import schema_histories
from tests.properties.ruled_worlds import Broken
from tests.properties.schema_histories import GOLDEN, SEEDS, history, play

STAR = ("pair", "star")


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_history_needs_its_rule(name: str) -> None:
    rule, tree, options, steps = GOLDEN[name]
    play(tree, options, steps)
    with pytest.raises(Broken):
        play(tree, {**options, "off": (rule,)}, steps)


def test_no_long_history_that_once_broke_breaks() -> None:
    for seed in SEEDS:
        history(seed, depth=(30, 60))


def test_no_drawn_history_of_a_star_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without republishers and `schema skip`, which the engine refuses."""
    trees = {name: tree for name, tree in schema_histories.TREES.items() if name in STAR}
    monkeypatch.setattr(schema_histories, "TREES", trees)
    weights = {name: weight for name, weight in schema_histories.WEIGHTS.items() if name != "skip"}
    monkeypatch.setattr(schema_histories, "WEIGHTS", weights)
    for seed in range(100):
        history(seed, depth=(8, 30))
