"""docs/protocol.md lists every invariant once and says where it is tested: no less and no more."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = re.findall(
    r"^\| I(\d+) \| .+ \| (.+) \|$", (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"), re.MULTILINE
)
ON_THE_MODEL = {
    "test_model.py",
    "test_golden_histories.py",
    "test_operations_model.py",
    "test_partition_model.py",
}


def numbers_tested() -> dict[int, set[str]]:
    """Return invariant -> where its tests run: model or engine."""
    found: dict[int, set[str]] = {}
    for file in (ROOT / "tests").rglob("test_*.py"):
        where = "model" if file.name in ON_THE_MODEL else "engine"
        for numbers in re.findall(r"def test_inv((?:_\d\d)+)_", file.read_text(encoding="utf-8")):
            for number in numbers.strip("_").split("_"):
                found.setdefault(int(number), set()).add(where)
    return found


def test_every_invariant_is_listed_once():
    assert [int(number) for number, _ in LINES] == list(range(1, 47))


@pytest.mark.parametrize(("number", "held"), LINES)
def test_the_tests_that_are_claimed_are_those_that_are_there(number, held):
    """What stands in brackets is a remark, and `—` claims none."""
    claimed = set(re.findall(r"\w+", held.partition("(")[0]))
    assert claimed == numbers_tested().get(int(number), set())
