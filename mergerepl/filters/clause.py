"""A filter clause as a frozen tree: its canonical text, its columns and functions, and its value in plain Python.

`parse` makes the tree from a text, `prepare` makes its casts explicit, `columns` makes Spark columns of it. NULL is
None. `=` compares strings by bytes. A failure for a row (a division by zero, a cast) gives NULL.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from typing import Any

from mergerepl.rows.sql import literal, quote


class ClauseError(ValueError):
    """A clause cannot be used. The message continues a sentence that begins with the clause's key in the file."""


class SessionFunction(StrEnum):
    """A function whose value the publisher keeps for each partition."""

    HOST_NAME = "HOST_NAME"
    SUSER_SNAME = "SUSER_SNAME"


class Operator(StrEnum):
    """The operation on the operands; the value is its form in the canonical text."""

    AND = "AND"
    OR = "OR"
    NOT = "NOT"
    IS_NULL = "IS NULL"
    EQUAL = "="
    NULL_SAFE_EQUAL = "<=>"
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    BETWEEN = "BETWEEN"
    IN = "IN"
    LIKE = "LIKE"
    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    REMAINDER = "%"
    CONCATENATE = "||"
    COALESCE = "COALESCE"
    UPPER = "UPPER"
    LOWER = "LOWER"
    TRIM = "TRIM"
    LTRIM = "LTRIM"
    RTRIM = "RTRIM"
    LENGTH = "LENGTH"
    SUBSTRING = "SUBSTRING"
    YEAR = "YEAR"
    MONTH = "MONTH"
    DAY = "DAY"
    CASE = "CASE"


COMPARISONS = frozenset(map(Operator, ("=", "<=>", "<>", "<", "<=", ">", ">=")))
ARITHMETIC = frozenset(map(Operator, "+-*/%"))
OF_DATES = frozenset(map(Operator, ("YEAR", "MONTH", "DAY")))
_OF_TEXTS = frozenset(map(Operator, ("UPPER", "LOWER", "TRIM", "LTRIM", "RTRIM", "LENGTH", "SUBSTRING")))
CALLS = frozenset({Operator.COALESCE, *_OF_TEXTS, *OF_DATES})

Value = str | bool | int | float | Decimal | date | datetime | None
"""The values that a clause computes with. A TIMESTAMP is a datetime with a time zone, a TIMESTAMP_NTZ one without."""


@dataclass(frozen=True)
class Literal:
    """A constant of the text."""

    value: str | bool | int | Decimal | None


@dataclass(frozen=True)
class Column:
    """A column of the row; in the `on` of a join filter with the name of its article."""

    name: str
    article: str | None = None


@dataclass(frozen=True)
class Function:
    """HOST_NAME() or SUSER_SNAME()."""

    name: SessionFunction


@dataclass(frozen=True)
class Cast:
    """A value in another type, NULL if it cannot be converted. `type` is Spark DDL, such as `decimal(10,2)`."""

    operand: "Clause"
    type: str


@dataclass(frozen=True)
class Operation:
    """An operator and its operands; AND and OR have two or more, BETWEEN three, IN the value and then its list.

    CASE has pairs of a condition and a value, and at the end the value of ELSE.
    """

    operator: Operator
    operands: "tuple[Clause, ...]"


Clause = Literal | Column | Function | Cast | Operation
"""One expression. A filter is a clause that is true or false."""


def walk(clause: Clause) -> Iterator[Clause]:
    """Yield the clause and all its parts, from the left."""
    yield clause
    match clause:
        case Cast(operand):
            yield from walk(operand)
        case Operation(_, operands):
            for operand in operands:
                yield from walk(operand)


def columns_of(clause: Clause) -> tuple[Column, ...]:
    """Return the columns that a clause uses, each once, in the order of the text."""
    return tuple(dict.fromkeys(part for part in walk(clause) if isinstance(part, Column)))


def functions_of(clause: Clause) -> frozenset[SessionFunction]:
    """Return the functions that a clause uses. A clause without any is static."""
    return frozenset(part.name for part in walk(clause) if isinstance(part, Function))


def all_of(clauses: "tuple[Clause, ...]") -> Clause | None:
    """Return the AND of clauses; None for an empty list."""
    if len(clauses) < 2:
        return clauses[0] if clauses else None
    return Operation(Operator.AND, clauses)


def text(clause: Clause) -> str:
    """Return the canonical text: Spark SQL that `parse` reads back as the same tree."""
    match clause:
        case Literal(None):
            return "NULL"
        case Literal(bool() as value):
            return "TRUE" if value else "FALSE"
        case Literal(str() as value):
            return literal(value)
        case Literal(Decimal() as value):
            # The dot makes the parser read it as a decimal number again.
            return written if "." in (written := format(value, "f")) else f"{written}."
        case Literal(value):
            return str(value)
        case Column(name, article):
            return f"{quote(article)}.{quote(name)}" if article is not None else quote(name)
        case Function(name):
            return f"{name}()"
        case Cast(operand, type_):
            return f"CAST({text(operand)} AS {type_.upper()})"
        case Operation(operator, operands):
            return _operation_text(operator, operands)


def _operation_text(operator: Operator, operands: tuple[Clause, ...]) -> str:
    if operator in CALLS:
        return f"{operator}({', '.join(text(operand) for operand in operands)})"
    if operator is Operator.CASE:
        *pairs, last = map(text, operands)
        whens = (
            f"WHEN {condition} THEN {value}" for condition, value in zip(pairs[::2], pairs[1::2], strict=True)
        )
        return f"CASE {' '.join(whens)} ELSE {last} END"
    # In brackets unless it is a single token.
    is_infix = (
        isinstance(each, Operation) and each.operator not in {*CALLS, Operator.CASE} for each in operands
    )
    first, *others = (
        f"({text(e)})" if infix else text(e) for e, infix in zip(operands, is_infix, strict=True)
    )
    match operator:
        case Operator.NOT:
            return f"NOT {first}"
        case Operator.IS_NULL:
            return f"{first} IS NULL"
        case Operator.BETWEEN:
            return f"{first} BETWEEN {others[0]} AND {others[1]}"
        case Operator.IN:
            return f"{first} IN ({', '.join(others)})"
        case _:
            return f" {operator} ".join([first, *others])


def evaluate(
    clause: Clause, row: Mapping[Column, Value], functions: Mapping[SessionFunction, str | None]
) -> Value:
    """Return the value of a prepared clause for one row and one partition, None for NULL.

    The rules are those of `columns.column_of`, tied to it by a property test. Doubles that are NaN, casts of text to
    DOUBLE other than numbers, and dates after the year 9999 are excluded.
    """

    def of(part: Clause) -> Any:
        match part:
            case Literal(value):
                return value
            case Column():
                return row[part]
            case Function(name):
                return functions[name]
            case Cast(operand, type_):
                return cast(of(operand), type_)
            case Operation(operator, operands):
                return operation(operator, tuple(of(operand) for operand in operands))

    return of(clause)  # type: ignore[no-any-return]


def operation(operator: Operator, values: tuple[Any, ...]) -> Any:
    """Return the result of an operator (Kleene's logic for AND, OR and NOT)."""
    match operator:
        case Operator.AND:
            return False if False in values else None if None in values else True
        case Operator.OR:
            return True if True in values else None if None in values else False
        case Operator.IS_NULL:
            return values[0] is None
        case Operator.CASE:
            met = (value for condition, value in zip(values[:-1:2], values[1::2], strict=True) if condition)
            return next(met, values[-1])
        case Operator.COALESCE:
            return next((value for value in values if value is not None), None)
        case Operator.NULL_SAFE_EQUAL:
            return values[0] == values[1]
        case Operator.IN:
            return operation(
                Operator.OR, tuple(operation(Operator.EQUAL, (values[0], v)) for v in values[1:])
            )
        case Operator.BETWEEN:
            value, low, high = values
            at_least = operation(Operator.GREATER_OR_EQUAL, (value, low))
            return operation(Operator.AND, (at_least, operation(Operator.LESS_OR_EQUAL, (value, high))))
    if None in values:
        return None
    if operator in ARITHMETIC:
        return _computed(operator, *values)
    return _OF_VALUES[operator](*values)


_OF_VALUES: Mapping[Operator, Any] = {
    Operator.NOT: lambda value: not value,
    Operator.EQUAL: lambda one, other: one == other,
    Operator.NOT_EQUAL: lambda one, other: one != other,
    Operator.LESS: lambda one, other: _ordered(one) < _ordered(other),
    Operator.LESS_OR_EQUAL: lambda one, other: _ordered(one) <= _ordered(other),
    Operator.GREATER: lambda one, other: _ordered(one) > _ordered(other),
    Operator.GREATER_OR_EQUAL: lambda one, other: _ordered(one) >= _ordered(other),
    Operator.LIKE: lambda value, pattern: like(pattern).fullmatch(value) is not None,
    Operator.CONCATENATE: lambda *values: "".join(values),
    Operator.UPPER: lambda value: value.upper(),
    Operator.LOWER: lambda value: value.lower(),
    Operator.TRIM: lambda value: value.strip(" "),
    Operator.LTRIM: lambda value: value.lstrip(" "),
    Operator.RTRIM: lambda value: value.rstrip(" "),
    Operator.LENGTH: len,
    Operator.SUBSTRING: lambda value, start, length: value[start - 1 : start - 1 + length],
    Operator.YEAR: lambda value: value.year,
    Operator.MONTH: lambda value: value.month,
    Operator.DAY: lambda value: value.day,
}


def _ordered(value: Any) -> Any:
    """Return the form in which values compare: strings by their bytes."""
    return value.encode() if isinstance(value, str) else value


def like(pattern: str) -> re.Pattern[str]:
    r"""Return the pattern of a LIKE: `%` is any text, `_` one character; a backslash escapes these and itself.

    Raises: ClauseError for a backslash before another character, as in Spark.
    """
    found: list[str] = []
    letters = iter(pattern)
    for letter in letters:
        if letter == "\\":
            escaped = next(letters, "")
            if escaped not in ("%", "_", "\\"):
                raise ClauseError(r"has a LIKE pattern with a backslash that is not before `%`, `_` or `\`")
            found.append(re.escape(escaped))
        else:
            found.append({"%": ".*", "_": "."}.get(letter, re.escape(letter)))
    return re.compile("".join(found), re.DOTALL)


_CONTEXT = Context(prec=76)
_WHOLE = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


def _computed(operator: Operator, one: Any, other: Any) -> Any:
    """Return a sum, difference, product, quotient or remainder; None where it overflows or divides by zero."""
    if operator in (Operator.DIVIDE, Operator.REMAINDER) and other == 0:
        return None
    match operator:
        case Operator.ADD:
            result = one + other
        case Operator.SUBTRACT:
            result = one - other
        case Operator.MULTIPLY:
            result = one * other
        case Operator.DIVIDE:
            return one / other
        case Operator.REMAINDER:
            # With the sign of the dividend, as in SQL; Python's has that of the divisor.
            result = (abs(one) % abs(other)) * (1 if one >= 0 else -1)
    return cast(result, "bigint") if isinstance(result, int) else result


def cast(value: Any, type_: str) -> Any:
    """Return a value in another type (Spark DDL), None if it cannot be converted."""
    if value is None:
        return None
    name, _, parameters = type_.partition("(")
    try:
        if name in _WHOLE:
            return _whole(value, _WHOLE[name])
        if name == "decimal":
            precision, scale = (int(number) for number in parameters.rstrip(")").split(","))
            return _decimal(value, precision, scale)
        return _CASTS[name](value)
    except (ValueError, ArithmeticError, struct.error):
        return None


def _whole(value: Any, bits: int) -> int | None:
    if isinstance(value, str):
        if not re.fullmatch(r"[+-]?[0-9]+", value := _trimmed(value)):
            return None
        number = int(value)
    elif isinstance(value, Decimal):
        number = int(value.to_integral_value(ROUND_DOWN))
    else:
        number = int(value)
    return number if -(1 << bits) <= number < 1 << bits else None


def _decimal(value: Any, precision: int, scale: int) -> Decimal | None:
    if isinstance(value, str) and not _NUMBER.fullmatch(value := _trimmed(value)):
        return None
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    rounded = exact.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _CONTEXT)
    return rounded if len(rounded.as_tuple().digits) <= precision else None


_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?", re.DOTALL)
_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})


def _trimmed(value: str) -> str:
    """Return text without blanks and control characters around it, as Spark casts it."""
    return value.strip("".join(map(chr, range(33))) + "\x7f")


def _double(value: Any) -> float | None:
    if isinstance(value, str) and not _NUMBER.fullmatch(value := _trimmed(value)):
        return None
    return float(value)


def _float(value: Any) -> float | None:
    number = _double(value)
    return None if number is None else float(struct.unpack("f", struct.pack("f", number))[0])


def _string(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)


def _boolean(value: Any) -> bool | None:
    if not isinstance(value, str):
        return bool(value)
    word = _trimmed(value).lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _date(value: Any) -> date | None:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    found = _DATE.fullmatch(_trimmed(value))
    return date(*(int(part or 1) for part in found.groups())) if found else None


def _moment(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(_trimmed(value))


_CASTS: Mapping[str, Any] = {
    "double": _double,
    "float": _float,
    "string": _string,
    "boolean": _boolean,
    "date": _date,
    "timestamp": _moment,
    "timestamp_ntz": _moment,
}
