"""Drawn histories of queued updating subscriptions: which rule of sending an originator its own transactions converges."""

import os

from tests.properties import queued_model as model

UNREAD_SEEDS = (2633, 2877, 4457)
HISTORIES = 30_000 if os.environ.get("MERGEREPL_TEST_PROFILE") == "long" else 3_000


def test_transactions_sent_like_all_others_converge_and_lose_nothing_silently() -> None:
    played = [model.history(seed) for seed in range(HISTORIES)]
    assert all(is_equal for is_equal, _ in played)
    assert sum(losers for _, losers in played) > HISTORIES // 5


def test_other_rules_diverge() -> None:
    """An originator without its own transactions; runs of edits that are not cut at batches without an effect."""
    assert not all(model.history(seed, model.LEFT_OUT)[0] for seed in range(300))
    assert not all(model.history(seed, model.UNREAD)[0] for seed in UNREAD_SEEDS)
    assert not all(model.history(seed, cuts=False)[0] for seed in range(300))
