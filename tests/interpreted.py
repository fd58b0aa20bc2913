"""Spark without compiled queries: for tests of many sessions over few rows, where compiling takes a fifth of the time."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

CONFS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[SparkSession]:
    """Let the session, and those made of it meanwhile (each MERGE has one), interpret their queries.

    The longer suite compiles them, as users run them.
    """
    _interpret(spark)
    try:
        yield spark
    finally:
        _compile(spark)


@contextmanager
def compiled(spark: SparkSession) -> Iterator[SparkSession]:
    """Let a session compile its queries, also in a module that interprets them: for tests of many rows."""
    is_interpreting = any(spark.conf.get(name, None) == value for name, value in CONFS.items())
    _compile(spark)
    try:
        yield spark
    finally:
        if is_interpreting:
            _interpret(spark)


def _interpret(spark: SparkSession) -> None:
    of_new_sessions = spark.sparkContext._jsc.sc().conf()
    for name, value in CONFS.items():
        spark.conf.set(name, value)
        of_new_sessions.set(name, value)


def _compile(spark: SparkSession) -> None:
    of_new_sessions = spark.sparkContext._jsc.sc().conf()
    for name in CONFS:
        spark.conf.unset(name)
        of_new_sessions.remove(name)
