"""How a test lets a process die at a failpoint: in this process, or in one that is really killed."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
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


@contextmanager
def small_disk(most_bytes: int = 600) -> Iterator[None]:
    """Let no file grow beyond some bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def killed(
    command: Sequence[object],
    point: str,
    kind: str = "killgroup",
    *,
    cwd: Path | None = None,
    given: bytes = b"",
) -> None:
    """Run a command, or the script of Python, in a process group of its own, and end it at a failpoint.

    `kind`: kill (Python alone), killgroup (with its JVM), jvm (its JVM alone, while Python waits at the failpoint).
    """
    with tempfile.TemporaryDirectory() as folder:
        gate = Path(folder) / "gate"
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=cwd,
            env={
                **os.environ,
                "MERGEREPL_FAILPOINT": f"{point}={f'pause:{gate}' if kind == 'jvm' else kind}",
                "MERGEREPL_MEMORY": "1g",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if kind == "jvm":
            reached = gate.with_name(f"{gate.name}.reached")
            while not reached.exists() and process.poll() is None:
                time.sleep(0.05)
            assert reached.exists(), process.communicate()
            os.kill(jvm_of(process.pid), signal.SIGKILL)
            gate.touch()
        said = process.communicate(given, timeout=600)[0].decode()
    if kind != "jvm":
        assert process.returncode == -signal.SIGKILL, said
    elif process.returncode != 0:
        # Late enough the command needs its JVM no more; else it says what happened.
        assert "The Spark engine ended" in said, said
        assert "Traceback" not in said


def jvm_of(python: int) -> int:
    """Return the process id of a process's JVM."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, fields = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        if name == "java" and int(fields.split()[1]) == python:
            return int(entry.name)
    raise AssertionError(f"process {python} has no JVM")


def script(text: str, *arguments: object) -> list[object]:
    """Return the command that runs a script of Python."""
    return [sys.executable, "-c", text, *arguments]
