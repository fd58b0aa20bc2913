"""Arrow finds exactly the rows in which two tables differ, whatever their files and their order."""

import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.delta.differing_rows import differing_rows
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.table import open_table
from mergerepl.store.location import Location

SCHEMA = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("number", pa.float64()), ("price", pa.decimal128(9, 2))]
)
ODD_NAN = struct.unpack("d", struct.pack("Q", 0x7FF8000000000001))[0]
HERE = {
    1: ("a", 0.0, Decimal("1.10")),
    2: (None, 1.5, None),
    3: ("c", float("nan"), Decimal(3)),
    4: ("d", None, Decimal(4)),
    5: ("e", 5.0, Decimal(5)),
    6: ("f", 6.0, Decimal(6)),
}
THERE = {
    6: ("f", 6.0, Decimal(6)),
    1: ("a", -0.0, Decimal("1.10")),
    2: ("", 1.5, None),
    3: ("c", float("nan"), Decimal(3)),
    4: ("d", 4.0, Decimal(4)),
    7: ("g", 7.0, Decimal(7)),
}


def table(path: Path, rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA, files: int = 1) -> Location:
    for i in range(files):
        values = [dict(zip(schema.names, row, strict=True)) for row in rows[i::files]]
        write_deltalake(str(path), pa.Table.from_pylist(values, schema=schema), mode="append")
    return Location.of(path)


def ids(tables: list[Location], key: str = "id", **terms: Any) -> list[list[Any]]:
    states = [open_table(each) for each in tables]
    found = differing_rows(states, states[0].names, [key], is_guid=bool(terms.get("is_guid")))
    return [sorted(each[key].to_pylist()) for each in found]


@pytest.mark.parametrize("files", [1, 3])
def test_rows_differ_by_bits(tmp_path: Path, files: int) -> None:
    both = [
        table(tmp_path / name, [(key, *values) for key, values in rows.items()], files=n)
        for name, rows, n in (("here", HERE, 1), ("there", THERE, files))
    ]
    assert ids(both) == [[1, 2, 4, 5], [1, 2, 4, 7]]
    DeltaTable(str(tmp_path / "there")).delete("id < 5")
    assert ids(both) == [[1, 2, 3, 4, 5], [7]]
    DeltaTable(str(tmp_path / "there")).delete()
    assert ids(both) == [[*HERE], []]


def test_bits_of_a_number_that_is_none_count(tmp_path: Path) -> None:
    both = [
        table(tmp_path / name, [(1, "a", value, None)])
        for name, value in (("here", ODD_NAN), ("there", float("nan")))
    ]
    assert ids(both) == [[1], [1]]


def test_a_guid_in_another_case_is_the_same_row_with_another_text(tmp_path: Path) -> None:
    schema = pa.schema([("guid", pa.string()), ("text", pa.string())])
    here = table(tmp_path / "here", [("AB", "same"), ("cd", "one"), ("ef", "same")], schema)
    there = table(tmp_path / "there", [("ab", "same"), ("CD", "other"), ("ef", "same")], schema)
    assert ids([here, there], "guid", is_guid=True) == [["AB", "cd"], ["CD", "ab"]]


@pytest.mark.parametrize(
    ("rows", "why"),
    [([(1, "a", 1.0, None), (1, "a", 1.0, None)], "several rows"), ([(None, "a", 1.0, None)], "NULL")],
)
def test_keys_that_are_none_are_left_to_spark(tmp_path: Path, rows: list[Any], why: str) -> None:
    both = [table(tmp_path / "here", [(1, "a", 1.0, None)]), table(tmp_path / "there", rows)]
    with pytest.raises(NeedsSparkError, match=why):
        ids(both)


def test_values_with_parts_are_left_to_spark(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("parts", pa.list_(pa.int64()))])
    both = [table(tmp_path / name, [(1, [1])], schema) for name in ("here", "there")]
    with pytest.raises(NeedsSparkError, match="'parts'"):
        ids(both)
