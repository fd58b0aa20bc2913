"""What several test modules need stands in a module without tests: one module of tests never imports another."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_module_of_tests_imports_another() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {node.module}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2].startswith("test_")
    ]
    assert found == []
