"""The feed that Arrow reads from files which a writer rewrote: only what changed, whatever order the copied rows have."""

import json
import math
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction

from mergerepl.delta import commit_files
from mergerepl.delta.commit_files import CHANGE_TYPE, feed_of_files, rows_having
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.delta.table import open_table

COLUMNS = ["id", "price", "note"]


def rewritten(path: Path, before: pa.Table, after: pa.Table) -> pa.Table:
    """Overwrite a table with a commit that has no change files, and return its feed."""
    write_deltalake(path, before)
    write_deltalake(path, after, mode="overwrite")
    return feed_of_files(open_table(path, 1), COLUMNS, {1: True}, {})


def rows(count: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "price": pa.array([None if i % 7 == 0 else i / 7 for i in range(count)], pa.float64()),
            "note": [None if i % 5 == 0 else f"note {i % 50}" for i in range(count)],
        }
    )


def changed(feed: pa.Table) -> Counter[tuple[object, ...]]:
    """Return how often each event is in a feed; NaN and both zeros by their bits."""
    found: Counter[tuple[object, ...]] = Counter()
    for row in feed.to_pylist():
        price = row["price"]
        found[row["id"], price if price is None else price.hex(), row["note"], row[CHANGE_TYPE]] += 1
    return found


def test_rows_copied_in_another_order_are_no_changes(tmp_path: Path) -> None:
    before = rows(30_000)
    kept = before.filter(pc.not_equal(before["id"], 8))
    updated = kept.set_column(2, "note", pc.if_else(pc.equal(kept["id"], 3), "new", kept["note"]))
    order = list(range(updated.num_rows))
    random.Random(7).shuffle(order)
    feed = rewritten(tmp_path / "t", before, updated.take(order))
    assert changed(feed) == {
        (3, (3 / 7).hex(), "note 3", "delete"): 1,
        (3, (3 / 7).hex(), "new", "insert"): 1,
        (8, (8 / 7).hex(), "note 8", "delete"): 1,
    }


def test_equal_rows_are_counted_and_compared_by_their_bits(tmp_path: Path) -> None:
    def table(*prices: float | None) -> pa.Table:
        return pa.table(
            {"id": pa.array([1] * len(prices), pa.int64()), "price": prices, "note": ["x"] * len(prices)}
        )

    feed = rewritten(
        tmp_path / "t", table(2.0, 2.0, 2.0, 0.0, math.nan, None), table(math.nan, 2.0, -0.0, None, None)
    )
    assert changed(feed) == {
        (1, (2.0).hex(), "x", "delete"): 2,
        (1, (0.0).hex(), "x", "delete"): 1,
        (1, (-0.0).hex(), "x", "insert"): 1,
        (1, None, "x", "insert"): 1,
    }


@pytest.mark.parametrize(
    ("name", "values"), [("NOTE", ["x"]), ("note", [{"Text": "x"}])], ids=["column", "field of a struct"]
)
def test_files_that_spell_names_in_another_case_are_left_to_spark(
    tmp_path: Path, name: str, values: list[object]
) -> None:
    """To Delta it is the same column; Arrow would take NULL for it."""
    note = pa.string() if name == "NOTE" else pa.struct({"text": pa.string()})
    table = pa.table({"id": pa.array([1], pa.int64()), "price": [1.0], "note": pa.array([None], note)})
    write_deltalake(tmp_path, table)
    file = tmp_path / "odd.parquet"
    pq.write_table(pa.table({"id": [2], "price": [2.0], name: values}), file)
    action = AddAction(file.name, file.stat().st_size, {}, 0, True, '{"numRecords": 1}')
    log = DeltaTable(tmp_path)
    log.create_write_transaction([action], mode="append", schema=log.schema())
    with pytest.raises(NeedsSparkError, match="in another case"):
        feed_of_files(open_table(tmp_path, 1), COLUMNS, {1: True}, {})


def test_files_without_the_names_of_columns_are_left_to_spark(tmp_path: Path) -> None:
    """Their partition columns are only in the log, and a file has a renamed column under its former name."""
    write_deltalake(tmp_path / "parts", rows(10), partition_by=["note"])
    write_deltalake(tmp_path / "parts", rows(5), mode="append")
    with pytest.raises(NeedsSparkError, match="partitions"):
        feed_of_files(open_table(tmp_path / "parts", 1), COLUMNS, {1: True}, {})

    table = tmp_path / "mapped"
    write_deltalake(table, rows(10))
    commit = table / "_delta_log" / "00000000000000000000.json"
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    exchanged = {"price": "note", "note": "price"}
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"]):
                field["metadata"] = {
                    "delta.columnMapping.id": number + 1,
                    "delta.columnMapping.physicalName": exchanged.get(field["name"], field["name"]),
                }
            action["metaData"]["schemaString"] = json.dumps(schema)
            action["metaData"]["configuration"]["delta.columnMapping.mode"] = "name"
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    with pytest.raises(NeedsSparkError, match="table features 5"):
        feed_of_files(open_table(table, 0), COLUMNS, {0: True}, {})


def test_more_changes_than_fit_are_left_to_spark(tmp_path: Path) -> None:
    before = rows(30_000)
    after = before.set_column(2, "note", pa.array(["new"] * before.num_rows))
    with pytest.raises(NeedsSparkError, match="too many rows"):
        rewritten(tmp_path / "t", before, after)


def test_appends_of_many_rows_are_left_to_spark_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    for _ in range(3):
        write_deltalake(table, rows(11_000), mode="append")
    read = []
    real = commit_files.read_rows
    monkeypatch.setattr(commit_files, "read_rows", lambda file, *rest: read.append(file) or real(file, *rest))
    with pytest.raises(NeedsSparkError, match="too many rows"):
        feed_of_files(open_table(table, 2), COLUMNS, {1: True, 2: True}, {})
    assert len(read) == 1


def test_rows_of_files_without_a_column_are_found_by_their_keys(tmp_path: Path) -> None:
    """The column was added after the file was written; where it is looked up itself, no such row has a value."""
    path = tmp_path / "t"
    write_deltalake(path, pa.table({"id": pa.array([1, 2], pa.int64()), "a": ["x", "y"]}))
    DeltaTable(path).alter.add_columns([Field("b", PrimitiveType("string"), True)])
    write_deltalake(
        path, pa.table({"id": pa.array([3], pa.int64()), "a": ["z"], "b": ["new"]}), mode="append"
    )
    table = open_table(path, 2)
    found = rows_having(table, ["a", "b", "id"], {"id": pa.array([2, 3], pa.int64())})
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"a": "y", "b": None, "id": 2},
        {"a": "z", "b": "new", "id": 3},
    ]
    assert rows_having(table, ["id"], {"b": pa.array(["new", "old"])}).to_pylist() == [{"id": 3}]
    with pytest.raises(NeedsSparkError, match="NULL is looked up"):
        rows_having(table, ["id"], {"b": pa.array([None], pa.string())})
