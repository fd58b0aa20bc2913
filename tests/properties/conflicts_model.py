"""Histories of one row at a publisher (hub) and two subscribers, for every resolver, and what must come of them."""

import itertools

from tests.properties.reference import Network, Subscriber

HUB, A, B = "hub", "A", "B"
KEY, COLUMNS = "k", ("a", "v")

NUMBERS = ({"v": 3}, {"v": 15}, {"v": None}, {"v": 15, "a": 1}, {"a": 2}, None)
TEXTS = ({"v": "1\n2\n3\nA\n"}, {"v": "0\n1\n2\n3\n"}, {"v": "1\ntwo\n3\n"}, {"v": None}, {"a": 2}, None)
SETS = ({"v": ("x", "y", "p")}, {"v": ("y",)}, {"v": ()}, {"v": None}, {"a": 2}, None)
OBJECTS = (
    {"v": (("k", 1), ("m", 5))},
    {"v": (("k", 7),)},
    {"v": (("k", 1), ("m", 2), ("z", 0))},
    {"v": None},
    {"a": 2},
    None,
)
STARTS = {"numbers": {"a": 0, "v": 10}, "texts": {"a": 0, "v": "1\n2\n3\n"}, "sets": {"a": 0, "v": ("x", "y")},
          "objects": {"a": 0, "v": (("k", 1), ("m", 2))}}  # fmt: skip
KIND = {"merge_text": "texts", "union": "sets", "fields": "objects"}
EDITS = {"numbers": NUMBERS, "texts": TEXTS, "sets": SETS, "objects": OBJECTS}
NOTHING = object()

SCHEDULES = (
    ((A, "both"), (B, "both")),
    ((B, "both"), (A, "both")),
    ((A, "upload"), (B, "upload"), (A, "download"), (B, "download")),
    ((A, "download"), (B, "upload"), (B, "download"), (A, "upload")),
)


def new_network(start, **options):
    subscribers = (Subscriber(A, "server", 75.0), Subscriber(B, "client"))
    snapshot = {} if start is None else {KEY: start}
    return Network(subscribers, columns=COLUMNS, snapshot=snapshot, **options)


def row_of(network, name):
    return network.rows(name).get(KEY)


def edit(network, name, change):
    """Change the row of a replica: None deletes, a dict sets columns (and inserts where no row is)."""
    if change is None:
        network.write(name, KEY, "delete")
    elif row_of(network, name) is None:
        network.write(name, KEY, "insert", {"a": 0, "v": None, **change})
    else:
        network.write(name, KEY, "update", change)


def session(network, name, direction="both"):
    before = {each: row_of(network, each) for each in (HUB, name)}
    network.sync(name, direction)
    assert network.resolver != "upload_only" or row_of(network, name) == before[name], (
        "something was downloaded"
    )
    assert network.resolver != "download_only" or row_of(network, HUB) == before[HUB], (
        "something was uploaded"
    )


def quiesce(network, *, passes=3):
    for _ in range(passes):
        for name in (A, B):
            session(network, name)


def equal(network):
    versions = [each.version(KEY) for each in network.replicas.values()]
    known = [(each.row, each.lineage, each.colv) for each in versions]
    return all(each == known[0] for each in known)


def histories(kind):
    first = (NOTHING, *EDITS[kind])
    second = [(who, change) for who in (HUB, A) for change in EDITS[kind][:3]] + [(A, NOTHING)]
    for start in (STARTS[kind], None):
        for changes in itertools.product(first, repeat=3):
            for later in second:
                for schedule in SCHEDULES:
                    yield start, changes, later, schedule


def play(start, changes, later, schedule, **options):
    network = new_network(start, **options)
    for edits in (zip((HUB, A, B), changes, strict=True), [later]):
        for name, change in edits:
            if change is not NOTHING:
                edit(network, name, change)
        for name, direction in schedule:
            session(network, name, direction)
    return network


def check(resolver, tracking, resolution, *, stride=1):
    """Play every `stride`-th history; return how many, and how many rows were logged.

    All replicas come to one row, lineage and colv1; synchronizing again does nothing. The network checks that nobody
    overwrites what it did not know.
    """
    count = logged = 0
    for history in itertools.islice(histories(KIND.get(resolver, "numbers")), 0, None, stride):
        network = play(*history, resolver=resolver, tracking=tracking, resolution=resolution)
        quiesce(network)
        # What it does not send leaves the rows as they are.
        assert resolver == "upload_only" or equal(network), (
            history,
            [row_of(network, n) for n in network.replicas],
        )
        before = len(network.conflicts), len(network.trace)
        quiesce(network)
        assert (len(network.conflicts), len(network.trace)) == before, (
            "synchronizing again did something",
            history,
        )
        count, logged = count + 1, logged + len(network.conflicts)
    return count, logged


SESSIONS = tuple((name, direction) for name in (A, B) for direction in ("both", "upload", "download"))


def check_sums(*, stride=1):
    """delta: whatever the order and direction of sessions, the outcome is the start plus everybody's differences."""
    edits = itertools.product((0, 3, 5), (0, 1, 5), (0, -2, 5))
    laters = ((HUB, 4), (A, 4), (B, 4), (A, 0))
    cases = itertools.product(edits, laters, itertools.product(SESSIONS[:2] + SESSIONS[3:], repeat=3))
    count = 0
    for changes, (who, more), schedule in itertools.islice(cases, 0, None, stride):
        network = new_network({"a": 0, "v": 10}, resolver="delta", tracking="column")
        for name, add in zip((HUB, A, B), changes, strict=True):
            edit(network, name, {"v": 10 + add, "a": ord(name[0]) * (add != 1)})
        for name, direction in schedule:
            session(network, name, direction)
        edit(network, who, {"v": row_of(network, who)["v"] + more})
        for name, direction in schedule:
            session(network, name, direction)
        quiesce(network)
        found = {row_of(network, name)["v"] for name in network.replicas}
        assert found == {10 + sum(changes) + more}, (changes, who, more, schedule, found)
        count += 1
    return count


def check_sets(*, stride=1):
    """union: the start with what anybody added, without what anybody removed, whatever the order and direction."""
    start, count = ("x", "y", "z"), 0
    choices = (
        (None, ("x", "y", "z", "h"), ("y", "z")),
        (None, ("x", "y", "z", "a"), ("x", "z"), ("x", "z", "a")),
        (None, ("x", "y", "z", "b"), ("x", "y", "b"), ("y", "z")),
    )
    cases = itertools.product(itertools.product(*choices), itertools.product(SESSIONS, repeat=3))
    for values, schedule in itertools.islice(cases, 0, None, stride):
        network = new_network({"a": 0, "v": start}, resolver="union", tracking="column")
        expected = set(start).union(*(value or () for value in values))
        for name, value in zip((HUB, A, B), values, strict=True):
            if value is not None:
                edit(network, name, {"v": value})
                expected -= set(start) - set(value)
        for name, direction in schedule:
            session(network, name, direction)
        quiesce(network)
        found = {frozenset(row_of(network, name)["v"]) for name in network.replicas}
        assert found == {frozenset(expected)}, (values, schedule, found)
        count += 1
    return count
