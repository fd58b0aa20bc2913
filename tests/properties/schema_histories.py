"""Steps, properties, golden histories and drawn ones for the model of schema changes."""
# ruff: noqa: E501 - one history is one line

from __future__ import annotations

import random

from tests.properties.ruled_worlds import Broken, Refused, bring_to_rest, play_drawn
from tests.properties.schema_model import KEYS, TREES, World

STOPS = ("captured", "alter0", "alter1", "alter2", "schema", "staged", "pub", "sub", "subwm")


def do(world, op):
    """Carry out one step; a refusal is fine only where the page names one: no column mapping, or a column of one's own."""
    kind, *args = op
    try:
        if kind == "capture":
            world.recover(args[0])
            world.capture(world.r[args[0]])
        elif kind == "skip":
            skip(world, args[0])
        else:
            getattr(world, kind)(*args)
    except Refused as refused:
        sub = world.r[args[0]]
        own = set(sub.table.cols) - set(world.walk(sub)[0].values())
        if kind != "session" or (sub.table.has_mapping and not own):
            raise Broken(f"refused: {refused}") from None
        world.stats["refused"] += 1


def skip(world, name):
    """`schema skip`: the subscriber goes without the oldest ADD that it has not got."""
    sub = world.r[name]
    fields = world.walk(sub)[0]
    waiting = [f for f in world.r[sub.up].fields if f not in fields and f not in sub.skips]
    if fields.keys() & world.walk(world.r["R"])[0].keys():
        sub.skips |= set(waiting[:1])


def mend(world):
    """What the messages of refusals ask for: column mapping is switched on, columns of one's own that are in the way go."""
    for sub in world.r.values():
        if sub.up is None:
            continue
        sub.table.has_mapping = True
        wanted = {c.name for c in world.r["R"].fields.values()}
        used = set(world.walk(sub)[0].values())
        for ident, column in list(sub.table.cols.items()):
            if ident not in used and column.name in wanted:
                sub.table.alter({i: c for i, c in sub.table.cols.items() if i != ident})
                sub.left.pop(ident, None)


def quiet_pass(world):
    subs = [s for s in world.r if world.r[s].up]
    for name in [*reversed(subs), *subs]:
        do(world, ("session", name))


def finish(world):
    """Bring everything to rest and check what must hold then."""
    do(world, ("capture", "R"))
    mend(world)
    for _ in range(3):
        quiet_pass(world)
    root = world.r["R"]
    if root.fields.keys() != world.walk(root)[0].keys():
        raise Broken("diverged: the root publishes other columns than it has")
    for sub in world.r.values():
        mine = {f: c for f, c in root.fields.items() if f not in all_skips(world, sub)}
        if sub.fields != mine:
            raise Broken(f"diverged: {sub.name} has columns {sub.fields}, not {mine}")
        rows = {k: {f: row[i].value for f, i in sub.ident.items()} for k, row in sub.table.rows.items()}
        wanted = {k: {f: row[root.ident[f]].value for f in mine} for k, row in root.table.rows.items()}
        if rows != wanted:
            raise Broken(f"diverged: {sub.name} has {rows}, not {wanted}")
        if any(sub.table.cols[i] != sub.fields[f] for f, i in sub.ident.items()):
            raise Broken(f"diverged: {sub.name} calls columns {sub.table.cols}, not {sub.fields}")
    check_lost(world)


def check_lost(world):
    """Each value that a user wrote is at the root, was seen by one that is, or is in a conflict table."""
    root = world.r["R"]
    fields = {f for _, f in world.born if isinstance(f, int)}
    kept = {(t, f) for t, f in world.logged}
    for key in world.keys:
        row = root.table.rows.get(key)
        for f in fields:
            last = world.root_token(f, key) if f in root.fields else world.at_drop.get(f, {}).get(key, 0)
            kept |= {(last, f)}
        if row is None:
            kept |= {(root.table.gone.get(key, 0), f) for f in fields}
    open_ = list(kept)
    while open_:
        token, f = open_.pop()
        news = {(t, f) for t in (*world.parents.get((token, f), ()), *world.twins.get((token, f), ()))} - kept
        if token in world.deletes:  # who deletes a row deletes all columns that the table had
            news |= {(token, g) for g in fields} - kept
        kept |= news
        open_ += news
    for (token, f), key in world.born.items():
        if isinstance(f, int) and (token, f) not in kept:
            raise Broken(f"lost: {key}.{f} token {token} is neither at the root nor logged")


def all_skips(world, sub):
    skips = set()
    while sub.up:
        skips |= sub.skips
        sub = world.r[sub.up]
    return skips


# ---- drawn histories ------------------------------------------------------------------------------------------------------

NAMES = "abcde"


def draw_ddl(rng, world):
    root = world.r["R"]
    one, other = rng.choice(NAMES), rng.choice(NAMES)
    what = rng.choice(
        (
            "add",
            "add",
            "drop",
            "again",
            "undone",
            "rename",
            "swap",
            "widen",
            "replace",
            "less",
            "more",
            "wider",
            "delete",
            "tracking",
        )
    )
    if what == "add" and len(root.table.cols) > 3:
        what = "drop"
    if what in ("rename", "swap"):
        return "ddl", "R", what, one, other
    return "ddl", "R", what, rng.choice(world.keys) if what in ("replace", "delete") else one


def draw_write(rng, world, name):
    return (
        "write",
        name,
        rng.choice(world.keys),
        rng.choice([*NAMES[:4], "a", "b", "a", "-", "a!", "b!", "c!", "c0", "b0"]),
    )


def draw(rng, world, weights):
    kind = rng.choices(list(weights), weights.values())[0]
    names, subs = list(world.r), [s for s in world.r if world.r[s].up]
    sub = rng.choice(subs)
    if kind == "write":
        return draw_write(rng, world, rng.choice(names))
    if kind == "ddl":
        return draw_ddl(rng, world)
    if kind == "own":
        return "ddl", sub, rng.choice(("add", "add", "replace")), rng.choice("cde")
    if kind == "skip":
        return "skip", sub
    if kind == "capture":
        return "capture", rng.choice(names)
    stop = rng.choice(STOPS) if kind == "stopped" else None
    inject = {}
    if kind == "beside" or rng.random() < 0.2:
        at = rng.choice(STOPS)
        near = rng.choice((sub, sub, world.r[sub].up))
        inject[at] = draw_ddl(rng, world) if rng.random() < 0.25 else draw_write(rng, world, near)
    return "session", sub, stop, inject


WEIGHTS = {"write": 10, "session": 7, "stopped": 4, "beside": 3, "ddl": 4, "own": 1, "skip": 1, "capture": 1}


def history(seed, off=(), depth=(8, 18)):
    rng = random.Random(seed)
    tree = rng.choice(list(TREES))
    prios = rng.choice(((50,), (100, 75, 25), (25, 75, 50, 100)))
    mapping = rng.choice(("RABND", "RABND", "RAN", "ABND", ""))
    column = rng.random() < 0.5
    world = World(tree, column=column, mapping=mapping, prios=prios, keys=KEYS[: rng.choice((1, 2))], off=off)
    weights = {k: v if v > 2 else rng.choice((0, v)) for k, v in WEIGHTS.items()}
    said = f"seed {seed}: {tree}, column {column}, mapping {mapping}, prios {prios}"
    steps = (draw(rng, world, weights) for _ in range(rng.randint(*depth)))
    return play_drawn(world, steps, do, finish, said)


# ---- golden histories -------------------------------------------------------------------------------------------------------

A, B, N, D = (("session", name) for name in "ABND")
LOW, HIGH = (100, 100, 50, 25), (100, 25, 75, 100)  # subscribers lose or win against R
GOLDEN = {
    # name: (rule without which it breaks, tree, options, steps)
    "three renames exchange two columns": ("identity", "pair", {"column": True}, [("write", "R", "x", "a"), A, ("ddl", "R", "swap", "a", "b")]),
    "a row, then CREATE OR REPLACE": ("replacement by name", "pair", {}, [("write", "R", "y", "b0"), ("ddl", "R", "replace", "x")]),
    "DROP, then RESTORE, before the capture": ("restored identity", "pair", {}, [A, ("write", "R", "x", "b"), ("ddl", "R", "undone", "b")]),
    "an edit is older than the column": ("unknown", "star", {"prios": HIGH}, [("write", "B", "x", "b"), ("ddl", "R", "more", "d")]),
    "a write between capture and ALTER": ("unknown at the write", "pair", {"prios": HIGH}, [
        ("ddl", "R", "more", "d"), ("session", "A", None, {"captured": ("write", "A", "x", "a")})]),
    "an old edit is relayed": ("unknown stays", "chain", {"prios": HIGH}, [
        ("ddl", "R", "again", "a"), ("write", "D", "y", "a"), ("session", "N", None, {"staged": ("write", "R", "y", "a")})]),
    "an old edit revives a row": ("revived", "star", {"prios": HIGH}, [
        ("write", "B", "x", "b"), ("ddl", "R", "add", "c"), ("write", "R", "x", "c"), A, ("write", "R", "x", "-"), B, A]),
    "... and a third replica has another value": ("revived says", "star", {"prios": HIGH}, [
        ("ddl", "R", "add", "c"), A, ("write", "R", "x", "c"), ("capture", "R"), ("write", "R", "x", "-"), ("write", "A", "x", "c"), ("write", "B", "x", "b"), B, A]),
    "an edit without the column goes on to others": ("filled", "star", {}, [
        ("ddl", "R", "more", "c"), ("capture", "R"), ("skip", "B"), B, ("write", "B", "x", "b"), B, A]),
    "an edit without the column on one with it": ("claims stay", "star", {"mapping": "RAB", "prios": (25, 100, 75, 50)}, [
        ("ddl", "R", "more", "e"), ("ddl", "R", "delete", "x"), B, ("skip", "A"), ("write", "R", "x", "a"), A, ("write", "A", "x", "a"), A, ("write", "B", "x", "e")]),
    "an insert over a delete, without the column": ("claims of a delete", "chain", {}, [
        ("ddl", "R", "more", "c"), N, ("skip", "D"), ("write", "N", "x", "-"), D, ("write", "D", "x", "a")]),
    "... and the delete is without it, too": ("filled tombstone", "chain", {}, [
        ("ddl", "R", "more", "c"), N, ("skip", "D"), D, ("write", "D", "x", "-"), D, ("write", "D", "x", "a"), D]),
    "a late edit without the column revives a row": ("revived elsewhere", "star", {}, [
        ("ddl", "R", "more", "d"), B, ("skip", "A"), ("write", "R", "x", "-"), ("session", "A", None, {"staged": ("write", "A", "x", "a")}), A]),
    "a name between two edits": ("colv by field", "pair", {"column": True}, [
        ("write", "R", "x", "a"), ("ddl", "R", "rename", "a", "c"), ("write", "A", "x", "a")]),
    "rows before their column": ("schema first", "pair", {}, [("ddl", "R", "more", "c")]),
    "big values in a wider column": ("widened", "pair", {}, [("ddl", "R", "widen", "a"), ("write", "R", "x", "a!")]),
    "a write between capture and DROP": ("capture after", "pair", {}, [
        ("ddl", "R", "less", "a"), ("session", "A", None, {"captured": ("write", "A", "y", "b")})]),
    "P29: dropped here, edited there": ("dropped is logged", "pair", {}, [("write", "A", "x", "b"), ("ddl", "R", "drop", "b")]),
    "only the dropped column was edited": ("withdrawn", "star", {"prios": HIGH}, [
        ("write", "A", "x", "b"), ("ddl", "R", "less", "b"), ("write", "B", "x", "a")]),
    "a value before the first capture with the column": ("adopted values", "pair", {"prios": HIGH}, [
        ("ddl", "R", "again", "a"), ("session", "A", None, {"alter1": ("write", "A", "x", "a")}), ("write", "R", "x", "a!")]),
    "P28: both sides add the column": ("adopted values", "star", {"column": True, "prios": HIGH}, [
        ("ddl", "R", "add", "c"), ("write", "R", "x", "c"), ("ddl", "A", "add", "c"), ("write", "A", "x", "c"), ("write", "A", "y", "c"), A, B]),
    "a name that a DROP left behind": ("left stays", "pair", {"mapping": "R"}, [("write", "A", "x", "b"), A, ("ddl", "R", "again", "b"), A]),
    "CREATE OR REPLACE under a staged row": ("staged by identity", "pair", {}, [
        ("write", "A", "x", "b"), ("session", "A", None, {"schema": ("ddl", "R", "less", "b")})]),
    "DROP under a staged row": ("staged dropped", "pair", {}, [
        ("write", "A", "x", "b"), ("session", "A", None, {"schema": ("ddl", "R", "drop", "b")})]),
    "killed after an ALTER": ("marks", "pair", {}, [("ddl", "R", "again", "a"), ("session", "A", "alter0")]),
    "P29: dropped and added again": ("drops first", "pair", {}, [("write", "A", "x", "a"), ("ddl", "R", "again", "a")]),
    "tracking by column begins over an unsent edit": ("row versions", "pair", {}, [
        ("write", "A", "x", "a"), ("capture", "A"), ("ddl", "R", "tracking"), ("write", "R", "x", "a")]),
    "... and the row is edited again": ("stamped whole", "pair", {}, [
        ("write", "A", "x", "a"), ("capture", "A"), ("ddl", "R", "tracking"), ("capture", "R"), ("session", "A", "schema"), ("write", "A", "x", "b"), ("write", "R", "x", "a")]),
    "a late delete without the column": ("late delete", "pair", {}, [
        ("ddl", "R", "more", "e"), ("capture", "R"), ("skip", "A"), A, ("write", "R", "x", "e"), ("session", "A", None, {"pub": ("write", "A", "x", "-")})]),
    "... and of a row that changed elsewhere, too": ("whole loser", "pair", {"prios": HIGH}, [
        ("write", "R", "x", "a"), ("ddl", "R", "more", "e"), ("capture", "R"), ("skip", "A"), ("session", "A", None, {"pub": ("write", "A", "x", "-")})]),
    "three renames": ("temporary names", "pair", {}, [("write", "A", "x", "a"), ("ddl", "R", "swap", "a", "b"), ("session", "A", "alter0")]),
    "a subscriber without the column": ("skipped is unknown", "chain", {"prios": LOW}, [
        ("ddl", "R", "more", "c"), N, ("skip", "D"), D, ("write", "D", "x", "b"), D]),
    "an existing column is published": ("copied rows", "pair", {}, [("ddl", "R", "more", "c")]),
}  # fmt: skip

SEEDS = (
    6017294, 7007295, 9001324, 9020929, 9056728, 9068989, 9100183,
    9106496, 9176285, 9180488, 9192131, 9220279, 9246276, 9288351,
)  # fmt: skip # of 30 to 60 steps; each broke once


def play(tree, options, steps):
    world = World(tree, **options)
    bring_to_rest(world, steps, do, finish)
