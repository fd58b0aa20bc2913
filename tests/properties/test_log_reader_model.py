"""The log reader in a bucket (docs/decisions/0161) in the reference: every history of small scopes, and each rule."""

from dataclasses import replace

import pytest

from tests.properties.log_reader_model import ABLATIONS, SCOPES, Design, Model, start

pytestmark = pytest.mark.slow

MOST = 400_000


@pytest.mark.parametrize("scope", SCOPES)
def test_every_history_of_a_scope_keeps_every_property(scope: dict[str, int]) -> None:
    count, wrong, trail = Model(Design()).exhaust(start(2, **scope), MOST)
    assert wrong is None, "\n".join(trail)
    assert 1_000 < count < MOST


@pytest.mark.parametrize("rule", ABLATIONS)
def test_without_a_rule_a_history_breaks(rule: str) -> None:
    model = Model(replace(Design(), **ABLATIONS[rule]))
    assert any(model.exhaust(start(2, **scope), MOST)[1] for scope in SCOPES)
