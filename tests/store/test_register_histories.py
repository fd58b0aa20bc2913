"""Registers under drawn interleavings: the product's code, one request at a time, against the rules of the model.

Agents run in threads; one of them makes one request, then the next is drawn. Agents may be killed at any request, an
answer may be lost, and a request may be carried out long after its sender gave it up. Tables are logs of objects that are
created once, with fences, as `tests/properties/lease_model.py` has them.
"""

import json
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from mergerepl.errors import LeaseError, StoreUnavailableError
from mergerepl.store.location import Location
from mergerepl.store.objects import ChangedError
from mergerepl.store.register import Pace, Register, is_void, take
from mergerepl.store.register_state import read_register
from mergerepl.store.storage import FolderStorage

IS_LONG = os.environ.get("MERGEREPL_TEST_PROFILE") == "long"
HISTORIES = 10_000 if IS_LONG else 60
AT_ONCE = Pace(1e-9)
_MOST_REQUESTS = 40
"""The least number for one agent that is alone."""


class KilledError(BaseException):
    """The agent is dead: none of its later requests are sent."""


class FencedError(Exception):
    """A table holds a higher fence, or another agent's commit came first."""


@dataclass
class Agent:
    """A thread that waits for its turn before each request."""

    work: Callable[["Agent"], None]
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_dead: bool = False
    is_over: bool = False
    failure: BaseException | None = None

    def start(self) -> None:
        """Run up to the first request."""
        threading.Thread(target=self._run, daemon=True).start()
        self.back.acquire()

    def _run(self) -> None:
        try:
            self.work(self)
        except (KilledError, FencedError, LeaseError, StoreUnavailableError):
            pass
        except BaseException as error:
            self.failure = error
        self.is_over = True
        self.back.release()

    def turn(self) -> None:
        """Wait for the turn."""
        if not self.is_dead:
            self.back.release()
            self.go.acquire()
        if self.is_dead:
            raise KilledError

    def step(self) -> None:
        """Let the agent make one request."""
        self.go.release()
        self.back.acquire()


class Requests:
    """One agent's view of the storage: requests take turns, answers are lost."""

    def __init__(self, history: "History", agent: Agent) -> None:
        self.history, self.agent = history, agent

    def read(self, at: Location) -> tuple[bytes, str] | None:
        self.agent.turn()
        return self.history.storage.read(at)

    def put_if_absent(self, at: Location, data: bytes) -> str:
        return self._put(lambda: self.history.storage.put_if_absent(at, data))

    def put_if_unchanged(self, at: Location, data: bytes, tag: str) -> str:
        return self._put(lambda: self.history.storage.put_if_unchanged(at, data, tag))

    def _put(self, put: Callable[[], str]) -> str:
        self.agent.turn()
        fate = self.history.fate()
        if fate == "answered":
            return put()
        if fate == "lost":
            with suppress(ChangedError, FileExistsError):
                put()
        else:
            self.history.flying.append(put)
        raise StoreUnavailableError("no answer")


@dataclass
class History:
    """One drawn history over a publisher `p` and a subscriber `s`, and what was seen in it."""

    root: Location
    rng: random.Random
    lost: int = 0
    storage: FolderStorage = field(default_factory=FolderStorage)
    flying: list[Callable[[], str]] = field(default_factory=list)
    staged: dict[str, int] = field(default_factory=dict)
    """The sessions that were ever staged, with the number of captures that they were planned on."""
    voided: set[str] = field(default_factory=set)
    fences: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("p", "s", "d", "i"):
            os.makedirs(self.root / name)

    def register(self, side: str) -> Location:
        return self.root / side / ".mergerepl.lock"

    def fate(self) -> str:
        if not self.lost or self.rng.random() > 0.15:
            return "answered"
        self.lost -= 1
        return self.rng.choice(["lost", "in flight"])

    def land(self) -> None:
        """Carry out a request whose sender has given it up."""
        put = self.flying.pop(self.rng.randrange(len(self.flying)))
        with suppress(ChangedError, FileExistsError):
            put()

    def rows(self, table: str) -> list[dict]:
        names = self.storage.list_from(self.root / table)
        return [json.loads(self.storage.read(self.root / table / name)[0]) for name in names]

    def look(self) -> None:
        """Check the registers after a step."""
        for side in "ps":
            if (now := read_register(self.storage, self.register(side))) is not None:
                assert now.fence >= self.fences.get(side, 0), "a displaced agent wrote a register"
                self.fences[side] = now.fence
                for session, staged in now.sessions.items():
                    self.staged.setdefault(session, int(staged.manifest))
                    assert session not in self.voided, "a session was staged after it was settled"

    # ---- agents
    def commit(self, requests: Requests, table: str, fence: int, row: dict) -> None:
        """Commit a row at the next version or not at all, below no higher fence; once for each id."""
        before = self.rows(table)
        requests.agent.turn()
        if row["kind"] != "fence":
            if any(each["fence"] > fence for each in before):
                raise FencedError
            if any(each["id"] == row["id"] for each in before):
                return
        at = self.root / table / f"{len(before):03}"
        try:
            requests.put_if_absent(at, json.dumps(row | {"fence": fence}).encode())
        except FileExistsError:
            if row["kind"] != "fence":
                raise FencedError from None
            self.commit(requests, table, fence, row)

    @contextmanager
    def held(self, requests: Requests, side: str, table: str) -> Iterator[Register]:
        register = take(requests, self.register(side), purpose="a test", pace=AT_ONCE)
        try:
            if register.must_fence:
                self.commit(requests, table, register.fence, {"kind": "fence", "id": f"f{register.fence}"})
                register.must_fence = False
            yield register
        except BaseException:
            register.is_in_flight = True
            raise
        finally:
            register.release()

    def captures(self) -> int:
        return sum(row["kind"] == "capture" for row in self.rows("d"))

    def sync(self, agent: Agent) -> None:
        requests = Requests(self, agent)
        with self.held(requests, "p", "i") as at_p, self.held(requests, "s", "d") as at_s:
            if not (sessions := list(at_p.state.sessions)):
                for pointed in list(at_s.state.pointers):
                    at_p.settle()
                    at_s.unpoint(pointed)
                    self.voided.add(pointed)
                sessions, base = [uuid4().hex[:8]], self.captures()
                at_s.point(sessions[0], "p", "P")
                if self.rng.random() < 0.2:
                    at_p.renew()
                at_p.stage(sessions[0], str(base), "S")
            for session in sessions:
                self.commit(requests, "d", at_s.fence, {"kind": "session", "id": session})
                at_p.done(session, "subscriber", {})
                self.commit(requests, "i", at_p.fence, {"kind": "session", "id": session})
                at_p.done(session, "publisher", {})
                at_p.unstage(session)
                at_s.unpoint(session)

    def capture(self, agent: Agent) -> None:
        requests = Requests(self, agent)
        with self.held(requests, "s", "d") as at_s:
            for pointed in list(at_s.state.pointers):
                if not is_void(requests, self.register("p"), pointed):
                    return
                self.voided.add(pointed)
                at_s.unpoint(pointed)
            self.commit(requests, "d", at_s.fence, {"kind": "capture", "id": uuid4().hex[:8]})

    # ---- the history
    def run(self, kinds: list[str]) -> None:
        """Let each agent make some requests and pause, then let all end in any order; some die in their pause."""
        agents = [Agent(getattr(self, kind)) for kind in kinds]
        for agent in agents[:-1]:
            agent.start()
            self.let(agent, self.rng.randrange(_MOST_REQUESTS))
            agent.is_dead = self.rng.random() < 0.2
        agents[-1].start()
        for agent in (agents[-1], *self.rng.sample(agents[:-1], len(agents) - 1)):
            if self.flying and self.rng.random() < 0.5:
                self.land()
            self.let(agent)

    def let(self, agent: Agent, requests: int | None = None) -> None:
        """Let an agent make some requests, by default all that it still makes."""
        while not agent.is_over and requests != 0:
            agent.step()
            self.look()
            requests = None if requests is None else requests - 1
        if agent.failure:
            raise agent.failure

    def finish(self) -> None:
        """Let agents run alone until two sessions in a row come through; what is in flight lands before or never."""
        self.lost = 0
        while self.flying and self.rng.random() < 0.7:
            self.land()
        for kind in (self.rng.choice(["sync", "capture"]), "sync", "capture", "sync"):
            self.run([kind])

    def check(self) -> None:
        for table in "di":
            found = [row["id"] for row in self.rows(table) if row["kind"] == "session"]
            assert sorted(found) == sorted(self.staged), f"sessions of {table}"
        captures = 0
        for row in self.rows("d"):
            captures += row["kind"] == "capture"
            if row["kind"] == "session":
                assert captures == self.staged[row["id"]], "the subscriber had gone on"
        assert [row["id"] for row in self.rows("i") if row["kind"] == "session"] == [
            row["id"] for row in self.rows("d") if row["kind"] == "session"
        ]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, if there is one: these histories wait for no disk."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_drawn_histories_keep_the_rules_of_the_model(memory: Path) -> None:
    takeovers = 0
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        kinds = [rng.choice(["sync", "sync", "capture"]) for _ in range(rng.choice([2, 3]))]
        history = History(Location.of(memory) / str(seed), rng, lost=rng.choice([0, 0, 1, 2]))
        try:
            history.run(kinds)
            history.finish()
            history.check()
        except AssertionError as error:
            raise AssertionError(f"history {seed} of {kinds}: {error}") from error
        takeovers += sum(row["kind"] == "fence" for row in history.rows("d"))
    assert takeovers > HISTORIES / 2
