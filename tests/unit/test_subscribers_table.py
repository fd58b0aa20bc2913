"""The statements, in order, that bring a subscriber's table to the publisher's columns, and what stops them."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.delta.metadata import TableMetadata
from mergerepl.delta.tables import TableState, open_table
from mergerepl.errors import SchemaStoppedError
from mergerepl.merge.schema.subscribers_table import SubscribersTable
from mergerepl.model.definition import Definition, PublishedField
from mergerepl.store.location import Location


def definition(names: str) -> Definition:
    """Return a definition with fields in the order of their numbers; `-` is a number that is not published."""
    numbered = enumerate(names.split())
    return Definition(1, 1, tuple(PublishedField(n, name, "string") for n, name in numbered if name != "-"))


def table(names: str, *, is_mapped: bool = True) -> TableState:
    """Return a table with these columns; one that ends in `!` is NOT NULL."""
    fields = [
        {"name": name.rstrip("!"), "type": "string", "nullable": not name.endswith("!"), "metadata": {}}
        for name in names.split()
    ]
    properties = {"delta.columnMapping.mode": "name"} if is_mapped else {}
    metadata = TableMetadata("t", json.dumps({"type": "struct", "fields": fields}), properties, ())
    return TableState(Location.of("/t"), 0, metadata, 1, 7, frozenset(), frozenset(), None, None)  # type: ignore[arg-type]


def steps(
    known: str, target: str, there: str, *, is_mapped: bool = True, skipped: Collection[tuple[int, str]] = ()
) -> list[str]:
    found = SubscribersTable(
        *("t", "/north", table(there, is_mapped=is_mapped), definition(known), definition(target)),
        table(target.replace("-", "")),
        left=known.split(),
        skipped=skipped,
    ).steps()
    return [f"{each.what.to_step()} {each.statement}" for each in found]


@pytest.mark.parametrize(
    ("known", "target", "there", "expected"),
    [
        ("a b", "a b", "a b", []),
        ("a b", "a x", "a b", ["schema:rename:c1:x RENAME COLUMN `b` TO `x`"]),
        # The name is free once the other one has its own.
        (
            "a b",
            "b x",
            "a b",
            ["schema:rename:c1:x RENAME COLUMN `b` TO `x`", "schema:rename:c0:b RENAME COLUMN `a` TO `b`"],
        ),
        (
            "a b c",
            "b c a",
            "a b c own",
            [
                "schema:rename:c0:b__0 RENAME COLUMN `a` TO `b__0`",
                "schema:rename:c2:a RENAME COLUMN `c` TO `a`",
                "schema:rename:c1:c RENAME COLUMN `b` TO `c`",
                "schema:rename:c0:b RENAME COLUMN `b__0` TO `b`",
            ],
        ),
        # What a step that died has done already.
        (
            "b__0 b",
            "b a",
            "b__0 b",
            ["schema:rename:c1:a RENAME COLUMN `b` TO `a`", "schema:rename:c0:b RENAME COLUMN `b__0` TO `b`"],
        ),
        (
            "a b",
            "a x b",
            "a b",
            ["schema:rename:c1:x RENAME COLUMN `b` TO `x`", "schema:add:c2:b ADD COLUMN `b` string"],
        ),
        # A column of the table's own of that name and type.
        ("a b", "a b x", "a b x own", ["schema:adopt:c2:x ALTER COLUMN `x` COMMENT ''"]),
    ],
)
def test_statements(known: str, target: str, there: str, expected: list[str]) -> None:
    assert steps(known, target, there) == expected


@pytest.mark.parametrize(
    ("target", "there", "is_mapped", "expected"),
    [
        ("a -", "a b", True, ["schema:drop:c1:b DROP COLUMN `b`"]),
        ("a -", "a b", False, ["schema:leave:c1:b "]),
        ("a -", "a b!", False, ["schema:leave:c1:b ALTER COLUMN `b` DROP NOT NULL"]),
        # The name is free for another column.
        (
            "b -",
            "a b",
            True,
            ["schema:drop:c1:b DROP COLUMN `b`", "schema:rename:c0:b RENAME COLUMN `a` TO `b`"],
        ),
        ("a - b", "a b", True, ["schema:drop:c1:b DROP COLUMN `b`", "schema:add:c2:b ADD COLUMN `b` string"]),
    ],
)
def test_drops_come_first(target: str, there: str, is_mapped: bool, expected: list[str]) -> None:
    assert steps("a b", target, there, is_mapped=is_mapped) == expected


@pytest.mark.parametrize(
    ("target", "there", "is_mapped", "says"),
    [
        ("a x", "a b", False, "SET TBLPROPERTIES \\('delta.columnMapping.mode' = 'name'\\), then run"),
        (
            "a x",
            "a b X",
            True,
            "the publisher renamed a column to 'x' and table '/t' has a column of that name",
        ),
        ("b x", "a b x", True, "renamed a column to 'x' and table"),
        # What a drop left in the table is the subscriber's own.
        (
            "a - b",
            "a b",
            False,
            r"of its own \(string\). It is published here until the next `mergerepl sync`",
        ),
        (
            "a b x",
            "a b X",
            True,
            "the publisher added column 'x' and table '/t' has a column of that name of its own",
        ),
    ],
)
def test_what_the_table_cannot_take(target: str, there: str, is_mapped: bool, says: str) -> None:
    with pytest.raises(SchemaStoppedError, match=says):
        steps("a b", target, there, is_mapped=is_mapped)


def test_a_column_that_comes_back_is_emptied_or_freed(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"a": ["x"], "b": ["old"]}))
    path = Location.of(tmp_path)

    def of(there: TableState) -> list[str]:
        known, target = (definition(each) for each in ("a -", "a - b"))
        found = SubscribersTable("t", "/n", there, known, target, table("a b"), left=("a", "b")).steps()
        return [f"{each.what.to_step()} {each.statement}" for each in found]

    with pytest.raises(SchemaStoppedError, match="SET `b` = NULL WHERE `b` IS NOT NULL, then run"):
        of(open_table(path))
    with pytest.raises(
        SchemaStoppedError, match=r"drop that one: run ALTER TABLE [^,]* DROP COLUMN `b`, then"
    ):
        of(table("a b"))
    # Delta-rs cannot read it.
    opaque = replace(open_table(path), reader_features=frozenset({"deletionVectors"}))
    with pytest.raises(SchemaStoppedError, match=r"'name'\), after which deltalake .* DROP COLUMN `b`, then"):
        of(opaque)
    DeltaTable(str(tmp_path)).update({"b": "NULL"})
    assert of(open_table(path)) == ["schema:adopt:c2:b ALTER COLUMN `b` COMMENT ''"]


def test_a_column_that_stays_ends_before_another_one_gets_its_name() -> None:
    def leaves(known: str, target: str, *, is_mapped: bool) -> list[str]:
        there = table("a b", is_mapped=is_mapped)
        found = SubscribersTable("t", "/n", there, definition(known), definition(target), there).leaves()
        return [each.what.to_step() for each in found]

    assert leaves("a b", "a - b", is_mapped=False) == ["schema:leave:c1:b"]
    assert leaves("a b", "a - b", is_mapped=True) == []
    assert leaves("a b", "a - c", is_mapped=False) == []


def typed(properties: dict[str, str], features: frozenset[str], **types: str) -> TableState:
    """Return a table whose columns have these types, as the log states them."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in types.items()]
    metadata = TableMetadata("t", json.dumps({"type": "struct", "fields": fields}), properties, ())
    return TableState(Location.of("/t"), 0, metadata, 1, 7, frozenset(), features, None, None)  # type: ignore[arg-type]


WIDENS = {"delta.enableTypeWidening": "true"}
NTZ = frozenset({"timestampNtz"})


def of_type(type_: str) -> Definition:
    return Definition(1, 1, (PublishedField(0, "a", type_),))


def type_steps(there: TableState, known: str, target: str) -> list[str]:
    found = SubscribersTable("t", "/north", there, of_type(known), of_type(target), there).steps()
    return [f"{each.what.to_step()} {each.statement}" for each in found]


def test_a_wider_type() -> None:
    altered = ["schema:type:c0:a ALTER COLUMN `a` TYPE BIGINT"]
    assert type_steps(typed(WIDENS, NTZ, a="integer"), "int", "bigint") == altered
    assert type_steps(typed(WIDENS, NTZ, a="integer"), "smallint", "bigint") == altered
    # The subscriber's user gave it that type already.
    assert type_steps(typed({}, NTZ, a="long"), "int", "bigint") == ["schema:type:c0:a "]
    assert type_steps(typed(WIDENS, NTZ, a="date"), "date", "timestamp_ntz") == [
        "schema:type:c0:a ALTER COLUMN `a` TYPE TIMESTAMP_NTZ"
    ]


@pytest.mark.parametrize(
    ("there", "target", "says"),
    [
        (
            typed({}, NTZ, a="integer"),
            "bigint",
            r"SET TBLPROPERTIES \('delta.enableTypeWidening' = 'true'\), after",
        ),
        (
            typed({}, frozenset(), a="date"),
            "timestamp_ntz",
            r"'true', 'delta.feature.timestampNtz' = 'supported'\), after",
        ),
        (typed(WIDENS, NTZ, a="long"), "int", "type INT, and it is BIGINT in table '/t'"),
        (
            typed({**WIDENS, "delta.constraints.few": "A < 9"}, NTZ, a="integer"),
            "bigint",
            r"constraint few of table '/t' names it, CHECK \(A < 9\)",
        ),
    ],
)
def test_a_type_that_the_table_cannot_take(there: TableState, target: str, says: str) -> None:
    known = {"bigint": "int", "timestamp_ntz": "date", "int": "smallint"}[target]
    with pytest.raises(SchemaStoppedError, match=says):
        type_steps(there, known, target)


@pytest.mark.parametrize(
    ("target", "there", "expected"),
    [
        ("a -", "a b", ["schema:leave:c1:b "]),
        ("a -", "a b!", ["schema:leave:c1:b ALTER COLUMN `b` DROP NOT NULL"]),
        # Another one is dropped.
        ("- -", "a b", ["schema:drop:c0:a DROP COLUMN `a`", "schema:leave:c1:b "]),
    ],
)
def test_a_column_whose_drop_is_skipped_stays(target: str, there: str, expected: list[str]) -> None:
    assert steps("a b", target, there, skipped=[(1, "drop")]) == expected


@pytest.mark.parametrize("target", ["b -", "a - b"])
def test_a_column_whose_drop_is_skipped_keeps_its_name(target: str) -> None:
    with pytest.raises(SchemaStoppedError, match="has a column of that name of its own"):
        steps("a b", target, "a b", skipped=[(1, "drop")])
