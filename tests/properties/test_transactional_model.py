"""Drawn histories of transactional replication in the reference, and the engine's pure parts against it."""

import os
import random

from mergerepl.transactional.call_syntax import Operation, bit, bitmask
from mergerepl.transactional.judge import Step, Thread, walk_moves
from tests.properties import transactional_model as model

IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"


def test_drawn_histories_keep_every_property() -> None:
    assert sum(model.history(seed) for seed in range(20_000 if IS_LONG else 2_000)) > 5_000


def test_the_bitmask_is_that_of_the_reference() -> None:
    rng = random.Random(0)
    for _ in range(1_000):
        columns = rng.randint(1, 40)
        chosen = {k for k in range(1, columns + 1) if rng.random() < 0.4}
        mask = bitmask(chosen, columns)
        assert mask == model.bitmask(chosen, columns)
        assert len(mask) == columns // 8 + 1
        assert {k for k in range(1, columns + 1) if bit(mask, k)} == chosen


def test_threads_are_those_of_the_reference() -> None:
    rng = random.Random(0)
    walked = 0
    for _ in range(2_000):
        start = {k: (k, 0, None, 1) for k in rng.sample(range(1, 8), rng.randint(0, 6))}
        method = {"ins": "CALL", "upd": rng.choice(["CALL", "SCALL"]), "del": "CALL"}
        commands = [
            command
            for xact, (pre, post) in enumerate(model.drawn_commits(rng, start, rng.randint(1, 8)), 1)
            for command in model.commands_of(xact, pre, post, method, singleton=True)
        ]
        # Somebody tampered with the subscriber: commands fail.
        is_there = {k: (k in start) ^ (rng.random() < 0.2) for k in model.keys_of(commands)}
        keys, turns, bad = model.walk_moves(commands, is_there)
        steps = [
            Step(_order(c.order), Operation(c.op), str(c.pk), str(c.new_key) if c.op == "upd" else None)
            for c in commands
            if c.pk in keys and (c.op != "upd" or c.new_key != c.pk)
        ]
        found, failed = walk_moves(steps, {str(k): is_there[k] for k in keys})
        assert failed == {_order(order): number for order, number in bad.items()}
        assert {k: [(t.order, t.thread) for t in found if t.key == str(k)] for k in keys} == {
            k: [(b"" if order == (0, 0) else _order(order), _thread(row)) for order, row in turns[k]]
            for k in keys
        }
        walked += len(steps)
    assert walked > 1_000


def _order(order: tuple[int, int]) -> bytes:
    return order[0].to_bytes(10, "big") + order[1].to_bytes(8, "big")


def _thread(row: tuple | None) -> Thread | None:
    if row is None:
        return None
    key, born = row
    return Thread(str(key), _order(born) if born else None)
