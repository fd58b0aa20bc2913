"""How a test lets a process die at a failpoint: in this process, or in one that is really killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mergerepl import failpoints
from mergerepl.failpoints import FailpointError


@contextmanager
def armed(point: str, action: str = "raise") -> Iterator[None]:
    """Set a failpoint for a block, as if it had never been passed before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "_passed", {})
        patch.setenv("MERGEREPL_FAILPOINT", f"{point}={action}")
        yield


@contextmanager
def dies(
    point: str,
    *,
    action: str = "raise",
    error: type[BaseException] | tuple[type[BaseException], ...] = FailpointError,
    match: str | None = None,
) -> Iterator[None]:
    """Let a block die at a failpoint, as far as a test can let its process die; `error` is how its caller sees that."""
    with armed(point, action), pytest.raises(error, match=match):
        yield


def killed(
    command: Sequence[object],
    point: str,
    kind: str = "killgroup",
    *,
    cwd: Path | None = None,
    given: bytes = b"",
) -> None:
    """Run a command, or the script of Python, in a process that is killed at a failpoint, alone or with its JVM."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        input=given,
        env={**os.environ, "MERGEREPL_FAILPOINT": f"{point}={kind}", "MERGEREPL_MEMORY": "1g"},
        capture_output=True,
        start_new_session=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def script(text: str, *arguments: object) -> list[object]:
    """Return the command that runs a script of Python."""
    return [sys.executable, "-c", text, *arguments]
