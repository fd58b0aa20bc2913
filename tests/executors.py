"""The two executors of the rules, for case tables that run on both."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from mergerepl.delta.types import split_parts
from mergerepl.frames import DataFrame, in_process
from mergerepl.frames.dataframe import collected, frame_of, frame_of_tuples
from mergerepl.frames.values import type_of
from mergerepl.spark.in_memory import frame_of as frame_of_arrow
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
        made: Any = frame_of(rows, types) if isinstance(rows, pa.Table) else frame_of_tuples(rows, types)
        return made  # type: ignore[no-any-return]

    def sql(self, text: str) -> DataFrame:
        """Return the rows of a query, which Spark computes: both executors begin with the same bits."""
        found = self.session().sql(text)
        # PySpark's `toArrow` refuses parts that are NOT NULL in a struct that is NULL.
        made: Any = frame_of(pa.Table.from_batches(found._collect_as_arrow()), found.schema)
        return made  # type: ignore[no-any-return]


def computed_by_spark(
    spark: SparkSession | InProcess, parts: Sequence[DataFrame], step: Callable[[Sequence[DataFrame]], T]
) -> T:
    """Return what a step on Spark makes of frames of either executor: what rules never do, such as texts of any value."""
    if not isinstance(spark, InProcess):
        return step(parts)
    rows = [(collected(part), part.schema) for part in parts]  # type: ignore[arg-type]
    session = spark.session()
    return Context().run(lambda: step([frame_of_arrow(session, *each) for each in rows]))


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
