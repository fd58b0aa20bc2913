"""One agent per replica at a time: a file lock, and a note that names its holder.

On a local path Delta's commits are not mutually exclusive between processes (reliability.md 0.1), so every writer of a
replica takes this lock: the agent for a whole session, a user job through `mergerepl.lock(path)`. `flock` ends with its
process, so a killed agent leaves no stale lock. Its JVM may outlive it with a commit in flight, so a new holder first
waits for the JVM of the previous one to end.
"""

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module

from mergerepl.errors import EngineLostError, LeaseError, MergeReplError, StoreError
from mergerepl.roots import SYSTEM_FOLDERS
from mergerepl.store.location import Location
from mergerepl.store.register import ROOT_LOCK, held_register, holding, in_use, take
from mergerepl.store.register_state import process_start, read_register
from mergerepl.store.rehearsal import is_rehearsal
from mergerepl.store.storage import exists, facts_of, is_folder, storage

WAIT_S: ContextVar[float] = ContextVar("WAIT_S", default=0.0)
"""Seconds that the calling object waits for other holders."""

LOCK_FILE = ROOT_LOCK
"""The root's lock: of every command that writes users' tables or `_mergerepl`."""

LOG_READER_LOCK = ".mergerepl.logreader.lock"
"""The lock of one scan cycle or one `cdc` command: it guards `_logreader` and `_cdc`. Taken after the root's.

In a store it is the root's register (decision 0161): a scan and a session of one root take turns.
"""

TRANSACTION_LOCK = ".mergerepl.transaction.lock"
"""The lock of a tracked transaction in a store, held as long as it is open: the root's register (decision 0170)."""

AGENT_LOCK = ".mergerepl.agent.lock"
"""The lock of the agent that runs the jobs of a root. Taken before all others, held as long as it runs."""

APPLY_LOCK = ".mergerepl.apply.lock"
"""The lock of one `apply` of a captured folder, from its plan to its last step. Taken before the root's."""

DISTRIBUTION_LOCK = ".mergerepl.distribution.lock"
"""The lock of one write to `_transactional` at a distributor. Taken last. In a store it is the root's register."""

_OF_ROOT = (LOG_READER_LOCK, DISTRIBUTION_LOCK, TRANSACTION_LOCK)
"""The locks that are the root's register in a store."""

JVM_END_WAIT_S = 30.0

_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC

_SINCE = "since"
"""A key of a holder's note while the replica is held."""


def replica_root(path: Location) -> Location:
    """Return the replica root at or above a path (such as a table's folder); the path itself if it has none.

    A lock file alone marks a replica only without a replica above it: it may be older than the publication of the
    tables, and the agent locks the file of the replica.
    """
    folders = (path, *path.parents)
    found = next((folder for folder in folders if _is_root(folder)), None)
    return found or next((folder for folder in folders if exists(folder / LOCK_FILE)), path)


def _is_root(folder: Location) -> bool:
    """True if a folder has system tables of a replica or of another product's database."""
    return any(is_folder(folder / name) for name in SYSTEM_FOLDERS)


@contextmanager
def lease(
    root: Location, *, purpose: str, wait_s: float | None = None, file: str = LOCK_FILE
) -> Iterator[None]:
    """Hold the replica at `root`, by one of its lock files. Waits up to `wait_s` seconds for another holder.

    The default of `wait_s` is `WAIT_S`, which the caller chose.

    If no replica was created, the lock file is removed with the lease, since it would mark a replica.

    Raises: LeaseError naming the holder if it is still held; StoreError if the folder cannot be written.
    """
    wait_s = WAIT_S.get() if wait_s is None else wait_s
    if is_rehearsal():
        if (who := holder(root, file=file)) is not None and who["pid"] != os.getpid():
            raise _in_use(root, who)
        yield
        return
    if not Location.of(root).is_local:
        with _register_held(root / file, purpose, wait_s):
            yield
        return
    descriptor, owner = _acquired(root / file, wait_s), os.getpid()
    try:
        _wait_for_previous_jvm(descriptor, root)
        try:
            _write_holder(descriptor, purpose)
        except OSError as error:
            _end(descriptor, root / file, is_done=True)
            raise _unlockable(root / file, error, "Make room there, then run the command again.") from error
        is_done = False
        try:
            yield
            is_done = True
        except MergeReplError as error:
            # Code that raises an error has ended its work; only a lost engine may still be at work.
            is_done = not isinstance(error, EngineLostError)
            raise
        finally:
            if os.getpid() == owner:
                _end(descriptor, root / file, is_done=is_done)
    finally:
        # A child forked in this block has the descriptor too. When it leaves the block, its parent still holds the lock.
        if os.getpid() == owner:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextmanager
def _register_held(at: Location, purpose: str, wait_s: float) -> Iterator[None]:
    """Hold a register in a store. If an earlier holder may still write, its root gets fences first."""
    is_shared = at.name in _OF_ROOT
    if is_shared:
        at = at.parent / LOCK_FILE
    held = held_register(at)
    if held is not None and held.thread == threading.get_ident() and (is_shared or held.is_shared):
        # A command that holds the root goes on under it.
        held.check()
        yield
        return
    deadline = time.monotonic() + wait_s
    while (held := held_register(at)) is not None:
        # By another thread of this process, which is alive: there is nothing to watch.
        if time.monotonic() >= deadline:
            raise in_use(at.parent, held.state.holder)
        time.sleep(0.1)
    with holding(take(storage(at), at, purpose=purpose, wait_s=wait_s)) as register:
        register.is_shared = is_shared
        if register.must_fence:
            if at.name == LOCK_FILE:
                # It knows the tables of a root, which are above this room.
                import_module("mergerepl.replica.fence").write_fences(at.parent, register.fence)
            register.must_fence = False
        yield


@contextmanager
def leases(*roots: Location, purpose: str, wait_s: float | None = None) -> Iterator[None]:
    """Hold several replicas, taken in this order: the publisher first, as all agents do.

    Raises: as `lease`.
    """
    with ExitStack() as stack:
        for root in roots:
            stack.enter_context(lease(root, purpose=purpose, wait_s=wait_s))
        yield


@contextmanager
def brief_lock(file: Location) -> Iterator[None]:
    """Hold a lock for milliseconds, without a note; another process waits for it.

    Raises: FileNotFoundError if its folder is absent.
    """
    if is_rehearsal():
        yield
        return
    descriptor = os.open(file, _LOCK_FLAGS, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock_for_life(file: Location, purpose: str) -> int:
    """Lock a file until the descriptor is closed, at the latest by the end of this process, with its holder's note."""
    descriptor = os.open(file, _LOCK_FLAGS, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _write_holder(descriptor, purpose)
    return descriptor


def is_locked(file: Location) -> bool:
    """True if a living process holds a file that it locked for life."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_note(file: Location) -> dict[str, object]:
    """Return the holder's note of a file that was locked for life, or {}."""
    try:
        return _read(_text(file))
    except OSError:
        return {}


def _end(descriptor: int, file: Location, *, is_done: bool) -> None:
    """Remove the holder's note. Unless `is_done`, its JVM stays noted: a commit may still be in flight."""
    note = _note(descriptor)
    if not is_done and "jvm" in note:
        _write(descriptor, {name: value for name, value in note.items() if name != _SINCE})
    elif _is_root(file.parent):
        os.ftruncate(descriptor, 0)
    else:
        with suppress(FileNotFoundError):
            os.unlink(file)


def record_jvm(root: Location, pid: int | None, *, file: str = LOCK_FILE) -> None:
    """Note the JVM that writes for the holder, so that a successor can wait for its end."""
    if not Location.of(root).is_local:
        # Fences stop the commits that a lost JVM may still send.
        return
    path = root / file
    holder = _read(_text(path)) if exists(path) else {}
    if pid is not None and holder.get("pid") == os.getpid() and holder.get("jvm") != pid:
        holder["jvm"] = pid
        holder["jvm_started"] = process_start(pid)
        with open(path, "w", encoding="utf-8") as note:
            note.write(json.dumps(holder))


def holder(root: Location, *, file: str = LOCK_FILE) -> dict[str, object] | None:
    """Return the holder of a replica's lock file (pid, host, purpose, since), or None if it is free. For `doctor`.

    Reads only the note: even a shared lock would make another command find the replica in use. On a store it also has
    `renewed`, by the store's clock.
    """
    if Location.of(root).is_local:
        note = holder_note(root / file)
    else:
        note = _register_note(root / (LOCK_FILE if file in _OF_ROOT else file))
    pid = note.get("pid")
    if _SINCE not in note or not isinstance(pid, int):
        return None
    is_here = note.get("host") == socket.gethostname()
    started = note.pop("started", None)
    return note if not is_here or process_start(pid) == started else None


def _register_note(at: Location) -> dict[str, object]:
    found = read_register(storage(at), at)
    if found is None or found.holder is None:
        return {}
    written_ns = facts_of(at).written_ns
    age_s = max(0, round(time.time() - written_ns / 1e9))
    renewed = datetime.fromtimestamp(written_ns / 1e9, UTC).isoformat(timespec="seconds")
    return {**asdict(found.holder), "renewed": f"{renewed} ({age_s} s ago)"}


def check_held(root: Location, *, file: str) -> None:
    """Check that no other agent is known to have taken over a register that this process holds.

    Raises: LeaseError.
    """
    if (register := held_register(root / file)) is not None:
        register.check()


def check_not_held(root: Location) -> None:
    """Check that no other process of this machine holds the replica.

    A process of another machine cannot be checked: if it was killed, its note remains too.

    Raises: LeaseError naming the holder.
    """
    who = holder(root)
    if who is not None and who["host"] == socket.gethostname() and who["pid"] != os.getpid():
        raise _in_use(root, who)


def _in_use(root: Location, who: Mapping[str, object]) -> LeaseError:
    return LeaseError(
        f"Replica '{root}' is in use: {who.get('purpose', 'another process')} by process {who.get('pid', '?')} on "
        f"{who.get('host', '?')} since {who.get(_SINCE, '?')}. Wait for it to finish, then run again.",
        replica=str(root),
        holder=who.get("pid"),
    )


def _acquired(file: Location, wait_s: float) -> int:
    deadline = time.monotonic() + wait_s
    while True:
        descriptor = _opened(file)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_in_place(descriptor, file):
                return descriptor
            os.close(descriptor)
        except BlockingIOError as error:
            who = _note(descriptor)
            os.close(descriptor)
            if time.monotonic() >= deadline:
                raise _in_use(file.parent, who) from error
            time.sleep(0.1)


def _opened(file: Location) -> int:
    try:
        # A user who may write to the folder may lock it: the umask decides, as for all files.
        return os.open(file, _LOCK_FLAGS, 0o666)
    except OSError as error:
        raise _unlockable(file, error, "Check that the folder exists and is writable.") from error


def _unlockable(file: Location, error: OSError, remedy: str) -> StoreError:
    return StoreError(
        f"Replica '{file.parent}' cannot be locked: {error.strerror}. {remedy}", replica=str(file.parent)
    )


def _is_in_place(descriptor: int, file: Location) -> bool:
    """True if the locked file is still the lock file: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _wait_for_previous_jvm(descriptor: int, root: Location) -> None:
    previous = _note(descriptor)
    pid = previous.get("jvm")
    if not isinstance(pid, int) or previous.get("host") != socket.gethostname():
        return
    deadline = time.monotonic() + JVM_END_WAIT_S
    while process_start(pid) is not None and process_start(pid) == previous.get("jvm_started"):
        if previous.get("pid") == os.getpid():
            return
        if time.monotonic() >= deadline:
            raise LeaseError(
                f"Replica '{root}' may still be written by the JVM (process {pid}) of an agent that was "
                "killed. "
                "End that process, then run again.",
                replica=str(root),
                holder=pid,
            )
        time.sleep(0.1)


def _write_holder(descriptor: int, purpose: str) -> None:
    note = {
        "pid": os.getpid(),
        "started": process_start(os.getpid()),
        "host": socket.gethostname(),
        "purpose": purpose,
        _SINCE: datetime.now(UTC).isoformat(timespec="seconds"),
    }
    _write(descriptor, note)


def _write(descriptor: int, note: Mapping[str, object]) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(note).encode(), 0)


def _note(descriptor: int) -> dict[str, object]:
    return _read(os.pread(descriptor, 4096, 0).decode("utf-8", "replace"))


def _text(path: Location) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _read(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
