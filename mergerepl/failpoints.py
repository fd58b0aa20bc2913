"""Named points at which a test may kill, fail or pause this process (reliability.md c4).

`MERGEREPL_FAILPOINT=name[:n]=kill|killgroup|raise|pause:FILE` acts when the point `name` is passed for the
n-th time (default: the first). Without the variable a point is one dictionary look-up.
"""

import os
import signal
import time
from pathlib import Path

_VARIABLE = "MERGEREPL_FAILPOINT"
_passed: dict[str, int] = {}


class FailpointError(RuntimeError):
    """Raised by a failpoint with the action `raise`."""


def failpoint(name: str) -> None:
    """Act if the environment names this point and it is passed for the named time."""
    setting = os.environ.get(_VARIABLE)
    if not setting:
        return
    target, _, action = setting.partition("=")
    point, _, times = target.partition(":")
    if point != name:
        return
    _passed[name] = _passed.get(name, 0) + 1
    if _passed[name] != int(times or 1):
        return
    _act(name, action)


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "killgroup":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    elif action.startswith("pause:"):
        # The test sees `FILE.reached`, does what it wants to do meanwhile, and creates FILE to let us go on.
        file = Path(action.removeprefix("pause:"))
        file.with_name(file.name + ".reached").touch()
        while not file.exists():
            time.sleep(0.02)
    else:
        raise FailpointError(f"failpoint {name}")
