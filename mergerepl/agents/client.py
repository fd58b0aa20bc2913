"""The client side of a command that a warm agent runs: the agent has its Java already. No library is loaded here."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from mergerepl import roots
from mergerepl.agents.agent_socket import Messages, connect, identity, is_there
from mergerepl.errors import AgentLostError, MergeReplError
from mergerepl.model.progress import Progress
from mergerepl.places import SUBSCRIBER, has_variables, roots_of_file
from mergerepl.sessions.targets import merge_targets, root_of
from mergerepl.store.location import Location
from mergerepl.store.storage import has_system_tables

log = logging.getLogger(__name__)

_ANSWER_S = 5.0
_PATIENCE_S = 0.5


def hand_over(publishers: Sequence[Location], arguments: Sequence[str], progress: Progress) -> int | None:
    """Let the agent of one of these publishers run a command; return the exit code, or None if no agent does.

    Raises: AgentLostError if the agent ended during it.
    """
    for root in publishers:
        if (connection := connect(root, timeout_s=_ANSWER_S)) is None:
            continue
        with connection:
            messages = Messages(connection)
            try:
                _let_begin(messages, arguments, progress)
            except OSError as error:
                log.info("the agent of %s does not run this: %s", root, error)
                continue
            with progress:
                return _shown(root, messages, progress)
    return None


def _let_begin(messages: Messages, arguments: Sequence[str], progress: Progress) -> None:
    """Send the command, wait for its turn, and let the agent begin.

    Raises: OSError; the agent then begins nothing.
    """
    request = {
        "arguments": [*arguments],
        "cwd": os.getcwd(),
        "terminal": sys.stdout.isatty(),
        "identity": identity(),
    }
    messages.send(**request)
    # A suspended agent does not answer at all.
    answer = messages.receive(timeout_s=_ANSWER_S)
    if "heard" not in answer:
        raise ConnectionRefusedError(str(answer.get("refused")))
    with progress:
        try:
            answer = messages.receive(timeout_s=_PATIENCE_S)
        except TimeoutError:
            progress.step("wait for the agent, which is at work")
            answer = messages.receive(timeout_s=None)
    if "ready" not in answer:
        raise ConnectionError("it does not keep to the protocol")
    messages.send(go=True)


def _shown(root: Location, messages: Messages, progress: Progress) -> int:
    """Show what the agent sends until the command has ended."""
    while True:
        try:
            message = messages.receive(timeout_s=None)
        except OSError as error:
            raise AgentLostError(
                f"The agent of '{root}' ended in the middle of this sync. Run it again: the next sync finishes what was "
                "staged, and then does the rest.",
                replica=str(root),
            ) from error
        if "exit" in message:
            return int(message["exit"])
        _show(message, progress)


def _show(message: dict[str, Any], progress: Progress) -> None:
    if "step" in message:
        name, article, rows = message["step"]
        progress.step(name, article=article, rows=rows)
    elif "shown" in message:
        progress.__exit__(None, None, None)
    elif "out" in message:
        sys.stdout.write(message["out"])
    elif "err" in message:
        sys.stderr.write(message["err"])
        sys.stderr.flush()
    elif "table" in message:
        from mergerepl.cli.report.table import Table

        drawn = Table(**message["table"])
        drawn.rows = [tuple(row) for row in drawn.rows]
        drawn.write(sys.stdout)


def agent_roots(texts: Sequence[str]) -> list[Location]:
    """Return the publishers of files and roots, where an agent may listen. Invalid items are left to later checks.

    It loads little: a file is read, but not checked.
    """
    found: list[Location] = []
    for text in texts:
        with contextlib.suppress(MergeReplError, OSError, ValueError, LookupError, TypeError):
            found += _publishers(text)
    # A store has no sockets.
    return [root for root in dict.fromkeys(found) if root.is_local]


def _publishers(text: str) -> list[Location]:
    if roots.names_file(text):
        if has_variables(text):
            # The agent's environment may give the variables other values.
            return []
        return [Location.of(each.root) for each in roots_of_file(text) if each.role != SUBSCRIBER]
    root = root_of(text)
    if not root.is_local:
        return []
    if is_there(root) or not has_system_tables(root):
        return [root]
    return [target.publisher for target in merge_targets([root])] or [root]
