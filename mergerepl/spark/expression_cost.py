"""The cost of column expressions: filters by expensive ones, constants as parameters of a query."""

from mergerepl.changes import ROWGUID
from mergerepl.frames import Column, DataFrame, F, is_in_process

_NUMBER = "number_of_row"


def where_computed(frame: DataFrame, condition: Column) -> DataFrame:
    """Return the rows that meet a condition on computed columns, which are computed once.

    Spark puts a filter before the expressions that it tests and computes these for both, except next to a
    nondeterministic column.
    """
    if is_in_process():
        return frame.where(condition)
    numbered = frame.withColumn(_NUMBER, F.monotonically_increasing_id())
    return numbered.where(condition & (F.col(_NUMBER) >= 0)).select(*frame.columns)


def query_parameter(value: int | float, data_type: str) -> Column:
    """Return a constant as a column of rows that have a rowguid.

    Spark writes a number literally into the Java code of a query, so a query with a generation or a time is new code in
    every session: 18 classes each time, to be made and compiled again while an agent runs. An array is passed to the
    code; and as the index depends on the row, the optimizer cannot see that its element is a constant.
    """
    if is_in_process():
        return F.lit(value).cast(data_type)
    return _first_of(f"cast({value!r} as {data_type})")


def parameter_column(name: str) -> Column:
    """Return a column that may be a constant of the session, as `query_parameter` does, of rows that have a rowguid."""
    return F.col(name) if is_in_process() else _first_of(name)


def _first_of(value: str) -> Column:
    # A length is never negative, so the index is 0 for every row; the optimizer would fold a product with 0. A row that
    # never had a key has no rowguid. As text, since each function of an expression costs several messages to the JVM.
    return F.expr(f"get(array({value}), shiftright(coalesce(octet_length({ROWGUID}), 0), 31))")
