"""The two executors of the rules, for case tables that run on both."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from mergerepl.delta.types import split_parts
from mergerepl.frames import DataFrame, in_process
from mergerepl.frames.values import type_of
from mergerepl.spark.in_memory import collected, frame_of, frame_of_tuples
from tests.interpreted import interpreted

T = TypeVar("T")


def struct_of(ddl: str) -> StructType:
    """Return the columns of `name type, name type`."""
    named = (re.split(r"[\s:]+", each.strip(), maxsplit=1) for each in split_parts(ddl))
    return StructType([StructField(name, type_of(type_)) for name, type_ in named])


class InProcess:
    """Makes frames in this process, as a session makes them in the JVM."""

    def __init__(self, session: Callable[[], SparkSession]) -> None:
        self.session = session

    def createDataFrame(self, rows: Sequence[Any], schema: StructType | str) -> DataFrame:
        """As SparkSession's."""
        types = struct_of(schema) if isinstance(schema, str) else schema
        return (
            frame_of(None, rows, types) if isinstance(rows, pa.Table) else frame_of_tuples(None, rows, types)
        )

    def sql(self, text: str) -> DataFrame:
        """Return the rows of a query, which Spark computes: both executors begin with the same bits."""
        return frame_of_values(self, rows_of_sql(self, text))


Executor = SparkSession | InProcess


def frame_of_values(spark: Executor, rows: pa.Table) -> DataFrame:
    """Return rows of Arrow as a frame; a time without a zone has none."""
    types = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return frame_of(None if isinstance(spark, InProcess) else spark, rows, types)


def rows_of_sql(spark: Executor, text: str) -> pa.Table:
    """Return the rows of a query, which Spark computes."""
    session = spark.session() if isinstance(spark, InProcess) else spark
    with interpreted(session):
        # PySpark's `toArrow` refuses parts that are NOT NULL in a struct that is NULL.
        return pa.Table.from_batches(session.sql(text)._collect_as_arrow())


def sql_values(spark: Executor, texts: Sequence[tuple[str, str]]) -> dict[tuple[str, str], pa.Array]:
    """Return values that are stated in SQL, each of a type, in one query."""
    columns = ", ".join(f"cast({text} as {type_}) as c{i}" for i, (text, type_) in enumerate(texts))
    found = rows_of_sql(spark, f"select {columns}").combine_chunks()
    return {each: found.column(i).chunk(0) for i, each in enumerate(texts)}


def computed_by_spark(
    spark: Executor, parts: Sequence[DataFrame], step: Callable[[Sequence[DataFrame]], T]
) -> T:
    """Return the result of a step on Spark for frames of either executor. No rule has such a step (texts of any value)."""
    if not isinstance(spark, InProcess):
        return step(parts)
    session, rows = spark.session(), [collected(part) for part in parts]
    with interpreted(session):
        return Context().run(lambda: step([frame_of_values(session, each) for each in rows]))


@pytest.fixture(scope="module", params=["on_spark", "in_process"])
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession | InProcess]:
    """Spark's session, or what makes frames in this process; the rules then run there."""
    if request.param == "on_spark":
        session = request.getfixturevalue("worker_spark")
        with interpreted(session):
            yield session
        return
    with in_process():
        yield InProcess(lambda: request.getfixturevalue("worker_spark"))
