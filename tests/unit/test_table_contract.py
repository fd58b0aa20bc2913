"""Why a table cannot take part: the list of problems, case by case, and the texts that a product states."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mergerepl.delta.contract.problems import Code, TableContract, write_problem
from mergerepl.delta.metadata import CHAR_VARCHAR, DEFAULT_EXPRESSION, GENERATION_EXPRESSION, TableMetadata
from mergerepl.delta.table import TableState
from mergerepl.store.location import Location


def column(name: str, type_: Any = "string", *, nullable: bool = True, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


def table(*fields: dict[str, Any], partitions: tuple[str, ...] = (), **properties: str) -> TableState:
    schema = json.dumps({"type": "struct", "fields": [column("id", "long"), *fields]})
    metadata = TableMetadata("", schema, properties, partitions)
    return TableState(Path("t"), 0, metadata, 1, 7, frozenset(), frozenset(), None, opened=None)  # type: ignore[arg-type]


STRUCT = {"type": "struct", "fields": [column("a b")]}
NOT_NULL_PART = {"type": "array", "elementType": "long", "containsNull": False}
COLUMNS = [
    (column("_Change_type"), {Code.FEED_NAME}),
    (column("_metadata"), {Code.MERGE_NAME}),
    (column("a b"), {Code.MAPPED_NAME}),
    (column("s", STRUCT), {Code.MAPPED_PART, Code.BACKTICK_PART}),
    (column("a`b"), {Code.BACKTICK}),
    (column("v", "void"), {Code.VOID}),
    (column("v", "variant"), {Code.TYPE}),
    (column("s", __COLLATIONS={"s": "spark.UTF8_LCASE"}), {Code.COLLATED}),
    (column("n", "long", **{"delta.identity.start": 1}), {Code.IDENTITY}),
    (column("n", "long", **{GENERATION_EXPRESSION: "id + 1"}), {Code.GENERATED}),
    (column("n", NOT_NULL_PART), {Code.INNER_RULE}),
    (
        column("s", {**NOT_NULL_PART, "containsNull": True}, **{CHAR_VARCHAR: "array<char(3)>"}),
        {Code.INNER_LENGTH},
    ),
    (column("s", **{CHAR_VARCHAR: "char(3)"}), set()),
    (column("n", "long", nullable=False), set()),
]


@pytest.mark.parametrize(("field", "codes"), COLUMNS)
def test_columns_have_these_problems(field: dict[str, Any], codes: set[Code]) -> None:
    assert {each.code for each in TableContract(table(field)).problems()} == codes


def test_a_column_that_takes_no_part_has_only_problems_of_any_column() -> None:
    needs_value = column("n", "long", nullable=False)
    has_default = column("d", "long", nullable=False, **{DEFAULT_EXPRESSION: "1"})
    odd = table(column("_metadata"), column("v", "void"), needs_value, has_default)
    found = [(each.code, each.column) for each in TableContract(odd, ["id"]).problems()]
    assert found == [(Code.MERGE_NAME, "_metadata"), (Code.UNFILLED, "n")]


@pytest.mark.parametrize(
    ("field", "code"),
    [
        (column("k", "double"), Code.KEY_TYPE),
        (column("k", __COLLATIONS={"k": "spark.UTF8_LCASE"}), Code.KEY_TYPE),
        (column("k", **{CHAR_VARCHAR: "char(3)"}), Code.KEY_PADDED),
        (column("k", "decimal(20,2)"), None),
    ],
)
def test_keys_have_one_form(field: dict[str, Any], code: Code | None) -> None:
    found = TableContract(table(field), key=["k"]).find(Code.KEY_TYPE, Code.KEY_PADDED)
    assert (found and found.code) == code


def test_the_order_of_the_texts_decides_which_problem_is_told() -> None:
    odd = table(
        column("_metadata"), **{"delta.isolationLevel": "WriteSerializable", "delta.appendOnly": "true"}
    )
    problem = write_problem(odd, takes_away=True)
    assert problem is not None
    assert problem[0].startswith("table 't' has delta.isolationLevel = WriteSerializable: a row")
    contract = TableContract(odd)
    assert contract.explain({Code.MERGE_NAME: ("{column}", "x"), Code.ISOLATION: ("{detail}", "y")}) == (
        "_metadata",
        "x",
    )
    assert contract.explain({Code.PROTOCOL: ("", "")}) is None


@pytest.mark.parametrize(
    ("place", "features", "properties", "code"),
    [
        ("s3://lake/hq/t", {"clustering", "domainMetadata"}, {}, Code.UNFENCED),
        ("s3://lake/hq/t", {"deletionVectors"}, {}, None),
        ("hq/t", {"clustering"}, {}, None),
        ("s3://lake/hq/t", set(), {"delta.setTransactionRetentionDuration": "interval 1 day"}, Code.EXPIRING),
        ("hq/t", set(), {"delta.setTransactionRetentionDuration": "interval 1 day"}, None),
    ],
)
def test_a_table_in_a_store_must_take_fences_and_keep_them(
    place: str, features: set[str], properties: dict[str, str], code: Code | None
) -> None:
    found = TableContract(
        replace(table(**properties), path=Location.of(place), features=frozenset(features))
    ).find(Code.UNFENCED, Code.EXPIRING)
    assert (found and found.code) == code
