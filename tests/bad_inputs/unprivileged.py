"""Commands run as a user whom file permissions bind: tests often run as root, whom they do not."""

import os
import subprocess
import sys
from pathlib import Path

from tests.bad_inputs.conftest import state_of

# Root without these capabilities is refused like any user; a process that is not root cannot drop them, and need not.
_DROP = """
import ctypes, os, sys
libc, PR_CAPBSET_DROP = ctypes.CDLL(None), 24
for capability in (CAP_DAC_OVERRIDE := 1, CAP_DAC_READ_SEARCH := 2):
    libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.executable, [sys.executable, "-m", "mergerepl", *sys.argv[1:]])
"""


def run_without_privileges(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*sys.path[:1], str(Path(__file__).parents[2])]),
    }
    return subprocess.run(
        [sys.executable, "-c", _DROP, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def refused_without_privileges(folder: Path, *arguments: str, code: int, says: tuple[str, ...]) -> None:
    """Check a refusal: exit code, one message, nothing changed."""
    before = state_of(folder)
    shown = run_without_privileges(folder, *arguments)
    assert shown.returncode == code, shown.stderr
    assert shown.stdout == ""
    assert shown.stderr.count("Error: ") == 1
    assert "Traceback" not in shown.stderr
    assert "This is a bug" not in shown.stderr
    assert [part for part in says if part not in shown.stderr] == [], shown.stderr
    assert state_of(folder) == before, "a refusal changes nothing"
