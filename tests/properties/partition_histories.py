"""Histories for the reference model of filtered articles: drawn ones in variants, scripted ones, and the worked example."""

import copy
import random
from typing import Any

from tests.properties.partition_model import Article, Filters, Join, Network, Own, Row

VALUES = ["A", "B", "C"]
SOME = [*VALUES, "X", None]  # a value nobody has, and NULL


def eq(column: str) -> Own:
    return lambda row, value: None if row[column] is None else row[column] == value


def customers_orders_lines(extra: dict | None = None) -> Filters:
    articles = {
        "customers": Article("customers", "param", eq("region"), columns=("region", "val")),
        "orders": Article("orders", columns=("customer", "val")),
        "lines": Article("lines", columns=("order", "val")),
    }
    articles |= extra or {}
    joins = (
        Join("orders", "customers", (("key", "customer"),)),
        Join("lines", "orders", (("key", "order"),)),
    )
    return Filters(articles, joins)


def _variants() -> dict[str, dict[str, Any]]:
    base = customers_orders_lines()
    own_or_join = customers_orders_lines(
        {"lines": Article("lines", "param", eq("region"), columns=("order", "region", "val"))}
    )
    routes = Filters(
        {
            "routes": Article("routes", "param", eq("rep"), columns=("rep", "area", "val")),
            "customers": Article("customers", columns=("region", "val")),
            "orders": Article("orders", columns=("customer", "val")),
            "rates": Article("rates", "static", lambda r, v: r["active"] == 1, columns=("active", "val")),
            "notes": Article("notes", columns=("rate", "customer", "val")),
        },
        (
            Join("customers", "routes", (("area", "region"),)),
            Join("orders", "customers", (("key", "customer"),)),
            Join("notes", "rates", (("key", "rate"),)),
            Join("notes", "customers", (("key", "customer"),)),
        ),
    )
    least = {"A": 0, "B": 1, "C": 2}
    overlapping = Filters(
        {
            "customers": Article(
                "customers",
                "param",
                lambda r, v: None if r["size"] is None else r["size"] >= least[v],
                columns=("size", "val"),
            ),
            "orders": Article("orders", columns=("customer", "val")),
        },
        (Join("orders", "customers", (("key", "customer"),)),),
    )
    terms = Filters(
        {
            "customers": Article("customers", "param", eq("region"), columns=("region", "state", "val")),
            "orders": Article("orders", columns=("customer", "state", "val")),
            "lines": Article("lines", columns=("order", "qty", "val")),
        },
        (
            Join("orders", "customers", (("key", "customer"),), lambda p, c: p["state"] == "on", ("state",)),
            Join(
                "lines",
                "orders",
                (("key", "order"),),
                lambda p, c: p["state"] == "on" and c["qty"] == 1,
                ("state",),
            ),
        ),
    )
    columns = ("region", "second", "state", "val")
    states = Join("orders", "customers", (("key", "customer"),), lambda p, c: p["state"] == "on", ("state",))

    def refiltered(own: Own, *unread: str, with_more: bool = False) -> Filters:
        of_lines = ("order", "region", "val")
        lines = Article("lines", columns=of_lines, unread=("region", "val"))
        more = Article("lines", "param", eq("region"), of_lines)
        customers = Article("customers", "param", own, columns, (*unread, "val"))
        filters = customers_orders_lines({"customers": customers, "lines": more if with_more else lines})
        return Filters(filters.articles, (states, filters.joins[1])) if with_more else filters

    second = refiltered(eq("second"), "region", with_more=True)
    either = refiltered(lambda r, v: v in (r["region"], r["second"]), "state")
    refilter = {"filters": refiltered(eq("region"), "second", "state"), "then": [second, either]}
    return {
        "joins": {"filters": base},
        "or": {"filters": own_or_join},
        "many": {"filters": routes},
        "overlap": {"filters": overlapping},
        "options": {"filters": base, "options": 1},
        "terms": {"filters": terms},
        "refilter": refilter,
        "refilter options": {**refilter, "options": 1},
    }


VARIANTS = _variants()
KEYS = {"customers": 4, "orders": 5, "lines": 6, "routes": 4, "rates": 2, "notes": 4}


def draw_row(rng: random.Random, pick: list) -> Row:
    key = {
        "region": rng.choice(pick),
        "rep": rng.choice(SOME),
        "area": rng.choice(SOME),
        "customer": rng.choice([*range(KEYS["customers"]), None]),
        "order": rng.choice([*range(KEYS["orders"]), None]),
        "rate": rng.choice([0, 1, None]),
        "active": rng.choice([0, 1]),
        "size": rng.choice([0, 1, 2, None]),
        "val": rng.randrange(100),
    }
    key["second"] = [*SOME][key["val"] // 7 % len(SOME)]
    # of `val`, so that the histories of the other variants are drawn as before
    key |= {"state": ["on", "on", "off", None][key["val"] % 4], "qty": [0, 1, 1, None][key["val"] // 4 % 4]}
    return key


def history(rng: random.Random, variant: dict[str, Any], steps: int) -> Network:
    """Writes, sessions that may die, late commits, captures, cleanups and subscriptions in any order; then the checks."""
    options = variant.get("options", 0)
    filters: Filters = variant["filters"]
    rows = {}
    for a, article in filters.articles.items():
        rows[a] = {}
        for k in range(KEYS[a]):
            if rng.random() < 0.6:
                drawn = draw_row(rng, SOME)
                rows[a][k] = {"key": k, **{c: drawn[c] for c in article.columns}, "tok": 0}
    net = Network(filters, {}, rows)
    net.log.append(f"rows {rows}")
    names = ["a1", "b1", "a2", "c1"]
    values = {"a1": "A", "b1": "B", "a2": "A", "c1": "C"}
    for name in names[: rng.choice([2, 2, 3])]:
        net.subscribe(name, values[name], priority=rng.choice([0.0, 40.0, 75.0]), options=options)

    def op(replica: str) -> tuple:
        a = rng.choice(list(filters.articles))
        table = (net.hub if replica == "hub" else net.subs[replica]).tables[a]
        # At a subscriber with options 1 most writes stay inside; filter columns move now and then everywhere.
        pick = SOME if replica == "hub" or rng.random() < 0.5 else [values[replica]]
        drawn = draw_row(rng, pick)
        columns = filters.articles[a].columns
        if table and rng.random() < 0.7:
            k = rng.choice(sorted(table))
            if rng.random() < 0.25:
                return (a, "delete", k)
            chosen = rng.sample(columns, rng.randint(1, len(columns)))
            return (a, "update", k, {c: drawn[c] for c in chosen})
        k = rng.randrange(KEYS[a])
        return (a, "insert", k, {"key": k, **{c: drawn[c] for c in columns}})

    for _ in range(steps):
        roll = rng.random()
        if roll < 0.55:
            replica = rng.choice(["hub", *net.subs])
            for _ in range(rng.randint(1, 3)):
                net.write(replica, *op(replica))
        elif roll < 0.92:
            name = rng.choice(list(net.subs))
            crash = rng.choice([None, None, None, None, "staged", "hub", "sub"])
            late = rng.random() < 0.25
            hub_ops = [op("hub") for _ in range(rng.randint(0, 2))] if late else ()
            sub_ops = [op(name) for _ in range(rng.randint(0, 2))] if late else ()
            net.sync(name, crash=crash, late_hub=hub_ops, late_sub=sub_ops)
        elif roll < 0.95:
            net.recover_hub()
            net.capture_hub()
        elif roll < 0.96:
            net.recover_hub()
            net.cleanup()
        elif len(net.subs) < len(names):
            name = names[len(net.subs)]
            net.subscribe(name, values[name], priority=rng.choice([0.0, 40.0, 75.0]), options=options)
        if "then" in variant and roll > 0.94:
            # A session that is staged ends with the filters that it began with.
            for name in list(net.subs):
                net.recover(name)
            net.change_filters(rng.choice([filters, *variant["then"]]))
    net.check()
    return net


def start(options: int = 0) -> Network:
    """hq: c1 North, c2 South, their orders 10 and 20, lines 100 and 200; subscribers north and south, priority 0."""
    rows = {
        "customers": {
            n: {"key": n, "region": r, "val": 0, "tok": 0} for n, r in ((1, "North"), (2, "South"))
        },
        "orders": {n * 10: {"key": n * 10, "customer": n, "val": 0, "tok": 0} for n in (1, 2)},
        "lines": {n * 100: {"key": n * 100, "order": n * 10, "val": 0, "tok": 0} for n in (1, 2)},
    }
    net = Network(customers_orders_lines(), {}, rows)
    net.subscribe("north", "North", priority=0.0, options=options)
    net.subscribe("south", "South", priority=0.0, options=options)
    return net


def held(net: Network, name: str) -> str:
    tables = (net.hub if name == "hub" else net.subs[name]).tables
    return " ".join(f"{a[0]}{k}" for a in net.names for k in sorted(tables[a]))


ALL_AT_HUB = "c1 c2 o10 o20 l100 l200"
AT_NORTH, AT_SOUTH = "c1 o10 l100", "c2 o20 l200"
MOVE = "hub: c1 region=South"
CASES: list[tuple[str, int, str, dict[str, Any]]] = [
    # number in the design, partition_options, steps, what is held at the end and how many losers there are
    ("5 there and back", 0, f"{MOVE}; capture hub; hub: c1 region=North; south; south unheard; north",
     {"north": AT_NORTH, "south": AT_SOUTH, "losers": 0}),
    ("9 moved, deleted", 0, "hub: c1 region=South val=secret; capture hub; hub: -c1; north; north secretless",
     {"north": "", "hub": "c2 o10 o20 l100 l200"}),
    ("12 moved", 0, f"{MOVE}; north; south", {"north": "", "south": ALL_AT_HUB, "losers": 0}),
    ("13 deleted", 0, "hub: -c1; north", {"north": "", "hub": "c2 o10 o20 l100 l200"}),
    ("14 and inserted", 0, "hub: -c1; north; hub: +c1 region=North; north", {"north": AT_NORTH}),
    ("24 moved by its subscriber", 0, "north: c1 region=South; north", {"north": "", "hub": ALL_AT_HUB, "losers": 0}),
    ("25 an insert outside", 0, "north: +c3 region=South; north",
     {"north": AT_NORTH, "hub": "c1 c2 c3 o10 o20 l100 l200", "losers": 0}),
    ("26 refused", 1, "north: +c3 region=South; north", {"north": AT_NORTH, "hub": ALL_AT_HUB, "losers": 1}),
    ("26 refused", 3, "north: +c3 region=South; north", {"north": AT_NORTH, "hub": ALL_AT_HUB, "losers": 1}),
    ("26 corrected", 3, "north: +c3 region=South; north; north: +c3 region=North; north",
     {"north": "c1 c3 o10 l100", "hub": "c1 c2 c3 o10 o20 l100 l200", "losers": 1}),
    ("27 a move out is refused", 1, "north: c1 region=South; north", {"north": AT_NORTH, "losers": 1}),
    ("28 so is a child", 1, "north: +c3 region=South; north: +o30 customer=3; north",
     {"north": AT_NORTH, "hub": ALL_AT_HUB, "losers": 2}),
    ("33 an edit against a move", 0, f"north: c1 val=edit; {MOVE}; north", {"north": "", "losers": 1}),
    ("34 a delete below", 0, f"north: -l100; {MOVE}; north", {"north": "", "hub": "c1 c2 o10 o20 l200", "losers": 0}),
    ("36 a late edit comes back", 0, f"{MOVE}; north late; north holds l100; north; south; south edited",
     {"north": "", "losers": 0}),
    ("38 a key that is there unseen", 0, "north: +c2 region=North; north", {"north": AT_NORTH, "losers": 1}),
    ("39 and deleted", 0, "hub: -c2; north: +c2 region=North; north", {"north": "c1 c2 o10 o20 l100 l200", "losers": 0}),
    ("40 inserted and deleted", 0, "north: +c2 region=North; capture north; north: -c2; north",
     {"hub": ALL_AT_HUB, "south": AT_SOUTH, "losers": 0}),
    ("41 inserted where it left", 0, f"{MOVE}; north; north: +c1 region=North; north",
     {"north": "", "hub": ALL_AT_HUB, "losers": 1}),
    ("41 and its own row that left", 0,
     "north: +c3 region=South; north; north: +c3 region=North; north; south",
     {"north": AT_NORTH, "hub": "c1 c2 c3 o10 o20 l100 l200", "losers": 1}),
    ("41 and deleted again", 0,
     "north: +c3 region=South; north; north: +c3 region=North; capture north; north: -c3; north; south",
     {"north": AT_NORTH, "hub": "c1 c2 c3 o10 o20 l100 l200", "losers": 0}),
    # Of equal priorities the first to arrive wins.
    ("42 one key twice", 0, "north: +c7 region=North; north; south: +c7 region=South; south",
     {"north": "c1 c7 o10 l100", "south": AT_SOUTH, "losers": 1}),
    ("43 back without a change", 0, f"{MOVE}; north; south; hub: c1 region=North; north; south",
     {"north": AT_NORTH, "south": AT_SOUTH, "losers": 0}),
]  # fmt: skip


def do(net: Network, step: str) -> None:
    """Do one step of a case: a write (`hub: c1 region=South`, `+` inserts, `-` deletes), a session, or a look."""
    who, _, write = step.partition(": ")
    if write:
        row, *stated = write.split(" ")
        values = {
            name: int(v) if v.isdigit() else v for name, _, v in (each.partition("=") for each in stated)
        }
        op = {"+": "insert", "-": "delete"}.get(row[0], "update")
        row = row.lstrip("+-")
        article, key = {name[0]: name for name in net.names}[row[0]], int(row[1:])
        net.write(who, article, op, key, {"key": key, **values} if op == "insert" else values)
        return
    match who.split(" "):
        case ["capture", "hub"]:
            net.recover_hub()
            net.capture_hub()
        case ["capture", name]:
            net.capture_sub(net.subs[name])
        case [name, "unheard"]:
            assert not net.subs[name].meta, "it heard of a row that it never had"
        case [name, "secretless"]:
            assert not any("secret" in str(row) for _, _, row in net.subs[name].storage), "leaked"
        case [name, "edited"]:
            assert net.subs[name].tables["lines"][100]["val"] == "edit", "the edit is lost"
        case [name, "holds", rows]:
            assert held(net, name) == rows
        case [name, "late"]:
            net.sync(name, late_sub=[("lines", "update", 100, {"val": "edit"})])
        case [name]:
            net.sync(name)


def play_case(number: str, options: int, steps: str, wanted: dict[str, Any]) -> None:
    """Play a case of the list in the design, and compare with its result."""
    net = start(options)
    for step in steps.split("; "):
        do(net, step)
    for name, rows in wanted.items():
        assert (len(net.losers) if name == "losers" else held(net, name)) == rows, (number, name)
    net.check()


def example() -> str:
    out: list[str] = []
    net = Network(customers_orders_lines(), {1: "North", 2: "South"}, {})
    hub = net.hub
    hub.tables["customers"] = {
        1: {"key": 1, "region": "North", "val": "Ada", "tok": 0},
        2: {"key": 2, "region": "South", "val": "Bo", "tok": 0},
    }
    hub.tables["orders"] = {
        10: {"key": 10, "customer": 1, "val": "", "tok": 0},
        20: {"key": 20, "customer": 2, "val": "", "tok": 0},
    }
    hub.tables["lines"] = {
        100: {"key": 100, "order": 10, "val": "", "tok": 0},
        200: {"key": 200, "order": 20, "val": "", "tok": 0},
    }
    hub.captured = copy.deepcopy(hub.tables)
    for a in net.names:
        for k in hub.tables[a]:
            hub.base[(a, k)] = frozenset({net.event("publication", (a, k))})
    net.subscribe("north", "North", priority=75.0)
    net.subscribe("south", "South", priority=75.0)
    short = {"customers": "c", "orders": "o", "lines": "l"}
    listed: set = set()

    def name(key) -> str:
        return f"{short[key[0]]}{key[1]}"

    def ordered(keys):
        return sorted(keys, key=lambda key: (net.names.index(key[0]), key[1]))

    def show(title: str) -> None:
        current, past = net.netted()
        here = {(a, k, pid): e for a, k, pid, e in current}
        gone = {(a, k, pid): e for a, k, pid, e in past}
        metas = ordered(hub.meta)
        contents = [
            f"{name(key)} {hub.meta[key].gen}"
            + (f"/{hub.meta[key].partchangegen}" if hub.meta[key].partchangegen else "")
            for key in metas
            if hub.meta[key].row is not None
        ]
        cells = [
            contents,
            [f"{name(key)} {hub.meta[key].gen}" for key in metas if hub.meta[key].row is None],
            [f"{name(x)}:{x[2]}" for x in sorted(here, key=lambda x: (net.names.index(x[0]), x[1], x[2]))],
            [
                f"{name(x)}:{x[2]} {gone[x].gen}/{gone[x].reason},"
                for x in sorted(gone, key=lambda x: (net.names.index(x[0]), x[1], x[2]))
            ],
            [
                f"{gen}:{pid}={count}"
                for (gen, pid), (count, _) in sorted(hub.gpm.items())
                if (gen, pid) not in listed
            ],
            *([name((a, k)) for a in net.names for k in sorted(sub.tables[a])] for sub in net.subs.values()),
        ]
        listed.update(hub.gpm)
        out.append(f"| {title} | " + " | ".join(" ".join(cell).rstrip(",") or "–" for cell in cells) + " |")

    show("0 initialised")
    net.write("hub", "customers", "update", 1, {"val": "Ada L."})
    net.sync("north"), net.sync("south")
    show("1 hq updates c1 (stays in 1), both sync")
    net.write("hub", "orders", "insert", 21, {"key": 21, "customer": 2, "val": ""})
    net.sync("south")
    show("2 hq inserts o21 of c2, south syncs")
    net.write("hub", "customers", "update", 1, {"region": "South"})
    net.sync("north")
    show("3 hq moves c1 to South, north syncs")
    net.sync("south")
    show("4 south syncs")
    net.write("hub", "orders", "update", 21, {"customer": 1})
    net.sync("south")
    show("5 hq gives o21 to c1 (stays in 2), south syncs")
    net.write("south", "lines", "update", 100, {"val": "x"})
    net.write("hub", "customers", "update", 1, {"region": "North"})
    net.sync("south")
    show("6 south edits l100 while hq moves c1 back to North, south syncs")
    net.sync("north")
    show("7 north syncs")
    net.write("north", "customers", "update", 1, {"region": "South"})
    net.write("north", "lines", "insert", 101, {"key": 101, "order": 10, "val": "y"})
    net.sync("north")
    show("8 north inserts l101 and moves c1 to South itself, north syncs")
    net.sync("south")
    net.write("hub", "lines", "delete", 200)
    net.write("hub", "orders", "update", 10, {"customer": None})
    net.sync("south")
    show("9 hq deletes l200 and takes o10 from c1 (nobody's), south syncs")
    net.check()
    head = "| after | contents | tombstone | current | past | generation_partition, new | north | south |"
    return "\n".join([head, "|---" * 8 + "|", *out])
