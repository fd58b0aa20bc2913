"""Pointers and staged sessions of roots on stores: what a displaced agent can no longer stage or remove."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mergerepl.errors import LeaseError
from mergerepl.replica.replica import Replica
from mergerepl.replica.subscription import drop_pointer, pointers, require_publisher, settle_pointers
from mergerepl.store.changeset import Changeset, Manifest, SideWork, drop, new_folder, unfinished_sessions
from mergerepl.store.lease import LOCK_FILE, lease
from mergerepl.store.location import Location
from mergerepl.store.notes import has_staged_session
from mergerepl.store.register import Pace, Register, register_of, state_of, take
from mergerepl.store.storage import put_text, storage

TERMS = {
    **dict.fromkeys(("session", "publication", "pubid", "subid", "started", "replicastate"), "x"),
    "number": 7,
    "upload": True,
    "download": True,
    "conflict_logging": "publisher",
}


@pytest.fixture
def hq(bucket: str) -> Replica:
    return Replica(Location.of(f"s3://{bucket}/hq"))


@pytest.fixture
def north(bucket: str) -> Replica:
    return Replica(Location.of(f"s3://{bucket}/north"))


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Callable[[Replica], None]:
    """Let this process hold a root, by a lease that ends with the test."""
    monkeypatch.setenv("MERGEREPL_LEASE_S", "600")
    with ExitStack() as held:
        yield lambda replica: held.enter_context(lease(replica.root, purpose="a test"))


def displaced(replica: Replica) -> Register:
    """Another agent takes a root over; return the register that it holds."""
    at = replica.root / LOCK_FILE
    return take(storage(at), at, purpose="another agent", pace=Pace(1e-9))


def test_a_pointer_is_an_entry_of_the_register(north, hold):
    assert not has_staged_session(north.root)
    hold(north)
    register_of(north.root).point("s1", "s3://lake/hq", "P")
    (pointer,) = pointers(north)
    assert (pointer.session, pointer.publisher.root, pointer.replid) == (
        "s1",
        Location.of("s3://lake/hq"),
        "P",
    )
    assert has_staged_session(north.root)
    assert unfinished_sessions(north.staging) == ["s1"]
    drop_pointer(north, "s1")
    assert not north.has_staged()


def test_a_pointer_is_dropped_once_its_session_can_be_staged_no_more(hq, north, hold):
    old = displaced(hq)
    hold(north)
    register_of(north.root).point("s1", str(hq.root), "P")
    assert settle_pointers(north, held=set())
    assert list(pointers(north)) == []
    with pytest.raises(LeaseError, match="was taken over"):
        old.stage("s1", "sha", "S")


def test_a_pointer_to_a_staged_session_stays(hq, north, hold):
    displaced(hq).stage("s1", "sha", "S")
    hold(north)
    register_of(north.root).point("s1", str(hq.root), "P")
    assert not settle_pointers(north, held=set())
    assert settle_pointers(north, held={hq.root})
    assert [each.session for each in pointers(north)] == ["s1"]


def test_a_pointer_to_a_publisher_in_a_folder_waits_for_the_lock_of_the_folder(north, hold, tmp_path: Path):
    root = Location.of(tmp_path)
    hold(north)
    register_of(north.root).point("s1", str(root), "P")
    with lease(root, purpose="mergerepl sync"), pytest.raises(LeaseError, match="is in use: mergerepl sync"):
        settle_pointers(north, held=set())
    assert settle_pointers(north, held=set())
    assert list(pointers(north)) == []


def test_a_publisher_that_was_lost_drops_no_pointers(hq, hold):
    hold(hq)
    require_publisher(hq)
    displaced(hq)
    with pytest.raises(LeaseError, match="was taken over"):
        require_publisher(hq)


def test_a_displaced_agent_removes_no_rows_of_its_successor(hq, hold):
    hold(hq)
    folder = new_folder(hq.staging / "s1")
    rows = folder / "1" / "part.parquet"
    put_text(rows, "left by an agent that died")
    drop(folder)
    assert not storage(rows).exists(rows)
    displaced(hq)
    put_text(rows, "of the successor")
    with pytest.raises(LeaseError, match="was taken over"):
        drop(folder)
    assert storage(rows).exists(rows)


def test_the_late_round_of_another_agent_has_a_folder_of_its_own(hq, hold):
    work = SideWork(root="", replid="P", peer="S", nickname=1, base_seq=1, seq=2, last_generation=3, clock=0)
    session = Changeset(hq.staging / "s1", Manifest(**TERMS, publisher=work, subscriber=work))
    hold(hq)
    assert session.late_folder("publisher", 1).name == "late-publisher-1-1"
    register_of(hq.root).raise_fence()
    assert session.late_folder("publisher", 1).name == "late-publisher-1-2"
    # Once a round is staged, every agent carries out that one.
    register_of(hq.root).stage("s1/late-publisher-1-2", "sha", "S")
    register_of(hq.root).raise_fence()
    assert session.late_folder("publisher", 1) == hq.staging.join("s1", "late-publisher-1-2")
    assert session.late_folder("publisher", 2).name == "late-publisher-2-3"


def test_a_session_is_forgotten_with_its_late_rounds(hq, hold):
    hold(hq)
    for key in ("s1", "s1/late-publisher-1-1", "s10"):
        register_of(hq.root).stage(key, "sha", "S")
    assert unfinished_sessions(hq.staging) == ["s1", "s10"]
    register_of(hq.root).unstage("s1")
    assert list(state_of(hq.root).sessions) == ["s10"]
