"""Names and types of a clause, checked against the table's columns, and every cast made explicit. No session.

A prepared clause means the same everywhere: in Python, as Spark columns, as the text that `apply` prints.
    region = HOST_NAME()      with region char(8)    RTRIM(`region`) = HOST_NAME()
    staff = HOST_NAME()       with staff int         `staff` = CAST(HOST_NAME() AS INT)
    price / 2 > 1.5           with price decimal     (CAST(`price` AS DOUBLE) / CAST(2 AS DOUBLE)) > CAST(1.5 AS DOUBLE)

Whole numbers are computed as BIGINT; quotients, and operands of a FLOAT or DOUBLE, as DOUBLE.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from mergerepl.filters.clause import (
    ARITHMETIC,
    CALLS,
    COMPARISONS,
    OF_DATES,
    Cast,
    Clause,
    ClauseError,
    Column,
    Function,
    Literal,
    Operation,
    Operator,
    SessionFunction,
    cast,
    columns_of,
    evaluate,
    functions_of,
    walk,
)
from mergerepl.model.words import nearest_name

WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
FLOATING = frozenset({"float", "double"})
_BOOLEAN, _STRING, _NUMBER, _NULL = "boolean", "string", "number", "null"
_TIME_ZONE = "depends on the time zone of the session that reads it: use a DATE or TIMESTAMP_NTZ column"
_OFFSET = re.compile(r"([+-][0-9]{2}:?[0-9]{2}|Z)\s*\Z")

_CASTS = {
    _NUMBER: {_NUMBER, _STRING, _BOOLEAN},
    _STRING: {_NUMBER, _STRING, _BOOLEAN, "date"},
    _BOOLEAN: {_NUMBER, _STRING, _BOOLEAN},
    "date": {_STRING, "date"},
    "timestamp_ntz": {"date"},
    _NULL: {_NUMBER, _STRING, _BOOLEAN, "date"},
}
"""For each kind, the kinds that a CAST converts it to, without those that depend on a time zone or on an engine."""


def prepare_clause(clause: Clause, types: Mapping[str | None, Mapping[str, str]]) -> Clause:
    """Return a filter with the columns' exact names and explicit casts.

    `types` has the columns of each article that the clause names, or of None for an own filter: column name to Spark
    DDL, with `char(n)` as declared.

    Raises: ClauseError for an unknown column, for incompatible types, and if the whole is not boolean.
    """
    found = _Typing(types).of(clause)
    if found.kind not in (_BOOLEAN, _NULL):
        raise ClauseError(f"is of type {found.type}, and must be true or false")
    return found.clause


def uncastable(clause: Clause, values: Mapping[SessionFunction, str | None]) -> tuple[str, str] | None:
    """Return the function whose value a prepared clause cannot cast, and the type, or None.

    `staff` = CAST(HOST_NAME() AS INT) with HOST_NAME "abc"     ("HOST_NAME", "INT")
    """
    for part in walk(clause):
        if isinstance(part, Cast) and functions_of(part) and not columns_of(part):
            before = evaluate(part.operand, {}, values)
            if before is not None and cast(before, part.type) is None:
                return min(functions_of(part)), part.type.upper()
    return None


@dataclass(frozen=True)
class _Typed:
    """A prepared part and its type (Spark DDL; `decimal` alone where precision and scale are the engine's)."""

    clause: Clause
    type: str

    @property
    def kind(self) -> str:
        """The group of types that it may be compared with."""
        is_number = self.type in WHOLE or self.type in FLOATING or self.type.startswith("decimal")
        return _NUMBER if is_number else self.type

    @property
    def is_adaptable(self) -> bool:
        """Whether it is text that adapts to the other operand's type: a constant, or made of functions alone."""
        return self.kind == _STRING and not columns_of(self.clause)


class _Typing:
    """Gives every part of a clause its type, from the columns upwards."""

    def __init__(self, types: Mapping[str | None, Mapping[str, str]]) -> None:
        self.types = types

    def of(self, clause: Clause) -> _Typed:
        match clause:
            case Literal(None):
                return _Typed(clause, _NULL)
            case Literal(bool()):
                return _Typed(clause, _BOOLEAN)
            case Literal(str()) | Function():
                return _Typed(clause, _STRING)
            case Literal(int() as value):
                return _Typed(clause, "int" if -(1 << 31) <= value < 1 << 31 else "bigint")
            case Literal(Decimal()):
                return _Typed(clause, "decimal")
            case Literal():
                raise AssertionError(clause)
            case Column():
                return self._column(clause)
            case Cast(operand, type_):
                return self._cast(self.of(operand), type_)
            case Operation(operator, operands):
                return self._operation(operator, [self.of(operand) for operand in operands])

    def _column(self, column: Column) -> _Typed:
        known = self.types[column.article]
        names = {name.lower(): name for name in known}
        name = names.get(column.name.lower())
        if name is None:
            nearest = nearest_name(column.name, known)
            hint = f"did you mean {nearest}" if nearest else f"there are {', '.join(known)}"
            raise ClauseError(f"names the column '{column.name}'; {hint}")
        exact, type_ = Column(name, column.article), known[name]
        if type_.startswith("char("):
            return _Typed(Operation(Operator.RTRIM, (exact,)), _STRING)
        return _Typed(exact, _STRING if type_.startswith("varchar(") else type_)

    def _cast(self, part: _Typed, to: str) -> _Typed:
        if part.type == "timestamp":
            raise ClauseError(_TIME_ZONE)
        if to in ("timestamp", "timestamp_ntz"):
            return self._adapted(part, to)
        target = _Typed(part.clause, to).kind
        if target not in _CASTS.get(part.kind, ()) or (target == _STRING and part.type in FLOATING):
            raise ClauseError(f"casts {part.type.upper()} to {to.upper()}, which a filter may not do")
        return _Typed(Cast(part.clause, to), to)

    def _operation(self, operator: Operator, parts: list[_Typed]) -> _Typed:
        if operator in (Operator.AND, Operator.OR, Operator.NOT):
            self._require(_BOOLEAN, operator, parts)
            type_ = _BOOLEAN
        elif operator is Operator.IS_NULL:
            type_ = _BOOLEAN
        elif operator in COMPARISONS or operator in (Operator.BETWEEN, Operator.IN):
            parts, type_ = self._unified(operator, parts), _BOOLEAN
        elif operator is Operator.COALESCE:
            parts = self._unified(operator, parts)
            type_ = next((part.type for part in parts if part.kind != _NULL), _NULL)
        elif operator is Operator.CASE:
            conditions, values = parts[:-1:2], [*parts[1::2], parts[-1]]
            self._require(_BOOLEAN, operator, conditions)
            values = self._unified(operator, values)
            type_ = next((part.type for part in values if part.kind != _NULL), _NULL)
            pairs = zip(conditions, values, strict=False)
            parts = [*(each for pair in pairs for each in pair), values[-1]]
        elif operator in OF_DATES:
            parts = [self._adapted(part, "date") if part.is_adaptable else part for part in parts]
            self._require_date(operator, parts[0])
            type_ = "int"
        elif operator is Operator.SUBSTRING:
            self._require(_STRING, operator, parts[:1])
            type_ = _STRING
        elif operator is Operator.LENGTH:
            self._require(_STRING, operator, parts)
            type_ = "int"
        elif operator in ARITHMETIC:
            self._require(_NUMBER, operator, parts)
            parts = [self._widened(part, parts, operator) for part in parts]
            type_ = parts[0].type if parts[0].type == parts[1].type else "decimal"
        else:
            self._require(_STRING, operator, parts)
            type_ = _BOOLEAN if operator is Operator.LIKE else _STRING
        return _Typed(Operation(operator, tuple(part.clause for part in parts)), type_)

    def _require(self, kind: str, operator: Operator, parts: list[_Typed]) -> None:
        for part in parts:
            if part.kind not in (kind, _NULL):
                what = f"{operator}()" if operator in CALLS else str(operator)
                advice = "write a comparison" if kind == _BOOLEAN else f"write CAST(… AS {_EXAMPLE[kind]})"
                raise ClauseError(f"uses {what} with a {part.type.upper()}; {advice}")

    def _require_date(self, operator: Operator, part: _Typed) -> None:
        if part.type == "timestamp":
            raise ClauseError(_TIME_ZONE)
        if part.kind not in ("date", "timestamp_ntz", _NULL):
            raise ClauseError(f"uses {operator}() with a {part.type.upper()}; write CAST(… AS DATE)")

    def _unified(self, operator: Operator, parts: list[_Typed]) -> list[_Typed]:
        """Return parts in types that Spark compares without a cast of its own."""
        leading = next((part for part in parts if not part.is_adaptable and part.kind != _NULL), parts[0])
        adapted = [self._adapted(part, leading.type) if part.is_adaptable else part for part in parts]
        for part in adapted:
            if part.kind == _NULL:
                continue
            if "timestamp" in (part.type, leading.type) and part.type != leading.type:
                raise ClauseError(_TIME_ZONE)
            if part.kind != leading.kind:
                raise ClauseError(
                    f"compares {leading.type.upper()} with {part.type.upper()}; write a CAST of one of them"
                )
            if part.kind not in _COMPARABLE:
                raise ClauseError(f"compares values of type {part.type[:40]}, which a filter may not do")
        if leading.kind == _NUMBER:
            return [self._widened(part, adapted, operator) for part in adapted]
        return adapted

    def _adapted(self, part: _Typed, to: str) -> _Typed:
        """Convert text to the type of the other operand; a constant is checked at once."""
        if to == _STRING or part.kind == _NULL:
            return part
        if to == "timestamp" and not (
            isinstance(part.clause, Literal) and _OFFSET.search(str(part.clause.value))
        ):
            raise ClauseError(_TIME_ZONE)
        if to == "decimal" or (to not in _ADAPTS and not to.startswith("decimal(")):
            raise ClauseError(f"compares {to.upper()} with text; write CAST(… AS DECIMAL(20,2)) or the like")
        if isinstance(part.clause, Literal) and cast(part.clause.value, to) is None:
            raise ClauseError(f"compares {to.upper()} with '{part.clause.value}', which is no {to.upper()}")
        return _Typed(Cast(part.clause, to), to)

    def _widened(self, part: _Typed, parts: list[_Typed], operator: Operator) -> _Typed:
        """Convert a number to the type in which it is computed or compared with the others."""
        if part.kind == _NULL:
            return part
        if operator is Operator.DIVIDE or any(other.type in FLOATING for other in parts):
            return part if part.type == "double" else _Typed(Cast(part.clause, "double"), "double")
        if part.type in WHOLE and part.type != "bigint" and operator in ARITHMETIC:
            return _Typed(Cast(part.clause, "bigint"), "bigint")
        return part


_COMPARABLE = frozenset({_NUMBER, _STRING, _BOOLEAN, "date", "timestamp", "timestamp_ntz"})
_ADAPTS = WHOLE | FLOATING | {"boolean", "date", "timestamp", "timestamp_ntz"}
_EXAMPLE = {_NUMBER: "BIGINT", _STRING: "STRING"}
