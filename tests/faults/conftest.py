"""These tests run many sessions over few rows."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.interpreted import interpreted


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The worker's session, its queries interpreted."""
    with interpreted(spark):
        yield spark
