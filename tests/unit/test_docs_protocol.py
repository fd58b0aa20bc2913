"""docs/protocol.md lists every invariant once and claims no test that is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = re.findall(
    r"^\| I(\d+) \| .+ \| (.+) \|$",
    (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
ON_THE_MODEL = {"test_model.py", "test_golden_histories.py"}


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
def test_no_test_is_claimed_that_is_not_there(number, held):
    claimed = set() if held.startswith("—") else {part.strip() for part in held.split(",")}
    assert claimed <= numbers_tested().get(int(number), set())
