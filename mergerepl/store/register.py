"""The register of a root on an object store: its lease and the commit point of its sessions, in one object.

The object is changed only while its tag is unchanged, so a displaced agent can neither stage a session nor finish one. No
clock decides anything: an agent takes over a register whose `write` it saw unchanged for the length of a lease, and if
the old holder was only paused, that one's next write is refused. The fence (`fence`), which rises with each
take, stops the commits that the old holder still has in flight to tables. `tests/properties/lease_model.py` is the protocol
in plain Python.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from mergerepl.errors import (
    CaptureError,
    ConfigurationError,
    ConflictError,
    EnumerationError,
    LeaseError,
    MergeReplError,
    OutOfReachError,
    PublicationError,
    RefusedArticlesError,
    SchemaMismatchError,
    StoreError,
)
from mergerepl.settings import Settings
from mergerepl.store.location import Location
from mergerepl.store.objects import ChangedError
from mergerepl.store.register_state import (
    ConditionalStorage,
    Holder,
    PointedSession,
    RegisterState,
    StagedSession,
    described,
    new_uuid,
    read_register,
)
from mergerepl.store.storage import storage

log = logging.getLogger(__name__)

ROOT_LOCK = ".mergerepl.lock"
"""The name of a root's own register, or lock file: that of every command that writes users' tables or `_mergerepl`."""

_RENEWALS = 4
"""How often a holder renews its register within the time for which another agent watches it."""

_LOOKS = 30
"""How often a watcher reads a register within that time."""


@dataclass(frozen=True)
class Pace:
    """The times of a lease in seconds: how long it is watched, how often it is renewed and read."""

    watch_s: float

    @classmethod
    def of_settings(cls) -> "Pace":
        """Return the pace that the environment sets."""
        return cls(Settings.from_environment().lease_s)

    @property
    def renew_s(self) -> float:
        """Seconds between two renewals of a holder."""
        return self.watch_s / _RENEWALS

    @property
    def look_s(self) -> float:
        """Seconds between two readings of a watcher."""
        return self.watch_s / _LOOKS


class Line:
    """Takes of a register by this process with no other agent's between them: what it knows of the root stays true."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.is_broken = False
        """Whether the root was seen to be another, such as one that was restored from a copy."""
        self.memory: dict[object, Any] = {}
        """Facts that were read from the system tables."""


@dataclass
class Look:
    """A register that was free when it was read, and what is known of its root."""

    state: RegisterState
    line: Line | None = None
    """Set once the system tables may be read by what is known of them."""


_looks: dict[Location, Look] = {}
"""The registers that this process looked at, by their place: for the block of `looking`."""

_released: dict[Location, tuple[str, Line]] = {}
"""The `write` by which this process released a register, and the line."""


class Register:
    """A register that this process holds. One lock guards its tag: renewals share it with the steps of the session."""

    def __init__(
        self, store: ConditionalStorage, at: Location, state: RegisterState, *, must_fence: bool = False
    ) -> None:
        self.at = at
        self.must_fence = must_fence
        """Whether an earlier holder may still write to the tables: they need a fence before they are read."""
        self._store, self._state = store, state
        self._unknown: set[str] = set()
        self._is_displaced = False
        self._lock = threading.RLock()
        self.is_in_flight = False
        """Whether a request of this holder has no known outcome."""
        self.thread = threading.get_ident()
        """The thread that took it."""
        self.is_shared = False
        """True if it was taken in place of another lock: commands of its thread that hold the root go on under it."""
        self.memory: dict[object, Any] = {}
        """What was read of the root and does not change while it is held."""
        self.line = Line()
        """Shared with the earlier takes of this process after which nobody else wrote the register."""

    @property
    def state(self) -> RegisterState:
        """The content as this process wrote it last."""
        return self._state

    @property
    def fence(self) -> int:
        """The number of this take. Each later one has a higher number."""
        return self._state.fence

    def check(self) -> None:
        """Check that no other agent is known to have taken the register over.

        Raises: LeaseError.
        """
        if self._is_displaced:
            raise displaced(self.at.parent)

    def stage(self, session: str, manifest: str, subscriber: str) -> None:
        """Name a session that will be carried out: its commit point. Its rows and its manifest are in the store.

        Raises: LeaseError if another agent has taken the register over.
        """
        staged = StagedSession(manifest=manifest, subscriber=subscriber)
        self._change(lambda was: replace(was, sessions={**was.sessions, session: staged}))

    def done(self, session: str, side: str, outcome: Any) -> None:
        """Record the outcome of one side of a staged session.

        Raises: as `stage`.
        """

        def with_outcome(was: RegisterState) -> RegisterState:
            staged = was.sessions[session]
            staged = replace(staged, done={**staged.done, side: outcome})
            return replace(was, sessions={**was.sessions, session: staged})

        self._change(with_outcome)

    def unstage(self, session: str) -> None:
        """Forget a session that is over, or a late round of it (`<session>/<round>`); a session with its rounds.

        Objects are deleted only after this.

        Raises: as `stage`.
        """

        def without(was: RegisterState) -> RegisterState:
            left = {k: v for k, v in was.sessions.items() if k != session and not k.startswith(f"{session}/")}
            return replace(was, sessions=left)

        if session in self._state.sessions:
            self._change(without)

    def point(self, session: str, publisher: str, replid: str) -> None:
        """Record at a subscriber that a publisher is about to stage a session with it.

        Raises: as `stage`.
        """
        pointed = PointedSession(publisher=publisher, replid=replid)
        self._change(lambda was: replace(was, pointers={**was.pointers, session: pointed}))

    def unpoint(self, session: str) -> None:
        """Forget a session that is over, or was settled.

        Raises: as `stage`.
        """
        if session in self._state.pointers:
            self._change(
                lambda was: replace(was, pointers={k: v for k, v in was.pointers.items() if k != session})
            )

    def name_plan(self, field: str, name: str | None) -> None:
        """Name a plan that will be carried out, in one of the fields for plans: its commit point. None: it is done.

        Raises: as `stage`.
        """
        named: Any = {field: name}
        self._change(lambda was: replace(was, **named))

    def change_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Write the numbers of the root's tracked database.

        Raises: as `stage`.
        """
        self._change(lambda was: replace(was, numbers=numbers))

    def plan_batch(self, subscription: str, name: str | None) -> None:
        """Name the plan of a subscription's batch that will be carried out: its commit point. None: it is done.

        Raises: as `stage`.
        """

        def changed(was: RegisterState) -> RegisterState:
            others = {each: known for each, known in was.batches.items() if each != subscription}
            return replace(was, batches=others if name is None else {**others, subscription: name})

        self._change(changed)

    def state_writers(self, writers: Mapping[str, Sequence[str]]) -> bool:
        """State the tables below the root that some applications write from now on, none: not any more.

        Before the first write: a fence names the applications in these tables. Returns False if they are stated already.

        Raises: as `stage`.
        """
        stated = {
            each: tuple(tables) for each, tables in {**self._state.writers, **writers}.items() if tables
        }
        if is_new := stated != self._state.writers:
            self._change(lambda was: replace(was, writers=stated))
        return is_new

    def settle(self) -> None:
        """Write the register again: sessions that it does not name can then be staged by no earlier holder any more.

        Raises: as `stage`.
        """
        self._change(lambda was: was)

    def raise_fence(self) -> None:
        """Go on under the next fence, as if taken again: the caller writes it to the tables.

        Raises: as `stage`.
        """
        self._change(lambda was: replace(was, fence=was.fence + 1))

    @property
    def is_displaced(self) -> bool:
        """Whether another agent is known to have taken the register over."""
        return self._is_displaced

    def renew(self) -> None:
        """Show watchers that the holder is alive."""
        if self._is_displaced:
            return
        try:
            self._change(lambda was: was)
        except LeaseError:
            log.warning("the register '%s' was taken over by another agent", self.at)
        except (OSError, StoreError) as error:
            # The next renewal, or the next step of the session, tries again.
            log.warning("the register '%s' could not be renewed: %s", self.at, error)

    def forget(self) -> None:
        """Forget what is known of the root: tables were removed from it."""
        self.memory.clear()
        self.line = Line()

    def release(self) -> None:
        """Free the register. If the answer is lost, or another agent took it over, nothing more is to be done."""
        in_flight = self.is_in_flight or self.must_fence
        look = _looks.pop(self.at, None)
        try:
            self._change(lambda was: replace(was, holder=None, in_flight=in_flight))
            if not in_flight:
                _released[self.at] = self._state.write, self.line
                if look is not None:
                    _looks[self.at] = Look(self._state, self.line)
        except (OSError, StoreError) as error:
            log.warning("the register '%s' was not released: %s", self.at, error)

    def _change(self, change: Callable[[RegisterState], RegisterState]) -> None:
        """Write the content as `change` returns it, unless another agent has written it.

        Raises: LeaseError if another agent has; an error of the storage if the outcome is unknown.
        """
        with self._lock:
            self.check()
            while True:
                changed = replace(change(self._state), write=new_uuid())
                try:
                    tag = self._store.put_if_unchanged(self.at, changed.encoded(), self._state.tag)
                except ChangedError:
                    found = read_register(self._store, self.at)
                    if found is not None and found.write in self._unknown:
                        # A PUT of ours whose answer was lost.
                        self._unknown.discard(found.write)
                        self._state = found
                        continue
                    self._is_displaced = True
                    by = found.holder if found is not None and found.fence != self.fence else None
                    raise displaced(self.at.parent, by) from None
                except (OSError, StoreError):
                    self._unknown.add(changed.write)
                    self.is_in_flight = True
                    raise
                self._state = replace(changed, tag=tag)
                return


def take(
    store: ConditionalStorage, at: Location, *, purpose: str, wait_s: float = 0.0, pace: Pace | None = None
) -> Register:
    """Take a register: a free one at once; a held one if its holder does not renew it, which takes a lease to see.

    `wait_s` is how long a living holder is waited for.

    Raises: LeaseError naming the holder if it is alive; StoreError if the register is damaged; an error of the storage.
    """
    pace = pace or Pace.of_settings()
    begun = time.monotonic()
    seen, seen_at = None, begun
    look = _looks.get(at)
    while True:
        found, look = (read_register(store, at), None) if look is None else (look.state, None)
        now = time.monotonic()
        if (
            found is None
            or found.holder is None
            or (seen is not None and found.write == seen.write and now - seen_at >= pace.watch_s)
        ):
            if (taken := _taken(store, at, found, purpose)) is not None:
                return taken
            continue
        if seen is None:
            log.warning(
                "Replica '%s' is held: %s. Watching for up to %g s whether it is alive.",
                at.parent,
                described(found.holder),
                pace.watch_s,
            )
        if seen is None or found.write != seen.write:
            if seen is not None and now - begun >= wait_s:
                raise in_use(at.parent, found.holder)
            seen, seen_at = found, now
        time.sleep(pace.look_s)


def _taken(
    store: ConditionalStorage, at: Location, found: RegisterState | None, purpose: str
) -> Register | None:
    """Write this process into a register as it was found; None if another agent was first."""
    was = found or RegisterState()
    # It stays in the register until the tables have their fences: if this agent dies before, the next one writes them.
    must_fence = was.in_flight or was.holder is not None
    mine = replace(
        was,
        write=new_uuid(),
        fence=was.fence + 1,
        in_flight=must_fence,
        holder=Holder.of_this_process(purpose),
    )
    try:
        if found is None:
            tag = store.put_if_absent(at, mine.encoded())
        else:
            tag = store.put_if_unchanged(at, mine.encoded(), was.tag)
    except (FileExistsError, ChangedError):
        return None
    register = Register(store, at, replace(mine, tag=tag), must_fence=must_fence)
    write, line = _released.pop(at, ("", register.line))
    if write == was.write and not must_fence:
        register.line = line
    return register


def is_void(store: ConditionalStorage, at: Location, session: str) -> bool:
    """Make sure that a session that a publisher has not staged is never staged; False if it is staged.

    The caller does not hold the publisher's register. Its holder, if there is one, is displaced.
    """
    while True:
        found = read_register(store, at)
        if found is None:
            return True
        if session in found.sessions:
            return False
        try:
            store.put_if_unchanged(at, replace(found, write=new_uuid()).encoded(), found.tag)
        except ChangedError:
            continue
        return True


_OF_CHECKS = (
    CaptureError,
    ConfigurationError,
    ConflictError,
    EnumerationError,
    LeaseError,
    OutOfReachError,
    PublicationError,
    RefusedArticlesError,
    SchemaMismatchError,
)
"""Errors of checks, which come before a write: nothing is in flight for them. That a replica is in use is the commonest."""

_held: dict[Location, Register] = {}
"""The registers that this process holds, by their place."""


def state_of(root: Location) -> RegisterState:
    """Return the content of a root's register on a store: as this process wrote it, if it holds it, else as it is there.

    Raises: StoreError if it is damaged.
    """
    return found_state(root) or RegisterState()


def found_state(root: Location) -> RegisterState | None:
    """Return `state_of` a root, None if it has no register."""
    at = root / ROOT_LOCK
    if (held := _held.get(at)) is not None:
        return held.state
    look = _looks.get(at)
    return look.state if look is not None else read_register(storage(at), at)


@contextmanager
def looking(*roots: Location) -> Iterator[None]:
    """Read the registers of roots in a store once for a block that looks at them, then takes them.

    To take a register that was changed since fails, and what was noted before is forgotten.
    """
    places = [root / ROOT_LOCK for root in dict.fromkeys(roots) if not root.is_local]
    try:
        for at in places:
            found = None if at in _held else read_register(storage(at), at)
            if found is not None and found.holder is None and not found.in_flight:
                _looks[at] = Look(found)
        yield
    finally:
        for at in places:
            _looks.pop(at, None)


def look_of(root: Location) -> Look | None:
    """Return the look at a root's register, None if it is not looked at, or was not free."""
    return _looks.get(root / ROOT_LOCK)


def line_since(look: Look, at: Location) -> Line:
    """Return the line of the register that was looked at: that of its release by this process, or a new one."""
    write, line = _released.get(at, ("", Line()))
    if write != look.state.write or line.is_broken:
        line = Line()
        _released[at] = look.state.write, line
    look.line = line
    return line


def line_under(root: Location) -> Line | None:
    """Return the line under which the system tables of a root are known; None if they have to be read."""
    at = root / ROOT_LOCK
    if (held := _held.get(at)) is not None:
        return None if held.is_displaced else held.line
    look = _looks.get(at)
    return None if look is None else look.line


def held_register(at: Location) -> Register | None:
    """Return a register that this process holds, or None."""
    return _held.get(at)


def registers_above(place: Location) -> list[Register]:
    """Return the registers of roots that this process holds at or above a place. An agent's own lock is none of them."""
    return [each for at, each in list(_held.items()) if at.name == ROOT_LOCK and place.is_in(at.parent)]


def forget_tables(place: Location) -> None:
    """Forget what is known of a held root: tables at or below a place were removed or renamed."""
    for register in registers_above(place):
        register.forget()


def register_of(place: Location) -> Register:
    """Return the register that this process holds of the root of a place on a store.

    Raises: StoreError if it holds none.
    """
    for register in registers_above(place):
        return register
    raise StoreError(
        f"'{place}' cannot be written: this process does not hold the replica that it is in.", path=str(place)
    )


def fence_of(place: Location) -> int:
    """Return the fence under which this process writes at a place: 0 on this machine.

    Raises: LeaseError if the root was taken over; StoreError if this process does not hold it.
    """
    if place.is_local:
        return 0
    register = register_of(place)
    register.check()
    return register.fence


@contextmanager
def noting_unknown(table: Location, *definite: type[Exception]) -> Iterator[None]:
    """Note at the register of a table on a store that a write has no known outcome, if the block ends with an error.

    `definite` are the errors after which the write is known to be made or not.
    """
    with _noting_unknown(lambda: registers_above(table), definite):
        yield


@contextmanager
def _noting_unknown(
    registers: Callable[[], list[Register]], definite: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    try:
        yield
    except _OF_CHECKS:
        raise
    except definite:
        raise
    except BaseException as error:
        if isinstance(error, MergeReplError) and error.is_of_check:
            raise
        # An interrupt, too, may come while a request is on its way.
        for register in registers():
            register.is_in_flight = True
        raise


@contextmanager
def holding(register: Register, *, pace: Pace | None = None) -> Iterator[Register]:
    """Renew a register in a thread until the block ends, then release it.

    If the block ends with an error other than that of a check, requests of it may be in flight: the next agent writes
    fences. `noting_unknown` has noted a write of the block whose outcome is unknown.
    """
    pace, over = pace or Pace.of_settings(), threading.Event()

    def renew() -> None:
        while not over.wait(pace.renew_s):
            register.renew()

    thread = threading.Thread(target=renew, name=f"renew {register.at}", daemon=True)
    _held[register.at] = register
    thread.start()
    try:
        with _noting_unknown(lambda: [register]):
            yield register
    finally:
        over.set()
        thread.join()
        del _held[register.at]
        register.release()


def displaced(root: Location, by: Holder | None = None) -> LeaseError:
    """Return the error of a holder whose root was taken over."""
    who = f" ({described(by)})" if by is not None else ""
    return LeaseError(
        f"Replica '{root}' was taken over by another agent{who}: this process was paused or cut off from the store for "
        "too long. It stopped, and nothing that it had begun is lost. Run again: a staged session is finished first.",
        replica=str(root),
    )


def in_use(root: Location, holder: Holder | None) -> LeaseError:
    """Return the error of a root whose holder is alive."""
    who = described(holder) if holder is not None else "another agent"
    return LeaseError(
        f"Replica '{root}' is in use: {who}. Wait for it to finish, then run again.",
        replica=str(root),
        holder=holder.pid if holder is not None else None,
    )
