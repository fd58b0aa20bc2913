"""Three readings of one clause agree: plain Python, our Spark columns, and Spark's own reading of the canonical text."""

import itertools
import re
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

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
    evaluate,
    text,
    walk,
)
from mergerepl.filters.columns import column_of, spark_operation
from mergerepl.filters.parse import parse_filter, parse_stored
from mergerepl.filters.prepare import prepare_clause
from mergerepl.filters.publication_filters import PublicationFilters
from mergerepl.frames import F, NeedsSparkError, in_process
from mergerepl.spark.in_memory import frame_of_tuples
from tests.executors import struct_of

pytestmark = pytest.mark.spark

TYPES = {
    "i": "int",
    "l": "bigint",
    "n": "decimal(9,2)",
    "x": "double",
    "s": "string",
    "c": "char(4)",
    "odd `name": "string",
    "b": "boolean",
    "d": "date",
}
NUMBERS, TEXTS = ("i", "l", "n", "x"), ("s", "c", "odd `name")
WORDS = (
    "",
    "a",
    "A ",
    " a",
    "ab",
    "%",
    "a_",
    "ß",
    "'",
    "\\",
    "12",
    "-3",
    "1.5",
    "2024-02-29",
    "true",
    "no",
    "\n",
)
ROWS: list[dict[str, Any]] = [
    dict(zip(TYPES, values, strict=True))
    for values in (
        (1, 2, Decimal("1.50"), 0.5, "a", "a   ", "%", True, date(2024, 2, 29)),
        (0, 0, Decimal("0.00"), 0.0, "", "    ", "", False, date(1970, 1, 1)),
        (-3, (1 << 63) - 1, Decimal("-1234567.89"), -2.5, "12", "12  ", "ß", True, date(9999, 12, 31)),
        (
            (1 << 31) - 1,
            -(1 << 63),
            Decimal("0.01"),
            1e300,
            "2024-02-29",
            "ab  ",
            "a\\",
            False,
            date(1, 1, 1),
        ),
        (7, 12, None, None, "A ", "A   ", "true", None, None),
        (None, None, Decimal("12.00"), 12.0, None, None, None, True, date(2024, 3, 1)),
    )
]
VALUES: list[dict[SessionFunction, str | None]] = [
    {SessionFunction.HOST_NAME: "a", SessionFunction.SUSER_SNAME: "12"},
    {SessionFunction.HOST_NAME: "' OR 1=1 --", SessionFunction.SUSER_SNAME: "2024-02-29"},
    {SessionFunction.HOST_NAME: "100%", SessionFunction.SUSER_SNAME: None},
]
COMPARE = (
    *(Operator.EQUAL, Operator.NOT_EQUAL, Operator.LESS, Operator.GREATER_OR_EQUAL),
    *(Operator.NULL_SAFE_EQUAL, Operator.LESS_OR_EQUAL, Operator.GREATER),
)
OF_DATES = (Operator.YEAR, Operator.MONTH, Operator.DAY)
ARITHMETIC = (Operator.ADD, Operator.SUBTRACT, Operator.MULTIPLY, Operator.DIVIDE, Operator.REMAINDER)


def operation(operator: Operator, *operands: Clause) -> Operation:
    return Operation(operator, operands)


words = st.sampled_from(WORDS).map(Literal)
texts = st.recursive(
    st.sampled_from(TEXTS).map(Column) | words | st.sampled_from(SessionFunction).map(Function),
    lambda inner: (
        st.builds(
            operation,
            st.sampled_from((Operator.UPPER, Operator.LOWER, Operator.TRIM, Operator.LTRIM, Operator.RTRIM)),
            inner,
        )
        | st.builds(operation, st.sampled_from((Operator.CONCATENATE, Operator.COALESCE)), inner, inner)
        | st.builds(
            lambda text, start, length: operation(Operator.SUBSTRING, text, Literal(start), Literal(length)),
            *(inner, st.integers(1, 4), st.integers(0, 4)),
        )
        | st.builds(
            lambda flag, one, other: operation(Operator.CASE, Column(flag), one, other),
            *(st.just("b"), inner, inner),
        )
    ),
    max_leaves=3,
) | st.sampled_from(("i", "l", "n", "b", "d")).map(lambda name: Cast(Column(name), "string"))
numbers = st.recursive(
    st.sampled_from(NUMBERS).map(Column)
    | st.sampled_from((0, 1, -3, 12, 1 << 40, Decimal("1.50"), Decimal("-0.1"))).map(Literal)
    | st.builds(Cast, texts, st.sampled_from(("int", "bigint", "double", "decimal(9,2)")))
    | st.builds(
        Cast, st.sampled_from(("i", "l", "n", "x", "b")).map(Column), st.sampled_from(("tinyint", "int"))
    )
    | texts.map(lambda text: operation(Operator.LENGTH, text))
    | st.sampled_from(OF_DATES).map(lambda each: operation(each, Column("d"))),
    lambda inner: st.builds(operation, st.sampled_from(ARITHMETIC), inner, inner),
    max_leaves=3,
)
days = (
    st.just(Column("d"))
    | st.builds(Cast, texts, st.just("date"))
    | st.sampled_from(("2024-02-29", "0001-01-01")).map(lambda day: Cast(Literal(day), "date"))
)


def comparisons(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    return (
        st.builds(operation, st.sampled_from(COMPARE), values, values)
        | st.builds(operation, st.just(Operator.BETWEEN), values, values, values)
        | st.builds(lambda *them: Operation(Operator.IN, them), values, values, values)
        | st.builds(operation, st.just(Operator.IS_NULL), values)
    )


PATTERNS = ("%", "a%", "_", r"\%", r"%\_", r"\\", "", "A_", "%b")
conditions = st.recursive(
    comparisons(texts)
    | comparisons(numbers)
    | comparisons(days)
    # A column of another type meets the text of a function: the cast is made by `prepared`.
    | st.builds(
        operation,
        st.sampled_from(COMPARE),
        st.sampled_from(("i", "l", "d", "n", "x")).map(Column),
        st.sampled_from(SessionFunction).map(Function),
    )
    | st.builds(operation, st.just(Operator.LIKE), texts, st.sampled_from(PATTERNS).map(Literal))
    | st.just(Column("b"))
    | st.builds(Cast, texts, st.just("boolean")),
    lambda inner: (
        st.builds(lambda *them: Operation(Operator.AND, them), inner, inner)
        | st.builds(lambda *them: Operation(Operator.OR, them), inner, inner, inner)
        | st.builds(operation, st.just(Operator.NOT), inner)
    ),
    max_leaves=4,
)


def compared(clause: Clause) -> Clause | None:
    """Return a drawn clause as it is prepared, or None where its types do not go together."""
    try:
        return prepare_clause(parse_filter(text(clause)), {None: TYPES})
    except ClauseError:
        return None


def can_fail(clause: Clause, row: dict[Column, Any], values: dict[SessionFunction, str | None]) -> bool:
    """Return whether something in the clause cannot be computed here: Spark's own reading would end the query."""
    return any(
        evaluate(part, row, values) is None
        and None not in [evaluate(operand, row, values) for operand in operands]
        for part in walk(clause)
        for operands in [
            (part.operand,)
            if isinstance(part, Cast)
            else part.operands
            if isinstance(part, Operation) and part.operator in ARITHMETIC
            else ()
        ]
        if operands
    )


def is_outside(clause: Clause, row: dict[Column, Any], values: dict[SessionFunction, str | None]) -> bool:
    """Return whether the clause makes a date here that Python has none of: those of Spark go on after the year 9999."""
    texts = [
        evaluate(part.operand, row, values)
        for part in walk(clause)
        if isinstance(part, Cast) and part.type == "date"
    ]
    return any(isinstance(each, str) and re.match(r"\s*[+-]?[0-9]{5}", each) for each in texts)


def spark_text(clause: Clause) -> str:
    """Return the canonical text with a column of the frame for each function."""
    return text(clause).replace("HOST_NAME()", "`HOST_NAME_FN`").replace("SUSER_SNAME()", "`SUSER_SNAME_FN`")


def draw(count: int) -> list[Clause]:
    """Return drawn clauses that can be prepared. They share a Spark job, so there is nothing to shrink."""
    found: dict[str, Clause] = {}

    @settings(max_examples=4 * count, phases=[Phase.generate], database=None, derandomize=True)
    @given(conditions)
    def collect(drawn: Clause) -> None:
        if len(found) < count and (clause := compared(drawn)) is not None:
            found.setdefault(text(clause), clause)

    collect()
    return list(found.values())


@pytest.mark.parametrize("count", [25, pytest.param(2000, marks=pytest.mark.slow)])
def test_python_columns_and_spark_agree(spark: SparkSession, count: int) -> None:
    clauses = draw(count)
    assert len(clauses) > count / 2
    for start in range(0, len(clauses), 250):
        agree(spark, clauses[start : start + 250])


CLAUSES_IN_PROCESS = (
    "i BETWEEN 0 AND 7 AND s >= SUSER_SNAME()",
    "s NOT BETWEEN 'A' AND HOST_NAME()",
    "n > 1.5 OR NOT b",
    "i IN (1, NULL, -3) OR l NOT IN (2)",
    "l <> i",
    "s <=> HOST_NAME()",
    "d IS NOT NULL AND b <> FALSE",
    "n <= i",
    "`odd ``name` < s",
    "NULL OR b = TRUE",
    "CASE WHEN i > 0 THEN 1 WHEN i > 1 THEN 2 END = 1",
    "CASE WHEN i > 0 THEN s WHEN b THEN 'a' END = HOST_NAME()",
    "CASE s WHEN 'a' THEN i WHEN SUSER_SNAME() THEN NULL ELSE 7 END > 0",
    "CASE WHEN NULL THEN d WHEN b THEN d END = d",
)


def test_python_and_columns_in_process_agree() -> None:
    clauses = [prepare_clause(parse_filter(each), {None: TYPES}) for each in CLAUSES_IN_PROCESS]
    assert not [each for each in clauses if spark_operation(PublicationFilters({"a": each}))]
    pairs = list(itertools.product(ROWS, VALUES))
    names = dict(zip([*TYPES, *SessionFunction], itertools.count()))
    types = [*(type_.replace("char(4)", "string") for type_ in TYPES.values()), "string", "string"]
    with in_process():
        frame = frame_of_tuples(
            None,
            [(*row.values(), *(values[name] for name in SessionFunction)) for row, values in pairs],
            struct_of(", ".join(f"c{i} {type_}" for i, type_ in enumerate(types))),
        )
        columns = [
            column_of(
                clause,
                column=lambda column: F.col(f"c{names[column.name]}"),
                function=lambda name: F.col(f"c{names[name]}"),
            ).alias(f"v{i}")
            for i, clause in enumerate(clauses)
        ]
        found = frame.select(*columns).collect()
    for row, (stated, values) in zip(found, pairs, strict=True):
        named = {Column(name): value for name, value in stated.items()}
        for clause, value in zip(clauses, row, strict=True):
            assert value == evaluate(clause, named, values), (text(clause), stated, values)


def test_comparisons_that_round_decimals_are_left_to_spark() -> None:
    types = {"whole": "decimal(38,0)", "n": "decimal(9,2)"}
    with in_process():
        frame = frame_of_tuples(None, [], struct_of("whole decimal(38,0), n decimal(9,2)"))
        for text_ in ("whole > 1.5", "whole = n"):
            clause = prepare_clause(parse_filter(text_), {None: types})
            condition = column_of(clause, column=lambda column: F.col(column.name))
            with pytest.raises(NeedsSparkError):
                frame.where(condition)


def agree(spark: SparkSession, clauses: list[Clause]) -> None:
    pairs = list(itertools.product(ROWS, VALUES))
    expected, failing, outside = [], [], []
    for row, values in pairs:
        named = {Column(name): value for name, value in row.items()}
        # A char(n) column is read with its padding.
        expected.append([evaluate(clause, named, values) for clause in clauses])
        failing.append([can_fail(clause, named, values) for clause in clauses])
        outside.append([is_outside(clause, named, values) for clause in clauses])
    assert [parse_stored(text(clause)) for clause in clauses] == clauses
    frame = spark.createDataFrame(
        [
            (number, *row.values(), *values.values(), failing[number])
            for number, (row, values) in enumerate(pairs)
        ],
        "number int, "
        + ", ".join(
            f"`{name.replace('`', '``')}` {type_.replace('char(4)', 'string')}"
            for name, type_ in TYPES.items()
        )
        + ", HOST_NAME_FN string, SUSER_SNAME_FN string, failing array<boolean>",
    )
    ours = [
        column_of(
            clause,
            column=lambda column: F.col("`" + column.name.replace("`", "``") + "`"),
            function=lambda name: F.col(f"{name}_FN"),
        )
        for clause in clauses
    ]
    its_own = [F.when(~F.col("failing")[i], F.expr(spark_text(clause))) for i, clause in enumerate(clauses)]
    found = frame.select("number", F.array(*ours).alias("ours"), F.array(*its_own).alias("its_own")).collect()
    for row in found:
        for i, clause in enumerate(clauses):
            if outside[row["number"]][i]:
                continue
            case = (text(clause), *pairs[row["number"]])
            assert row["ours"][i] == expected[row["number"]][i], case
            if not failing[row["number"]][i]:
                assert row["its_own"][i] == expected[row["number"]][i], case
    assert {value for row in expected for value in row} == {True, False, None}
    assert any(map(any, failing))
