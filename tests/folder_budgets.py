"""Minutes of one worker that each folder of tests may take: a run that passes one fails.

What a test costs is paid by everybody who waits for the suite; without a bound it grows back within a week. A budget is
for the default tests on a machine that counts to `COUNT` in `COUNT_S`. On a slower one, or beside other work, all
budgets grow with what the same loop takes there.
"""

import os
import time
from collections import Counter
from pathlib import Path

import pytest

MINUTES = {
    "agent": 0.7,
    "bad_inputs": 2.6,
    "cdc": 1.7,
    "tracking": 1.3,
    "conflict": 1.1,
    "delta": 0.9,
    "spark": 0.8,
    "enumeration": 0.5,
    "frames": 0.5,
    "faults": 1.7,
    "golden": 0.8,
    "monitoring": 1.2,
    "partitions": 0.8,
    "properties": 3.0,
    "publish": 2.4,
    "rows": 0.7,
    "scenarios": 0.5,
    "schema": 1.0,
    "staging": 0.8,
    "store": 1.0,
    "replica": 0.7,
    "capture": 0.8,
    "transactional": 1.6,
    "triggers": 0.8,
    "unit": 2.2,
}
"""About twice what a quiet machine takes, as others may come to it meanwhile; at least what a run of one folder takes to
start Spark. What one gets, others give."""

COUNT, COUNT_S = 3_000_000, 0.07
ROOT = Path(__file__).parent


def slowness() -> float:
    """Return how many times longer than there a loop takes here and now, at least 1."""
    begun = time.perf_counter()
    number = 0
    while number < COUNT:
        number += 1
    return max(1.0, (time.perf_counter() - begun) / COUNT_S)


class FolderBudgets:
    """Adds up what tests take, and lets a run fail in which a folder took more than its budget."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.slowness = 1.0

    def add(self, node_id: str, seconds: float) -> None:
        """Count time for the folder of a test; its id begins with its path below the project."""
        _, folder, *_ = [*node_id.partition("::")[0].split("/"), ""]
        self.seconds[folder] += seconds

    def passed(self) -> dict[str, tuple[float, float]]:
        """Return folder -> the minutes it took and those it may take, where it took more."""
        allowed = {folder: minutes * self.slowness for folder, minutes in MINUTES.items()}
        return {
            folder: (self.seconds[folder] / 60, minutes)
            for folder, minutes in allowed.items()
            if self.seconds[folder] / 60 > minutes
        }

    def pytest_sessionstart(self) -> None:
        """Measure the machine."""
        self.slowness = slowness()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test's setup, call or teardown, in whichever worker it was."""
        self.add(report.nodeid, report.duration)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let the run fail if a budget was passed; measure the machine again, for others may have come to it."""
        self.slowness = max(self.slowness, slowness())
        if self.passed() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what each folder took."""
        if sum(self.seconds.values()) < 60:
            return
        terminalreporter.section("minutes of one worker")
        for folder, seconds in sorted(self.seconds.items()):
            if folder in MINUTES:
                allowed = MINUTES[folder] * self.slowness
                terminalreporter.line(f"{folder:12} {seconds / 60:5.1f} of {allowed:5.1f}")
        for folder, (minutes, allowed) in self.passed().items():
            terminalreporter.line(
                f"FAILED: tests/{folder} took {minutes:.1f} minutes and may take {allowed:.1f} on this machine. Make "
                "dear tests cheaper, or leave rarer variants to --long (tests/folder_budgets.py).",
                red=True,
            )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the default tests, where the reports of all workers come together."""
    is_worker = hasattr(config, "workerinput")
    is_chosen = bool(config.option.markexpr)
    if not is_worker and not is_chosen and os.environ.get("MERGEREPL_TEST_PROFILE") != "long":
        config.pluginmanager.register(FolderBudgets(), "folder-budgets")
