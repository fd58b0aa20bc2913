"""Columns of frames in this process: trees with the names and signatures of PySpark's columns and functions.

A tree is compiled for the columns of one frame (`Scope`): into its type and a function of a row. Only what the rules use
is here.
"""

import builtins
import hashlib
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import Any, NamedTuple

from pyspark.sql import types as T

from mergerepl.frames import NotInProcessError
from mergerepl.frames.values import (
    EXACT,
    Turn,
    at_scale,
    bounded,
    caster,
    checked,
    decimal_of,
    equal_key,
    exact,
    is_integral,
    map_of,
    order_key,
    single,
    text_bytes,
    type_of,
    whole,
    wider,
    widest,
)

Of = Callable[..., Any]
_BOOLEAN, _INT, _LONG, _STRING, _BINARY = (
    T.BooleanType(),
    T.IntegerType(),
    T.LongType(),
    T.StringType(),
    T.BinaryType(),
)
_NOTHING = object()


class Typed(NamedTuple):
    """A compiled column: its type, and its value in a row; also the value of a literal, the place of a frame's column."""

    type: T.DataType
    of: Of
    literal: Any = _NOTHING
    place: int | None = None

    def cast(self, want: T.DataType) -> Of:
        """Return the values in a wider type."""
        return _turned(self.of, caster(self.type, want))


class Field(NamedTuple):
    """A column of a frame; `alias` is the frame's."""

    name: str
    type: T.DataType
    alias: str | None = None


class Scope:
    """The columns that a tree may name, and what it was compiled to: a tree that is used twice is compiled once."""

    def __init__(self, fields: Sequence[Field], rows: "Scope | None" = None) -> None:
        self.fields = fields
        self.rows = rows
        """The columns of the rows of a group, for aggregates."""
        self.made: dict[int, tuple[Column, Typed]] = {}
        self.places: dict[str, list[int]] = {}
        for place, field in enumerate(fields):
            self.places.setdefault(field.name.lower(), []).append(place)

    def field(self, name: str) -> Typed:
        """Return a column, or a part of one, by its name."""
        parts = parts_of(name)
        found = self.places.get(parts[0].lower(), [])
        if len(parts) > 1:
            qualified = [i for i in self.places.get(parts[1].lower(), []) if self.fields[i].alias == parts[0]]
            if qualified:
                found, parts = qualified, parts[1:]
        if len(found) != 1:
            known = ", ".join(field.name for field in self.fields)
            raise ValueError(f"column {name} is {'ambiguous' if found else 'missing'}; there are {known}")
        (place,) = found
        column = Typed(self.fields[place].type, operator.itemgetter(place), place=place)
        for part in parts[1:]:
            column = _field_of(column, part)
        return column


def parts_of(name: str) -> list[str]:
    """Return the parts of a dotted name; a quoted part may have dots."""
    if "`" not in name:
        return name.split(".")
    parts, quoted = [""], False
    for character in name.replace("``", "\0"):
        if character == "`":
            quoted = not quoted
        elif character == "." and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.replace("\0", "`") for part in parts]


class Column:
    """PySpark's Column without a JVM."""

    def __init__(
        self,
        compiled: Callable[[Scope], Typed],
        name: str | None = None,
        *,
        term: "tuple[str, Column, Column] | None" = None,
        branches: "Sequence[tuple[Column, Column]] | None" = None,
        is_explode: bool = False,
    ) -> None:
        self.compiled = compiled
        self.result_name = name
        self.term = term
        """Of `&`, `==` and `eqNullSafe`: what a join looks keys up by."""
        self.branches = branches
        self.is_explode = is_explode

    def typed(self, scope: Scope) -> Typed:
        """Return the column compiled for a frame."""
        known = scope.made.get(id(self))
        if known is None:
            known = scope.made[id(self)] = (self, self.compiled(scope))
        return known[1]

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise ValueError("a column is neither true nor false: use &, | and ~")

    def __iter__(self) -> Any:
        raise TypeError("a column cannot be gone through")

    def __eq__(self, other: Any) -> "Column":  # type: ignore[override]
        return _compared("==", self, other, operator.eq)

    def __ne__(self, other: Any) -> "Column":  # type: ignore[override]
        return ~_compared("==", self, other, operator.eq)

    def __lt__(self, other: Any) -> "Column":
        return _compared("<", self, other, operator.lt)

    def __le__(self, other: Any) -> "Column":
        return _compared("<=", self, other, operator.le)

    def __gt__(self, other: Any) -> "Column":
        return _compared(">", self, other, operator.gt)

    def __ge__(self, other: Any) -> "Column":
        return _compared(">=", self, other, operator.ge)

    def eqNullSafe(self, other: Any) -> "Column":
        """As PySpark's."""
        return _compared("<=>", self, other, operator.eq)

    def __and__(self, other: Any) -> "Column":
        return _logical("&", self, other, decides=False)

    def __or__(self, other: Any) -> "Column":
        return _logical("|", self, other, decides=True)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> "Column":
        return _strict(_BOOLEAN, operator.not_, self)

    def __add__(self, other: Any) -> "Column":
        return _arithmetic(self, lit(other), operator.add)

    def __sub__(self, other: Any) -> "Column":
        return _arithmetic(self, lit(other), operator.sub)

    def __mul__(self, other: Any) -> "Column":
        return _arithmetic(self, lit(other), operator.mul)

    def __truediv__(self, other: Any) -> "Column":
        return _arithmetic(self, lit(other), operator.truediv)

    def __radd__(self, other: Any) -> "Column":
        return lit(other) + self

    def __rsub__(self, other: Any) -> "Column":
        return lit(other) - self

    def __getitem__(self, k: Any) -> "Column":
        return Column(lambda scope: _field_of(self.typed(scope), k))

    getField = __getitem__

    def alias(self, *alias: str) -> "Column":
        """As PySpark's."""
        return Column(self.typed, alias[0], is_explode=self.is_explode, term=self.term)

    def cast(self, dataType: T.DataType | str) -> "Column":
        """As PySpark's."""
        return self._cast(dataType, is_try=False)

    def try_cast(self, dataType: T.DataType | str) -> "Column":
        """As PySpark's."""
        return self._cast(dataType, is_try=True)

    def _cast(self, want: T.DataType | str, *, is_try: bool) -> "Column":
        wanted = type_of(want)

        def compiled(scope: Scope) -> Typed:
            have = self.typed(scope)
            return Typed(wanted, _turned(have.of, caster(have.type, wanted, is_try=is_try)))

        return Column(compiled, self.result_name)

    def isNull(self) -> "Column":
        """As PySpark's."""
        return _plain(lambda one: Typed(_BOOLEAN, lambda row: one.of(row) is None), self)

    def isNotNull(self) -> "Column":
        """As PySpark's."""
        return _plain(lambda one: Typed(_BOOLEAN, lambda row: one.of(row) is not None), self)

    def isin(self, *cols: Any) -> "Column":
        """As PySpark's."""
        values = cols[0] if len(cols) == 1 and isinstance(cols[0], list | set | tuple) else cols
        return _array_contains(array(*(lit(each) for each in values)), self)

    def startswith(self, other: Any) -> "Column":
        """As PySpark's."""
        return _strict(_BOOLEAN, lambda one, two: one.startswith(two), self, lit(other))

    def bitwiseXOR(self, other: Any) -> "Column":
        """As PySpark's."""
        return _plain(
            lambda one, two: _nulls(wider(one.type, two.type), operator.xor, one.of, two.of), self, lit(other)
        )

    def when(self, condition: "Column", value: Any) -> "Column":
        """As PySpark's."""
        assert self.branches is not None
        return _cases([*self.branches, (condition, lit(value))])

    def otherwise(self, value: Any) -> "Column":
        """As PySpark's."""
        assert self.branches is not None
        return _cases(self.branches, lit(value))


ColumnOrName = Column | str


def _of(column: ColumnOrName) -> Column:
    if isinstance(column, str):
        return col(column)
    if not isinstance(column, Column):
        raise TypeError(f"{column!r} is neither a column in this process nor its name")
    return column


def _turned(of: Of, turn: Turn | None) -> Of:
    if turn is None:
        return of
    return lambda row: None if (value := of(row)) is None else turn(value)


def _plain(made: Callable[..., Typed], *columns: ColumnOrName) -> Column:
    """Return a column made of others, once they are compiled."""
    used = [_of(each) for each in columns]
    return Column(lambda scope: made(*[each.typed(scope) for each in used]))


def _nulls(data_type: T.DataType, turn: Callable[..., Any], *values: Of) -> Typed:
    """Return a value that is NULL if one of those that it is made of is NULL."""
    if len(values) == 1:
        return Typed(data_type, _turned(values[0], turn))
    if len(values) == 2:
        one, other = values

        def of_two(row: Any) -> Any:
            a = one(row)
            if a is None:
                return None
            b = other(row)
            return None if b is None else turn(a, b)

        return Typed(data_type, of_two)

    def of(row: Any) -> Any:
        found = [value(row) for value in values]
        return None if None in found else turn(*found)

    return Typed(data_type, of)


def _strict(data_type: T.DataType | None, turn: Callable[..., Any], *columns: ColumnOrName) -> Column:
    """Return such a value as a column; without a type it has that of the first column."""
    return _plain(
        lambda *used: _nulls(data_type or used[0].type, turn, *[each.of for each in used]), *columns
    )


def _pair(one: Typed, other: Typed) -> tuple[T.DataType, Of, Of]:
    if one.type == other.type:
        return one.type, one.of, other.of
    both = wider(one.type, other.type)
    return both, one.cast(both), other.cast(both)


def _compared(sign: str, one: Column, value: Any, test: Callable[[Any, Any], Any]) -> Column:
    other = lit(value)

    def compiled(scope: Scope) -> Typed:
        data_type, a, b = _pair(one.typed(scope), other.typed(scope))
        is_equality = test is operator.eq
        key = equal_key(data_type) if is_equality or is_integral(data_type) else order_key(data_type)
        a, b = _turned(a, key), _turned(b, key)
        if sign == "<=>":
            return Typed(_BOOLEAN, lambda row: a(row) == b(row))
        if other.typed(scope).literal in (_NOTHING, None):
            return _nulls(_BOOLEAN, test, a, b)
        fixed = b(())
        return Typed(_BOOLEAN, lambda row: None if (value := a(row)) is None else test(value, fixed))

    return Column(compiled, term=(sign, one, other))


def _logical(sign: str, one: Column, value: Any, *, decides: bool) -> Column:
    other = lit(value)

    def compiled(scope: Scope) -> Typed:
        a, b = one.typed(scope).of, other.typed(scope).of

        def of(row: Any) -> Any:
            first = a(row)
            if first is decides:
                return decides
            second = b(row)
            if second is decides:
                return decides
            return None if first is None or second is None else not decides

        return Typed(_BOOLEAN, of)

    return Column(compiled, term=(sign, one, other))


def _arithmetic(one: Column, other: Column, sign: Callable[[Any, Any], Any]) -> Column:
    def compiled(scope: Scope) -> Typed:
        a, b = one.typed(scope), other.typed(scope)
        kinds = {type(a.type), type(b.type)}
        if T.DecimalType in kinds and not kinds & {T.FloatType, T.DoubleType}:
            return _of_decimals(a, b, sign)
        both = T.DoubleType() if sign is operator.truediv else wider(a.type, b.type)
        if is_integral(both):
            check = checked(both)
            return _nulls(both, lambda x, y: check(sign(x, y)), a.cast(both), b.cast(both))
        if isinstance(both, T.FloatType):
            return _nulls(both, lambda x, y: single(sign(x, y)), a.cast(both), b.cast(both))
        if not isinstance(both, T.DoubleType):
            raise NotInProcessError(f"arithmetic on {both.simpleString()}")
        return _nulls(both, sign, a.cast(both), b.cast(both))

    return Column(compiled)


def _of_decimals(a: Typed, b: Typed, sign: Callable[[Any, Any], Any]) -> Typed:
    one, two = decimal_of(a.type, a.literal), decimal_of(b.type, b.literal)
    if sign is operator.mul:
        result = bounded(one.precision + two.precision + 1, one.scale + two.scale)
    elif sign is operator.truediv:
        scale = builtins.max(6, one.scale + two.precision + 1)
        result = bounded(one.precision - one.scale + two.scale + scale, scale)
    else:
        scale = builtins.max(one.scale, two.scale)
        digits = builtins.max(one.precision - one.scale, two.precision - two.scale)
        result = bounded(digits + scale + 1, scale)
    exactly = {
        operator.add: EXACT.add,
        operator.sub: EXACT.subtract,
        operator.mul: EXACT.multiply,
        operator.truediv: EXACT.divide,
    }[sign]
    return _nulls(result, lambda x, y: at_scale(exactly(x, y), result), a.cast(one), b.cast(two))


def _field_of(column: Typed, part: Any) -> Typed:
    data_type, of = column.type, column.of
    if isinstance(data_type, T.StructType):
        place, of_row = place_of(data_type.names, part), column.place
        kind = data_type[place].dataType
        if of_row is not None:
            return Typed(kind, lambda row: None if (value := row[of_row]) is None else value[place])
        return Typed(kind, lambda row: None if (value := of(row)) is None else value[place])
    if isinstance(data_type, T.ArrayType) and isinstance(data_type.elementType, T.StructType):
        inner = data_type.elementType
        place = place_of(inner.names, part)
        return Typed(
            T.ArrayType(inner[place].dataType),
            _turned(of, lambda items: tuple([None if each is None else each[place] for each in items])),
        )
    raise NotInProcessError(f"[{part!r}] of {data_type.simpleString()}")


def place_of(names: Sequence[str], name: str) -> int:
    """Return the place of a name, whatever its case."""
    if name in names:
        return names.index(name)
    found = [i for i, each in enumerate(names) if each.lower() == name.lower()]
    if len(found) != 1:
        raise ValueError(
            f"field {name} is {'ambiguous' if found else 'missing'}; there are {', '.join(names)}"
        )
    return found[0]


def _cases(branches: Sequence[tuple[Column, Column]], otherwise: Column | None = None) -> Column:
    def compiled(scope: Scope) -> Typed:
        found = [(test.typed(scope), value.typed(scope)) for test, value in branches]
        rest = lit(None).typed(scope) if otherwise is None else otherwise.typed(scope)
        both = widest([*(value.type for _, value in found), rest.type])
        last = rest.cast(both)
        cases = [(test.of, value.cast(both)) for test, value in found]
        if len(cases) == 1:
            ((is_first, first),) = cases
            return Typed(both, lambda row: first(row) if is_first(row) else last(row))

        def of(row: Any) -> Any:
            for test, value in cases:
                if test(row):
                    return value(row)
            return last(row)

        return Typed(both, of)

    return Column(compiled, branches=branches if otherwise is None else None)


def _literal_type(value: Any) -> T.DataType:
    match value:
        case None:
            return T.NullType()
        case bool():
            return _BOOLEAN
        case int():
            return _INT if -(1 << 31) <= value < 1 << 31 else _LONG
        case float():
            return T.DoubleType()
        case str():
            return _STRING
        case bytes() | bytearray():
            return _BINARY
        case Decimal():
            digits = value.as_tuple()
            scale = builtins.max(0, -int(digits.exponent))
            return T.DecimalType(builtins.max(len(digits.digits), scale), scale)
    raise NotInProcessError(f"a literal of type {type(value).__name__}")


def lit(col: Any) -> Column:
    """As PySpark's."""
    if isinstance(col, Column):
        return col
    if isinstance(col, list):
        return array(*map(lit, col))
    data_type = _literal_type(col)
    value = str(col) if isinstance(col, str) else int(col) if data_type in (_INT, _LONG) else col
    made = Typed(data_type, lambda _: value, value)
    return Column(lambda _: made)


def col(col: str) -> Column:
    """As PySpark's."""
    return Column(lambda scope: scope.field(col), parts_of(col)[-1])


def when(condition: Column, value: Any) -> Column:
    """As PySpark's."""
    return _cases([(condition, lit(value))])


def _flat(cols: Sequence[Any]) -> list[Column]:
    return [
        _of(each)
        for each in (cols[0] if len(cols) == 1 and isinstance(cols[0], list | tuple | set) else cols)
    ]


def _together(columns: Sequence[Column], made: Callable[[T.DataType, list[Of]], Typed]) -> Column:
    """Return a column made of others in their widest type."""

    def compiled(scope: Scope) -> Typed:
        found = [each.typed(scope) for each in columns]
        both = widest(each.type for each in found)
        return made(both, [each.cast(both) for each in found])

    return Column(compiled)


def coalesce(*cols: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(both: T.DataType, values: list[Of]) -> Typed:
        def of(row: Any) -> Any:
            for value in values:
                if (found := value(row)) is not None:
                    return found
            return None

        return Typed(both, of)

    return _together(_flat(cols), made)


def greatest(*cols: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(both: T.DataType, values: list[Of]) -> Typed:
        key = order_key(both)
        return Typed(both, lambda row: builtins.max([value(row) for value in values], key=key))

    return _together(_flat(cols), made)


def struct(*cols: Any) -> Column:
    """As PySpark's."""
    columns = _flat(cols)

    def compiled(scope: Scope) -> Typed:
        found = [each.typed(scope) for each in columns]
        names = [each.result_name or f"col{i}" for i, each in enumerate(columns, 1)]
        fields = [T.StructField(name, each.type) for name, each in zip(names, found, strict=True)]
        values = [each.of for each in found]
        return Typed(T.StructType(fields), lambda row: tuple([value(row) for value in values]))

    return Column(compiled)


def array(*cols: Any) -> Column:
    """As PySpark's."""
    return _together(
        _flat(cols),
        lambda both, values: Typed(T.ArrayType(both), lambda row: tuple([value(row) for value in values])),
    )


def create_map(*cols: Any) -> Column:
    """As PySpark's."""
    columns = _flat(cols)
    keys, values = array(*columns[::2]), array(*columns[1::2])
    return map_from_arrays(keys, values)


def _inner(data_type: T.DataType) -> T.DataType:
    return data_type.elementType if isinstance(data_type, T.ArrayType) else T.NullType()


def _with_items(
    column: ColumnOrName, f: Callable[..., Column], made: Callable[..., Typed], most: int = 2
) -> Column:
    """Return a column computed item by item: `made` gets the array or map and the function of an item to its value."""
    used = _of(column)
    count = builtins.min(most, len(inspect.signature(f).parameters))
    variables = [Column(lambda _: None) for _ in range(count)]  # type: ignore[arg-type,return-value]
    body = f(*variables)

    def compiled(scope: Scope) -> Typed:
        found = used.typed(scope)
        if isinstance(found.type, T.MapType):
            kinds = [found.type.keyType, found.type.valueType]
        else:
            kinds = [_inner(found.type), _INT]
        return made(found, _body(scope, variables, kinds, body))

    return Column(compiled)


def _body(scope: Scope, variables: Sequence[Column], kinds: Sequence[T.DataType], body: Column) -> Typed:
    """Return a lambda's result; its function takes the row and one value for each variable."""
    cells: list[list[Any]] = []
    for variable, kind in zip(variables, kinds, strict=False):
        cell: list[Any] = [None]
        cells.append(cell)
        scope.made[id(variable)] = (variable, Typed(kind, lambda _, cell=cell: cell[0]))
    result = body.typed(scope)
    of = result.of
    if len(cells) == 1:
        (only,) = cells

        def of_item(row: Any, item: Any, *_: Any) -> Any:
            only[0] = item
            return of(row)

        return Typed(result.type, of_item)

    def of_items(row: Any, *items: Any) -> Any:
        for cell, item in zip(cells, items, strict=False):
            cell[0] = item
        return of(row)

    return Typed(result.type, of_items)


def _items(of: Of, turn: Callable[[Any, Any], Any]) -> Of:
    """Return the function of a row to what becomes of an array or map in it; NULL for NULL."""
    return lambda row: None if (value := of(row)) is None else turn(row, value)


def transform(col: ColumnOrName, f: Callable[..., Column]) -> Column:
    """As PySpark's."""

    def made(found: Typed, item: Typed) -> Typed:
        of = item.of
        return Typed(
            T.ArrayType(item.type),
            _items(found.of, lambda row, items: tuple([of(row, each, i) for i, each in enumerate(items)])),
        )

    return _with_items(col, f, made)


def filter(col: ColumnOrName, f: Callable[..., Column]) -> Column:
    """As PySpark's."""
    return _with_items(
        col,
        f,
        lambda found, test: Typed(
            found.type,
            _items(
                found.of, lambda row, items: tuple([x for i, x in enumerate(items) if test.of(row, x, i)])
            ),
        ),
    )


def _any(col: ColumnOrName, f: Callable[..., Column], *, decides: bool) -> Column:
    def made(found: Typed, test: Typed) -> Typed:
        def of(row: Any, items: Any) -> Any:
            outcome: bool | None = not decides
            for each in items:
                holds = test.of(row, each)
                if holds is decides:
                    return decides
                outcome = None if holds is None else outcome
            return outcome

        return Typed(_BOOLEAN, _items(found.of, of))

    return _with_items(col, f, made)


def exists(col: ColumnOrName, f: Callable[[Column], Column]) -> Column:
    """As PySpark's."""
    return _any(col, f, decides=True)


def forall(col: ColumnOrName, f: Callable[[Column], Column]) -> Column:
    """As PySpark's."""
    return _any(col, f, decides=False)


def map_filter(col: ColumnOrName, f: Callable[[Column, Column], Column]) -> Column:
    """As PySpark's."""
    return _with_items(
        col,
        f,
        lambda found, test: Typed(
            found.type,
            _items(found.of, lambda row, value: {k: v for k, v in value.items() if test.of(row, k, v)}),
        ),
    )


def transform_values(col: ColumnOrName, f: Callable[[Column, Column], Column]) -> Column:
    """As PySpark's."""

    def made(found: Typed, item: Typed) -> Typed:
        assert isinstance(found.type, T.MapType)
        values = _items(found.of, lambda row, value: {k: item.of(row, k, v) for k, v in value.items()})
        return Typed(T.MapType(found.type.keyType, item.type), values)

    return _with_items(col, f, made)


def zip_with(left: ColumnOrName, right: ColumnOrName, f: Callable[[Column, Column], Column]) -> Column:
    """As PySpark's."""
    one, other = _of(left), _of(right)
    variables = [Column(lambda _: None), Column(lambda _: None)]  # type: ignore[arg-type,return-value]
    body = f(*variables)

    def compiled(scope: Scope) -> Typed:
        a, b = one.typed(scope), other.typed(scope)
        item = _body(scope, variables, [_inner(a.type), _inner(b.type)], body)

        def of(row: Any) -> Any:
            first, second = a.of(row), b.of(row)
            if first is None or second is None:
                return None
            return tuple([item.of(row, x, y) for x, y in zip_longest(first, second)])

        return Typed(T.ArrayType(item.type), of)

    return Column(compiled)


def map_zip_with(
    col1: ColumnOrName, col2: ColumnOrName, f: Callable[[Column, Column, Column], Column]
) -> Column:
    """As PySpark's."""
    one, other = _of(col1), _of(col2)
    variables = [Column(lambda _: None) for _ in range(3)]  # type: ignore[arg-type,return-value]
    body = f(*variables)

    def compiled(scope: Scope) -> Typed:
        a, b = one.typed(scope), other.typed(scope)
        assert isinstance(a.type, T.MapType)
        assert isinstance(b.type, T.MapType)
        item = _body(scope, variables, [a.type.keyType, a.type.valueType, b.type.valueType], body)

        def of(row: Any) -> Any:
            first, second = a.of(row), b.of(row)
            if first is None or second is None:
                return None
            return {key: item.of(row, key, first.get(key), second.get(key)) for key in {**first, **second}}

        return Typed(T.MapType(a.type.keyType, item.type), of)

    return Column(compiled)


def concat(*cols: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(both: T.DataType, values: list[Of]) -> Typed:
        if isinstance(both, T.StringType):
            return _nulls(both, lambda *parts: whole("".join(parts)), *values)
        empty: Any = b"" if isinstance(both, T.BinaryType) else ()
        return _nulls(
            both,
            lambda *parts: builtins.sum(parts[1:], parts[0]) if empty == () else b"".join(parts),
            *values,
        )

    return _together(_flat(cols), made)


def concat_ws(sep: str, *cols: ColumnOrName) -> Column:
    """As PySpark's."""
    return _together(
        _flat(cols),
        lambda both, values: Typed(
            both, lambda row: whole(sep.join([x for value in values if (x := value(row)) is not None]))
        ),
    )


def try_element_at(col: ColumnOrName, extraction: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(one: Typed, key: Typed) -> Typed:
        if isinstance(one.type, T.MapType):
            return _nulls(one.type.valueType, lambda value, k: value.get(k), one.of, key.of)

        def item(items: Any, place: int) -> Any:
            return items[place - (place > 0)] if 0 < abs(place) <= len(items) else None

        return _nulls(_inner(one.type), item, one.of, key.of)

    return _plain(made, col, extraction)


def get(col: ColumnOrName, index: ColumnOrName | int) -> Column:
    """As PySpark's."""
    place = lit(index) if isinstance(index, int) else index
    return _plain(
        lambda one, i: _nulls(
            _inner(one.type), lambda items, n: items[n] if 0 <= n < len(items) else None, one.of, i.of
        ),
        col,
        place,
    )


def size(col: ColumnOrName) -> Column:
    """As PySpark's (NULL for NULL)."""
    return _strict(_INT, len, col)


def slice(x: ColumnOrName, start: ColumnOrName | int, length: ColumnOrName | int) -> Column:
    """As PySpark's."""

    def part(items: Any, begin: int, count: int) -> Any:
        if begin == 0 or count < 0:
            raise ValueError(f"slice({begin}, {count})")
        first = begin - 1 if begin > 0 else len(items) + begin
        return items[first : first + count] if first >= 0 else ()

    return _strict(None, part, x, *(lit(each) if isinstance(each, int) else each for each in (start, length)))


def map_keys(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _plain(lambda one: _nulls(T.ArrayType(one.type.keyType), tuple, one.of), col)


def map_values(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _plain(
        lambda one: _nulls(T.ArrayType(one.type.valueType), lambda v: tuple(v.values()), one.of), col
    )


def _entry(key: T.DataType, value: T.DataType) -> T.ArrayType:
    return T.ArrayType(T.StructType([T.StructField("key", key), T.StructField("value", value)]))


def map_entries(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _plain(
        lambda one: _nulls(_entry(one.type.keyType, one.type.valueType), lambda v: tuple(v.items()), one.of),
        col,
    )


def map_from_arrays(col1: ColumnOrName, col2: ColumnOrName) -> Column:
    """As PySpark's."""
    return _plain(
        lambda one, other: _nulls(
            T.MapType(_inner(one.type), _inner(other.type)),
            lambda keys, values: map_of(zip(keys, values, strict=True)),
            one.of,
            other.of,
        ),
        col1,
        col2,
    )


def map_from_entries(col: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(one: Typed) -> Typed:
        entry = _inner(one.type)
        assert isinstance(entry, T.StructType)
        kind = T.MapType(entry[0].dataType, entry[1].dataType)
        return _nulls(kind, lambda items: None if None in items else map_of(items), one.of)

    return _plain(made, col)


def map_concat(*cols: Any) -> Column:
    """As PySpark's."""
    return _together(
        _flat(cols),
        lambda both, values: _nulls(
            both, lambda *maps: map_of(pair for each in maps for pair in each.items()), *values
        ),
    )


def map_contains_key(col: ColumnOrName, value: Any) -> Column:
    """As PySpark's."""
    return _strict(_BOOLEAN, lambda one, key: key in one, col, lit(value))


def _array_contains(col: ColumnOrName, value: Column) -> Column:
    def made(one: Typed, other: Typed) -> Typed:
        both, wanted, items = _keyed(one, other)

        def contains(found: Any, item: Any) -> bool | None:
            return True if item in found else None if None in found else False

        del both
        return _nulls(_BOOLEAN, contains, items, wanted)

    return _plain(made, col, value)


def _keyed(one: Typed, other: Typed) -> tuple[T.DataType, Of, Of]:
    """Return the type of an item, the item and the array, both comparable by Python's equality."""
    both = wider(_inner(one.type), other.type)
    key = equal_key(both)
    items = one.cast(T.ArrayType(both))
    if key is not None:
        items = _turned(items, lambda found: tuple([None if x is None else key(x) for x in found]))
    return both, _turned(other.cast(both), key), items


def array_contains(col: ColumnOrName, value: Any) -> Column:
    """As PySpark's."""
    return _array_contains(col, lit(value))


def array_position(col: ColumnOrName, value: Any) -> Column:
    """As PySpark's."""

    def made(one: Typed, other: Typed) -> Typed:
        _, wanted, items = _keyed(one, other)
        return _nulls(_LONG, lambda found, item: found.index(item) + 1 if item in found else 0, items, wanted)

    return _plain(made, col, lit(value))


def array_remove(col: ColumnOrName, element: Any) -> Column:
    """As PySpark's."""

    def made(one: Typed, other: Typed) -> Typed:
        both, wanted, keys = _keyed(one, other)
        items = one.cast(T.ArrayType(both))

        def removed(found: Any, known: Any, item: Any) -> Any:
            return tuple([x for x, key in zip(found, known, strict=True) if key is None or key != item])

        return _nulls(T.ArrayType(both), removed, items, keys, wanted)

    return _plain(made, col, lit(element))


def array_append(col: ColumnOrName, value: Any) -> Column:
    """As PySpark's."""

    def made(one: Typed, other: Typed) -> Typed:
        both = wider(_inner(one.type), other.type)
        item = other.cast(both)
        return Typed(
            T.ArrayType(both), _items(one.cast(T.ArrayType(both)), lambda row, found: (*found, item(row)))
        )

    return _plain(made, col, lit(value))


def array_compact(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _strict(None, lambda items: tuple([each for each in items if each is not None]), col)


def _sets(
    col1: ColumnOrName, col2: ColumnOrName, chosen: Callable[[Any, Any, Turn], Iterable[Any]]
) -> Column:
    """Return an array of the items of two, each once; `chosen` gets both and the function to an item's key."""

    def made(both: T.DataType, values: list[Of]) -> Typed:
        key = equal_key(_inner(both)) or (lambda value: value)

        def of(one: Any, other: Any) -> Any:
            return tuple({key(each): each for each in reversed([*chosen(one, other, key)])}.values())[::-1]

        return _nulls(both, of, *values)

    return _together([_of(col1), _of(col2)], made)


def array_union(col1: ColumnOrName, col2: ColumnOrName) -> Column:
    """As PySpark's."""
    return _sets(col1, col2, lambda one, other, _: (*one, *other))


def array_except(col1: ColumnOrName, col2: ColumnOrName) -> Column:
    """As PySpark's."""

    def chosen(one: Any, other: Any, key: Turn) -> Any:
        gone = {key(each) for each in other}
        return [each for each in one if key(each) not in gone]

    return _sets(col1, col2, chosen)


def array_intersect(col1: ColumnOrName, col2: ColumnOrName) -> Column:
    """As PySpark's."""

    def chosen(one: Any, other: Any, key: Turn) -> Any:
        there = {key(each) for each in other}
        return [each for each in one if key(each) in there]

    return _sets(col1, col2, chosen)


def arrays_overlap(a1: ColumnOrName, a2: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(both: T.DataType, values: list[Of]) -> Typed:
        key = equal_key(_inner(both)) or (lambda value: value)

        def overlap(one: Any, other: Any) -> bool | None:
            there = {key(each) for each in one if each is not None}
            if any(each is not None and key(each) in there for each in other):
                return True
            return None if one and other and (None in one or None in other) else False

        return _nulls(_BOOLEAN, overlap, *values)

    return _together([_of(a1), _of(a2)], made)


def arrays_zip(*cols: ColumnOrName) -> Column:
    """As PySpark's."""
    columns = _flat(cols)

    def made(*found: Typed) -> Typed:
        names = [each.result_name or str(i) for i, each in enumerate(columns)]
        fields = [T.StructField(name, _inner(each.type)) for name, each in zip(names, found, strict=True)]
        return _nulls(
            T.ArrayType(T.StructType(fields)),
            lambda *arrays: tuple(zip_longest(*arrays)),
            *[each.of for each in found],
        )

    return _plain(made, *columns)


def array_sort(col: ColumnOrName, comparator: None = None) -> Column:
    """As PySpark's, NULL last."""

    def made(one: Typed) -> Typed:
        key = order_key(_inner(one.type))
        return _nulls(
            one.type, lambda v: tuple(sorted(v, key=lambda each: (each is None, key(each)))), one.of
        )

    if comparator is not None:
        raise NotInProcessError("array_sort with a comparator")
    return _plain(made, col)


def sort_array(col: ColumnOrName, asc: bool = True) -> Column:
    """As PySpark's, NULL first (last if descending)."""

    def made(one: Typed) -> Typed:
        key = order_key(_inner(one.type))
        return _nulls(one.type, lambda items: tuple(sorted(items, key=key, reverse=not asc)), one.of)

    return _plain(made, col)


def array_max(col: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(one: Typed) -> Typed:
        key = order_key(_inner(one.type))
        return _nulls(_inner(one.type), lambda items: builtins.max(items, key=key, default=None), one.of)

    return _plain(made, col)


def array_join(col: ColumnOrName, delimiter: str, null_replacement: str | None = None) -> Column:
    """As PySpark's."""

    def join(items: Any) -> str:
        there = [null_replacement if each is None else each for each in items]
        return whole(delimiter.join([each for each in there if each is not None]))

    return _strict(_STRING, join, col)


def octet_length(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _strict(_INT, lambda value: len(value if isinstance(value, bytes) else text_bytes(value)), col)


def hex(col: ColumnOrName) -> Column:
    """As PySpark's, of bytes and texts."""

    def digits(value: Any) -> str:
        return str((value if isinstance(value, bytes) else text_bytes(value)).hex().upper())

    return _strict(_STRING, digits, col)


def sha2(col: ColumnOrName, numBits: int) -> Column:
    """As PySpark's, with 256 bits."""
    if numBits != 256:
        raise NotInProcessError(f"sha2 of {numBits} bits")
    return _strict(
        _STRING, lambda v: hashlib.sha256(v if isinstance(v, bytes) else text_bytes(v)).hexdigest(), col
    )


def xxhash64(*cols: ColumnOrName) -> Column:
    """Return 64 bits of any hash: no table keeps the result."""

    def made(*found: Typed) -> Typed:
        parts = [(each.of, exact(each.type)) for each in found]

        def of(row: Any) -> int:
            digest = hashlib.blake2b(digest_size=8)
            for value, turn in parts:
                item = value(row)
                content = b"-" if item is None else turn(item)
                digest.update(b"%d:" % len(content) if item is not None else b"n")
                digest.update(content)
            return int.from_bytes(digest.digest(), signed=True)

        return Typed(_LONG, of)

    return _plain(made, *cols)


def bits(col: ColumnOrName) -> Column:
    """Return bytes that are equal exactly if two values have the same bits; not in PySpark."""
    return _plain(lambda one: Typed(_BINARY, _turned(one.of, exact(one.type))), col)


def unix_date(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _strict(_INT, lambda days: days, col)


def unix_micros(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _strict(_LONG, lambda microseconds: microseconds, col)


def lower(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _strict(_STRING, str.lower, col)


def _part_of(text: Any, start: int, length: int | None) -> Any:
    begin = start - 1 if start > 0 else len(text) + start if start < 0 else 0
    end = len(text) if length is None else begin + length
    return text[builtins.max(begin, 0) : builtins.max(end, 0)]


def substring(str: ColumnOrName, pos: ColumnOrName | int, len: ColumnOrName | int) -> Column:
    """As PySpark's."""
    return _strict(
        None, _part_of, str, *(lit(each) if isinstance(each, int) else each for each in (pos, len))
    )


def substr(str: ColumnOrName, pos: ColumnOrName, len: ColumnOrName | None = None) -> Column:
    """As PySpark's."""
    if len is None:
        return _strict(None, lambda text, start: _part_of(text, start, None), str, pos)
    return _strict(None, _part_of, str, pos, len)


def split(str: ColumnOrName, pattern: Column | str, limit: ColumnOrName | int = -1) -> Column:
    """As PySpark's, into characters."""
    if pattern != "" or limit != -1:
        raise NotInProcessError("split with a pattern or a limit")
    return _strict(T.ArrayType(_STRING), lambda text: tuple(text) or ("",), str)


def is_valid_utf8(str: ColumnOrName) -> Column:
    """As PySpark's."""
    return _strict(_BOOLEAN, lambda text: not any("\udc80" <= each <= "\udcff" for each in text), str)


def make_valid_utf8(str: ColumnOrName) -> Column:
    """As PySpark's."""
    return _strict(_STRING, lambda text: text_bytes(text).decode("utf-8", "replace"), str)


def explode(col: ColumnOrName) -> Column:
    """As PySpark's, of an array, in `select`."""
    used = _of(col)

    def compiled(scope: Scope) -> Typed:
        found = used.typed(scope)
        return Typed(_inner(found.type), found.of)

    return Column(compiled, "col", is_explode=True)


def _aggregate(made: Callable[..., Typed], *columns: ColumnOrName) -> Column:
    """Return an aggregate: `made` gets columns of a row, its function takes the rows of a group."""
    used = [_of(each) for each in columns]

    def compiled(scope: Scope) -> Typed:
        if scope.rows is None:
            raise ValueError("an aggregate outside of agg")
        return made(*[each.typed(scope.rows) for each in used])

    return Column(compiled)


def _extreme(choose: Callable[..., Any], col: ColumnOrName, ord: ColumnOrName) -> Column:
    def made(one: Typed, by: Typed) -> Typed:
        key = order_key(by.type)

        def of(rows: Sequence[Any]) -> Any:
            ranked = [
                (key(rank), place) for place, row in enumerate(rows) if (rank := by.of(row)) is not None
            ]
            return one.of(rows[choose(ranked, key=operator.itemgetter(0))[1]]) if ranked else None

        return Typed(one.type, of)

    return _aggregate(made, col, ord)


def max_by(col: ColumnOrName, ord: ColumnOrName, k: None = None) -> Column:
    """As PySpark's."""
    return _extreme(builtins.max, col, ord)


def min_by(col: ColumnOrName, ord: ColumnOrName, k: None = None) -> Column:
    """As PySpark's."""
    return _extreme(builtins.min, col, ord)


def max(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _extreme(builtins.max, col, col)


def min(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _extreme(builtins.min, col, col)


def count(col: ColumnOrName) -> Column:
    """As PySpark's."""
    value = lit(1) if isinstance(col, str) and col == "*" else col
    return _aggregate(
        lambda one: Typed(_LONG, lambda rows: builtins.sum(one.of(r) is not None for r in rows)), value
    )


def count_if(col: ColumnOrName) -> Column:
    """As PySpark's."""
    return _aggregate(
        lambda one: Typed(_LONG, lambda rows: builtins.sum(one.of(r) is True for r in rows)), col
    )


def _values(of: Of, rows: Sequence[Any]) -> list[Any]:
    return [value for row in rows if (value := of(row)) is not None]


def sum(col: ColumnOrName) -> Column:
    """As PySpark's, of whole numbers."""

    def made(one: Typed) -> Typed:
        if not is_integral(one.type):
            raise NotInProcessError(f"sum of {one.type.simpleString()}")
        check = checked(_LONG)
        return Typed(
            _LONG, lambda rows: check(builtins.sum(found)) if (found := _values(one.of, rows)) else None
        )

    return _aggregate(made, col)


def bit_xor(col: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(one: Typed) -> Typed:
        def of(rows: Sequence[Any]) -> int | None:
            found = _values(one.of, rows)
            result = 0
            for each in found:
                result ^= each
            return result if found else None

        return Typed(one.type, of)

    return _aggregate(made, col)


def first(col: ColumnOrName, ignorenulls: bool = False) -> Column:
    """As PySpark's."""

    def made(one: Typed) -> Typed:
        if not ignorenulls:
            return Typed(one.type, lambda rows: one.of(rows[0]) if rows else None)
        return Typed(one.type, lambda rows: next((v for row in rows if (v := one.of(row)) is not None), None))

    return _aggregate(made, col)


def collect_set(col: ColumnOrName) -> Column:
    """As PySpark's."""

    def made(one: Typed) -> Typed:
        key = equal_key(one.type) or (lambda value: value)
        return Typed(
            T.ArrayType(one.type), lambda rows: tuple({key(v): v for v in _values(one.of, rows)}.values())
        )

    return _aggregate(made, col)


def broadcast(df: Any) -> Any:
    """As PySpark's: nothing is sent anywhere."""
    return df
