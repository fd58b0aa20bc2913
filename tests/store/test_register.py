"""The register of a root: taken, renewed, taken over and released, on a folder and in a bucket."""

import json
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from mergerepl.errors import (
    CommitConflictError,
    LeaseError,
    PublicationError,
    StoreError,
    StoreUnavailableError,
)
from mergerepl.store.lease import AGENT_LOCK, LOCK_FILE, holder, lease
from mergerepl.store.location import Location
from mergerepl.store.register import (
    Pace,
    Register,
    fence_of,
    held_register,
    holding,
    is_void,
    noting_unknown,
    registers_above,
    take,
)
from mergerepl.store.register_state import RegisterState, read_register
from mergerepl.store.storage import storage
from tests.store.proxy import LOST, Proxy, Request

SOON = Pace(0.3)
ALIVE = Pace(3.0)
"""A holder that is alive renews in time on a busy machine, too."""


@pytest.fixture(params=["folder", "store"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """The place of a register, of each kind."""
    if request.param == "folder":
        return Location.of(tmp_path) / ".mergerepl.lock"
    return Location.of(f"s3://{request.getfixturevalue('bucket')}/hq/.mergerepl.lock")


def taken(at: Location, *, wait_s: float = 0.0, pace: Pace = SOON) -> Register:
    return take(storage(at), at, purpose="mergerepl sync", wait_s=wait_s, pace=pace)


def stored(at: Location) -> RegisterState:
    found = read_register(storage(at), at)
    assert found is not None
    return found


def test_a_register_is_taken_and_released(at):
    register = taken(at)
    assert (register.fence, register.must_fence) == (1, False)
    assert stored(at) == register.state
    assert stored(at).holder.purpose == "mergerepl sync"
    register.release()
    assert (stored(at).holder, stored(at).in_flight) == (None, False)
    again = taken(at)
    assert (again.fence, again.must_fence) == (2, False)


def test_a_living_holder_is_named(at, caplog):
    with (
        holding(taken(at), pace=ALIVE),
        pytest.raises(LeaseError, match=r"in use: mergerepl sync by process \d+ on"),
    ):
        taken(at, pace=ALIVE)
    assert "Watching for up to 3 s whether it is alive" in caplog.text
    assert stored(at).holder is None


def test_a_living_holder_is_waited_for(at):
    begun = time.monotonic()
    with holding(taken(at), pace=ALIVE) as register, pytest.raises(LeaseError):
        taken(at, wait_s=0.5, pace=ALIVE)
    assert time.monotonic() - begun > 0.5
    assert taken(at, wait_s=0.5).fence == register.fence + 1


def test_a_silent_holder_is_displaced_and_can_write_nothing_more(at):
    old = taken(at)
    old.stage("s1", "sha", "north")
    begun = time.monotonic()
    new = taken(at)
    assert time.monotonic() - begun >= SOON.watch_s
    assert (new.fence, new.must_fence) == (2, True)
    assert stored(at).in_flight
    assert list(new.state.sessions) == ["s1"]
    for step in (
        lambda: old.stage("s2", "sha", "north"),
        lambda: old.done("s1", "publisher", {}),
        lambda: old.check(),
    ):
        with pytest.raises(LeaseError, match="was taken over by another agent") as failure:
            step()
        assert failure.value.exit_code == 3
    old.release()
    assert stored(at) == new.state


def test_the_need_of_a_fence_outlives_who_could_not_write_one(at):
    taken(at)
    taken(at).release()
    assert stored(at).in_flight
    third = taken(at)
    assert third.must_fence
    third.must_fence = False
    third.release()
    assert not taken(at).must_fence


def test_a_session_is_staged_done_and_forgotten(at):
    register = taken(at)
    register.point("s1", "s3://lake/hq", "P")
    register.stage("s1", "sha", "S")
    register.done("s1", "publisher", {"rows": 1})
    register.done("s1", "subscriber", {"rows": 2})
    assert stored(at).sessions["s1"].done == {"publisher": {"rows": 1}, "subscriber": {"rows": 2}}
    assert stored(at).pointers["s1"].publisher == "s3://lake/hq"
    register.unstage("s1")
    register.unpoint("s1")
    register.unpoint("s1")
    assert (stored(at).sessions, stored(at).pointers) == ({}, {})
    assert register.state == stored(at)


def test_a_session_that_was_not_staged_can_be_staged_no_more_once_it_is_void(at):
    holder = taken(at)
    holder.stage("s1", "sha", "S")
    assert not is_void(storage(at), at, "s1")
    assert is_void(storage(at), at, "s2")
    with pytest.raises(LeaseError):
        holder.stage("s2", "sha", "S")
    assert list(stored(at).sessions) == ["s1"]
    assert is_void(storage(at), at.parent / "none", "s2")


def test_the_holder_itself_settles_a_session(at):
    old = taken(at)
    new = taken(at)
    new.settle()
    with pytest.raises(LeaseError):
        old.stage("s1", "sha", "S")
    new.stage("s2", "sha", "S")


def fail_while_held(at: Location) -> None:
    with holding(taken(at), pace=SOON):
        assert held_register(at)
        raise ValueError("x")


def test_a_block_that_fails_leaves_a_register_that_asks_for_a_fence(at):
    with pytest.raises(ValueError, match="x"):
        fail_while_held(at)
    assert held_register(at) is None
    assert (stored(at).holder, stored(at).in_flight) == (None, True)


class Unanswered:
    """A storage whose next conditional PUT gets no answer, whether it was carried out or not."""

    def __init__(self, at: Location, *, is_done: bool) -> None:
        self.storage, self.is_done, self.is_next = storage(at), is_done, False

    def read(self, at: Location) -> tuple[bytes, str] | None:
        return self.storage.read(at)

    def put_if_absent(self, at: Location, data: bytes) -> str:
        return self.storage.put_if_absent(at, data)

    def put_if_unchanged(self, at: Location, data: bytes, tag: str) -> str:
        is_next, self.is_next = self.is_next, False
        if not is_next or self.is_done:
            tag = self.storage.put_if_unchanged(at, data, tag)
        if is_next:
            raise StoreUnavailableError("no answer")
        return tag


@pytest.mark.parametrize("is_done", [True, False])
def test_after_a_lost_answer_the_session_goes_on_and_the_next_agent_writes_fences(at, is_done):
    unanswered = Unanswered(at, is_done=is_done)
    register = take(unanswered, at, purpose="a test", pace=SOON)
    unanswered.is_next = True
    with pytest.raises(StoreUnavailableError):
        register.stage("s1", "sha", "S")
    assert list(stored(at).sessions) == (["s1"] if is_done else [])
    register.stage("s2", "sha", "S")
    assert list(stored(at).sessions) == (["s1", "s2"] if is_done else ["s2"])
    register.release()
    assert (stored(at).holder, stored(at).in_flight) == (None, True)


def test_a_renewal_without_an_answer_ends_nothing(at, caplog):
    unanswered = Unanswered(at, is_done=False)
    register = take(unanswered, at, purpose="a test", pace=SOON)
    unanswered.is_next = True
    register.renew()
    assert "could not be renewed: no answer" in caplog.text
    register.renew()
    register.check()
    other = taken(at)
    register.renew()
    assert "was taken over by another agent" in caplog.text
    with pytest.raises(LeaseError):
        register.check()
    assert stored(at) == other.state


def test_answers_that_the_network_loses_are_read_back(bucket, proxy: Proxy):
    at = Location.of(f"s3://{bucket}/hq/.mergerepl.lock")

    def conditional(request: Request) -> bool:
        return request.kind == "PUT-IF"

    with proxy.breaking(LOST, conditional) as broken:
        register = taken(at)
    with proxy.breaking(LOST, conditional) as broken_later:
        register.stage("s1", "sha", "S")
    register.release()
    assert [len(broken), len(broken_later)] == [1, 1]
    assert (list(stored(at).sessions), stored(at).in_flight) == (["s1"], False)


def end_with(at: Location, error: Exception) -> bool:
    """Let a block that holds a register end with an error; return whether the next agent has to write fences."""
    register = taken(at)
    register.must_fence = False
    with suppress(type(error)), holding(register, pace=SOON):
        raise error
    return stored(at).in_flight


def test_only_an_error_of_a_check_leaves_nothing_in_flight(at):
    assert not end_with(at, LeaseError("x"))
    assert not end_with(at, PublicationError("x"))
    assert end_with(at, StoreUnavailableError("x"))
    assert end_with(at, CommitConflictError("x"))
    assert end_with(at, ValueError("x"))


def test_a_write_without_an_answer_is_noted_even_if_its_error_is_caught(at):
    with holding(taken(at), pace=SOON), suppress(ValueError), noting_unknown(at.parent / "t"):
        raise ValueError("x")
    assert stored(at).in_flight


def test_a_write_that_was_refused_is_not_in_flight(at):
    with holding(taken(at), pace=SOON):
        for error in (LeaseError("x"), FileExistsError("x")):
            with suppress(LeaseError, FileExistsError), noting_unknown(at.parent / "t", FileExistsError):
                raise error
        with suppress(ValueError), noting_unknown(at.parent.with_name("other") / "t"):
            raise ValueError("x")
    assert not stored(at).in_flight


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', json.dumps({"format": 1, "write": "x", "fence": {}})]
)
def test_a_damaged_register_is_refused(at, text):
    storage(at).put(at, text.encode())
    with pytest.raises(StoreError, match="is damaged"):
        taken(at)


def test_a_register_of_another_format_is_refused(at):
    taken(at).release()
    text = stored(at).encoded().replace(b'"format": 1', b'"format": 2')
    storage(at).put(at, text)
    with pytest.raises(StoreError, match="has the format 2; this mergerepl reads 1"):
        taken(at)


@pytest.fixture
def hq(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A root on a store without tables; leases are short."""
    monkeypatch.setenv("MERGEREPL_LEASE_S", "0.3")
    return Location.of(f"s3://{bucket}/hq")


def test_a_root_on_a_store_is_leased_by_its_register(hq):
    with lease(hq, purpose="mergerepl sync"):
        who = holder(hq)
        assert (who["purpose"], who["pid"]) == ("mergerepl sync", os.getpid())
        assert re.fullmatch(r"20\d\d-\S+\+00:00 \(\d s ago\)", who["renewed"])
        with (
            pytest.raises(LeaseError, match="in use: mergerepl sync by process"),
            lease(hq, purpose="another"),
        ):
            pass
    assert holder(hq) is None
    assert not stored(hq / LOCK_FILE).in_flight


def test_a_thread_waits_for_another_one_of_its_process(hq):
    begun, over = threading.Event(), threading.Event()

    def other() -> None:
        with lease(hq, purpose="another thread"):
            begun.set()
            over.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(30)
    with pytest.raises(LeaseError, match="in use: another thread"), lease(hq, purpose="a test"):
        pass
    threading.Timer(0.2, over.set).start()
    with lease(hq, purpose="a test", wait_s=30):
        assert over.is_set()
    thread.join()


def test_the_lease_of_a_dead_agent_is_taken_over_with_fences(hq, monkeypatch):
    fences = []
    monkeypatch.setattr("mergerepl.replica.fence.write_fences", lambda *each: fences.append(each))
    taken(hq / LOCK_FILE)
    with lease(hq, purpose="mergerepl sync"):
        assert fences == [(hq, 2)]
    assert not stored(hq / LOCK_FILE).in_flight
    with lease(hq, purpose="mergerepl sync"):
        assert fence_of(hq / "t") == 3
    assert fences == [(hq, 2)]


def test_a_lease_that_could_not_write_fences_leaves_that_to_the_next_one(hq, monkeypatch):
    def fail(*_: object) -> None:
        raise StoreUnavailableError("no answer")

    monkeypatch.setattr("mergerepl.replica.fence.write_fences", fail)
    taken(hq / LOCK_FILE)
    with pytest.raises(StoreUnavailableError), lease(hq, purpose="mergerepl sync"):
        pass
    assert (stored(hq / LOCK_FILE).holder, stored(hq / LOCK_FILE).in_flight) == (None, True)


def test_the_register_of_an_agent_is_none_of_the_root(bucket: str) -> None:
    root = Location.of(f"s3://{bucket}/hq")
    with lease(root, purpose="agent", file=AGENT_LOCK):
        # Known states of tables would stay known between rounds, and others write the tables then.
        assert registers_above(root / "orders") == []
        with lease(root, purpose="mergerepl sync"):
            assert [each.at.name for each in registers_above(root / "orders")] == [LOCK_FILE]
        who = holder(root, file=AGENT_LOCK)
    assert who is not None
    assert (who["pid"], "started" in who) == (os.getpid(), False)
    assert holder(root, file=AGENT_LOCK) is None


def test_a_holder_of_this_machine_that_ended_is_none(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Location.of(f"s3://{bucket}/hq")
    with monkeypatch.context() as before:
        before.setattr("mergerepl.store.register_state.process_start", lambda pid: "earlier")
        taken(root / AGENT_LOCK)
    assert holder(root, file=AGENT_LOCK) is None
