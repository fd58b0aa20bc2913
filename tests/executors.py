"""The two executors of the rules, for case tables that run on both."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mergerepl.frames import DataFrame, in_process, in_process_frames


class InProcess:
    """Makes frames in this process, as a session makes them in the JVM."""

    def createDataFrame(self, rows: Sequence[Any], schema: StructType | str) -> DataFrame:
        """As SparkSession's."""
        frames = in_process_frames()
        make = frames.frame_of if isinstance(rows, pa.Table) else frames.frame_of_tuples
        made: DataFrame = make(rows, schema)
        return made

    def sql(self, text: str) -> DataFrame:
        """Skip the test."""
        pytest.skip("rows as SQL")


@pytest.fixture(scope="module", params=["on_spark", "in_process"])
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession | InProcess]:
    """Spark's session, or what makes frames in this process; the rules then run there."""
    if request.param == "on_spark":
        from tests.interpreted import interpreted

        session = request.getfixturevalue("worker_spark")
        with interpreted(session):
            yield session
        return
    with in_process():
        yield InProcess()
