"""Steps, properties and histories for the model of operations (operations_model.py)."""

from __future__ import annotations

import random

from tests.properties.operations_model import World
from tests.properties.operations_rows import KEYS, TREES
from tests.properties.ruled_worlds import Broken, Refused, bring_to_rest, play_drawn

# ---- histories ----------------------------------------------------------------------------------------------------------


def do(world, op):
    """Carry out one step of a history; a refused session is fine only of a subscriber that expired."""
    kind, *args = op
    try:
        if kind == "capture":
            world.recover(args[0])
            world.capture(world.r[args[0]])
        elif kind == "refuse":
            world.r[args[0]].refuses ^= {args[1]}
        else:
            getattr(world, kind)(*args)
    except Refused as refused:
        world.stats["refused"] += 1
        if kind != "reinit" and not world.is_suspect(args[0]):
            raise Broken(f"refused: {refused}") from None
        if kind == "session":
            world.r[world.r[args[0]].up].dead.add(args[0])
    check_settled(world)


def check_settled(world):
    """What settled means: the replica knows every edit at or below it."""
    if not world.checks_settled:
        return
    for replica in world.r.values():
        if world.is_suspect(replica.name):
            continue
        for edit, version in world.version.items():
            if version <= replica.settled and edit not in world.gone:
                key, cols = world.edits[edit]
                if replica.part is not None and not is_shared(world, replica, key):
                    continue
                if not all(world.has(replica.of[key][c], edit) for c in cols) and not is_followed(
                    world, edit, replica.settled
                ):
                    raise Broken(
                        f"settled: {replica.name} has {replica.settled}, but not edit {edit} of {key} ({version})"
                    )


def is_followed(world, edit, settled):
    """Whether later edits that are not settled have taken its places in lineage and colv1: no row names it any more."""
    key, cols = world.edits[edit]
    later = [
        e
        for e in range(edit + 1, len(world.edits))
        if world.edits[e][0] == key and world.version[e] > settled
    ]
    is_replaced = any(world.writer[e] == world.writer[edit] for e in later)
    return is_replaced and (
        edit in world.logged
        or all(any(edit in world.past[e][c] and c in world.edits[e][1] for e in later) for c in cols)
    )


def is_shared(world, replica, key):
    """Whether a filtered replica has the publisher's row, and not a new one of its own."""
    pub = world.r[replica.up]
    is_own = (key in replica.meta and replica.meta[key].born) or any(
        cs.sub == replica.name for cs in world.staged
    )
    return key in pub.there[replica.name] and replica.sees(pub.captured.get(key)) and not is_own


def quiet_pass(world):
    """One pass of `sync --tree`: leaves to root, then root to leaves."""
    subs = [s for s in world.below("R") if s != "R"]
    depth = {s: len(world.below(s)) for s in subs}
    for name in [*sorted(subs, key=depth.get), *sorted(subs, key=depth.get, reverse=True)]:
        do(world, ("session", name))
        if name in world.r[world.r[name].up].dead:
            world.reinit(name, True)


def finish(world):
    """Bring everything to rest and check what must hold then."""
    for replica in world.r.values():
        replica.refuses.clear()
    for name in [s for s in world.below("R") if s != "R"]:  # from the root downwards
        if name in world.r[world.r[name].up].dead:
            world.reinit(name, True)
    quiet_pass(world)
    quiet_pass(world)
    root = world.r["R"]
    for replica in world.r.values():
        wanted = {k: row for k, row in root.rows.items() if replica.sees(row)}
        if replica.rows != wanted:
            raise Broken(f"diverged: {replica.name} has {replica.rows}, not {wanted}")
    for edit, (key, cols) in enumerate(world.edits):
        if edit not in world.logged | world.gone and not all(world.has(root.of[key][c], edit) for c in cols):
            raise Broken(f"lost: edit {edit} of {key} never came to the root")
    quiet_pass(world)
    for replica in world.r.values():
        world.cleanup(replica.name)
        if replica.meta:
            raise Broken(f"stuck: {replica.name} keeps {replica.meta}, settled {replica.settled}")


WEIGHTS = {
    "write": 9,
    "session": 8,
    "stopped": 3,
    "one way": 2,
    "capture": 1,
    "cleanup": 4,
    "refuse": 1,
    "expire": 1,
    "revive": 1,
    "reinit": 2,
    "unsubscribe": 1,
}


def draw(rng, world, weights):
    kind = rng.choices(list(weights), weights.values())[0]
    names = list(world.r)
    subs = names[1:]
    sub = rng.choice(subs)
    if kind == "write":
        return "write", rng.choice(names), rng.choice(world.keys), rng.choice("aabbd" + "p" * world.filtered)
    if kind == "session":
        return "session", sub
    if kind == "one way":
        return "session", sub, rng.choice(("upload", "download"))
    if kind == "stopped":
        return (
            "session",
            sub,
            rng.choice(("both", "both", "upload", "download")),
            rng.choice(("staged", "pub", "sub", "both", "subwm")),
        )
    if kind == "refuse":
        return "refuse", rng.choice(names), rng.choice(world.keys)
    if kind == "reinit":
        return "reinit", sub, rng.random() < 0.7, rng.choice((None, None, "staged", "pub", "sub", "both"))
    if kind == "unsubscribe":
        return "unsubscribe", rng.choice([s for s in subs if not world.r[s].through])
    return kind, rng.choice(names) if kind in ("capture", "cleanup") else sub


def history(seed, off=(), filtered=None, depth=(12, 25), checks_settled=True):
    """Play one drawn history and bring it to rest; return what it did, raise Broken with the steps."""
    rng = random.Random(seed)
    filtered = rng.random() < 0.25 if filtered is None else filtered
    tree = "star" if filtered else rng.choice(list(TREES))
    prios = rng.choice(((50,), (100, 75, 25), (25, 75, 50, 100), (75, 75, 25)))
    world = World(
        tree,
        column=rng.random() < 0.5,
        filtered=filtered,
        prios=prios,
        keys=KEYS[: rng.choice((1, 2))],
        off=off,
    )
    world.checks_settled = checks_settled
    weights = {k: v if v > 2 else rng.choice((0, v, 4)) for k, v in WEIGHTS.items()}
    said = f"seed {seed}: {tree}, column {world.column}, filtered {filtered}, prios {prios}"
    steps = (draw(rng, world, weights) for _ in range(rng.randint(*depth)))
    return play_drawn(world, steps, do, finish, said)


def steps_of(text):
    """The steps of a history in words: "write A x a; session A; reinit A True"."""
    words = (step.split() for step in text.split("; "))
    return [tuple({"True": True, "False": False}.get(word, word) for word in step) for step in words]


GOLDEN = {
    # name: (rules without which it breaks, tree, options, steps)
    "a column's entry is cleaned where another replica has not seen the change": (
        ("C known",),
        "star",
        {"column": True},
        steps_of(
            "write B x b; capture B; write R y a; session A; session A; session B; session B; session B; "
            "cleanup B; write B x a; session B; write A x b; session A"
        ),
    ),
    "KB309400": (
        ("floor",),
        "star",
        {"column": True},
        steps_of(
            "write B x a; session B; session A; session B; session A; session B; session A; session B; "
            "cleanup R; write R x a; write A x b; session A"
        ),
    ),
    "another life of a key outside of the partition": (
        ("anew",),
        "star",
        {"filtered": True},
        steps_of(
            "write B x a; capture B; write A x d; session A; session A; session B upload; session A; "
            "session A; write A x a; session A"
        ),
    ),
    "new rows of a key that another partition had": (
        ("fresh rows know nothing", "compare with the table", "anew", "born"),
        "star",
        {"filtered": True, "keys": ("x", "z", "y"), "there": ("x", "z")},
        steps_of(
            "write B y b; write B z a; write A y a; write A x a; write R x d; session A; write R y d; "
            "write A x a; session A; session B; session A; session A; write A y a; session A"
        ),
    ),
    "a refused change of an ended subscription": (
        ("clock of generations",),
        "star",
        {},
        steps_of(
            "write B y a; capture B; refuse R x; write A x a; session A; write A x a; session A; "
            "unsubscribe A; session B"
        ),
    ),
    "an expired relation comes back, nothing is cleaned": (
        ("guard through",),
        "tree",
        {},
        steps_of(
            "write A x a; capture A; expire A; write N y a; session N; session D upload; "
            "session D upload; session E upload; session E upload; session N; session N; session N; "
            "revive A; session A; write N x a; session N"
        ),
    ),
    "an expired relation comes back, what it refused was cleaned": (
        ("guard knows",),
        "star",
        {"column": True},
        steps_of(
            "refuse A x; write B x b; session B; session A; session A; expire A; session B; session B; "
            "session B; cleanup R; revive A; refuse A x; write A x a; session A"
        ),
    ),
    "an expired relation below comes back, its publisher told that it knows all": (
        ("guard told",),
        "chain",
        {},
        steps_of(
            "write D x a; capture D; expire D; write N y a; session N upload; session N upload; "
            "session N upload; revive D; session D; session N"
        ),
    ),
    "a refused row at a reinitialised subscriber": (
        ("reinit lists",),
        "pair",
        {},
        steps_of("refuse R x; write A x a; session A; session A; refuse R x; reinit A True"),
    ),
    "a republisher is reinitialised, its subscriber goes on": (
        ("reinit marks", "guard cleaned"),
        "tree",
        {},
        steps_of(
            "session N; session N; session D; session D; write N x a; session D; session D; expire N; "
            "reinit N False; revive D; session D"
        ),
    ),
    "upload-first after cleanup": (
        ("reinit by value",),
        "star",
        {"prios": (50, 50)},
        steps_of(
            "write A x a; capture A; expire A; write R x b; session B; session B; session B; session B; "
            "cleanup R; reinit A True"
        ),
    ),
}


def play(tree, options, steps, checks_settled=True):
    world = World(tree, **options)
    world.checks_settled = checks_settled
    bring_to_rest(world, steps, do, finish)
