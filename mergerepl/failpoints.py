"""Named points at which a test may kill, stop, fail or pause this process (reliability.md c4).

`MERGEREPL_FAILPOINT=name[:n]=kill|killgroup|stop|raise|pause:FILE` acts when the point `name` is passed for the
n-th time (default: the first). Without the variable a point is one dictionary look-up.

| action | what dies |
|---|---|
| `kill` | this process; its JVM may still finish a commit |
| `killgroup` | the JVM and this process, at one moment |
| `stop` | all threads, each at its next point: as if the process had died, in a test that keeps its JVM |
| `raise` | the thread that passes the point; other threads run to their end |
"""

import contextlib
import os
import signal
import time
from pathlib import Path

_VARIABLE = "MERGEREPL_FAILPOINT"
_passed: dict[str, int] = {}


class FailpointError(RuntimeError):
    """Raised by a failpoint with the action `raise` or `stop`."""


def failpoint(name: str) -> None:
    """Act if the environment names this point and it is passed for the named time."""
    setting = os.environ.get(_VARIABLE)
    if not setting:
        return
    target, _, action = setting.partition("=")
    point, _, times = target.partition(":")
    nth = int(times or 1)
    if action == "stop" and _passed.get(point, 0) >= nth:
        raise FailpointError(f"failpoint {name}, after {point}")
    if point != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] != nth:
        return
    _act(name, action)


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "killgroup":
        from mergerepl.spark import session as engine

        if (jvm := engine.jvm_pid()) is not None:
            # Kill the JVM before this process: it would end with it, but not at once.
            with contextlib.suppress(ProcessLookupError):
                os.kill(jvm, signal.SIGKILL)
        os.killpg(os.getpgid(0), signal.SIGKILL)
    elif action.startswith("pause:"):
        # The test waits for `FILE.reached`, does its work, and creates FILE to let us go on.
        file = Path(action.removeprefix("pause:"))
        file.with_name(file.name + ".reached").touch()
        while not file.exists():
            time.sleep(0.02)
    else:
        raise FailpointError(f"failpoint {name}")
