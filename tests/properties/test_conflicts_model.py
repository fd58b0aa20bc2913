"""Every resolver brings all replicas to one row, whichever side sends, and synchronizing again adds nothing.

This is of the reference. All histories with `scripts/test --long`.
"""

import os

import pytest

from mergerepl.model.resolvers import CUSTOM, RESOLVERS
from tests.properties import conflicts_model as model
from tests.properties import resolver_rules as rules

IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"
# No factor of what the histories are made of: each kind of edit, order and direction is met.
STRIDE = 1 if IS_LONG else 269

# What a function of the user's own decides, no reference knows.
OURS = {name: resolver for name, resolver in RESOLVERS.items() if name != CUSTOM}

LEVELS = [
    (name, tracking, resolution)
    for name, resolver in OURS.items()
    for tracking in ("row", "column")
    for resolution in ("row", "columns")
    if ((tracking == "column" and resolver.rejects is None) or resolution == "row")
    and (tracking == "column" or resolver.by_row)
]


def test_the_model_has_every_resolver() -> None:
    assert set(OURS) <= set(rules.RESOLVERS)
    assert {name for name, each in OURS.items() if each.makes_value} <= rules.MAKES
    assert {name for name, each in OURS.items() if each.clashes_if_equal} <= rules.CLASHES_IF_EQUAL


@pytest.mark.parametrize(("resolver", "tracking", "resolution"), LEVELS)
def test_replicas_converge_and_nothing_is_added_twice(resolver: str, tracking: str, resolution: str) -> None:
    histories, logged = model.check(resolver, tracking, resolution, stride=STRIDE)
    assert histories == -(-19_208 // STRIDE)
    assert logged > histories // 8


def test_differences_are_all_counted_whatever_the_order() -> None:
    assert model.check_sums(stride=1 if IS_LONG else 19) > 500


def test_sets_are_joined_whatever_the_order() -> None:
    assert model.check_sets(stride=1 if IS_LONG else 19) > 500
