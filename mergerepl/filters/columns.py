"""A prepared clause as Spark columns. The values of HOST_NAME() and SUSER_SNAME() come in as data, never as text.

is_member = holds(clause, column=lambda column: F.col(fields[column.name]), function=lambda name: F.col(f"{name}_FN"))
"""

from collections.abc import Callable
from functools import reduce

from mergerepl.filters.clause import (
    Cast,
    Clause,
    Column,
    Function,
    Literal,
    Operation,
    Operator,
    SessionFunction,
)
from mergerepl.filters.publication_filters import PublicationFilters
from mergerepl.frames import Column as SparkColumn
from mergerepl.frames import F

ColumnOf = Callable[[Column], SparkColumn]
FunctionOf = Callable[[SessionFunction], SparkColumn]


def no_function(name: SessionFunction) -> SparkColumn:
    """Stand-in for the functions of a clause that uses none: a static filter, the `on` of a join."""
    raise AssertionError(f"{name} in a clause without functions")


def holds(clause: Clause, *, column: ColumnOf, function: FunctionOf = no_function) -> SparkColumn:
    """Return whether a filter is true: a boolean column that is never NULL, as NULL counts as false."""
    return F.coalesce(column_of(clause, column=column, function=function), F.lit(False))


def column_of(clause: Clause, *, column: ColumnOf, function: FunctionOf = no_function) -> SparkColumn:
    """Return the value of a prepared clause.

    `column` gives the Spark column of one of the row, `function` that of a function's value. A failure for a row
    (division by zero, overflow, a cast) gives NULL. A hash join uses this column of either side of an equality
    (`Equality`): both have one type after `prepare_clause`.
    """

    def of(part: Clause) -> SparkColumn:
        match part:
            case Literal(value):
                return F.lit(value)
            case Column():
                return column(part)
            case Function(name):
                return function(name)
            case Cast(operand, type_):
                return of(operand).try_cast(type_)
            case Operation(operator, operands):
                return _OPERATIONS[operator](*(of(operand) for operand in operands))

    return of(clause)


_IN_PROCESS = {
    *(Operator.AND, Operator.OR, Operator.NOT, Operator.IS_NULL, Operator.IN, Operator.BETWEEN),
    Operator.CASE,
    *(Operator.EQUAL, Operator.NULL_SAFE_EQUAL, Operator.NOT_EQUAL),
    *(Operator.LESS, Operator.LESS_OR_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL),
}


def spark_operation(filters: PublicationFilters) -> str | None:
    """Return the first operation of a publication's filters that only Spark computes; None without one."""

    def of(part: Clause) -> str | None:
        match part:
            case Cast(_, type_):
                return f"a cast to {type_}"
            case Operation(operator, operands):
                if operator not in _IN_PROCESS:
                    return str(operator.value)
                return next(filter(None, map(of, operands)), None)
            case _:
                return None

    clauses = [*filters.own.values(), *(join.on for join in filters.joins)]
    return next(filter(None, map(of, clauses)), None)


def _case(*operands: SparkColumn) -> SparkColumn:
    """Return the value of the first condition that is true, else the last one."""
    *pairs, found = operands
    for condition, value in reversed(list(zip(pairs[::2], pairs[1::2], strict=True))):
        found = F.when(condition, value).otherwise(found)
    return found


_OPERATIONS: dict[Operator, Callable[..., SparkColumn]] = {
    Operator.AND: lambda *terms: reduce(lambda one, other: one & other, terms),
    Operator.OR: lambda *terms: reduce(lambda one, other: one | other, terms),
    Operator.NOT: lambda term: ~term,
    Operator.IS_NULL: lambda value: value.isNull(),
    Operator.EQUAL: lambda one, other: one == other,
    Operator.NULL_SAFE_EQUAL: lambda one, other: one.eqNullSafe(other),
    Operator.NOT_EQUAL: lambda one, other: one != other,
    Operator.LESS: lambda one, other: one < other,
    Operator.LESS_OR_EQUAL: lambda one, other: one <= other,
    Operator.GREATER: lambda one, other: one > other,
    Operator.GREATER_OR_EQUAL: lambda one, other: one >= other,
    Operator.BETWEEN: lambda value, low, high: (value >= low) & (value <= high),
    Operator.IN: lambda value, *values: value.isin(*values),
    Operator.LIKE: lambda value, pattern: F.like(value, pattern),
    Operator.ADD: F.try_add,
    Operator.SUBTRACT: F.try_subtract,
    Operator.MULTIPLY: F.try_multiply,
    Operator.DIVIDE: F.try_divide,
    Operator.REMAINDER: F.try_mod,
    Operator.CONCATENATE: F.concat,
    Operator.COALESCE: F.coalesce,
    Operator.UPPER: F.upper,
    Operator.LOWER: F.lower,
    Operator.TRIM: F.trim,
    Operator.LTRIM: F.ltrim,
    Operator.RTRIM: F.rtrim,
    Operator.LENGTH: F.length,
    Operator.SUBSTRING: F.substr,
    Operator.YEAR: F.year,
    Operator.MONTH: F.month,
    Operator.DAY: F.dayofmonth,
    Operator.CASE: _case,
}
