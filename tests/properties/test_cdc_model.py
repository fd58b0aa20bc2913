"""Drawn histories of Change Data Capture in the reference, with crashes: its properties hold. So do the masks' layout."""

import os
import random

from tests.properties.cdc_model import history, masks

IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"


def test_drawn_histories_keep_every_property() -> None:
    steps = sum(history(seed) for seed in range(4000 if IS_LONG else 150))
    assert steps > 4_000


def test_the_layout_of_masks() -> None:
    masks(random.Random(0))
