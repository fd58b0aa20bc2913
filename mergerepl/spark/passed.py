"""Constants of a session that queries get handed instead of written into their code. Pure."""

from pyspark.sql import Column
from pyspark.sql import functions as F

from mergerepl.changes import ROWGUID


def passed(value: int | float, data_type: str) -> Column:
    """Return a constant as a column of rows that have a rowguid.

    Spark writes a number as it is into the Java code it makes of a query, so a query with a generation or a time in
    it is new code in every session: 18 classes in each, to be made and compiled again while an agent runs. An array
    is handed to the code; and as the index depends on the row, the optimizer cannot see that its element is a
    constant.
    """
    return _first_of(f"cast({value!r} as {data_type})")


def passed_column(name: str) -> Column:
    """Return a column that may turn out to be a constant of the session, as `passed` does, of rows that have a rowguid."""
    return _first_of(name)


def _first_of(value: str) -> Column:
    # A length has no sign: 0 for every row, which a product with 0 would be to the optimizer too. A row that never
    # had a key has no rowguid. As text, since each function of an expression costs several messages to the JVM.
    return F.expr(f"get(array({value}), shiftright(coalesce(octet_length({ROWGUID}), 0), 31))")
