"""Compact change tracking in a bucket (docs/decisions/0170) in the reference: all histories of small scopes, each rule."""

from dataclasses import replace

import pytest

from tests.properties.tracking_register_model import ABLATIONS, SCOPES, Design, Model, start

MOST = 100_000


@pytest.mark.parametrize(
    "scope", [pytest.param(each, marks=pytest.mark.slow if "foreign" in each else ()) for each in SCOPES]
)
def test_every_history_of_a_scope_keeps_every_property(scope: dict[str, int]) -> None:
    count, wrong, trail = Model(Design()).exhaust(start(**scope), MOST)
    assert wrong is None, "\n".join(trail)
    assert 1_000 < count < MOST


@pytest.mark.parametrize("rule", ABLATIONS)
def test_without_a_rule_a_history_breaks(rule: str) -> None:
    field, scope = ABLATIONS[rule]
    assert Model(replace(Design(), **{field: False})).exhaust(start(**scope), MOST)[1]
