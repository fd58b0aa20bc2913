"""The functions of PySpark that the rules use, for columns in this process: each by its name, with PySpark's arguments."""

import hashlib
import inspect
import operator
import string
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial, reduce
from itertools import zip_longest
from typing import Any

from pyspark.sql import functions as pysparks
from pyspark.sql import types as T

from mergerepl.frames import NotInProcessError, aggregates, lambdas
from mergerepl.frames.trees import (
    BINARY,
    BOOLEAN,
    INT,
    LONG,
    STRING,
    Column,
    Make,
    Of,
    Typed,
    cases,
    col,
    item_type,
    lit,
    made,
    nulls,
    together,
    turned,
)
from mergerepl.frames.values import INTEGERS, checked, content, exact, key_of, map_of, order_key, whole, wider


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


def in_utc(value: Column) -> Column:
    """Return an instant as the date and time that it is in UTC, whatever a session's zone. PySpark has no such function."""
    return made(lambda one: Typed(T.TimestampNTZType(), one.of), value)


def _flat(cols: Sequence[Any]) -> list[Column]:
    return [col(each) for each in (cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple) else cols)]


def _strict(data_type: T.DataType | None, turn: Callable[..., Any]) -> Make:
    """Return a function that gives NULL for NULL; without a type its result has that of the first argument."""
    return partial(made, lambda *used: nulls(data_type or used[0].type, turn, *[each.of for each in used]))


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
            T.MapType(item_type(k), item_type(v)), lambda x, y: map_of(zip(x, y, strict=True)), k.of, v.of
        ),
        keys,
        values,
    )


def _entries(one: Typed) -> Typed:
    pair: Any = one.type
    kind = T.StructType([T.StructField("key", pair.keyType), T.StructField("value", pair.valueType)])
    return nulls(T.ArrayType(kind), lambda value: tuple(value.items()), one.of)


def _map_from_entries(one: Typed) -> Typed:
    entry: Any = item_type(one)
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

    return nulls(item_type(one), item, one.of, key.of)


def _of_map(one: Typed, key: Typed) -> Typed:
    if not isinstance(one.type, T.MapType):
        raise NotInProcessError("element_at of an array")
    return _at(one, key)


def _get(one: Typed, index: Typed) -> Typed:
    return nulls(item_type(one), lambda items, i: items[i] if 0 <= i < len(items) else None, one.of, index.of)


def _slice(items: Any, start: int, length: int) -> Any:
    if start == 0 or length < 0:
        raise ValueError(f"slice from {start} of {length} items")
    first = start - 1 if start > 0 else len(items) + start
    return items[first : first + length] if first >= 0 else ()


def _with_item(turn: Callable[..., Any], result: T.DataType | None = None) -> Make:
    """Return a function of an array and an item; `turn` gets the items, their keys and that of the item."""

    def compiled(one: Typed, other: Typed) -> Typed:
        both = wider(item_type(one), other.type)
        kind, key = T.ArrayType(both), key_of(both)

        def of(items: Any, item: Any) -> Any:
            return turn(items, [None if each is None else key(each) for each in items], key(item))

        return nulls(result or kind, of, one.cast(kind), other.cast(both))

    return lambda array, item: made(compiled, array, lit(item))


def _append(one: Typed, other: Typed) -> Typed:
    kind = T.ArrayType(wider(item_type(one), other.type))
    items, item = one.cast(kind), other.cast(kind.elementType)
    return Typed(kind, lambdas.rowwise(items, lambda row, found: (*found, item(row))))


def _sets(chosen: Callable[[Any, Any, Any], Iterable[Any]]) -> Make:
    """Return a function to the items of two arrays, each once; `chosen` gets both and the function to an item's key."""

    def compiled(both: T.DataType, *values: Of) -> Typed:
        key = key_of(item_type(both))
        # As Spark, these functions alone turn -0.0 into 0.0.
        is_float = isinstance(item_type(both), T.FloatType | T.DoubleType)

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
    key = key_of(item_type(both))

    def of(one: Any, other: Any) -> bool | None:
        if any(each is not None for each in _in_both(one, other, key, is_there=True)):
            return True
        return None if one and other and (None in one or None in other) else False

    return nulls(BOOLEAN, of, *values)


def _arrays_zip(*cols: Any) -> Column:
    columns = [col(each) for each in cols]

    def compiled(*typed: Typed) -> Typed:
        names = [each.result_name or str(i) for i, each in enumerate(columns)]
        kind = T.StructType([T.StructField(n, item_type(each)) for n, each in zip(names, typed, strict=True)])
        return nulls(T.ArrayType(kind), lambda *a: tuple(zip_longest(*a)), *[each.of for each in typed])

    return made(compiled, *columns)


def _ordered(
    turn: Callable[[Any, Callable[[Any], Any]], Any], *, is_item: bool = False
) -> Callable[[Typed], Typed]:
    def compiled(one: Typed) -> Typed:
        key = order_key(item_type(one))
        return nulls(item_type(one) if is_item else one.type, lambda items: turn(items, key), one.of)

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
    return Column(
        lambda scope: Typed(item_type(used.typed(scope)), used.typed(scope).of), "col", is_explode=True
    )


def _only(what: str, make: Make, *allowed: Any) -> Make:
    """Return a function whose last arguments must have these values: the rules use no others."""

    def checked_make(*args: Any) -> Column:
        used, rest = args[: len(args) - len(allowed)], args[len(args) - len(allowed) :]
        if any(isinstance(a, Column) or a != b for a, b in zip(rest, allowed, strict=True)):
            raise NotInProcessError(what)
        return make(*used)

    return checked_make


def _unhex(text: str) -> bytes | None:
    is_hex = all(each in string.hexdigits for each in text)
    return bytes.fromhex(text if len(text) % 2 == 0 else f"0{text}") if is_hex else None


def _of_hex(text: str) -> str | None:
    if not all(each in string.hexdigits for each in text):
        raise NotInProcessError("conv of other texts")
    return str(int(text, 16)) if text else None


def _abs(one: Typed) -> Typed:
    if type(one.type) not in INTEGERS:
        raise NotInProcessError("abs of what is no whole number")
    within = checked(one.type)
    return nulls(one.type, lambda value: within(abs(value)), one.of)


def _sequence(both: T.DataType, *ends: Of) -> Typed:
    def of(first: int, last: int) -> Any:
        return tuple(range(first, last + 1) if first <= last else range(first, last - 1, -1))

    return nulls(T.ArrayType(both), of, *ends)


FUNCTIONS: dict[str, Make] = {
    "abs": partial(made, _abs),
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
    "bit_or": aggregates.of_values(partial(reduce, operator.or_)),
    "bit_xor": aggregates.of_values(partial(reduce, operator.xor)),
    "broadcast": lambda frame: frame,
    "coalesce": partial(together, _coalesce),
    "col": col,
    "collect_list": aggregates.aggregate(aggregates.collect_list),
    "collect_set": aggregates.aggregate(aggregates.collect_set),
    "concat": partial(together, _concat),
    "concat_ws": _concat_ws,
    "conv": _only("conv of other bases", _strict(STRING, _of_hex), 16, 10),
    "count": aggregates.count,
    "count_if": aggregates.aggregate(
        lambda one: Typed(LONG, lambda rows: sum(one.of(row) is True for row in rows))
    ),
    "create_map": _create_map,
    "element_at": partial(made, _of_map),
    "exists": partial(lambdas.with_items, 1, lambdas.quantifier(True)),
    "explode": _explode,
    "filter": partial(lambdas.with_items, 2, lambdas.filter_items),
    "first": aggregates.first,
    "forall": partial(lambdas.with_items, 1, lambdas.quantifier(False)),
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
    "map_filter": partial(lambdas.with_items, 2, lambdas.map_filter),
    "map_from_arrays": _map_from_arrays,
    "map_from_entries": partial(made, _map_from_entries),
    "map_keys": partial(made, lambda one: nulls(T.ArrayType(one.type.keyType), tuple, one.of)),
    "map_values": partial(
        made, lambda one: nulls(T.ArrayType(one.type.valueType), lambda v: tuple(v.values()), one.of)
    ),
    "map_zip_with": partial(lambdas.zipped, of_maps=True),
    "max": lambda column: aggregates.extreme(max)(column, column),
    "max_by": _only("max_by of several", aggregates.extreme(max), None),
    "min": lambda column: aggregates.extreme(min)(column, column),
    "min_by": _only("min_by of several", aggregates.extreme(min), None),
    "octet_length": _strict(INT, lambda value: len(content(value))),
    "sequence": _only("sequence with a step", partial(together, _sequence), None),
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
    "sum": aggregates.of_values(lambda values: checked(LONG)(sum(values)), LONG),
    "timestamp_micros": _strict(T.TimestampType(), lambda microseconds: microseconds),
    "transform": partial(lambdas.with_items, 2, lambdas.transform),
    "try_element_at": partial(made, _at),
    "unhex": _strict(BINARY, _unhex),
    "unix_date": _strict(INT, lambda days: days),
    "unix_micros": _strict(LONG, lambda microseconds: microseconds),
    "when": lambda condition, value: cases([(condition, lit(value))]),
    "xxhash64": partial(made, _hash),
    "zip_with": lambdas.zipped,
}
