"""The seeded faults of tests/mutants.yml still fit the code: a run of all of them takes an hour, this a moment."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
STATED = yaml.safe_load((ROOT / "tests" / "mutants.yml").read_text(encoding="utf-8"))


def test_the_text_that_a_fault_replaces_is_there_once() -> None:
    texts = {
        name: (ROOT / name).read_text(encoding="utf-8") for name in {m["file"] for m in STATED["mutants"]}
    }
    wrong = [
        each["name"]
        for each in STATED["mutants"]
        if texts[each["file"]].count(each["old"]) != 1 or each["new"] == each["old"]
    ]
    assert wrong == []


def test_the_tests_that_are_asked_exist() -> None:
    assert {mutant["tests"] for mutant in STATED["mutants"]} == set(STATED["tests"])
    named = [word.partition("::") for tests in STATED["tests"].values() for word in tests.split()]
    for file, _, test in named:
        if file.endswith(".py"):
            path = ROOT / file
            assert path.exists(), file
            assert test.partition("[")[0] in path.read_text(encoding="utf-8"), test
