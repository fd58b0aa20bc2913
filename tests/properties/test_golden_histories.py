"""Histories of the reference model that were thought through by hand, each with what it must come to."""

from __future__ import annotations

import pytest

from tests.properties.reference import Network, Subscriber, UnknownGenerationError
from tests.properties.strategies import SNAPSHOT


def pair(tracking: str = "row", **options: str) -> Network:
    """Return a hub with a server subscriber (75), a client and a server subscriber (25)."""
    subscribers = [
        Subscriber("north", "server", 75.0),
        Subscriber("south", "client"),
        Subscriber("east", "server", 25.0),
    ]
    return Network(subscribers, snapshot=SNAPSHOT, tracking=tracking, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("hub", "north", "hub"),
        ("north", "south", "north"),
        ("south", "north", "south"),
        ("east", "north", "north"),
    ],
)
def test_inv_14_priorities_travel_with_the_change(first: str, second: str, kept: str) -> None:
    net = pair()
    for name in (first, second):
        net.write(name, "k0", "update", {"a": name})
    for name in (first, second, first, second):
        if name != "hub":
            net.sync(name)
    assert {net.rows(name)["k0"]["a"] for name in (first, second, "hub")} == {kept}
    assert [c.type for c in net.conflicts] == [1]


def test_inv_14_a_client_hands_on_the_priority_of_what_it_holds_of_others() -> None:
    """What won over its own change is not the publisher's for having been there."""
    net = pair()
    net.write("east", "k0", "update", {"a": "east"})
    net.sync("east")
    net.write("north", "k0", "update", {"a": "north"})
    net.write("south", "k0", "update", {"a": "south"})
    net.sync("south", "download")
    assert net.rows("south")["k0"]["a"] == "east"
    for name in ("south", "north", "east", "south"):
        net.sync(name)
    assert values(net, "k0", "a") == {"north"}


@pytest.mark.parametrize("names", [("north", "west"), ("west", "north")])
def test_inv_14_equal_priorities_keep_what_reached_the_publisher_first(names: tuple[str, str]) -> None:
    net = Network(
        [Subscriber("north", "server", 75.0), Subscriber("west", "server", 75.0)], snapshot=SNAPSHOT
    )
    for name in names:
        net.write(name, "k0", "update", {"a": name})
    for name in names * 2:
        net.sync(name)
    assert {net.rows(name)["k0"]["a"] for name in ("hub", *names)} == {names[0]}
    assert [(c.winner, c.loser) for c in net.conflicts] == [("hub", names[1])]


def values(net: Network, key: str, column: str) -> set[str | None]:
    """Return what the replicas hold."""
    return {net.rows(name)[key][column] for name in net.replicas}


def all_sync(net: Network, passes: int = 2) -> None:
    """Synchronise every subscriber, `passes` times."""
    for name in list(net.subscribers) * passes:
        net.sync(name)


@pytest.mark.parametrize("resolution", ["row", "columns"])
def test_inv_08_a_resolution_does_not_touch_columns_its_loser_left_alone(resolution: str) -> None:
    net = pair("column", resolution=resolution)
    net.write("north", "k0", "update", {"a": "north", "b": "north"})
    net.sync("north")
    net.sync("east")
    net.write("south", "k0", "update", {"a": "south"})
    net.write("east", "k0", "update", {"b": "east"})
    net.sync("south")
    all_sync(net)
    assert (values(net, "k0", "a"), values(net, "k0", "b")) == ({"north"}, {"east"})
    assert [c.loser for c in net.conflicts] == ["south"]


def test_inv_21_a_restored_publisher_is_refused_by_who_knows_its_lost_resolution() -> None:
    net = pair()
    net.write("hub", "k0", "update", {"a": "hub"})
    net.sync("south", "upload")
    backup = net.backup("hub")
    net.write("north", "k0", "update", {"a": "north"})
    net.sync("north")
    net.restore(backup)
    net.write("hub", "k0", "update", {"a": "hub again"})
    with pytest.raises(UnknownGenerationError):
        net.sync("north")
