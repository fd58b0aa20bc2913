"""A model of transactional propagation in plain Python, checked by drawn histories.

What it models: commits of one article's table; the log reader that makes commands of them for each syntax; a subscriber
(which somebody may have tampered with); the default procedures applied one by one, as the original does; and the set-based
application of a whole batch, in which each step is one that a DataFrame can do: look-up, window, join, group, one MERGE.
The only part that walks in order is `walk_moves`: it sees commands on keys that a key change names.

What it checks, by number:
 T1 Commands of each method lead a subscriber that equals the publisher to equal it again, commit by commit; with a
    row filter, too.
 T2 A batch applied as a set is the batch applied row by row: same rows and errors (number, command), for any subscriber,
    any skipped errors, any batches; with a stop, everything before the failing transaction is applied and nothing after.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

N = 4  # columns c1 (the key) to c4
NOT_FOUND, DUPLICATE = 20598, 2627
Row = tuple


@dataclass(frozen=True)
class Command:
    """One row of MSrepl_commands: `new` has None where nothing is passed; `bits` as the procedure sees them."""

    xact: int
    command_id: int
    op: str
    pk: int | None
    new: Row | None = None
    bits: bytes | None = None
    old: Row | None = None

    @property
    def order(self) -> tuple[int, int]:
        return (self.xact, self.command_id)

    def setters(self) -> set[int]:
        """Which columns it sets (0-based)."""
        if self.op == "del":
            return set()
        if self.op == "ins" or self.bits is None:
            return set(range(N))
        return {k - 1 for k in range(1, N + 1) if bit(self.bits, k)}

    @property
    def new_key(self) -> int | None:
        """The key that an update leaves the row with."""
        assert self.new is not None
        return self.new[0] if 0 in self.setters() else self.pk


def bitmask(columns: set[int], n: int) -> bytes:
    """columns are 1-based."""
    out = bytearray(n // 8 + 1)
    for k in columns:
        out[(k - 1) // 8] |= 1 << ((k - 1) % 8)
    return bytes(out)


def bit(mask: bytes, k: int) -> bool:
    return bool(mask[(k - 1) // 8] >> ((k - 1) % 8) & 1)


# -- the log reader ------------------------------------------------------------------------------------------
def commands_of(
    xact: int, pre: dict, post: dict, method: dict, *, singleton: bool, is_in=lambda row: True
) -> list[Command]:
    """One commit's commands: deletes, then updates, then inserts. `pre` and `post` are the feed's images of the commit."""
    pre = {k: r for k, r in pre.items() if is_in(r)}
    post = {k: r for k, r in post.items() if is_in(r)}
    deleted = sorted(k for k in pre if k not in post)
    inserted = sorted(k for k in post if k not in pre)
    updated = sorted(k for k in pre if k in post and pre[k] != post[k])
    moved = []
    if singleton and len(deleted) == len(inserted) == 1 and not updated:
        moved, deleted, inserted = [(deleted[0], inserted[0])], [], []
    out: list[Command] = []

    def add(op: str, **values) -> None:
        if method[op] != "NONE":
            out.append(Command(xact, len(out) + 1, op, **values))

    for k in deleted:
        add("del", pk=k, old=pre[k] if method["del"] == "XCALL" else None)
    for k, to in [(k, k) for k in updated] + moved:
        changed = {i + 1 for i in range(N) if pre[k][i] != post[to][i]}
        bits = bitmask(changed, N)
        if method["upd"] == "SCALL":
            new = tuple(v if i + 1 in changed else None for i, v in enumerate(post[to]))
            add("upd", pk=k, new=new, bits=bits)
        elif method["upd"] == "MCALL":
            add("upd", pk=k, new=post[to], bits=bits)
        elif method["upd"] == "XCALL":
            add("upd", pk=k, new=post[to], old=pre[k])
        else:  # CALL and SQL: everything is set
            add("upd", pk=k, new=post[to])
    for k in inserted:
        add("ins", pk=k, new=post[k])
    return out


# -- row by row, as the original -----------------------------------------------------------------------------
def row_by_row(table: dict, commands: list[Command], skip: set[int]) -> tuple[dict, list]:
    """Return the table and the errors (number, order); the last one is what it stopped at, if that is not skipped."""
    table, errors = dict(table), []
    at_start, xact = dict(table), None
    for c in commands:
        if c.xact != xact:
            at_start, xact = dict(table), c.xact
            errors_before = list(errors)
        number = None
        if c.op == "ins":
            if c.pk in table:
                number = DUPLICATE
            else:
                table[c.pk] = c.new
        elif c.pk not in table:
            number = NOT_FOUND
        elif c.op == "del":
            del table[c.pk]
        else:
            row = tuple(c.new[i] if i in c.setters() else v for i, v in enumerate(table[c.pk]))
            if c.new_key != c.pk and c.new_key in table:
                number = DUPLICATE
            else:
                del table[c.pk]
                table[c.new_key] = row
        if number is not None:
            if number not in skip:
                return at_start, [*errors_before, (number, c.order)]
            errors.append((number, c.order))
    return table, errors


# -- as a set ------------------------------------------------------------------------------------------------
def walk_moves(commands: list[Command], e0: dict[int, bool]):
    """Follow the rows of the keys that key-changing updates name. Returns which row a key means when, and what is bad.

    Only inserts, deletes and key changes of those keys are walked: at most a few for each transaction of the batch.
    """
    moves = [c for c in commands if c.op == "upd" and c.new_key != c.pk]
    keys = {k for c in moves for k in (c.pk, c.new_key)}
    row_at = {
        k: (k, ()) if e0[k] else None for k in keys
    }  # a row is named by the key it began with, and when it was born
    turns = {k: [((0, 0), row_at[k])] for k in keys}
    bad: dict[tuple, int] = {}
    for c in commands:
        is_move = c.op == "upd" and c.new_key != c.pk
        if c.pk not in keys or (c.op == "upd" and not is_move):
            continue
        if c.op == "ins":
            if row_at[c.pk] is not None:
                bad[c.order] = DUPLICATE
                continue
            row_at[c.pk] = (c.pk, c.order)
            turns[c.pk].append((c.order, row_at[c.pk]))
        elif row_at[c.pk] is None:
            bad[c.order] = NOT_FOUND
        elif c.op == "del":
            row_at[c.pk] = None
            turns[c.pk].append((c.order, None))
        elif row_at[c.new_key] is not None:
            bad[c.order] = DUPLICATE
        else:
            row_at[c.new_key], row_at[c.pk] = row_at[c.pk], None
            turns[c.new_key].append((c.order, row_at[c.new_key]))
            turns[c.pk].append((c.order, None))
    return keys, turns, bad


def judged(commands: list[Command], e0: dict[int, bool]):
    """Return for each command the row (thread) it means and what is wrong with it. One window over each key's commands."""
    keys, turns, bad = walk_moves(commands, e0)
    out = []
    present: dict[int, bool] = {}
    for c in commands:  # a window partitioned by key: the last insert or delete before this command, else e0
        if c.pk in keys:
            row = None
            for order, at in turns[c.pk]:
                # an insert means the row that it makes, a delete or a move the one that is there before it
                if order < c.order or (order == c.order and c.op == "ins"):
                    row = at
            number = bad.get(c.order)
            if number is None and row is None:
                number = NOT_FOUND
            out.append((c, row, number))
            continue
        there = present.get(c.pk, e0[c.pk])
        number = None
        if c.op == "ins":
            number, present[c.pk] = (DUPLICATE if there else None), True
        elif c.op == "del":
            number, present[c.pk] = (None if there else NOT_FOUND), False
        elif not there:
            number = NOT_FOUND
        out.append((c, (c.pk, None), number))
    return out


def net_effect(judgement, e0: dict[int, bool]) -> list[tuple]:
    """Group by row: one source row of the MERGE each: (origin key or None, action, values, columns set)."""
    by_row: dict = {}
    for c, row, number in judgement:
        if number is None:
            by_row.setdefault(row, []).append(c)
    merge = []
    for row, commands in by_row.items():
        born = row[1] not in (None, ())
        origin = row[0] if not born and e0[row[0]] else None
        last = [c for c in commands if c.op != "upd"]
        exists = (last[-1].op == "ins") if last else True
        values: dict[int, object] = {}
        for c in commands:  # max_by(value, order) where the column is set; an insert sets all
            for i in c.setters():
                values[i] = c.new[i]
        if not exists:
            if origin is not None:
                merge.append((origin, "delete", None))
        elif origin is not None:
            merge.append((origin, "update", values))
        else:
            merge.append((None, "insert", values))
    return merge


def merged(table: dict, merge: list[tuple]) -> dict:
    """The one MERGE: all source rows meet the table as it was."""
    assert len({o for o, *_ in merge if o is not None}) == sum(o is not None for o, *_ in merge), (
        "one source row each"
    )
    out = dict(table)
    for origin, _, _ in merge:
        if origin is not None:
            del out[origin]
    for origin, action, values in merge:
        if action == "delete":
            continue
        base = table[origin] if origin is not None else (None,) * N
        row = tuple(values.get(i, base[i]) for i in range(N))
        assert row[0] not in out, "two rows of one key"
        out[row[0]] = row
    return out


def keys_of(commands: list[Command]) -> set[int]:
    return {k for c in commands for k in (c.pk, *([c.new_key] if c.op == "upd" else []))}


def as_a_set(table: dict, commands: list[Command], skip: set[int]) -> tuple[dict, list]:
    e0 = {k: k in table for k in keys_of(commands)}
    judgement = judged(commands, e0)
    wrong = sorted((c.order, number) for c, _, number in judgement if number is not None)
    stop = next(((order, number) for order, number in wrong if number not in skip), None)
    if stop is not None:
        kept = [c for c in commands if c.xact < stop[0][0]]
        table, errors = as_a_set(table, kept, skip)
        return table, [*errors, (stop[1], stop[0])]
    return merged(table, net_effect(judgement, e0)), [(number, order) for order, number in wrong]


# -- histories -----------------------------------------------------------------------------------------------
def drawn_commits(rng: random.Random, start: dict, count: int) -> list[tuple[dict, dict]]:
    """Return the states of a publisher's table, commit by commit, as (pre, post) images of what changed."""
    state, out = dict(start), []
    for _ in range(count):
        before = dict(state)
        kind = rng.random()
        if kind < 0.3 and state:  # UPDATE … SET pk
            k = rng.choice(sorted(state))
            to = rng.randint(1, 7)
            if to not in state:
                row = state.pop(k)
                state[to] = (to, *row[1:3], rng.randint(0, 2) if rng.random() < 0.5 else row[3])
        elif kind < 0.4 and state:  # a shift of several keys in one commit: deletes and inserts
            state = {k + 1: (k + 1, *r[1:]) for k, r in state.items()}
        else:
            for _ in range(rng.choice([1, 1, 2, 3])):
                k = rng.randint(1, 7)
                if k in state and rng.random() < 0.35:
                    del state[k]
                else:
                    state[k] = (k, rng.randint(0, 2), rng.choice([None, 0, 1]), rng.randint(0, 2))
        keys = {k for k in before.keys() | state.keys() if before.get(k) != state.get(k)}
        out.append(({k: before[k] for k in keys if k in before}, {k: state[k] for k in keys if k in state}))
    return out


def tampered(rng: random.Random, start: dict, times: int) -> dict:
    """Return the rows of a subscriber that somebody tampered with."""
    found = dict(start)
    for _ in range(times):
        k = rng.randint(1, 7)
        if k in found and rng.random() < 0.6:
            del found[k]
        else:
            found[k] = (k, 9, 9, 9)
    return found


def history(seed: int) -> int:
    """Check a drawn history; return the number of its commands."""
    rng = random.Random(seed)
    start = {k: (k, rng.randint(0, 2), None, 1) for k in rng.sample(range(1, 8), rng.randint(0, 6))}
    commits = drawn_commits(rng, start, rng.randint(1, 8))
    method = {
        "ins": "CALL",
        "upd": rng.choice(["CALL", "SCALL", "MCALL", "XCALL"]),
        "del": rng.choice(["CALL", "XCALL"]),
    }
    singleton = rng.random() < 0.7
    # T1
    table, truth, commands = dict(start), dict(start), []
    for xact, (pre, post) in enumerate(commits, start=1):
        mine = commands_of(xact, pre, post, method, singleton=singleton)
        commands += mine
        table, errors = row_by_row(table, mine, set())
        truth = {**{k: r for k, r in truth.items() if k not in pre}, **post}
        assert (errors, table) == ([], truth), "T1"
    in_filter = lambda row: row[1] != 0  # noqa: E731
    table = {k: r for k, r in start.items() if in_filter(r)}
    for xact, (pre, post) in enumerate(commits, start=1):
        table, errors = row_by_row(
            table, commands_of(xact, pre, post, method, singleton=singleton, is_in=in_filter), set()
        )
        assert not errors, "T1 filter"
    assert table == {k: r for k, r in truth.items() if in_filter(r)}, "T1 filter"
    # T2: a subscriber that somebody tampered with, and commands that are wrong for it
    other = tampered(rng, start, rng.choice([0, 0, 1, 2]))
    skip = rng.choice([set(), {NOT_FOUND}, {NOT_FOUND, DUPLICATE}])
    if rng.random() < 0.3:  # an operation that is not replicated
        left_out = rng.choice(["ins", "upd", "del"])
        commands = [c for c in commands if c.op != left_out]
    expected = row_by_row(other, commands, skip)
    assert as_a_set(other, commands, skip) == expected, ("T2", seed)
    cuts = sorted(rng.sample(range(1, len(commits) + 2), rng.randint(0, min(3, len(commits)))))
    table, errors, stopped = dict(other), [], False
    for low, high in zip([0, *cuts], [*cuts, 10**6], strict=True):
        if not stopped:
            table, found = as_a_set(table, [c for c in commands if low <= c.xact < high], skip)
            errors += found
            stopped = any(number not in skip for number, _ in found)
    assert (table, errors) == expected, ("T2 batches", seed)
    return len(commands)
