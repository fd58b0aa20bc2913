"""Whether every value of a type can be stored in a column of another type: one rule for all products."""

import pytest

from mergerepl.delta.types import Json, fits, is_widening, json_of

CASES = [
    # value, column, fits
    ("int", "int", True),
    ("int", "bigint", True),
    ("bigint", "int", False),
    ("tinyint", "smallint", True),
    ("int", "double", True),
    ("bigint", "double", False),
    ("smallint", "float", True),
    ("int", "float", False),
    ("float", "double", True),
    ("double", "float", False),
    ("double", "int", False),
    ("decimal(5,2)", "decimal(9,4)", True),
    ("decimal(5,2)", "decimal(5,3)", False),
    ("decimal(9,4)", "decimal(5,2)", False),
    ("decimal(5,2)", "double", False),
    ("int", "decimal(10,0)", True),
    ("int", "decimal(10,1)", False),
    ("bigint", "decimal(20,0)", True),
    ("date", "timestamp_ntz", True),
    ("date", "timestamp", False),
    ("timestamp_ntz", "timestamp", False),
    ("timestamp", "date", False),
    ("int", "string", False),
    ("string", "binary", False),
    ("array<int>", "array<bigint>", True),
    ("array<bigint>", "array<int>", False),
    ("map<string,int>", "map<string,bigint>", True),
    ("map<bigint,int>", "map<int,int>", False),
    ("struct<a:int,b:string>", "struct<A:bigint,b:string>", True),
    ("struct<a:int,b:string>", "struct<a:int>", False),
    ("struct<a:int>", "struct<a:int,b:string>", False),
    ("struct<a:int>", "int", False),
    ("int", "array<int>", False),
]


@pytest.mark.parametrize(("value", "column", "expected"), CASES)
def test_every_value_of_a_type_fits_a_wider_one(value: str, column: str, expected: bool) -> None:
    assert fits(json_of(value), json_of(column)) is expected


def test_parts_that_may_be_null_are_not_compared() -> None:
    strict: Json = {"type": "array", "elementType": "integer", "containsNull": False}
    assert fits(json_of("array<int>"), strict)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("tinyint", "int", True),
        ("int", "bigint", True),
        ("int", "int", False),
        ("bigint", "int", False),
        ("int", "double", True),
        ("smallint", "float", False),
        ("tinyint", "decimal(10,0)", True),
        ("tinyint", "decimal(5,0)", False),
        ("bigint", "decimal(20,0)", True),
        ("bigint", "decimal(19,0)", False),
        ("decimal(5,2)", "decimal(7,4)", True),
        ("decimal(5,2)", "decimal(7,5)", False),
        ("float", "double", True),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),
        ("array<int>", "array<bigint>", False),
    ],
)
def test_a_type_that_delta_widens_to(before: str, after: str, expected: bool) -> None:
    assert is_widening(before, after) is expected
