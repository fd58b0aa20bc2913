"""A filter by columns that are dear to compute."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_NUMBER = "number_of_row"


def where_computed(frame: DataFrame, condition: Column) -> DataFrame:
    """Return the rows that meet a condition on computed columns, which are computed once.

    Spark puts a filter before the expressions that it tests and computes these for both. It does not do so beside a column
    that may differ from run to run.
    """
    numbered = frame.withColumn(_NUMBER, F.monotonically_increasing_id())
    return numbered.where(condition & (F.col(_NUMBER) >= 0)).select(*frame.columns)
