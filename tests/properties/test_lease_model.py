"""Sessions on an object store in the reference: every history of small scopes, drawn ones of three agents, each rule."""

import os
import random
from dataclasses import replace

import pytest

from tests.properties import lease_model as model
from tests.properties.lease_model import ABLATIONS, THREE, Design, Model, broken, drawn, start

IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"

NOTHING = {"lost": 0, "kills": 0, "foreign": 0, "changes": 0}
SCOPES = [
    (("sync", "sync"), NOTHING | {"kills": 1}),
    (("sync", "capture"), NOTHING | {"kills": 1}),
    (("capture", "capture"), NOTHING | {"kills": 1, "lost": 1}),
]
LONG_SCOPES = [
    (("sync", "sync"), NOTHING | {"kills": 1, "foreign": 1, "changes": 1}),
    (("sync", "capture"), NOTHING | {"lost": 1, "kills": 1}),
    (("sync", "sync"), NOTHING | {"lost": 1, "kills": 1}),
    (("sync", "sync", "capture"), NOTHING),
]


@pytest.mark.parametrize(("kinds", "limits"), SCOPES + (LONG_SCOPES if IS_LONG else []))
def test_every_history_of_a_scope_keeps_every_property(
    kinds: tuple[str, ...], limits: dict[str, int]
) -> None:
    count, wrong, trail = Model(Design()).exhaust(start(kinds, **limits), most=2_000_000)
    assert wrong is None, "\n".join(trail)
    assert count > 1_000


def test_drawn_histories_of_three_agents_keep_every_property() -> None:
    whole, rng = Model(Design()), random.Random(1)
    for _ in range(20_000 if IS_LONG else 500):
        kinds = rng.choice(THREE)
        wrong, trail = whole.walk(drawn(kinds, rng), rng)
        assert wrong is None, f"{kinds}\n" + "\n".join(trail)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ABLATIONS)
def test_without_a_rule_a_history_breaks(rule: str) -> None:
    assert broken(Model(replace(model.Design(), **ABLATIONS[rule])), random.Random(1))
