"""Aggregates of frames in process: each takes the rows of a group."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import types as T

from mergerepl.frames.trees import LONG, Column, Make, Scope, Typed, col, lit
from mergerepl.frames.values import key_of, order_key


def aggregate(compiled: Callable[..., Typed]) -> Make:
    """Return an aggregate: `compiled` gets columns of a row, its function takes the rows of a group."""

    def make(*columns: Any) -> Column:
        used = [col(each) for each in columns]

        def of_group(scope: Scope) -> Typed:
            if scope.rows is None:
                raise ValueError("an aggregate outside of agg")
            return compiled(*[each.typed(scope.rows) for each in used])

        return Column(of_group)

    return make


def of_values(turn: Callable[[list[Any]], Any], kind: T.DataType | None = None) -> Make:
    """Return an aggregate of the values that are not NULL; NULL without one."""

    def compiled(one: Typed) -> Typed:
        def of(rows: Sequence[Any]) -> Any:
            found = [value for row in rows if (value := one.of(row)) is not None]
            return turn(found) if found else None

        return Typed(kind or one.type, of)

    return aggregate(compiled)


def extreme(choose: Callable[..., Any]) -> Make:
    """Return an aggregate: the value in the row that `choose` (max, min) takes by another one's order, NULLs aside."""

    def compiled(one: Typed, by: Typed) -> Typed:
        key = order_key(by.type)

        def of(rows: Sequence[Any]) -> Any:
            ranked = [(key(rank), row) for row in rows if (rank := by.of(row)) is not None]
            return one.of(choose(ranked, key=operator.itemgetter(0))[1]) if ranked else None

        return Typed(one.type, of)

    return aggregate(compiled)


def count(column: Any) -> Column:
    """Count the rows, or those with a value."""
    value = lit(1) if isinstance(column, str) and column == "*" else column
    return aggregate(lambda one: Typed(LONG, lambda rows: sum(one.of(r) is not None for r in rows)))(value)


def first(column: Any, ignorenulls: bool) -> Column:
    """Return the first row's value, or the first that is not NULL."""
    if ignorenulls:
        return of_values(operator.itemgetter(0))(column)
    return aggregate(lambda one: Typed(one.type, lambda rows: one.of(rows[0]) if rows else None))(column)


def collect_list(one: Typed) -> Typed:
    """Return the values of a group that are not NULL."""
    return Typed(
        T.ArrayType(one.type), lambda rows: tuple([v for row in rows if (v := one.of(row)) is not None])
    )


def collect_set(one: Typed) -> Typed:
    """Return the values of a group that are not NULL, each once."""
    key = key_of(one.type)

    def of(rows: Sequence[Any]) -> Any:
        return tuple({key(v): v for row in rows if (v := one.of(row)) is not None}.values())

    return Typed(T.ArrayType(one.type), of)
