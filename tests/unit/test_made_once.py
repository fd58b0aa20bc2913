"""Expressions are made again in another JVM, whose columns those of the first are not."""

import pytest
from pyspark import SparkContext

from mergerepl.frames import cached, in_process, is_in_process


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


def test_each_executor_has_what_it_made() -> None:
    @cached
    def expression() -> list[bool]:
        return [is_in_process()]

    on_spark = expression()
    with in_process():
        here = expression()
        assert here is expression()
    assert (here, on_spark) == ([True], [False])
    assert expression() is on_spark
