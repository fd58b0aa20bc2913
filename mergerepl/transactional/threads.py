"""The row that a key means after each command, where updates change keys (transactional.md 7, step 3). Pure.

Only keys that a key change names are read, and only their inserts, deletes and key changes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mergerepl.transactional.call_syntax import Operation
from mergerepl.transactional.refusals import DUPLICATE, NOT_FOUND

FIRST = b""
"""Sorts before every order of a command."""


@dataclass(frozen=True)
class Step:
    """An insert, a delete or a key change: `order` sorts as the commands are applied. `new_key` is that of a key change."""

    order: bytes
    operation: Operation
    key: str
    new_key: str | None = None


@dataclass(frozen=True)
class Thread:
    """A row, named by the key that it began with; `born` is the order of its insert, None if it existed before."""

    key: str
    born: bytes | None = None


@dataclass(frozen=True)
class Turn:
    """The first command (exclusive; its insert itself included) from which on a key means a row; None: a missing row."""

    key: str
    order: bytes
    thread: Thread | None


def walk_moves(steps: Iterable[Step], is_there: Mapping[str, bool]) -> tuple[list[Turn], dict[bytes, int]]:
    """Return the turns of each key, in order, and the failing steps with their numbers.

    `steps` are in order; `is_there` maps each key to whether the table has its row.
    """
    row_at: dict[str, Thread | None] = {
        key: Thread(key) if there else None for key, there in is_there.items()
    }
    turns = [Turn(key, FIRST, thread) for key, thread in row_at.items()]
    failed: dict[bytes, int] = {}

    def turn(key: str, order: bytes, thread: Thread | None) -> None:
        row_at[key] = thread
        turns.append(Turn(key, order, thread))

    for step in steps:
        thread = row_at[step.key]
        if step.operation is Operation.INSERT:
            if thread is not None:
                failed[step.order] = DUPLICATE
            else:
                turn(step.key, step.order, Thread(step.key, step.order))
        elif thread is None:
            failed[step.order] = NOT_FOUND
        elif step.new_key is None:
            turn(step.key, step.order, None)
        elif row_at[step.new_key] is not None:
            failed[step.order] = DUPLICATE
        else:
            turn(step.new_key, step.order, thread)
            turn(step.key, step.order, None)
    return turns, failed
