"""The reference model of filtered articles: exact partitions, nothing lost or leaked, quiet afterwards (I32 to I35)."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.partition_histories import CASES, VARIANTS, history, play_case

STEPS = 40


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=max(8, settings.default.max_examples // 10))
@given(chance=st.randoms(use_true_random=False))
def test_inv_32_33_34_35_hold_in_drawn_histories(variant: str, chance: random.Random) -> None:
    history(chance, VARIANTS[variant], STEPS)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, options {case[1]}")
def test_the_cases_of_the_design(case: tuple[str, int, str, dict[str, Any]]) -> None:
    play_case(*case)
