"""Who runs the jobs of a root, and how to end it."""

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

from mergerepl import roots
from mergerepl.errors import ConfigurationError, LeaseError
from mergerepl.model.cdc import AgentStatus
from mergerepl.store.lease import AGENT_LOCK, holder

_LOOK_S = 0.1


def agent_status(root: str | os.PathLike[str]) -> AgentStatus:
    """Return the agent of a root.

    Raises: ConfigurationError if there is no such folder.
    """
    path = roots.existing(os.fspath(root))
    who = holder(Path(path), file=AGENT_LOCK)
    if who is None:
        return AgentStatus(path)
    return AgentStatus(path, int(str(who["pid"])), str(who.get("host")), str(who.get("since")))


def stop_agent(root: str | os.PathLike[str], *, wait_s: float = 600.0) -> AgentStatus:
    """End the agent of a root, for all its roots. Returns the agent that was ended; without a pid there was none.

    It finishes the cycle that runs; this waits for it.

    Raises: ConfigurationError if it runs on another machine; LeaseError if it did not end in time.
    """
    who = agent_status(root)
    if who.pid is None:
        return who
    if who.host != socket.gethostname():
        raise ConfigurationError(
            f"The agent of '{who.root}' runs on {who.host}, process {who.pid}. Nothing was changed. Stop it there."
        )
    with suppress(ProcessLookupError):
        os.kill(who.pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while agent_status(root).pid == who.pid:
        if time.monotonic() > deadline:
            raise LeaseError(
                f"The agent of '{who.root}', process {who.pid}, was asked to stop and still runs after {wait_s:g} s: it "
                "finishes a cycle. Wait, then look at `mergerepl agent status`.",
                replica=who.root,
                holder=who.pid,
            )
        time.sleep(_LOOK_S)
    return who
