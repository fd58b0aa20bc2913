"""A folder of tests that takes longer than its budget lets the run fail."""

import subprocess
import sys
from pathlib import Path

from tests.folder_budgets import MINUTES, FolderBudgets

ROOT = Path(__file__).parents[2]


def test_every_folder_of_tests_has_a_budget() -> None:
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders == {*MINUTES}


def test_a_folder_is_over_its_budget_when_all_its_tests_are() -> None:
    budgets = FolderBudgets()
    for number in range(3):
        budgets.add(f"tests/unit/test_x.py::test_{number}[a/b]", 20 * MINUTES["unit"])
    budgets.add("tests/agent/test_x.py::test", 1.0)
    assert budgets.passed() == {}
    budgets.add("tests/unit/test_y.py::test", 1.0)
    assert [*budgets.passed()] == ["unit"]


def test_a_slower_machine_has_more_time() -> None:
    budgets = FolderBudgets()
    budgets.add("tests/unit/test_x.py::test", 90 * MINUTES["unit"])
    assert [*budgets.passed()] == ["unit"]
    budgets.slowness = 2.0
    assert budgets.passed() == {}


def test_a_run_over_budget_fails(tmp_path: Path) -> None:
    """In a process of its own, with a test that passes."""
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "tests" / "unit" / "test_it.py").write_text("def test_it(): pass\n")
    (tmp_path / "tests" / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from tests import folder_budgets\nfolder_budgets.MINUTES = {'unit': 0.0}\n"
        "from tests.folder_budgets import pytest_configure\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "tests",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed" in done.stdout
