"""Columns of frames in this process: trees with the names of PySpark's Column, compiled for the columns of one frame."""

import operator
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from pyspark.sql import types as T

from mergerepl.frames import NotInProcessError
from mergerepl.frames.values import (
    EXACT,
    INTEGERS,
    Turn,
    at_scale,
    bounded,
    caster,
    checked,
    content,
    decimal_of,
    equal_key,
    order_key,
    single,
    type_of,
    wider,
    widest,
)

Of = Callable[..., Any]
"""The value of a column in a row; of an aggregate, in a list of rows; in a lambda, also of the items."""

BOOLEAN, INT, LONG, STRING, BINARY = (
    T.BooleanType(),
    T.IntegerType(),
    T.LongType(),
    T.StringType(),
    T.BinaryType(),
)
_NO_LITERAL = object()
_FLOATS = T.FloatType | T.DoubleType


class Typed(NamedTuple):
    """A compiled column: its type, and its value in a row; also the value of a literal, the place of a frame's column."""

    type: T.DataType
    of: Of
    literal: Any = _NO_LITERAL
    place: int | None = None

    def cast(self, want: T.DataType, *, is_try: bool = False) -> Of:
        """Return the values in another type."""
        return turned(self.of, caster(self.type, want, is_try=is_try))

    def part(self, name: Any) -> "Typed":
        """Return a field of a struct, or of each struct of an array."""
        of, of_row, data_type = self.of, self.place, self.type
        if isinstance(data_type, T.StructType):
            place = place_of(data_type.names, name)
            kind = data_type[place].dataType
            if of_row is not None:
                return Typed(kind, lambda row: None if (value := row[of_row]) is None else value[place])
            return Typed(kind, lambda row: None if (value := of(row)) is None else value[place])
        if isinstance(data_type, T.ArrayType):
            each = Typed(data_type.elementType, lambda item: item).part(name)
            return Typed(T.ArrayType(each.type), turned(of, lambda items: tuple([each.of(x) for x in items])))
        raise NotInProcessError(f"[{name!r}] of {data_type.simpleString()}")


def turned(of: Of, turn: Turn | None) -> Of:
    """Return values that a function turns; NULL stays NULL."""
    if turn is None:
        return of
    return lambda row: None if (value := of(row)) is None else turn(value)


def place_of(names: Sequence[str], name: str) -> int:
    """Return the place of a name, whatever its case."""
    if names.count(name) == 1:
        return names.index(name)
    found = [i for i, each in enumerate(names) if each.lower() == name.lower()]
    if len(found) != 1:
        raise ValueError(f"{name} is {'ambiguous' if found else 'missing'}; there are {', '.join(names)}")
    return found[0]


class Field(NamedTuple):
    """A column of a frame; `alias` is the frame's."""

    name: str
    type: T.DataType
    alias: str | None = None


class Scope:
    """The columns that a tree may name, and what was compiled: a tree that is used twice is compiled once.

    `rows` has the columns of the rows of a group, for aggregates.
    """

    def __init__(self, fields: Sequence[Field], rows: "Scope | None" = None) -> None:
        self.fields, self.rows = fields, rows
        self.names = [field.name for field in fields]
        self.made: dict[int, tuple[Column, Typed]] = {}

    def column(self, name: str) -> Typed:
        """Return a column, or a part of one, by its name."""
        parts = parts_of(name)
        of_alias = [i for i, each in enumerate(self.fields) if each.alias == parts[0]] if parts[1:] else []
        if of_alias:
            parts = parts[1:]
            place = of_alias[place_of([self.names[i] for i in of_alias], parts[0])]
        else:
            place = place_of(self.names, parts[0])
        found = Typed(self.fields[place].type, operator.itemgetter(place), place=place)
        for part in parts[1:]:
            found = found.part(part)
        return found

    def bind(self, variables: "Sequence[Column]", types: Sequence[T.DataType], body: "Column") -> Typed:
        """Return a lambda's result: its function takes the row and one value for each variable."""
        values: list[Any] = [None] * len(variables)
        for i, (variable, kind) in enumerate(zip(variables, types, strict=False)):
            self.made[id(variable)] = variable, Typed(kind, lambda _, i=i: values[i])
        result = body.typed(self)

        def of(row: Any, *items: Any) -> Any:
            values[:] = items
            return result.of(row)

        return Typed(result.type, of)


def parts_of(name: str) -> list[str]:
    """Return the parts of a dotted name; a quoted part may have dots."""
    if "`" not in name:
        return name.split(".")
    parts, is_quoted = [""], False
    for character in name.replace("``", "\0"):
        if character == "`":
            is_quoted = not is_quoted
        elif character == "." and not is_quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.replace("\0", "`") for part in parts]


class Column:
    """PySpark's Column without a JVM.

    `term` is, of `&`, `==` and `<=>`, the sign and both sides: a join looks keys up by them.
    """

    def __init__(
        self,
        compiled: Callable[[Scope], Typed],
        name: str | None = None,
        *,
        term: "tuple[str, Column, Column] | None" = None,
        is_explode: bool = False,
    ) -> None:
        self.compiled, self.result_name = compiled, name
        self.term, self.is_explode = term, is_explode
        self.branches: Sequence[tuple[Column, Column]] | None = None

    def typed(self, scope: Scope) -> Typed:
        """Return the column compiled for a frame."""
        known = scope.made.get(id(self))
        if known is None:
            known = scope.made[id(self)] = self, self.compiled(scope)
        return known[1]

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise ValueError("a column is neither true nor false: use &, | and ~")

    __iter__ = None

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
        return _compared("<=>", self, other, operator.eq)

    def __and__(self, other: Any) -> "Column":
        return _logical("&", self, other, decides=False)

    def __or__(self, other: Any) -> "Column":
        return _logical("|", self, other, decides=True)

    def __invert__(self) -> "Column":
        return made(lambda one: nulls(BOOLEAN, operator.not_, one.of), self)

    def __add__(self, other: Any) -> "Column":
        return _arithmetic(operator.add, self, other)

    def __sub__(self, other: Any) -> "Column":
        return _arithmetic(operator.sub, self, other)

    def __mul__(self, other: Any) -> "Column":
        return _arithmetic(operator.mul, self, other)

    def __truediv__(self, other: Any) -> "Column":
        return _arithmetic(operator.truediv, self, other)

    def bitwiseXOR(self, other: Any) -> "Column":
        return made(lambda a, b: nulls(wider(a.type, b.type), operator.xor, a.of, b.of), self, lit(other))

    def __getitem__(self, k: Any) -> "Column":
        return made(lambda one: one.part(k), self)

    def getField(self, name: Any) -> "Column":
        return self[name]

    def alias(self, *alias: str) -> "Column":
        return Column(self.typed, alias[0], is_explode=self.is_explode, term=self.term)

    def cast(self, dataType: T.DataType | str) -> "Column":
        return self._cast(type_of(dataType), is_try=False)

    def try_cast(self, dataType: T.DataType | str) -> "Column":
        return self._cast(type_of(dataType), is_try=True)

    def _cast(self, want: T.DataType, *, is_try: bool) -> "Column":
        return Column(
            lambda scope: Typed(want, self.typed(scope).cast(want, is_try=is_try)), self.result_name
        )

    def isNull(self) -> "Column":
        return made(lambda one: Typed(BOOLEAN, lambda row: one.of(row) is None), self)

    def isNotNull(self) -> "Column":
        return made(lambda one: Typed(BOOLEAN, lambda row: one.of(row) is not None), self)

    def rlike(self, other: str) -> "Column":
        """Whether a text has a match; the pattern is one that Java and Python read alike."""
        search = re.compile(other).search
        return made(lambda one: nulls(BOOLEAN, lambda text: search(text) is not None, one.of), self)

    def isin(self, *cols: Any) -> "Column":
        values = cols[0] if len(cols) == 1 and isinstance(cols[0], list | set | tuple) else cols

        def found(one: Typed, *others: Typed) -> Typed:
            both = widest([one.type, *(each.type for each in others)])
            key = equal_key(both)
            mine, theirs = (turned(one.cast(both), key), [turned(each.cast(both), key) for each in others])
            is_constant = all(each.literal is not _NO_LITERAL for each in others)
            constants = [of(()) for of in theirs] if is_constant else []

            def of_row(row: Any) -> bool | None:
                if (value := mine(row)) is None:
                    return None
                among = constants if is_constant else [of(row) for of in theirs]
                return True if value in among else None if None in among else False

            return Typed(BOOLEAN, of_row)

        return made(found, self, *(lit(each) for each in values))

    def startswith(self, other: Any) -> "Column":
        def begins(text: str, beginning: str) -> bool:
            return content(text).startswith(content(beginning))

        return made(lambda a, b: nulls(BOOLEAN, begins, a.of, b.of), self, lit(other))

    def when(self, condition: "Column", value: Any) -> "Column":
        assert self.branches is not None
        return cases([*self.branches, (condition, lit(value))])

    def otherwise(self, value: Any) -> "Column":
        assert self.branches is not None
        return cases(self.branches, lit(value))


Make = Callable[..., Column]
"""A function of columns."""


def col(name: Any) -> Column:
    """Return a column by its name, a column as it is, another value as a literal."""
    if isinstance(name, str):
        return Column(lambda scope: scope.column(name), parts_of(name)[-1])
    return lit(name)


def lit(value: Any) -> Column:
    """Return a literal; a column as it is."""
    if isinstance(value, Column):
        return value
    match value:
        case None:
            kind: T.DataType = T.NullType()
        case bool():
            kind = BOOLEAN
        case int():
            kind, value = INT if -(1 << 31) <= value < 1 << 31 else LONG, int(value)
        case float():
            kind = T.DoubleType()
        case str():
            kind, value = STRING, str(value)
        case bytes():
            kind = BINARY
        case Decimal():
            _, digits, exponent = value.as_tuple()
            kind = T.DecimalType(max(len(digits), -int(exponent)), max(0, -int(exponent)))
        case _:
            raise TypeError(f"{value!r} is neither a column in this process nor a literal of it")
    typed = Typed(kind, lambda _: value, value)
    return Column(lambda _: typed)


def item_type(array: Typed | T.DataType) -> T.DataType:
    """Return the type of an array's items."""
    data_type = array.type if isinstance(array, Typed) else array
    return data_type.elementType if isinstance(data_type, T.ArrayType) else T.NullType()


def made(compiled: Callable[..., Typed], *columns: Any) -> Column:
    """Return a column made of others (or their names), once they are compiled."""
    used = [col(each) for each in columns]
    return Column(lambda scope: compiled(*[each.typed(scope) for each in used]))


def together(compiled: Callable[..., Typed], *columns: Any) -> Column:
    """Return a column made of others in their widest type: `compiled` gets it, and their values."""

    def in_one(*typed: Typed) -> Typed:
        both = widest(each.type for each in typed)
        return compiled(both, *[each.cast(both) for each in typed])

    return made(in_one, *columns)


def nulls(data_type: T.DataType, turn: Callable[..., Any], *values: Of) -> Typed:
    """Return a value that is NULL if one of those that it is made of is NULL."""
    if len(values) == 1:
        return Typed(data_type, turned(values[0], turn))

    def of(row: Any) -> Any:
        found = [value(row) for value in values]
        return None if None in found else turn(*found)

    def of_two(row: Any) -> Any:
        if (a := one(row)) is None or (b := other(row)) is None:
            return None
        return turn(a, b)

    one, other = values[:2]
    return Typed(data_type, of_two if len(values) == 2 else of)


def _compared(sign: str, one: Column, value: Any, test: Callable[[Any, Any], Any]) -> Column:
    def compiled(both: T.DataType, a: Of, b: Of) -> Typed:
        is_plain = test is operator.eq or type(both) in INTEGERS
        key = equal_key(both) if is_plain else order_key(both)
        a, b = turned(a, key), turned(b, key)
        if sign == "<=>":
            return Typed(BOOLEAN, lambda row: a(row) == b(row))
        if isinstance(value, int | float | str):
            fixed = b(())
            return Typed(BOOLEAN, lambda row: None if (found := a(row)) is None else test(found, fixed))
        return nulls(BOOLEAN, test, a, b)

    other = lit(value)
    column = together(compiled, one, other)
    column.term = sign, one, other
    return column


def _logical(sign: str, one: Column, value: Any, *, decides: bool) -> Column:
    def compiled(a: Typed, b: Typed) -> Typed:
        first, second = a.of, b.of

        def of(row: Any) -> Any:
            if (x := first(row)) is decides or (y := second(row)) is decides:
                return decides
            return None if x is None or y is None else not decides

        return Typed(BOOLEAN, of)

    other = lit(value)
    column = made(compiled, one, other)
    column.term = sign, one, other
    return column


def _arithmetic(sign: Callable[[Any, Any], Any], one: Column, value: Any) -> Column:
    def compiled(a: Typed, b: Typed) -> Typed:
        kinds = {type(a.type), type(b.type)}
        if T.DecimalType in kinds and kinds.issubset({T.DecimalType, *INTEGERS}):
            return _of_decimals(a, b, sign)
        both = wider(a.type, b.type)
        if sign is operator.truediv:
            both = T.DoubleType()
        if not isinstance(both, _FLOATS | T.IntegralType):
            raise NotInProcessError(f"arithmetic on {both.simpleString()}")
        fits = checked(both) if type(both) in INTEGERS else single if isinstance(both, T.FloatType) else float
        return nulls(both, lambda x, y: fits(sign(x, y)), a.cast(both), b.cast(both))

    return made(compiled, one, lit(value))


def _of_decimals(a: Typed, b: Typed, sign: Callable[[Any, Any], Any]) -> Typed:
    one, two = decimal_of(a.type, a.literal), decimal_of(b.type, b.literal)
    scale, digits = max(one.scale, two.scale), max(one.precision - one.scale, two.precision - two.scale) + 1
    exactly = EXACT.add if sign is operator.add else EXACT.subtract
    if sign is operator.mul:
        exactly, scale = EXACT.multiply, one.scale + two.scale
        digits = one.precision + two.precision + 1 - scale
    elif sign is operator.truediv:
        exactly, scale = EXACT.divide, max(6, one.scale + two.precision + 1)
        digits = one.precision - one.scale + two.scale
    result = bounded(digits + scale, scale)
    return nulls(result, lambda x, y: at_scale(exactly(x, y), result), a.cast(one), b.cast(two))


def cases(branches: Sequence[tuple[Column, Column]], otherwise: Column | None = None) -> Column:
    """Return `when` with these branches."""

    def compiled(scope: Scope) -> Typed:
        found = [(test.typed(scope).of, value.typed(scope)) for test, value in branches]
        rest = lit(otherwise).typed(scope)
        both = widest([*(value.type for _, value in found), rest.type])
        last, tested = rest.cast(both), [(test, value.cast(both)) for test, value in found]

        def of(row: Any) -> Any:
            for test, value in tested:
                if test(row):
                    return value(row)
            return last(row)

        return Typed(both, of)

    column = Column(compiled)
    column.branches = branches if otherwise is None else None
    return column
