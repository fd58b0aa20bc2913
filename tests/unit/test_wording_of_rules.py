"""The rules are worded so that both executors can run them: no SQL text, no session, no function that only Spark has."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from mergerepl.frames.functions import FUNCTIONS

ROOT = Path(__file__).parents[2]
RULES = [
    *(file for phase in ("triggers", "enumeration", "conflict") for file in (ROOT / phase).rglob("*.py")),
    *(ROOT / "mergerepl/rows").glob("*.py"),
    ROOT / "mergerepl/delta/feed/net_changes.py",
    ROOT / "mergerepl/merge/stage/decision.py",
]

ON_SPARK = {
    # Generated columns and filters are the user's SQL.
    "with_generated",
    "differs_from_expression",
    "_check_generated",
    # Types that a session in process never meets: variants, NOT NULL inside of a column.
    "_asserted",
    "comparable",
    "_text",
    "as_declared",
    "in_shape",
    # A plan's hints.
    "_many_rows",
}
"""The functions of rules that only run on Spark, or have a branch for it."""

SESSION = {"sparkSession", "_jdf", "_jc", "_jvm", "selectExpr", "hint", "createOrReplaceTempView"}


def functions(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each node with the name of the outermost function around it."""
    for child in ast.iter_child_nodes(tree):
        inside = name or (child.name if isinstance(child, ast.FunctionDef) else "")
        yield inside, child
        yield from functions(child, inside)


@pytest.mark.parametrize("file", RULES, ids=lambda file: str(file.relative_to(ROOT)))
def test_both_executors_can_run_a_rule(file: Path) -> None:
    wrong = set()
    for function, node in functions(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "where":
            text = getattr(node.args[0], "value", "a_name")
            if isinstance(node.args[0], ast.JoinedStr) or (isinstance(text, str) and not text.isidentifier()):
                wrong.add((function, "where"))
        if not isinstance(node, ast.Attribute) or function in ON_SPARK:
            continue
        is_function = isinstance(node.value, ast.Name) and node.value.id == "F"
        if node.attr in SESSION or (is_function and node.attr not in FUNCTIONS):
            wrong.add((function, node.attr))
    assert wrong == set()


@pytest.mark.parametrize("file", RULES, ids=lambda file: str(file.relative_to(ROOT)))
def test_columns_come_from_one_room(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in ("pyspark.sql", "pyspark.sql.functions"):
            names = {each.name for each in node.names}
            assert not names & {"Column", "DataFrame", "functions"}, "import these from mergerepl.frames"
