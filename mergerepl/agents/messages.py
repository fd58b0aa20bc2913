"""The protocol between a command and a warm agent: one JSON object a line.

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

import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from mergerepl.settings import environment_of_work, umask

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
