"""The command server of a warm agent: it listens in its roots, and runs the commands of clients one at a time."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from mergerepl.agents.agent_socket import (
    LONGEST_REQUEST,
    AgentSocket,
    Messages,
    identity,
    is_same_user,
    listen,
)
from mergerepl.model.progress import NoProgress, Progress
from mergerepl.store.location import Location

if TYPE_CHECKING:
    from mergerepl.cli.report.table import Table

log = logging.getLogger(__name__)

_REQUEST_S = 5.0
_AGAIN_S = 0.1
_SLOW_S = 10.0
"""Seconds that a client may let the agent wait."""

Run = Callable[[Sequence[str], Progress], int]
"""Runs a command in this process, as `mergerepl ARGUMENTS` would; returns the exit code."""


class CommandServer:
    """Takes commands of clients. As a context it listens; `serve`, in the worker thread, runs them.

    If any root is listened in, `warm_up` runs at the same time in its own thread.
    """

    def __init__(
        self, roots: Sequence[Location], run: Run, warm_up: Callable[[], None] | None = None
    ) -> None:
        self._roots, self._run, self._warm_up = roots, run, warm_up
        self._identity: dict[str, object] = {}
        self._sockets: list[AgentSocket] = []
        self._waiting: queue.Queue[tuple[Messages, dict[str, Any]]] = queue.Queue()

    def __enter__(self) -> Self:
        """Listen. A root where that fails is logged: its syncs run in their own processes."""
        for root in self._roots:
            try:
                # The identity of the process as it was started: the engine sets variables of its own.
                self._identity = identity()
                found = listen(root)
            except FileNotFoundError as error:
                log.info("%s: nobody is listened to here (%s).", root, error.strerror)
                continue
            except OSError as error:
                log.warning(
                    "%s: no socket can be made here (%s). Syncs start a Java each.", root, error.strerror
                )
                continue
            if found is None:
                log.info("%s: another agent runs the syncs of others here.", root)
                continue
            self._sockets.append(found)
            threading.Thread(target=self._listen, args=(found,), daemon=True, name="agent-desk").start()
        if self._sockets and self._warm_up is not None:
            # Its modules import each other: of two threads that import it at once, one finds half of them.
            import_module("pyspark.sql")
            threading.Thread(target=self._warm_up, daemon=True, name="warm-up").start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening. Waiting clients run their commands themselves."""
        for each in self._sockets:
            each.close()
        while not self._waiting.empty():
            self._waiting.get()[0].connection.close()

    def serve(self, seconds: float) -> None:
        """Wait up to `seconds` for a client; run its command to the end."""
        try:
            messages, request = self._waiting.get(timeout=seconds)
        except queue.Empty:
            return
        with messages.connection:
            self._serve(messages, request)

    def _listen(self, agent_socket: AgentSocket) -> None:
        while True:
            try:
                connection, _ = agent_socket.listener.accept()
            except OSError:
                if agent_socket.listener.fileno() < 0:
                    # Closed, at the end.
                    return
                time.sleep(_AGAIN_S)
                continue
            messages = Messages(connection)
            try:
                request = self._asked(messages)
                messages.send(heard=True)
                self._waiting.put((messages, request))
            except (OSError, LookupError, TypeError) as error:
                with contextlib.suppress(OSError):
                    messages.send(refused=str(error))
                connection.close()

    def _asked(self, messages: Messages) -> dict[str, Any]:
        """Return a client's request.

        Raises: OSError, LookupError or TypeError if the command is not to be run here.
        """
        if not is_same_user(messages.connection):
            raise PermissionError("another user")
        request = messages.receive(timeout_s=_REQUEST_S, most=LONGEST_REQUEST)
        given = request["identity"]
        other = [name for name in {**self._identity, **given} if self._identity.get(name) != given.get(name)]
        if other:
            raise PermissionError(f"it has another {', '.join(other)}")
        is_whole = isinstance(request["arguments"], list) and isinstance(request["cwd"], str)
        if not is_whole or not isinstance(request["terminal"], bool):
            raise TypeError("no request")
        return request

    def _serve(self, messages: Messages, request: dict[str, Any]) -> None:
        try:
            with _working_in(request["cwd"]):
                messages.connection.settimeout(_SLOW_S)
                messages.send(ready=True)
                if "go" not in messages.receive(timeout_s=_SLOW_S):
                    return
                messages.connection.settimeout(_SLOW_S)
                client = _Client(messages)
                with _shown_to(client, is_terminal=request["terminal"]):
                    code = self._run(request["arguments"], _ClientProgress(client))
            client.send(exit=code)
        except OSError as error:
            # The client went away before its turn, or its folder did.
            log.info("a client is not served: %s", error)


class _Client:
    """The client of a command, to whom its output goes. A client that goes away does not end the command."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._is_gone = False
        # Articles are processed in parallel.
        self._lock = threading.Lock()

    def send(self, **message: object) -> None:
        with self._lock:
            if not self._is_gone:
                try:
                    self._messages.send(**message)
                except OSError:
                    self._is_gone = True


class _ClientProgress(NoProgress):
    def __init__(self, client: _Client) -> None:
        self._client = client

    def step(self, name: str, *, article: str | None = None, rows: int | None = None) -> None:
        self._client.send(step=[name, article, rows])

    def __exit__(self, *_: object) -> None:
        self._client.send(shown=True)


class _Sending(io.RawIOBase):
    """Sends written text as messages of one name."""

    def __init__(self, client: _Client, name: str, *, is_terminal: bool) -> None:
        self._client, self._name, self._is_terminal = client, name, is_terminal

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, written: Any) -> int:
        self._client.send(**{self._name: bytes(written).decode("utf-8")})
        return len(written)


class _ClientStream(io.TextIOWrapper):
    def __init__(self, client: _Client, name: str, *, is_terminal: bool) -> None:
        raw = cast(Any, _Sending(client, name, is_terminal=is_terminal))
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", newline="\n", write_through=True)
        self._client = client

    def write_table(self, table: Table) -> None:
        """Let the client draw a table: it knows its terminal."""
        self._client.send(table=asdict(table))


@contextlib.contextmanager
def _shown_to(client: _Client, *, is_terminal: bool) -> Iterator[None]:
    """Send output and log to a client. One command runs at a time, so all of it is the command's own."""
    out = _ClientStream(client, "out", is_terminal=is_terminal)
    err = _ClientStream(client, "err", is_terminal=False)
    logger, py4j = logging.getLogger(), logging.getLogger("py4j")
    handlers, levels = logger.handlers[:], (logger.level, py4j.level)
    logger.handlers = []
    try:
        with contextlib.redirect_stdout(cast(TextIO, out)), contextlib.redirect_stderr(cast(TextIO, err)):
            yield
    finally:
        logger.handlers = handlers
        logger.setLevel(levels[0])
        py4j.setLevel(levels[1])


@contextlib.contextmanager
def _working_in(folder: str) -> Iterator[None]:
    """Resolve relative paths as a client does.

    Raises: OSError if the folder does not exist.
    """
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def warm_up() -> None:
    """Start the engine, and load the modules of a sync, before the first command arrives."""
    from mergerepl.spark import session as engine

    try:
        engine.interpreting(engine.session(long_running=True)).range(1).groupBy("id").count().toArrow()
        import_module("mergerepl.merge.session.merge_session")
    except Exception as error:
        # The first command starts it, and reports the failure.
        log.info("the engine was not started before it is needed: %s", error)
