"""The reference model of filtered articles: exact partitions, nothing lost or leaked, quiet afterwards (I32 to I35)."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties import partition_model as model
from tests.properties.partition_histories import VARIANTS, history, scripted

STEPS = 40


@pytest.fixture
def switched_off() -> Iterator[set[str]]:
    yield model.BROKEN
    model.BROKEN.clear()


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=max(8, settings.default.max_examples // 10))
@given(chance=st.randoms(use_true_random=False))
def test_inv_32_33_34_35_hold_in_drawn_histories(variant: str, chance: random.Random) -> None:
    history(chance, VARIANTS[variant], STEPS)


def test_the_cases_of_the_design() -> None:
    assert scripted() == 28


@pytest.mark.slow
@pytest.mark.parametrize("rule", model.RULES)
def test_a_rule_that_is_switched_off_is_noticed(switched_off: set[str], rule: str) -> None:
    switched_off.add(rule)
    for seed in range(1500):
        for variant in VARIANTS.values():
            try:
                history(random.Random(seed), variant, STEPS)
            except Exception:
                # A hole, or a rule that can no longer go on.
                return
    pytest.fail(f"nothing noticed that {model.RULES[rule]}")
