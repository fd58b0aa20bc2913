"""What a filter tests is computed once: Spark leaves the filter above the expressions."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mergerepl.spark.expression_cost import where_computed

pytestmark = pytest.mark.spark


def test_a_filter_stays_above_what_it_tests(spark: SparkSession) -> None:
    frame = spark.range(5).select("id", (F.col("id") * 7919).alias("dear"))
    chosen = where_computed(frame, F.col("dear") > 8000)
    assert [row.id for row in chosen.collect()] == [2, 3, 4]
    assert chosen.columns == frame.columns
    plan: str = chosen._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("7919") == 1, plan
    plain: str = frame.where(F.col("dear") > 8000)._jdf.queryExecution().optimizedPlan().toString()
    assert plain.count("7919") == 2, "Spark needs no help any more"
