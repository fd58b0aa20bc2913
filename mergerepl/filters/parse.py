"""A clause's text to our own tree, by an allow-list. The only module that knows the SQL parser.

The text itself never runs: Spark columns are made only from the tree. So it is harmless if the parser reads a text
differently than Spark, and `apply` prints the canonical text of the tree.

    clause = parse_filter("region = HOST_NAME()")
    on = parse_on("customers.id = orders.customer", parent="customers", article="orders")
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from types import ModuleType
from typing import Any

from mergerepl.filters.clause import (
    Cast,
    Clause,
    ClauseError,
    Column,
    Function,
    Literal,
    Operation,
    Operator,
    SessionFunction,
    columns_of,
    functions_of,
    like,
    walk,
)

MOST_CHARACTERS = 1_000
MOST_NODES = 500
DEEPEST = 50
_FRAMES = 20_000
"""Python frames that a text of `MOST_CHARACTERS` cannot exhaust: the parser takes some 25 for a bracket."""

Node = Any
"""A node of the parser's tree."""


def parse_filter(text: str) -> Clause:
    """Return the tree of an article's own filter.

    Raises: ClauseError if it cannot be read, is too large or uses a forbidden construct.
    """
    clause = _parsed(text, is_stored=False)
    for column in columns_of(clause):
        if column.article is not None:
            raise ClauseError(
                f"names the column '{column.article}.{column.name}'; a filter is about one table: write "
                f"`{column.name}`, and use `joins` for rows of other articles"
            )
    return clause


def parse_on(text: str, *, parent: str, article: str) -> Clause:
    """Return the tree of a join filter's `on`: every column has its article's name, and functions are not allowed.

    Raises: ClauseError as `parse_filter`, and if no equality relates a parent's to a child's column.
    """
    clause = _parsed(text, is_stored=False)
    for column in columns_of(clause):
        if column.article is None:
            raise ClauseError(
                f"names the column '{column.name}' without its article: write `{parent}.{column.name}` or "
                f"`{article}.{column.name}`"
            )
        if column.article not in (parent, article):
            raise ClauseError(
                f"names the article '{column.article}'; here are only '{parent}' and '{article}'"
            )
    if functions := functions_of(clause):
        raise ClauseError(f"uses {min(functions)}(): that belongs in an article's filter")
    terms = (
        clause.operands if isinstance(clause, Operation) and clause.operator is Operator.AND else (clause,)
    )
    equalities = (each for each in terms if isinstance(each, Operation) and each.operator is Operator.EQUAL)
    sides = [[{column.article for column in columns_of(side)} for side in e.operands] for e in equalities]
    if [{parent}, {article}] not in sides and [{article}, {parent}] not in sides:
        raise ClauseError(f"needs an equality of a column of '{parent}' with one of '{article}'")
    return clause


def parse_stored(text: str) -> Clause:
    """Return the tree of a canonical text; casts may have made it longer than a user's text may be."""
    return _parsed(text, is_stored=True)


def _parsed(text: str, *, is_stored: bool) -> Clause:
    if not is_stored and len(text) > MOST_CHARACTERS:
        raise ClauseError(f"has {len(text):,} characters; the most is {MOST_CHARACTERS:,}")
    read = _reader()
    with _deep_stack():
        clause = read.clause(read.node(text, is_stored=is_stored))
        if is_stored:
            return clause
        if (nodes := sum(1 for _ in walk(clause))) > MOST_NODES:
            raise ClauseError(
                f"has {nodes:,} parts (columns, constants and operators); the most is {MOST_NODES}"
            )
        if (depth := _depth(clause)) > DEEPEST:
            raise ClauseError(f"is nested {depth} deep; the most is {DEEPEST}")
    return clause


def _depth(clause: Clause) -> int:
    match clause:
        case Cast(operand):
            return 1 + _depth(operand)
        case Operation(_, operands):
            return 1 + max(map(_depth, operands))
        case _:
            return 1


@contextmanager
def _deep_stack() -> Iterator[None]:
    """Let the parser, which recurses for every bracket, exceed Python's usual recursion limit."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@cache
def _reader() -> "_Reader":
    # A late import: it takes 0.2 s, and most commands meet no clause.
    import sqlglot.errors
    from sqlglot import expressions
    from sqlglot.dialects.dialect import Dialect

    return _Reader(expressions, sqlglot.errors, Dialect.get_or_raise("spark"))


class _Reader:
    """The parser, and the conversion of each kind of its nodes. A kind without an entry is refused by name."""

    def __init__(self, expressions: ModuleType, errors: ModuleType, dialect: Any) -> None:
        self.expressions, self.errors, self.dialect = exp, _, _ = expressions, errors, dialect
        self.infix: Mapping[type, Operator] = {
            exp.EQ: Operator.EQUAL,
            exp.NEQ: Operator.NOT_EQUAL,
            exp.LT: Operator.LESS,
            exp.LTE: Operator.LESS_OR_EQUAL,
            exp.GT: Operator.GREATER,
            exp.GTE: Operator.GREATER_OR_EQUAL,
            exp.NullSafeEQ: Operator.NULL_SAFE_EQUAL,
            exp.Add: Operator.ADD,
            exp.Sub: Operator.SUBTRACT,
            exp.Mul: Operator.MULTIPLY,
            exp.Div: Operator.DIVIDE,
            exp.Mod: Operator.REMAINDER,
            exp.DPipe: Operator.CONCATENATE,
        }
        self.chains: Mapping[type, Operator] = {exp.And: Operator.AND, exp.Or: Operator.OR}
        self.read: Mapping[type, Callable[[Node], Clause]] = {
            exp.Anonymous: self._function,
            exp.Between: self._between,
            exp.Boolean: lambda node: Literal(self._only(node, "this")),
            exp.Case: self._case,
            exp.Cast: self._cast,
            exp.Coalesce: self._coalesce,
            exp.Column: self._column,
            exp.In: self._in,
            exp.Is: self._is_null,
            exp.Like: self._like,
            exp.Literal: self._literal,
            exp.Lower: lambda node: self._call(Operator.LOWER, node),
            exp.Neg: self._negative,
            exp.Not: lambda node: Operation(Operator.NOT, (self.clause(self._only(node, "this")),)),
            exp.Null: lambda _: Literal(None),
            exp.Paren: lambda node: self.clause(self._only(node, "this")),
            exp.Trim: self._trim,
            exp.TryCast: self._cast,
            exp.Length: lambda node: self._call(Operator.LENGTH, node),
            exp.Substring: self._substring,
            exp.Year: lambda node: self._of_date(Operator.YEAR, node),
            exp.Month: lambda node: self._of_date(Operator.MONTH, node),
            exp.Day: lambda node: self._of_date(Operator.DAY, node),
            exp.DayOfMonth: lambda node: self._of_date(Operator.DAY, node),
            exp.Upper: lambda node: self._call(Operator.UPPER, node),
        }

    def node(self, text: str, *, is_stored: bool) -> Node:
        """Return the parser's tree of a text that holds one expression."""
        try:
            tokens = self.dialect.tokenize(text)
            if any(token.comments for token in tokens):
                raise ClauseError("holds a comment")
            if not is_stored:
                brackets = sum(token.token_type.name == "L_PAREN" for token in tokens)
                if brackets > MOST_NODES:
                    raise ClauseError(f"has {brackets} brackets; the most is {MOST_NODES}")
            found = self.dialect.parser().parse_into(self.expressions.Condition, tokens, text)
        except (self.errors.TokenError, self.errors.ParseError) as error:
            raise ClauseError(_unreadable(text, error)) from None
        except RecursionError:
            raise ClauseError("is nested too deeply to be read") from None
        nodes = [node for node in found if node is not None]
        if len(nodes) > 1:
            raise ClauseError("is more than one expression")
        if not nodes:
            raise ClauseError("is empty")
        return nodes[0]

    def clause(self, node: Node) -> Clause:
        """Return our tree of a node."""
        kind = type(node)
        if operator := self.infix.get(kind):
            # `safe` and `typed` only affect the node's text for another database.
            one, other = self._parts(node, "this", "expression", ignored=("safe", "typed"))
            return Operation(operator, (self.clause(one), self.clause(other)))
        if operator := self.chains.get(kind):
            return Operation(operator, tuple(self.clause(part) for part in _chain(node, kind)))
        if read := self.read.get(kind):
            return read(node)
        raise _refused(self._name(node))

    def _parts(self, node: Node, *names: str, ignored: Iterable[str] = ()) -> list[Node]:
        """Return the arguments of a node; refuse a node with others."""
        for name, value in node.args.items():
            if name not in names and name not in ignored and value not in (None, False, []):
                raise _refused(f"{self._name(node)} with {name.upper()}")
        if any(node.args.get(name) is None for name in names):
            raise ClauseError(f"cannot be read: {self._name(node)} lacks a part")
        return [node.args[name] for name in names]

    def _only(self, node: Node, name: str) -> Any:
        return self._parts(node, name)[0]

    def _name(self, node: Node) -> str:
        exp = self.expressions
        match node:
            case exp.Anonymous():
                return str(node.name).upper()
            case exp.Subquery() | exp.Select() | exp.Exists() | exp.SetOperation():
                return "a sub-query"
            case exp.Window():
                return "a window"
            case exp.Lambda():
                return "a lambda"
            case exp.Placeholder() | exp.Parameter():
                return "a parameter"
            case exp.Concat() if all(isinstance(part, exp.Literal) for part in node.expressions):
                return r"strings side by side (a quote in a string is written \')"
            case exp.Dot():
                return f"{node.sql(dialect='spark')[:60]}, a name with a dot"
            case exp.Func():
                return str(node.sql_name())
            case _:
                return str(node.key).upper()

    def _call(self, operator: Operator, node: Node) -> Clause:
        return Operation(operator, (self.clause(self._only(node, "this")),))

    def _of_date(self, operator: Operator, node: Node) -> Clause:
        # The parser wraps what another database would have to convert.
        value = self._only(node, "this")
        inner = self._only(value, "this") if isinstance(value, self.expressions.TsOrDsToDate) else value
        return Operation(operator, (self.clause(inner),))

    def _substring(self, node: Node) -> Clause:
        value, *bounds = map(self.clause, self._parts(node, "this", "start", "length"))
        least = zip(bounds, (1, 0), strict=True)
        if not all(
            isinstance(each, Literal) and type(each.value) is int and each.value >= low for each, low in least
        ):
            raise _refused("SUBSTRING with a start below 1, a negative length, or one that is no number")
        return Operation(Operator.SUBSTRING, (value, *bounds))

    def _case(self, node: Node) -> Clause:
        (whens,) = self._parts(node, "ifs", ignored=("this", "default"))
        value = None if node.args.get("this") is None else self.clause(node.args["this"])
        operands: list[Clause] = []
        for when in whens:
            condition, then = map(self.clause, self._parts(when, "this", "true"))
            is_met = condition if value is None else Operation(Operator.EQUAL, (value, condition))
            operands += (is_met, then)
        otherwise = node.args.get("default")
        last = Literal(None) if otherwise is None else self.clause(otherwise)
        return Operation(Operator.CASE, (*operands, last))

    def _trim(self, node: Node) -> Clause:
        (text,) = self._parts(node, "this", ignored=("position",))
        sides = {"LEADING": Operator.LTRIM, "TRAILING": Operator.RTRIM}
        return Operation(sides.get(str(node.args.get("position")), Operator.TRIM), (self.clause(text),))

    def _coalesce(self, node: Node) -> Clause:
        first, others = self._parts(node, "this", "expressions", ignored=("is_nvl", "is_null"))
        return Operation(Operator.COALESCE, tuple(self.clause(part) for part in (first, *others)))

    def _function(self, node: Node) -> Clause:
        name = str(node.name).upper()
        if name not in SessionFunction.__members__:
            raise _refused(name)
        if node.expressions:
            raise _refused(f"{name} with an argument")
        return Function(SessionFunction[name])

    def _column(self, node: Node) -> Clause:
        if node.args.get("db") is not None:
            raise _refused(f"{node.sql(dialect='spark')[:60]}, a name with two dots")
        name = self._parts(node, "this", ignored=("table",))[0]
        if not isinstance(name, self.expressions.Identifier):
            raise _refused(self._name(name))
        return Column(name.name, node.table or None)

    def _literal(self, node: Node) -> Clause:
        value = node.this
        if node.args["is_string"]:
            return Literal(value)
        if "e" in value.lower():
            return Cast(Literal(_decimal(value)), "double")
        if "." in value:
            return Literal(_decimal(value))
        if not value.isascii() or not value.isdigit() or len(value) > 19 or int(value) >= 1 << 63:
            raise ClauseError(f"holds the number {value[:30]}, which is no BIGINT")
        return Literal(int(value))

    def _negative(self, node: Node) -> Clause:
        clause = self.clause(self._only(node, "this"))
        if isinstance(clause, Literal) and isinstance(clause.value, int | Decimal):
            return Literal(-clause.value)
        return Operation(Operator.SUBTRACT, (Literal(0), clause))

    def _is_null(self, node: Node) -> Clause:
        one, other = self._parts(node, "this", "expression")
        if not isinstance(other, self.expressions.Null):
            raise _refused(f"IS {other.sql(dialect='spark')[:20]}")
        return Operation(Operator.IS_NULL, (self.clause(one),))

    def _between(self, node: Node) -> Clause:
        parts = self._parts(node, "this", "low", "high")
        return Operation(Operator.BETWEEN, tuple(map(self.clause, parts)))

    def _in(self, node: Node) -> Clause:
        if node.args.get("query") is not None:
            raise _refused("a sub-query")
        value, values = self._parts(node, "this", "expressions")
        if not values:
            raise ClauseError("cannot be read: IN has an empty list")
        return Operation(Operator.IN, (self.clause(value), *map(self.clause, values)))

    def _like(self, node: Node) -> Clause:
        one, other = self._parts(node, "this", "expression", ignored=("negate",))
        pattern = self.clause(other)
        if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            raise _refused("LIKE with another pattern than a text in quotes")
        like(pattern.value)
        clause = Operation(Operator.LIKE, (self.clause(one), pattern))
        return Operation(Operator.NOT, (clause,)) if node.args.get("negate") else clause

    def _cast(self, node: Node) -> Clause:
        one, to = self._parts(node, "this", "to", ignored=("safe",))
        operand = self.clause(one)
        type_ = self._type(to)
        is_text = isinstance(operand, Literal) and isinstance(operand.value, str)
        if type_ in ("timestamp", "timestamp_ntz") and not is_text:
            raise _refused(f"CAST to {type_.upper()}")
        return Cast(operand, type_)

    def _type(self, to: Node) -> str:
        parameters = [int(part.name) for part in to.expressions if part.name.isdigit()]
        name = _TYPES.get(to.this.name if hasattr(to.this, "name") else str(to.this))
        if name is None or to.args.get("nested") or len(parameters) != len(to.expressions):
            raise _refused(f"CAST to {to.sql(dialect='spark')[:40]}")
        if name != "decimal":
            return name
        precision, scale = [*parameters, *[10, 0][len(parameters) :]][:2]
        if not 0 < precision <= 38 or scale > precision:
            raise _refused(f"CAST to DECIMAL({precision},{scale})")
        return f"decimal({precision},{scale})"


_TYPES = {
    "BOOLEAN": "boolean",
    "TINYINT": "tinyint",
    "SMALLINT": "smallint",
    "INT": "int",
    "BIGINT": "bigint",
    "FLOAT": "float",
    "DOUBLE": "double",
    "DECIMAL": "decimal",
    "TEXT": "string",
    "DATE": "date",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
}


def _refused(what: str) -> ClauseError:
    return ClauseError(f"uses {what}, which a filter may not use (docs/filters.md lists what it may)")


def _decimal(value: str) -> Decimal:
    number = Decimal(value)
    _, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int) or max(len(digits), -exponent, len(digits) + exponent) > 38:
        raise ClauseError(f"holds the number {value[:30]}, which has more than 38 digits")
    return number


def _chain(node: Node, kind: type[Any]) -> list[Node]:
    """Return the terms of a AND b AND c, from the left, without recursion: the parser nests them, and they may be many."""
    found: list[Node] = []
    waiting = [node]
    while waiting:
        part = waiting.pop()
        while part.key == "paren" and isinstance(part.this, kind):
            part = part.this
        if isinstance(part, kind):
            waiting += [part.args["this"], part.args["expression"]]
        else:
            found.append(part)
    return found[::-1]


def _unreadable(text: str, error: Exception) -> str:
    """Return the place and reason of a parse error, without the parser's markup."""
    found: dict[str, Any] = (getattr(error, "errors", None) or [{}])[0]
    if "line" in found:
        before = "\n".join(text.split("\n")[: found["line"] - 1])
        at = len(before) + bool(before) + found["col"] - len(found["highlight"]) + 1
        if found["description"].startswith("Required keyword"):
            return f"cannot be read at character {at}: something is missing after {found['highlight']!r}"
        return f"cannot be read at character {at}: {found['highlight']!r} is not expected there"
    if open_quote := re.search(r"Missing (\S+) from (\d+):(\d+)", f"{error} {error.__cause__}"):
        return f"cannot be read: the {open_quote[1]} at character {open_quote[3]} is never closed"
    return "cannot be read: it is no expression of Spark SQL"
