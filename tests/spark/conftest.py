"""Tests of publishing and of reports run many commands over few rows; the others run as users do."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.interpreted import interpreted

_INTERPRETED = ("test_publish_", "test_monitoring", "test_preview", "test_compaction")


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[SparkSession]:
    """The worker's session, its queries interpreted where what rows come to is not what is tested."""
    if request.module.__name__.rpartition(".")[2].startswith(_INTERPRETED):
        with interpreted(spark):
            yield spark
    else:
        yield spark
