"""Functions of frames in process that take a lambda: its body is a tree over one variable for each argument."""

import inspect
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from pyspark.sql import types as T

from mergerepl.frames.trees import BOOLEAN, INT, Column, Of, Scope, Typed, col, item_type


def with_items(most: int, compiled: Callable[..., Typed], column: Any, f: Callable[..., Column]) -> Column:
    """Return a column computed item by item: `compiled` gets the array or map, and the function of an item."""
    variables = _variables(min(most, len(inspect.signature(f).parameters)))
    used, body = col(column), f(*variables)

    def of_scope(scope: Scope) -> Typed:
        found = used.typed(scope)
        is_map = isinstance(found.type, T.MapType)
        kinds = [found.type.keyType, found.type.valueType] if is_map else [item_type(found), INT]  # type: ignore[attr-defined]
        item = scope.bind(variables, kinds, body)
        of = item.of if len(variables) == most else lambda row, one, _: item.of(row, one)
        return compiled(found, item.type, of)

    return Column(of_scope)


def _variables(count: int) -> list[Column]:
    def unbound(_: Scope) -> Typed:
        raise ValueError("the variable of a lambda outside of it")

    return [Column(unbound) for _ in range(count)]


def rowwise(of: Of, turn: Callable[[Any, Any], Any]) -> Of:
    """Return values that a function turns, which gets the row as well; NULL stays NULL."""
    return lambda row: None if (value := of(row)) is None else turn(row, value)


def transform(found: Typed, item: T.DataType, of: Of) -> Typed:
    """Return the array of the lambda's values."""
    return Typed(
        T.ArrayType(item),
        rowwise(found.of, lambda row, items: tuple([of(row, x, i) for i, x in enumerate(items)])),
    )


def filter_items(found: Typed, _: T.DataType, of: Of) -> Typed:
    """Return the items for which the lambda is true."""
    return Typed(
        found.type,
        rowwise(found.of, lambda row, items: tuple([x for i, x in enumerate(items) if of(row, x, i)])),
    )


def quantifier(decides: bool) -> Callable[..., Typed]:
    """Return `exists` (decides: True) or `forall` (False) over the items; an undecided one makes it NULL."""

    def compiled(found: Typed, _: T.DataType, of: Of) -> Typed:
        def outcome(row: Any, items: Any) -> Any:
            results = [of(row, each) for each in items]
            return decides if decides in results else None if None in results else not decides

        return Typed(BOOLEAN, rowwise(found.of, outcome))

    return compiled


def map_filter(found: Typed, _: T.DataType, of: Of) -> Typed:
    """Return the entries for which the lambda is true."""
    return Typed(
        found.type, rowwise(found.of, lambda row, value: {k: v for k, v in value.items() if of(row, k, v)})
    )


def zipped(one: Any, other: Any, f: Callable[..., Column], *, of_maps: bool = False) -> Column:
    """Return the lambda's values over the items of two arrays, or over the keys of two maps."""
    used, variables = (col(one), col(other)), _variables(3 if of_maps else 2)
    body = f(*variables)

    def compiled(scope: Scope) -> Typed:
        a, b = (each.typed(scope) for each in used)
        if not of_maps:
            item = scope.bind(variables, [item_type(a), item_type(b)], body)
            pairs = _rowwise_pair(
                a, b, lambda row, x, y: tuple([item.of(row, *z) for z in zip_longest(x, y)])
            )
            return Typed(T.ArrayType(item.type), pairs)
        kinds: Any = a.type, b.type
        value = scope.bind(variables, [kinds[0].keyType, kinds[0].valueType, kinds[1].valueType], body)
        maps = _rowwise_pair(
            a, b, lambda row, x, y: {k: value.of(row, k, x.get(k), y.get(k)) for k in {**x, **y}}
        )
        return Typed(T.MapType(kinds[0].keyType, value.type), maps)

    return Column(compiled)


def _rowwise_pair(a: Typed, b: Typed, turn: Callable[[Any, Any, Any], Any]) -> Of:
    def of(row: Any) -> Any:
        one, other = a.of(row), b.of(row)
        return None if one is None or other is None else turn(row, one, other)

    return of
