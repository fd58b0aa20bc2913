"""One agent a replica at a time: a file lock with its holder written beside it.

On a local path Delta's commits are not mutually exclusive between processes (reliability.md 0.1), so whoever
writes a replica takes this lock: the agent for a whole session, a user job through `mergerepl.lock(path)`.
`flock` ends with its process, so a killed agent leaves no stale lock; what may outlive it is its JVM with a
commit in flight, so a new holder first waits for the JVM of the previous one to end.
"""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from mergerepl.errors import LeaseError, StoreError

LOCK_FILE = ".mergerepl.lock"
JVM_END_WAIT_S = 30.0


def lock_path(root: Path) -> Path:
    """Return the lock file of the replica that `root` is, or lies in (a table's folder will do)."""
    for folder in (root, *root.parents):
        if (folder / "_mergerepl").is_dir() or (folder / LOCK_FILE).exists():
            return folder / LOCK_FILE
    return root / LOCK_FILE


@contextmanager
def lease(root: Path, *, purpose: str, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a replica. Waits up to `wait_s` seconds for another holder.

    Raises: LeaseError naming the holder if it is still held; StoreError if the folder cannot be written.
    """
    path = lock_path(root)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(
            f"Replica '{root}' cannot be locked: {error.strerror}. Check that the folder exists and is "
            "writable.",
            replica=str(root),
        ) from error
    try:
        _acquire(descriptor, path, root, wait_s)
        _wait_for_previous_jvm(descriptor, root)
        _write_holder(descriptor, purpose)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def record_jvm(root: Path, pid: int | None) -> None:
    """Note the JVM that writes for the holder, so that a successor can wait for its end."""
    path = lock_path(root)
    holder = _read(path.read_text(encoding="utf-8")) if path.exists() else {}
    if pid is not None and holder.get("pid") == os.getpid() and holder.get("jvm") != pid:
        holder["jvm"] = pid
        holder["jvm_started"] = _process_start(pid)
        path.write_text(json.dumps(holder), encoding="utf-8")


def holder(root: Path) -> dict[str, object] | None:
    """Return who holds the replica (pid, host, purpose, since), or None if it is free. For `doctor` and `status`."""
    path = lock_path(root)
    if not path.exists():
        return None
    with path.open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(file.read())
        return None


def _acquire(descriptor: int, path: Path, root: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                who = _read(path.read_text(encoding="utf-8"))
                raise LeaseError(
                    f"Replica '{root}' is in use: {who.get('purpose', 'another process')} by process "
                    f"{who.get('pid', '?')} on {who.get('host', '?')} since {who.get('since', '?')}. "
                    "Wait for it to finish, then run again.",
                    replica=str(root),
                    holder=who.get("pid"),
                ) from error
            time.sleep(0.1)


def _wait_for_previous_jvm(descriptor: int, root: Path) -> None:
    previous = _read(os.pread(descriptor, 4096, 0).decode("utf-8", "replace"))
    pid = previous.get("jvm")
    if not isinstance(pid, int) or previous.get("host") != socket.gethostname():
        return
    deadline = time.monotonic() + JVM_END_WAIT_S
    while _process_start(pid) is not None and _process_start(pid) == previous.get("jvm_started"):
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
    text = json.dumps(
        {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "purpose": purpose,
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _read(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _process_start(pid: int) -> str | None:
    """Return the start time of a live process (so that a reused pid is not taken for it), or None."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return "alive"
    fields = stat.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else fields[19]
