"""The model of cleanup and expiry keeps its properties: golden histories with and without their rules, drawn ones."""

import os

import pytest

from tests.properties.operations_histories import GOLDEN, history, play
from tests.properties.operations_model import RULES
from tests.properties.ruled_worlds import Broken

IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_history_holds_and_breaks_without_each_of_its_rules(name: str) -> None:
    rules, tree, options, steps = GOLDEN[name]
    play(tree, options, steps)
    for rule in rules:
        with pytest.raises(Broken):
            play(tree, {**options, "off": (rule,)}, steps)


@pytest.mark.parametrize(
    ("filtered", "count"), [(False, 20_000 if IS_LONG else 300), (True, 5_000 if IS_LONG else 100)]
)
def test_inv_36_drawn_histories_with_cleanups_and_expiries_lose_nothing(filtered: bool, count: int) -> None:
    for seed in range(1_000_000, 1_000_000 + count):
        history(seed, filtered=filtered)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    """Without it a golden or a drawn history breaks; where it can, without the definition of settled being checked."""
    golden = [each for each in GOLDEN.values() if rule in each[0]]
    is_filtered = RULES[rule].startswith("filtered")

    def search() -> None:
        for _, tree, options, steps in golden:
            play(tree, {**options, "off": (rule,)}, steps)
        for checks_settled in (False, True):
            for seed in range(20_000):
                history(seed, off=(rule,), filtered=is_filtered, checks_settled=checks_settled)

    with pytest.raises(Broken):
        search()
