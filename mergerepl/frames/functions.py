"""The functions of PySpark that the rules use, for columns in this process: each by its name, with PySpark's arguments."""

import hashlib
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import zip_longest
from typing import Any

from pyspark.sql import functions as pysparks
from pyspark.sql import types as T

from mergerepl.frames import NotInProcessError
from mergerepl.frames.trees import (
    BINARY,
    BOOLEAN,
    INT,
    LONG,
    STRING,
    Column,
    Of,
    Scope,
    Typed,
    cases,
    col,
    lit,
    made,
    nulls,
    together,
    turned,
)
from mergerepl.frames.values import checked, content, equal_key, exact, map_of, order_key, whole, wider

Make = Callable[..., Column]


@cache
def function(name: str) -> Make:
    """Return a function by its name. Raises: NotInProcessError if no rule uses it."""
    if name not in FUNCTIONS:
        raise NotInProcessError(f"the function {name}")
    signature, make = inspect.signature(getattr(pysparks, name)), FUNCTIONS[name]

    def call(*args: Any, **kwargs: Any) -> Column:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return make(*bound.args)

    return call


def bits(value: Column) -> Column:
    """Return bytes that are equal exactly if two values have the same bits. PySpark has no such function."""
    return made(lambda one: Typed(BINARY, turned(one.of, exact(one.type))), value)


def _flat(cols: Sequence[Any]) -> list[Column]:
    return [col(each) for each in (cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols)]


def _strict(data_type: T.DataType | None, turn: Callable[..., Any]) -> Make:
    """Return a function that gives NULL for NULL; without a type its result has that of the first argument."""
    return partial(made, lambda *used: nulls(data_type or used[0].type, turn, *[each.of for each in used]))


def _item(array: Typed | T.DataType) -> T.DataType:
    data_type = array.type if isinstance(array, Typed) else array
    return data_type.elementType if isinstance(data_type, T.ArrayType) else T.NullType()


def _key_of(data_type: T.DataType) -> Callable[[Any], Any]:
    return equal_key(data_type) or (lambda value: value)


# Lambdas


def _with_items(most: int, compiled: Callable[..., Typed], column: Any, f: Callable[..., Column]) -> Column:
    """Return a column computed item by item: `compiled` gets the array or map, and the function of an item."""
    variables = _variables(min(most, len(inspect.signature(f).parameters)))
    used, body = col(column), f(*variables)

    def of_scope(scope: Scope) -> Typed:
        found = used.typed(scope)
        is_map = isinstance(found.type, T.MapType)
        kinds = [found.type.keyType, found.type.valueType] if is_map else [_item(found), INT]  # type: ignore[attr-defined]
        item = scope.bind(variables, kinds, body)
        of = item.of if len(variables) == most else lambda row, one, _: item.of(row, one)
        return compiled(found, item.type, of)

    return Column(of_scope)


def _variables(count: int) -> list[Column]:
    def unbound(_: Scope) -> Typed:
        raise ValueError("the variable of a lambda outside of it")

    return [Column(unbound) for _ in range(count)]


def _rowwise(of: Of, turn: Callable[[Any, Any], Any]) -> Of:
    return lambda row: None if (value := of(row)) is None else turn(row, value)


def _transform(found: Typed, item: T.DataType, of: Of) -> Typed:
    return Typed(
        T.ArrayType(item),
        _rowwise(found.of, lambda row, items: tuple([of(row, x, i) for i, x in enumerate(items)])),
    )


def _filter(found: Typed, _: T.DataType, of: Of) -> Typed:
    return Typed(
        found.type,
        _rowwise(found.of, lambda row, items: tuple([x for i, x in enumerate(items) if of(row, x, i)])),
    )


def _quantifier(decides: bool) -> Callable[..., Typed]:
    def compiled(found: Typed, _: T.DataType, of: Of) -> Typed:
        def outcome(row: Any, items: Any) -> Any:
            results = [of(row, each) for each in items]
            return decides if decides in results else None if None in results else not decides

        return Typed(BOOLEAN, _rowwise(found.of, outcome))

    return compiled


def _map_filter(found: Typed, _: T.DataType, of: Of) -> Typed:
    return Typed(
        found.type, _rowwise(found.of, lambda row, value: {k: v for k, v in value.items() if of(row, k, v)})
    )


def _zipped(one: Any, other: Any, f: Callable[..., Column], *, of_maps: bool = False) -> Column:
    used, variables = (col(one), col(other)), _variables(3 if of_maps else 2)
    body = f(*variables)

    def compiled(scope: Scope) -> Typed:
        a, b = (each.typed(scope) for each in used)
        if not of_maps:
            item = scope.bind(variables, [_item(a), _item(b)], body)
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


# Values


def _coalesce(both: T.DataType, *values: Of) -> Typed:
    return Typed(both, lambda row: next((x for value in values if (x := value(row)) is not None), None))


def _greatest(both: T.DataType, *values: Of) -> Typed:
    key = order_key(both)
    return Typed(both, lambda row: max([value(row) for value in values], key=key))


def _struct(*cols: Any) -> Column:
    columns = _flat(cols)
    names = [each.result_name or f"col{i}" for i, each in enumerate(columns, 1)]

    def compiled(*typed: Typed) -> Typed:
        fields = [T.StructField(name, each.type) for name, each in zip(names, typed, strict=True)]
        values = [each.of for each in typed]
        return Typed(T.StructType(fields), lambda row: tuple([value(row) for value in values]))

    return made(compiled, *columns)


def _array(*cols: Any) -> Column:
    return together(
        lambda both, *values: Typed(T.ArrayType(both), lambda row: tuple([value(row) for value in values])),
        *_flat(cols),
    )


def _create_map(*cols: Any) -> Column:
    columns = _flat(cols)
    return _map_from_arrays(_array(*columns[::2]), _array(*columns[1::2]))


def _map_from_arrays(keys: Any, values: Any) -> Column:
    return made(
        lambda k, v: nulls(
            T.MapType(_item(k), _item(v)), lambda x, y: map_of(zip(x, y, strict=True)), k.of, v.of
        ),
        keys,
        values,
    )


def _entries(one: Typed) -> Typed:
    pair: Any = one.type
    kind = T.StructType([T.StructField("key", pair.keyType), T.StructField("value", pair.valueType)])
    return nulls(T.ArrayType(kind), lambda value: tuple(value.items()), one.of)


def _map_from_entries(one: Typed) -> Typed:
    entry: Any = _item(one)
    kind = T.MapType(entry[0].dataType, entry[1].dataType)
    return nulls(kind, lambda items: None if None in items else map_of(items), one.of)


def _concat(both: T.DataType, *values: Of) -> Typed:
    if isinstance(both, T.StringType):
        return nulls(both, lambda *parts: whole("".join(parts)), *values)
    if isinstance(both, T.BinaryType):
        return nulls(both, lambda *parts: b"".join(parts), *values)
    return nulls(both, lambda *parts: tuple([item for part in parts for item in part]), *values)


def _concat_ws(sep: str, *columns: Any) -> Column:
    def compiled(_: T.DataType, *values: Of) -> Typed:
        return Typed(
            STRING, lambda row: whole(sep.join([x for value in values if (x := value(row)) is not None]))
        )

    return together(compiled, *columns)


def _at(one: Typed, key: Typed) -> Typed:
    if isinstance(one.type, T.MapType):
        return nulls(one.type.valueType, lambda value, k: value.get(k), one.of, key.of)

    def item(items: Any, place: int) -> Any:
        return items[place - (place > 0)] if 0 < abs(place) <= len(items) else None

    return nulls(_item(one), item, one.of, key.of)


def _of_map(one: Typed, key: Typed) -> Typed:
    if not isinstance(one.type, T.MapType):
        raise NotInProcessError("element_at of an array")
    return _at(one, key)


def _get(one: Typed, index: Typed) -> Typed:
    return nulls(_item(one), lambda items, i: items[i] if 0 <= i < len(items) else None, one.of, index.of)


def _slice(items: Any, start: int, length: int) -> Any:
    if start == 0 or length < 0:
        raise ValueError(f"slice from {start} of {length} items")
    first = start - 1 if start > 0 else len(items) + start
    return items[first : first + length] if first >= 0 else ()


def _with_item(turn: Callable[..., Any], result: T.DataType | None = None) -> Make:
    """Return a function of an array and an item; `turn` gets the items, their keys and that of the item."""

    def compiled(one: Typed, other: Typed) -> Typed:
        both = wider(_item(one), other.type)
        kind, key = T.ArrayType(both), _key_of(both)

        def of(items: Any, item: Any) -> Any:
            return turn(items, [None if each is None else key(each) for each in items], key(item))

        return nulls(result or kind, of, one.cast(kind), other.cast(both))

    return lambda array, item: made(compiled, array, lit(item))


def _append(one: Typed, other: Typed) -> Typed:
    kind = T.ArrayType(wider(_item(one), other.type))
    items, item = one.cast(kind), other.cast(kind.elementType)
    return Typed(kind, _rowwise(items, lambda row, found: (*found, item(row))))


def _sets(chosen: Callable[[Any, Any, Any], Iterable[Any]]) -> Make:
    """Return a function to the items of two arrays, each once; `chosen` gets both and the function to an item's key."""

    def compiled(both: T.DataType, *values: Of) -> Typed:
        key = _key_of(_item(both))
        # As Spark, these functions alone turn -0.0 into 0.0.
        is_float = isinstance(_item(both), T.FloatType | T.DoubleType)

        def of(one: Any, other: Any) -> Any:
            first: dict[Any, Any] = {}
            for each in chosen(one, other, key):
                first.setdefault(key(each), each + 0.0 if is_float and each is not None else each)
            return tuple(first.values())

        return nulls(both, of, *values)

    return partial(together, compiled)


def _in_both(one: Any, other: Any, key: Any, *, is_there: bool) -> list[Any]:
    keys = {key(each) for each in other}
    return [each for each in one if (key(each) in keys) is is_there]


def _overlap(both: T.DataType, *values: Of) -> Typed:
    key = _key_of(_item(both))

    def of(one: Any, other: Any) -> bool | None:
        if any(each is not None for each in _in_both(one, other, key, is_there=True)):
            return True
        return None if one and other and (None in one or None in other) else False

    return nulls(BOOLEAN, of, *values)


def _arrays_zip(*cols: Any) -> Column:
    columns = [col(each) for each in cols]

    def compiled(*typed: Typed) -> Typed:
        names = [each.result_name or str(i) for i, each in enumerate(columns)]
        kind = T.StructType([T.StructField(n, _item(each)) for n, each in zip(names, typed, strict=True)])
        return nulls(T.ArrayType(kind), lambda *a: tuple(zip_longest(*a)), *[each.of for each in typed])

    return made(compiled, *columns)


def _ordered(
    turn: Callable[[Any, Callable[[Any], Any]], Any], *, is_item: bool = False
) -> Callable[[Typed], Typed]:
    def compiled(one: Typed) -> Typed:
        key = order_key(_item(one))
        return nulls(_item(one) if is_item else one.type, lambda items: turn(items, key), one.of)

    return compiled


def _sort_array(column: Any, asc: bool) -> Column:
    return made(_ordered(lambda items, key: tuple(sorted(items, key=key, reverse=not asc))), column)


def _hash(*typed: Typed) -> Typed:
    """Return 64 bits of any hash: no table keeps the result."""
    parts = [turned(each.of, exact(each.type)) for each in typed]

    def of(row: Any) -> int:
        found = repr([part(row) for part in parts]).encode()
        return int.from_bytes(hashlib.blake2b(found, digest_size=8).digest(), signed=True)

    return Typed(LONG, of)


def _hex(value: Any) -> str:
    return f"{value % (1 << 64):X}" if isinstance(value, int) else content(value).hex().upper()


def _padded(text: str, length: int, pad: str) -> str:
    missing = max(length - len(text), 0)
    return (pad * missing)[:missing] + text[: max(length, 0)]


def _substring(text: Any, start: int, length: int | None = None) -> Any:
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = len(text) if length is None else begin + length
    return text[max(begin, 0) : max(end, 0)]


def _explode(column: Any) -> Column:
    used = col(column)
    return Column(lambda scope: Typed(_item(used.typed(scope)), used.typed(scope).of), "col", is_explode=True)


# Aggregates


def _aggregate(compiled: Callable[..., Typed]) -> Make:
    """Return an aggregate: `compiled` gets columns of a row, its function takes the rows of a group."""

    def make(*columns: Any) -> Column:
        used = [col(each) for each in columns]

        def of_group(scope: Scope) -> Typed:
            if scope.rows is None:
                raise ValueError("an aggregate outside of agg")
            return compiled(*[each.typed(scope.rows) for each in used])

        return Column(of_group)

    return make


def _of_values(turn: Callable[[list[Any]], Any], kind: T.DataType | None = None) -> Make:
    """Return an aggregate of the values that are not NULL; NULL without one."""

    def compiled(one: Typed) -> Typed:
        def of(rows: Sequence[Any]) -> Any:
            found = [value for row in rows if (value := one.of(row)) is not None]
            return turn(found) if found else None

        return Typed(kind or one.type, of)

    return _aggregate(compiled)


def _extreme(choose: Callable[..., Any]) -> Make:
    def compiled(one: Typed, by: Typed) -> Typed:
        key = order_key(by.type)

        def of(rows: Sequence[Any]) -> Any:
            ranked = [(key(rank), row) for row in rows if (rank := by.of(row)) is not None]
            return one.of(choose(ranked, key=operator.itemgetter(0))[1]) if ranked else None

        return Typed(one.type, of)

    return _aggregate(compiled)


def _count(column: Any) -> Column:
    value = lit(1) if isinstance(column, str) and column == "*" else column
    return _aggregate(lambda one: Typed(LONG, lambda rows: sum(one.of(r) is not None for r in rows)))(value)


def _sum(values: list[Any]) -> Any:
    return checked(LONG)(sum(values))


def _xor(values: list[Any]) -> Any:
    result = 0
    for each in values:
        result ^= each
    return result


def _first(column: Any, ignorenulls: bool) -> Column:
    if ignorenulls:
        return _of_values(operator.itemgetter(0))(column)
    return _aggregate(lambda one: Typed(one.type, lambda rows: one.of(rows[0]) if rows else None))(column)


def _collect_set(one: Typed) -> Typed:
    key = _key_of(one.type)

    def of(rows: Sequence[Any]) -> Any:
        return tuple({key(v): v for row in rows if (v := one.of(row)) is not None}.values())

    return Typed(T.ArrayType(one.type), of)


def _only(what: str, make: Make, *allowed: Any) -> Make:
    """Return a function whose last arguments must have these values: the rules use no others."""

    def checked_make(*args: Any) -> Column:
        used, rest = args[: len(args) - len(allowed)], args[len(args) - len(allowed) :]
        if any(isinstance(a, Column) or a != b for a, b in zip(rest, allowed, strict=True)):
            raise NotInProcessError(what)
        return make(*used)

    return checked_make


FUNCTIONS: dict[str, Make] = {
    "array": _array,
    "array_append": lambda array, item: made(_append, array, lit(item)),
    "array_compact": _strict(None, lambda items: tuple([each for each in items if each is not None])),
    "array_contains": _with_item(
        lambda _, keys, key: True if key in keys else None if None in keys else False, BOOLEAN
    ),
    "array_except": _sets(partial(_in_both, is_there=False)),
    "array_intersect": _sets(partial(_in_both, is_there=True)),
    "array_max": partial(made, _ordered(lambda items, key: max(items, key=key, default=None), is_item=True)),
    "array_position": _with_item(lambda _, keys, key: keys.index(key) + 1 if key in keys else 0, LONG),
    "array_remove": _with_item(
        lambda items, keys, key: tuple([x for x, k in zip(items, keys, strict=True) if k != key])
    ),
    "array_union": _sets(lambda one, other, _: (*one, *other)),
    "arrays_overlap": partial(together, _overlap),
    "arrays_zip": _arrays_zip,
    "bit_xor": _of_values(_xor),
    "broadcast": lambda frame: frame,
    "coalesce": partial(together, _coalesce),
    "col": col,
    "collect_set": _aggregate(_collect_set),
    "concat": partial(together, _concat),
    "concat_ws": _concat_ws,
    "count": _count,
    "count_if": _aggregate(lambda one: Typed(LONG, lambda rows: sum(one.of(row) is True for row in rows))),
    "create_map": _create_map,
    "element_at": partial(made, _of_map),
    "exists": partial(_with_items, 1, _quantifier(True)),
    "explode": _explode,
    "filter": partial(_with_items, 2, _filter),
    "first": _first,
    "forall": partial(_with_items, 1, _quantifier(False)),
    "get": partial(made, _get),
    "greatest": partial(together, _greatest),
    "hex": _strict(STRING, _hex),
    "is_valid_utf8": _strict(BOOLEAN, lambda text: not any("\udc80" <= each <= "\udcff" for each in text)),
    "lit": lit,
    "lower": _strict(STRING, str.lower),
    "lpad": lambda text, length, pad: _strict(None, _padded)(text, length, lit(pad)),
    "make_valid_utf8": _strict(STRING, lambda text: content(text).decode("utf-8", "replace")),
    "map_concat": partial(
        together,
        lambda both, *maps: nulls(
            both, lambda *values: map_of(x for value in values for x in value.items()), *maps
        ),
    ),
    "map_contains_key": lambda column, key: _strict(BOOLEAN, lambda value, k: k in value)(column, lit(key)),
    "map_entries": partial(made, _entries),
    "map_filter": partial(_with_items, 2, _map_filter),
    "map_from_arrays": _map_from_arrays,
    "map_from_entries": partial(made, _map_from_entries),
    "map_keys": partial(made, lambda one: nulls(T.ArrayType(one.type.keyType), tuple, one.of)),
    "map_values": partial(
        made, lambda one: nulls(T.ArrayType(one.type.valueType), lambda v: tuple(v.values()), one.of)
    ),
    "map_zip_with": partial(_zipped, of_maps=True),
    "max": lambda column: _extreme(max)(column, column),
    "max_by": _only("max_by of several", _extreme(max), None),
    "min": lambda column: _extreme(min)(column, column),
    "min_by": _only("min_by of several", _extreme(min), None),
    "octet_length": _strict(INT, lambda value: len(content(value))),
    "sha2": _only(
        "sha2 of other lengths",
        _strict(STRING, lambda value: hashlib.sha256(content(value)).hexdigest()),
        256,
    ),
    "size": _strict(INT, len),
    "slice": _strict(None, _slice),
    "sort_array": _sort_array,
    "split": _only(
        "split at a pattern", _strict(T.ArrayType(STRING), lambda text: tuple(text) or ("",)), "", -1
    ),
    "struct": _struct,
    "substr": lambda text, start, length: _strict(None, _substring)(
        *([text, start] if length is None else [text, start, length])
    ),
    "substring": _strict(None, _substring),
    "sum": _of_values(_sum, LONG),
    "timestamp_micros": _strict(T.TimestampType(), lambda microseconds: microseconds),
    "transform": partial(_with_items, 2, _transform),
    "try_element_at": partial(made, _at),
    "unix_date": _strict(INT, lambda days: days),
    "unix_micros": _strict(LONG, lambda microseconds: microseconds),
    "when": lambda condition, value: cases([(condition, lit(value))]),
    "xxhash64": partial(made, _hash),
    "zip_with": _zipped,
}
