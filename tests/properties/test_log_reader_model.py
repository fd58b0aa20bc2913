"""The log reader in a bucket (docs/decisions/0161) in the reference: every history of small scopes, and each rule."""

from dataclasses import replace

import pytest

from tests.properties.log_reader_model import (
    ABLATIONS,
    CUT_ABLATIONS,
    SCOPES,
    Cut,
    Design,
    Model,
    start,
    wrong_cut,
)

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


def test_every_cut_in_whole_seconds_has_what_came_before() -> None:
    assert wrong_cut(Cut()) is None


@pytest.mark.parametrize("rule", CUT_ABLATIONS)
def test_without_a_rule_a_cut_lacks_what_came_before(rule: str) -> None:
    assert wrong_cut(CUT_ABLATIONS[rule])
