"""The socket of a warm agent, in the root of a publisher; only processes of the same user on the same machine can connect.

A socket file that an agent left, or that a copy of the root has, is not answered, and the next agent replaces it. A command
and the agent send each other one JSON object a line:

| from | message | means |
|---|---|---|
| command | `arguments`, `cwd`, `terminal`, `identity` | run this for me |
| agent | `refused` | run it yourself, and why |
| agent | `heard` | it will be run, after others |
| agent | `ready` | it is this command's turn |
| command | `go` | begin; without it the agent runs nothing, and from here on the command runs nothing itself |
| agent | `step`, `shown` | progress, and its end |
| agent | `out`, `err`, `table` | text for standard output and error; a table for the terminal |
| agent | `exit` | the exit code |
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergerepl.roots import is_absent
from mergerepl.settings import environment_of_work, umask
from mergerepl.store.location import Location

SOCKET = ".mergerepl.agent.sock"
LOG = ".mergerepl.agent.log"

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of the process at the other end."""


@dataclass(frozen=True)
class AgentSocket:
    """A socket that listens in a root."""

    listener: socket.socket
    folder: int
    inode: int

    def close(self) -> None:
        """Stop listening, and remove the file unless another agent has replaced it."""
        with suppress(OSError):
            # While this one listens, its inode is unique.
            if os.stat(SOCKET, dir_fd=self.folder, follow_symlinks=False).st_ino == self.inode:
                os.unlink(SOCKET, dir_fd=self.folder)
        with suppress(OSError):
            # `shutdown` wakes the thread that waits for connections; `close` does not.
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        os.close(self.folder)


def listen(root: Location) -> AgentSocket | None:
    """Return a listening socket in a root that only this user may open; None if another agent listens there.

    It sets this process's umask for a moment: call it before there are threads.

    Raises: FileNotFoundError if the folder is empty or missing; OSError if no socket can be made.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise OSError(errno.ENOTSUP, "this system does not say who is at the other end")
    if is_absent(root):
        # A store may be mounted here later; with a socket the folder would not be empty.
        raise FileNotFoundError(errno.ENOENT, "nothing is there")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Two agents that start together take turns.
        fcntl.flock(folder, fcntl.LOCK_EX)
        if _is_answered(folder):
            os.close(folder)
            return None
        _remove_former(folder)
        listener = socket.socket(socket.AF_UNIX)
        try:
            before = os.umask(0o177)
            try:
                listener.bind(_address(folder))
            finally:
                os.umask(before)
            listener.listen(16)
        except OSError:
            listener.close()
            raise
        inode = os.stat(SOCKET, dir_fd=folder, follow_symlinks=False).st_ino
        fcntl.flock(folder, fcntl.LOCK_UN)
    except OSError:
        os.close(folder)
        raise
    return AgentSocket(listener, folder, inode)


def connect(root: Location, *, timeout_s: float) -> socket.socket | None:
    """Return a connection to this user's agent that listens in a root, or None."""
    with suppress(OSError), _opened(root) as folder:
        if not _is_ours(folder):
            return None
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(timeout_s)
            connection.connect(_address(folder))
            if is_same_user(connection):
                return connection
        except OSError:
            pass
        connection.close()
    return None


def is_there(root: Location) -> bool:
    """Whether a root has the socket of an agent of this user, running or ended."""
    with suppress(OSError), _opened(root) as folder:
        return _is_ours(folder)
    return False


def is_same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(given)[1] == os.geteuid())


def open_log(root: Location) -> int:
    """Open the log file of an agent in the background for writing.

    Raises: OSError.
    """
    return os.open(root / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)


def last_line(root: Location) -> str:
    """Return the last line of that file."""
    with open(root / LOG, encoding="utf-8", errors="replace") as log:
        lines = log.read().splitlines()
    return lines[-1] if lines else ""


@contextmanager
def _opened(root: Location) -> Iterator[int]:
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield folder
    finally:
        os.close(folder)


def _address(folder: int) -> str:
    """Return a short name of the socket for every root: the system takes 107 bytes."""
    return f"/proc/self/fd/{folder}/{SOCKET}"


def _is_ours(folder: int) -> bool:
    """Whether a socket of this user exists in the folder.

    Raises: OSError.
    """
    try:
        found = os.stat(SOCKET, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()


def _remove_former(folder: int) -> None:
    """Remove the socket of an agent that has ended.

    Raises: OSError if another kind of file has its name.
    """
    if _is_ours(folder):
        os.unlink(SOCKET, dir_fd=folder)


def _is_answered(folder: int) -> bool:
    """Whether an agent answers at the socket.

    Raises: OSError if the connection is refused for another reason, as to another user's socket.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(_address(folder))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            # The agent's queue of connections is full.
            return True
    return True


PROTOCOL = 1
LONGEST_REQUEST = 1_000_000


class Messages:
    """A connection that carries messages both ways."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = b""

    def send(self, **message: object) -> None:
        """Send a message.

        Raises: OSError if it did not arrive.
        """
        self.connection.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self, *, timeout_s: float | None, most: int | None = None) -> dict[str, Any]:
        """Return the next message, of at most `most` bytes.

        Raises: TimeoutError, after which it can be called again; OSError if the other end is gone or sends other data.
        """
        self.connection.settimeout(timeout_s)
        while b"\n" not in self._received:
            if not (more := self.connection.recv(1 << 16)):
                raise ConnectionError("the other end is gone")
            self._received += more
            if most is not None and len(self._received) > most:
                raise ConnectionError("a message is too long")
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError as error:
            raise ConnectionError("no message") from error
        if not isinstance(message, dict):
            raise ConnectionError("no message")
        return message


def identity() -> dict[str, object]:
    """Return the properties that two processes share if a command has the same effect in either.

    Values of the environment are hashed: they may be secrets.
    """
    from importlib import metadata

    variables = json.dumps(environment_of_work(), sort_keys=True).encode()
    top = os.stat("/")
    return {
        "protocol": PROTOCOL,
        "version": metadata.version("mergerepl"),
        "installation": [sys.prefix, str(Path(__file__).parent)],
        "user": [os.geteuid(), os.getegid(), sorted(os.getgroups())],
        "umask": umask(),
        "encoding of names": sys.getfilesystemencoding(),
        "environment": hashlib.sha256(variables).hexdigest(),
        # A container may see other folders under the same names.
        "file systems": [os.readlink("/proc/self/ns/mnt"), top.st_dev, top.st_ino],
    }
