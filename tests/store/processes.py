"""Commands in processes of their own, which a test stops."""

import os
import signal
import subprocess
import sys
from pathlib import Path


class Agent:
    """A process that runs one command."""

    def __init__(self, folder: Path, *words: str) -> None:
        command = [sys.executable, "-m", "mergerepl", *words]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def end(self, code: int, *, printed: bool = False) -> str:
        """Wait for its exit code; return the errors, or what it printed."""
        shown, error = self.process.communicate(timeout=240)
        assert self.process.returncode == code, f"{shown}\n{error}"
        return shown if printed else error

    def killed(self) -> tuple[str, str]:
        """Kill it; return what it printed, and the errors."""
        self.process.kill()
        return self.process.communicate(timeout=60)
