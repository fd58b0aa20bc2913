"""Properties of the reference model alone: what the rules promise, before any engine follows them.

The model changes seldom: 100 examples a property, always the same ones; `--long` draws 100,000.
The numbers are those of docs/protocol.md.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.properties.ledger import World, image
from tests.properties.reference import (
    CRASH_POINTS,
    Lineage,
    UnknownGenerationError,
    bump,
    covers,
    merge_lineage,
)
from tests.properties.strategies import COLUMNS, KEYS, History, histories

LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"
examples = settings(
    max_examples=100_000 if LONG else 100,
    deadline=None,
    derandomize=not LONG,
    database=None,
    suppress_health_check=list(HealthCheck),
)
lineages = st.dictionaries(st.integers(1, 4), st.integers(1, 5), max_size=4)
replicas = st.integers(0, 3)
NAMES = ("hub", "north", "south", "east")


def settled(history: History) -> World:
    """Play a history to rest."""
    return World(history).play(history).quiesce()


def structure(world: World) -> None:
    """Check the system tables of every replica."""
    for replica in world.net.replicas.values():
        numbers = list(replica.generations)
        guids = [g.guid for g in replica.generations.values()]
        assert not replica.contents.keys() & replica.tombstones.keys()
        if not world.net.staged:
            assert replica.contents.keys() <= replica.captured.keys()
            assert not replica.tombstones.keys() & replica.captured.keys()
        assert all(
            m.gen in replica.generations for m in (*replica.contents.values(), *replica.tombstones.values())
        )
        assert numbers == sorted(set(numbers))
        assert sum(g.status == 0 for g in replica.generations.values()) <= 1
        assert len(guids) == len(set(guids))


# -- convergence -------------------------------------------------------------------------------------------
@examples
@given(histories())
def test_inv_01_two_passes_converge(history: History) -> None:
    world = settled(history)
    hub = world.net.hub
    for replica in world.net.subscribers.values():
        assert replica.rows == hub.rows
        assert {k: m.lineage for k, m in replica.contents.items()} == {
            k: m.lineage for k, m in hub.contents.items()
        }
        assert {k: m.colv for k, m in replica.contents.items()} == {
            k: m.colv for k, m in hub.contents.items()
        }


@examples
@given(histories())
def test_inv_02_03_a_further_pass_moves_and_changes_nothing(history: History) -> None:
    world = settled(history)
    before = repr(world.state())
    assert all((r.uploaded, r.downloaded, r.conflicts) == (0, 0, 0) for r in world.one_pass())
    assert repr(world.state()) == before


# -- nothing lost, nothing invented ------------------------------------------------------------------------
@examples
@given(histories())
def test_inv_06_every_write_is_kept_or_overwritten_knowingly_or_logged(history: History) -> None:
    world = settled(history)
    assert world.lost() == []
    assert world.lost_changes() == []


@examples
@given(histories())
def test_inv_07_every_value_was_written_by_a_user(history: History) -> None:
    world = World(history)

    def check(world: World) -> None:
        for replica in world.net.replicas.values():
            assert all((k, c, row[c]) in world.values for k, row in replica.rows.items() for c in COLUMNS)

    world.play(history, check).quiesce()
    check(world)


@examples
@given(histories(column=False))
def test_inv_08_row_tracking_never_mixes_two_versions(history: History) -> None:
    world = settled(history)
    assert all(
        (k, image(row)) in world.images for r in world.net.replicas.values() for k, row in r.rows.items()
    )


@examples
@given(histories(column=True))
def test_inv_08_column_conflicts_need_one_column_changed_on_both_sides(history: History) -> None:
    world = settled(history)
    events = world.net.events
    for conflict in (c for c in world.net.conflicts if c.type == 2):
        sides = []
        for one, other in (
            (conflict.winner_seen, conflict.loser_seen),
            (conflict.loser_seen, conflict.winner_seen),
        ):
            # A resolution changes the columns that it overrides, also for who edits them before it gets there.
            sides.append({c for e in one - other for c in events[e].columns})
        assert sides[0] & sides[1]


@examples
@given(histories(column=True), st.permutations(COLUMNS), st.permutations(NAMES))
def test_inv_08_disjoint_column_edits_all_survive(
    history: History, columns: list[str], names: list[str]
) -> None:
    world = settled(history)
    if "k0" in world.net.rows("hub"):
        logged = len(world.net.conflicts)
        for name, column in zip(names, columns, strict=False):
            world.write(name, "k0", "update", (column,))
        wanted = {c: world.net.rows(n)["k0"][c] for n, c in zip(names, columns, strict=False)}
        assert world.quiesce().net.rows("hub")["k0"] == wanted
        assert len(world.net.conflicts) == logged


@examples
@given(histories())
def test_inv_09_a_conflict_is_logged_once(history: History) -> None:
    log = [
        (c.key, sorted(c.winner_lineage.items()), sorted(c.loser_lineage.items()))
        for c in settled(history).net.conflicts
    ]
    assert len(log) == len({repr(entry) for entry in log})


# -- deletes -----------------------------------------------------------------------------------------------
@examples
@given(histories(), replicas, replicas)
def test_inv_11_a_deleted_row_stays_away_while_others_change(
    history: History, first: int, second: int
) -> None:
    world = settled(history)
    for number in (first, second):
        world.write(NAMES[number], "k0", "delete")
    world.quiesce()
    for name in NAMES:
        world.upsert(name, "k1")
    world.quiesce()
    assert all("k0" not in world.net.rows(name) for name in NAMES)
    assert world.lost_changes() == []


@examples
@given(histories(), replicas, replicas)
def test_inv_12_insert_delete_insert_propagates(history: History, first: int, second: int) -> None:
    world = settled(history)
    for number, op in ((first, "insert"), (second, "delete"), (first, "insert")):
        world.write(NAMES[number], "k1", op)
        world.quiesce()
    wanted = world.net.rows(NAMES[first])["k1"]
    assert all(world.net.rows(name)["k1"] == wanted for name in NAMES)


@examples
@given(histories(), replicas, replicas)
def test_inv_13_two_deletes_are_no_conflict(history: History, first: int, second: int) -> None:
    world = settled(history)
    logged = len(world.net.conflicts)
    for number in (first, second):
        world.write(NAMES[number], "k0", "delete")
    world.quiesce()
    assert len(world.net.conflicts) == logged
    assert len({repr(sorted(world.net.lineage(name, "k0").items())) for name in NAMES}) == 1


@examples
@given(histories(), st.permutations(NAMES), st.booleans())
def test_inv_14_delete_against_update_has_one_winner_and_one_logged_loser(
    history: History, names: list[str], delete_first: bool
) -> None:
    world = settled(history)
    world.upsert("hub", "k0")
    world.quiesce()
    logged = len(world.net.conflicts)
    world.write(names[0], "k0", "delete")
    world.write(names[1], "k0", "update", ("b",))
    updated = dict(world.net.rows(names[1])["k0"])
    for name in names[:2] if delete_first else names[1::-1]:
        if name != "hub":
            world.net.sync(name)
    world.quiesce()
    (conflict,) = world.net.conflicts[logged:]
    kept = world.net.rows("hub").get("k0")
    assert (conflict.type, kept, conflict.row) in ((3, None, updated), (4, updated, None))


@examples
@given(histories(), st.permutations(NAMES), st.booleans())
def test_inv_15_two_inserts_of_one_key_are_one_conflict(
    history: History, names: list[str], small: bool
) -> None:
    world = settled(history)
    world.write("hub", "k1", "delete")
    world.quiesce()
    logged = len(world.net.conflicts)
    for name in names[:2]:
        world.write(name, "k1", "insert", small=1 if small else 0)
    rows = [dict(world.net.rows(name)["k1"]) for name in names[:2]]
    world.quiesce()
    assert len(world.net.conflicts) - logged == (0 if small else 1)
    assert {image(world.net.rows(name)["k1"]) for name in NAMES} <= {image(row) for row in rows}
    assert len({image(world.net.rows(name)["k1"]) for name in NAMES}) == 1


@examples
@given(histories(), replicas, st.integers(0, 3))
def test_inv_16_a_folded_insert_and_delete_still_deletes(history: History, name: int, updates: int) -> None:
    world = settled(history)
    had = "k1" in world.net.rows("hub")
    if had:
        world.write(NAMES[name], "k1", "delete")
    world.write(NAMES[name], "k1", "insert")
    for _ in range(updates):
        world.write(NAMES[name], "k1", "update")
    world.write(NAMES[name], "k1", "delete")
    assert world.net.capture(NAMES[name]) == int(had)
    world.quiesce()
    assert all("k1" not in world.net.rows(n) for n in NAMES)


# -- metadata ----------------------------------------------------------------------------------------------
@examples
@given(lineages, lineages, lineages, st.integers(1, 4), st.integers(0, 6))
def test_inv_17_lineage_algebra(
    one: Lineage, two: Lineage, three: Lineage, nickname: int, floor: int
) -> None:
    both = merge_lineage(one, two)
    assert both == merge_lineage(two, one)
    assert merge_lineage(both, three) == merge_lineage(one, merge_lineage(two, three))
    assert merge_lineage(one, one) == one
    assert covers(both, one)
    assert covers(both, two)
    assert covers(three, both) == (covers(three, one) and covers(three, two))
    assert (covers(one, two) and covers(two, one)) == (one == two)
    later = bump(one, nickname, floor)
    assert covers(later, one)
    assert not covers(one, later)
    assert later[nickname] > max([*one.values(), floor])


@examples
@given(histories())
def test_inv_17_lineages_only_grow_and_bound_the_column_versions(history: History) -> None:
    world = World(history)
    last: dict[tuple[str, str], Lineage] = {}

    def check(world: World) -> None:
        for name, replica in world.net.replicas.items():
            for key in KEYS:
                lineage = world.net.lineage(name, key)
                assert covers(lineage, last.get((name, key), {}))
                last[name, key] = lineage
            for meta in replica.contents.values():
                assert all(v <= meta.lineage.get(n, 0) for n, v in meta.colv.values())

    world.play(history, check).quiesce()
    check(world)


@examples
@given(histories())
def test_inv_18_19_system_tables_stay_sound(history: History) -> None:
    world = World(history)
    closed: dict[tuple[str, int], str] = {}

    def check(world: World) -> None:
        structure(world)
        for name, replica in world.net.replicas.items():
            for number, generation in replica.generations.items():
                assert closed.setdefault((name, number), generation.guid) == generation.guid

    world.play(history, check).quiesce()
    check(world)


@examples
@given(histories())
def test_inv_20_a_watermark_never_passes_work(history: History) -> None:
    def check(world: World) -> None:
        hub = world.net.hub
        on_their_way = {step.key for changeset in world.net.staged for step in changeset.steps}
        for sub in world.net.subscribers.values():
            for source, dest in ((sub, hub), (hub, sub)):
                marks = source.sent.get(dest.name, (0, "")), dest.received.get(source.name, (0, ""))
                for key in KEYS:
                    meta = source.meta(key)
                    if meta and (
                        meta.gen <= max(marks)[0] or dest.nick in source.generations[meta.gen].nicknames
                    ):
                        assert source.seen[key] <= dest.seen.get(key, frozenset()) or key in on_their_way

    world = World(history).play(history, check).quiesce()
    check(world)


@examples
@given(histories(faults=False), histories(faults=False), st.integers(0, 3), st.integers(0, 3))
def test_inv_21_a_restored_replica_is_resent_or_refused(
    history: History, more: History, name: int, at: int
) -> None:
    world = World(history).play(history)
    if at:
        world.quiesce()
    backup = world.net.backup(NAMES[name])
    try:
        world.play(more)
        world.net.restore(backup)
        world.quiesce()
    except UnknownGenerationError:
        return
    assert all(world.net.rows(n) == world.net.rows("hub") for n in NAMES)


@examples
@given(histories())
def test_inv_22_a_change_is_never_applied_where_it_is_known(history: History) -> None:
    world = settled(history)
    assert all(before < after for _, _, before, after in world.net.trace)
    structure(world)


# -- crashes -----------------------------------------------------------------------------------------------
@examples
@given(histories(), st.lists(st.sampled_from(CRASH_POINTS), min_size=1, max_size=4), st.integers(1, 3))
def test_inv_26_27_a_crashed_session_run_again_is_a_session(
    history: History, points: list[str], name: int
) -> None:
    """Also if what recovers it crashes."""
    calm, crashed = (World(history).play(history) for _ in range(2))
    calm.net.sync(NAMES[name])
    for point in points:
        crashed.net.sync(NAMES[name], crash=point)
    crashed.net.sync(NAMES[name])
    assert repr(calm.state()) == repr(crashed.state())
