"""What several test modules need stands in a module without tests: one module of tests never imports another."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_module_of_tests_imports_another() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {module}"
        for path in sorted(TESTS.rglob("*.py"))
        for module in re.findall(
            r"^\s*(?:from|import) ([\w.]*\btest_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert found == []
