"""Distribution with ends in buckets (docs/decisions/0169) in the reference: all histories of small scopes, each rule."""

from dataclasses import replace

import pytest

from tests.properties.distribution_model import ABLATIONS, SCOPES, Design, Model, start

MOST = 400_000

CHEAP = 3
"""The scopes that every run tries: the last ones."""


@pytest.mark.parametrize(
    ("kinds", "scope"),
    [*(pytest.param(*each, marks=pytest.mark.slow) for each in SCOPES[:-CHEAP]), *SCOPES[-CHEAP:]],
)
def test_every_history_of_a_scope_keeps_every_property(kinds: tuple[str, ...], scope: dict[str, int]) -> None:
    count, wrong, trail = Model(Design()).exhaust(start(kinds, Design(), **scope), MOST)
    assert wrong is None, "\n".join(trail)
    assert 400 < count < MOST


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(each, marks=() if "plan" in each or "last" in each else pytest.mark.slow)
        for each in ABLATIONS
    ],
)
def test_without_a_rule_a_history_breaks(rule: str) -> None:
    design = replace(Design(), **ABLATIONS[rule])
    models = (Model(design).exhaust(start(kinds, design, **scope), MOST) for kinds, scope in SCOPES)
    assert any(wrong for _, wrong, _ in models)
