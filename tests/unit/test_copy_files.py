"""Which tables are copied file by file, and what the copies' commits state."""

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl.delta import copy_files as copy_module
from mergerepl.delta.copy_files import copy_files
from mergerepl.delta.create import NewTable, create_table
from mergerepl.delta.log import log_path
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import TableState, open_table
from mergerepl.delta.transactions import Transaction
from mergerepl.delta.types import Field, Json

TRANSACTION = Transaction("copy", 1, CommitMark("copy", "setup:rows"))


def _field(name: str, type_: Json, *, nullable: bool = True, **metadata: str) -> Field:
    return {"name": name, "type": type_, "nullable": nullable, "metadata": metadata}


FIELDS = [
    _field("id", "long", nullable=False),
    _field("text", "string"),
    _field("at", "timestamp"),
    _field("marks", {"type": "map", "keyType": "string", "valueType": "date", "valueContainsNull": True}),
]
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": pa.array(["ä", None, "x" * 100]),
        "at": pa.array([dt.datetime(2026, 1, 1), None, dt.datetime(9999, 12, 31)], pa.timestamp("us", "UTC")),
        "marks": pa.array([[("a", dt.date(2026, 1, 1))], [], None], pa.map_(pa.string(), pa.date32())),
    }
)


def _table(path: Path, fields: list[Field] = FIELDS, **stated: object) -> Path:
    create_table(path, NewTable(fields, **stated), CommitMark("test", "setup:x"))  # type: ignore[arg-type]
    return path


def _commit_file(path: Path, rows: pa.Table, **write: object) -> None:
    """Commit a file that another writer might have written, through the log alone."""
    pq.write_table(rows, path / "other.parquet", **write)
    add = {
        "path": "other.parquet",
        "partitionValues": {},
        "size": (path / "other.parquet").stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
    }
    log_path(path, 1).write_text(json.dumps({"add": add}) + "\n")


def _copied(source: TableState, target: Path) -> bool:
    return copy_files(source, target, TRANSACTION)


def test_rows_are_copied_once_with_the_bounds_of_their_files(tmp_path: Path) -> None:
    source = _table(tmp_path / "source")
    write_deltalake(str(source), ROWS, mode="append")
    write_deltalake(str(source), ROWS.slice(0, 1), mode="append")
    target = _table(tmp_path / "target")
    assert _copied(open_table(source), target)
    # A run that starts over finds its commit.
    assert _copied(open_table(source), target)

    copy = DeltaTable(str(target))
    assert copy.version() == 1
    assert copy.transaction_version("copy") == 1
    rows = copy.to_pyarrow_table().sort_by("id")
    assert rows.equals(pa.concat_tables([ROWS, ROWS.slice(0, 1)]).sort_by("id").cast(rows.schema))
    adds = pa.table(copy.get_add_actions(flatten=True)).sort_by("num_records").to_pylist()
    assert [(each["num_records"], each["min.id"], each["max.id"]) for each in adds] == [(1, 1, 1), (3, 1, 3)]
    assert [(each["min.text"], each["max.text"]) for each in adds] == [("ä", "ä"), ("x" * 64, "ä")]
    assert [each.get("min.at") for each in adds] == [None, None]


def test_an_older_version_and_an_empty_table_are_copied(tmp_path: Path) -> None:
    source = _table(tmp_path / "source")
    write_deltalake(str(source), ROWS, mode="append")
    for version, count in ((0, 0), (1, 3)):
        target = _table(tmp_path / f"target{version}")
        assert _copied(open_table(source, version), target)
        assert DeltaTable(str(target)).to_pyarrow_table().num_rows == count


REFUSED = {
    "char(n)": _field("text", "string", __CHAR_VARCHAR_TYPE_STRING="char(3)"),
    "a generated column": _field("text", "string", **{"delta.generationExpression": "'a'"}),
    "an invariant": _field("text", "string", **{"delta.invariants": "x"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_spark_checks_or_computes_is_left_to_it(tmp_path: Path, name: str) -> None:
    source = _table(tmp_path / "source", [FIELDS[0], REFUSED[name]])
    assert not _copied(open_table(source), _table(tmp_path / "target", FIELDS[:2]))


def test_partitions_and_other_columns_are_left_to_spark(tmp_path: Path) -> None:
    plain = _table(tmp_path / "plain", FIELDS[:2])
    partitioned = _table(tmp_path / "partitioned", FIELDS[:2], partition_columns=("text",))
    fewer = _table(tmp_path / "fewer", FIELDS[:1])
    checked = _table(tmp_path / "checked", FIELDS[:2], properties={"delta.constraints.a": "id > 0"})
    for source, target in ((partitioned, plain), (plain, partitioned), (plain, fewer), (checked, plain)):
        assert not _copied(open_table(source), target)


def test_files_that_spark_would_write_otherwise_are_left_to_it(tmp_path: Path) -> None:
    fields = [FIELDS[0], FIELDS[2]]
    rows = ROWS.select(["id", "at"])
    floats = rows.append_column("x", pa.array([[float("nan")], None, []], pa.list_(pa.float64())))
    with_null = pa.table({"id": pa.array([1, None], pa.int64()), "at": rows["at"][:2]})
    written = {
        "int96": (rows, {"use_deprecated_int96_timestamps": True}),
        "another calendar": (rows.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), {}),
        "bounds of floats": (floats, {}),
        "NULL in NOT NULL": (with_null, {}),
        "no statistics": (rows, {"write_statistics": False}),
    }
    doubles = _field("x", {"type": "array", "elementType": "double", "containsNull": True})
    for name, (each, options) in written.items():
        stated = [*fields, doubles] if each is floats else fields
        source = _table(tmp_path / name, stated)
        _commit_file(source, each, **options)
        assert not _copied(open_table(source), _table(tmp_path / f"{name} copied", stated)), name


def test_floats_of_other_writers_are_copied_unless_one_is_nan(tmp_path: Path) -> None:
    fields = [FIELDS[0], _field("x", "double")]
    for name, value, is_copied in (("plain", -0.0, True), ("nan", float("nan"), False)):
        source = _table(tmp_path / name, fields)
        write_deltalake(str(source), pa.table({"id": [1, 2], "x": [value, None]}), mode="append")
        target = _table(tmp_path / f"{name} copied", fields)
        assert _copied(open_table(source), target) == is_copied, name
        assert DeltaTable(str(target)).to_pyarrow_table().num_rows == 2 * is_copied


def test_large_tables_are_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = _table(tmp_path / "source")
    for _ in range(2):
        write_deltalake(str(source), ROWS, mode="append")
    target = _table(tmp_path / "target")
    with monkeypatch.context() as patched:
        patched.setattr(copy_module, "MOST_FILES", 1)
        assert not _copied(open_table(source), target)
    with monkeypatch.context() as patched:
        patched.setattr(copy_module, "MOST_BYTES", 100)
        assert not _copied(open_table(source), target)
    assert _copied(open_table(source), target)
