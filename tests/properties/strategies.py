"""Histories for Hypothesis: a few bytes a step, because they generate and shrink fast."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.properties.reference import Row

COLUMNS = ("a", "b", "c")
KEYS = ("k0", "k1")
SNAPSHOT: dict[str, Row] = {"k0": {"a": "s1", "b": "s2", "c": None}}
MASKS = (("a",), ("b",), ("c",), ("a", "b"), COLUMNS)
WRITES = ("upsert",) * 6 + ("delete",) * 2
SYNCS = ("both",) * 4 + ("upload", "download")
FAULTS = ("crash", "crash")


@dataclass(frozen=True)
class Step:
    """One step; `small` picks a value of the small domain (0: a unique token) or a crash point."""

    op: str
    replica: int
    key: int
    columns: tuple[str, ...] = COLUMNS
    small: int = 0


@dataclass(frozen=True)
class History:
    """A schedule of writes and sessions; `config` has bits for tracking, resolution, subscriptions."""

    config: int
    steps: tuple[Step, ...]


def decode(data: bytes, config: int, ops: tuple[str, ...]) -> History:
    """Read a history from bytes, two a step."""
    steps = []
    for first, second in zip(data[::2], data[1::2], strict=False):
        op, replica = ops[(first >> 2) % len(ops)], first & 3
        small = second >> 4 if op == "crash" else max(0, (second >> 4) - 12)
        steps.append(Step(op, replica, second & 1, MASKS[(second >> 1 & 7) % len(MASKS)], small))
    return History(config, tuple(steps))


def histories(
    *, faults: bool = True, one_way: bool = True, column: bool | None = None, steps: int = 24
) -> st.SearchStrategy[History]:
    """Return histories; `column` fixes the tracking."""
    ops = WRITES + (SYNCS if one_way else SYNCS[:4]) + (FAULTS if faults else ())
    configs = st.integers(0, 15) if column is None else st.integers(0, 7).map(lambda n: 2 * n + int(column))
    return st.builds(
        lambda config, data: decode(data, config, ops),
        configs,
        st.binary(min_size=steps // 2, max_size=2 * steps),
    )
