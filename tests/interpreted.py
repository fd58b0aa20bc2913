"""Spark without compiled queries: for tests of many sessions over few rows, where compiling takes a fifth of the time."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from mergerepl.spark.confs import INTERPRETED


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[SparkSession]:
    """Let a session, and those that `engine.new_session` makes of it (each MERGE has one), interpret their queries.

    The longer suite compiles them, as users run them.
    """
    was_interpreting = _is_interpreting(spark)
    interpret(spark)
    try:
        yield spark
    finally:
        # A fixture's session goes on interpreting after one query was interpreted inside of it.
        if not was_interpreting:
            _compile(spark)


@contextmanager
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """Let a session compile its queries, also in a module that interprets them: for tests of many rows."""
    was_interpreting = _is_interpreting(spark)
    _compile(spark)
    try:
        yield spark
    finally:
        if was_interpreting:
            interpret(spark)


def _is_interpreting(spark: SparkSession) -> bool:
    return any(spark.conf.get(name, None) == value for name, value in INTERPRETED.items())


def interpret(spark: SparkSession) -> None:
    """Let a session interpret its queries from now on."""
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)


def _compile(spark: SparkSession) -> None:
    for name in INTERPRETED:
        spark.conf.unset(name)
