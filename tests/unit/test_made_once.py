"""Expressions are made again in another JVM, whose columns those of the first are not."""

import pytest
from pyspark import SparkContext

from mergerepl.frames import cached


def test_what_was_made_is_given_again_until_the_jvm_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    @cached
    def expression(name: str) -> str:
        made.append(name)
        return f"column {name}"

    monkeypatch.setattr(SparkContext, "_gateway", "one JVM")
    assert [expression("a"), expression("b"), expression("a")] == ["column a", "column b", "column a"]
    assert made == ["a", "b"]
    monkeypatch.setattr(SparkContext, "_gateway", "another JVM")
    assert expression("a") == expression("a") == "column a"
    assert made == ["a", "b", "a"]
