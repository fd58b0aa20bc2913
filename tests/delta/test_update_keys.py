"""Of an UPDATE by delta-rs only the rows are read whose keys its commit proves, with the outcome of whole files."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl.delta.commit_files import COMMIT_VERSION, MOST_MATCHES, feed_of_files
from mergerepl.delta.commits import commits
from mergerepl.delta.feed.commit_changes import read_segment
from mergerepl.delta.feed.window import Segment, untrue_versions
from mergerepl.delta.log import actions_of, log_path
from mergerepl.delta.metadata import CHAR_VARCHAR
from mergerepl.delta.table import open_table
from mergerepl.delta.update_keys import MOST_KEYS, update_keys

FEED = {"delta.enableChangeDataFeed": "true"}

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, None, 6], pa.int64()),
        "day": pa.array([date(2026, 1, 1 + i) for i in range(6)]),
        "text": ["a", "b", "it's", "d\\", "é", ""],
        "value": [1.5, -0.0, 0.0, float("nan"), 2.5, 1.5],
        "part": ["p"] * 6,
    }
)


def table_of(path: Path, *parts: pa.Table, **options: Any) -> Path:
    """Write a table, one file for each part, in row groups of two rows."""
    for part in parts:
        write_deltalake(
            str(path),
            part,
            mode="append",
            configuration=FEED,
            writer_properties=WriterProperties(max_row_group_size=2, write_batch_size=2),
            **options,
        )
    return path


def update(path: Path, predicate: str | None, **values: str) -> int:
    """Update rows by delta-rs and return the version."""
    DeltaTable(str(path)).update(updates=values, predicate=predicate)
    return DeltaTable(str(path)).version()


def feed(
    path: Path, columns: list[str], key: list[str], versions: list[int], *, believed: bool
) -> Counter[Any]:
    """Return the changed rows, bit by bit, that Arrow reads of all rows of the files, or of those with proven keys."""
    table = open_table(path)
    keys = {v: found for v in versions if (found := update_keys(path, v, key)).doubt is None}
    rows = feed_of_files(table, columns, dict.fromkeys(versions, True), keys if believed else {})
    parts = [rows["_change_type"], rows[COMMIT_VERSION]]
    for name in columns:
        part = rows[name].combine_chunks()
        kinds = {pa.float64(): pa.int64()}
        parts.append(pa.chunked_array([part.view(kinds.get(part.type, part.type))]))
    return Counter(zip(*(part.to_pylist() for part in parts), strict=True))


PREDICATES = (
    *("id = 2", "id IN (1, 3, 5, 9)", "id BETWEEN 2 AND 4", "NOT id = 2", "id IS NULL", "id % 2 = 0"),
    *("text LIKE 'a%'", "text = 'b' OR value > 1", "value = 0.0", "day < '2026-01-04'", "lower(text) = 'a'"),
    *("text = 'it''s'", "text = 'd\\'"),
)
VALUES = {
    "value": ("value + 1", "-value", "random()", "value", "-0.0", "0.0", "1.5"),
    "text": ("'x'", "uuid()", "text"),
    "id": ("id + 1", "3 - id", "NULL", "CAST(random() * 4 AS BIGINT)", "7"),
    "day": ("'2026-01-02'",),
}


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[pa.Table], list[tuple[str | None, dict[str, str]]], list[str]]:
    """Draw the files of a table, some updates and the key by which they are read. A key may have several rows."""
    rows = st.lists(st.integers(0, 5), min_size=1, max_size=8)
    parts = [ROWS.take(numbers) for numbers in draw(st.lists(rows, min_size=1, max_size=3))]
    names = st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=2, unique=True)
    edits = []
    for _ in range(draw(st.integers(1, 3))):
        predicate = draw(st.one_of(st.none(), st.sampled_from(PREDICATES)))
        edits.append((predicate, {name: draw(st.sampled_from(VALUES[name])) for name in draw(names)}))
    return parts, edits, draw(st.sampled_from([["id"], ["text"], ["day"], ["id", "day"]]))


@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(histories())
def test_the_rows_of_believed_keys_are_all_that_an_update_changed(
    tmp_path_factory: pytest.TempPathFactory, history: Any
) -> None:
    parts, edits, key = history
    path = table_of(tmp_path_factory.mktemp("drawn") / "t", *parts)
    first = DeltaTable(str(path)).version() + 1
    for predicate, values in edits:
        update(path, predicate, **values)
    versions = list(range(first, DeltaTable(str(path)).version() + 1))
    if versions:
        one, other = (feed(path, ROWS.column_names, key, versions, believed=each) for each in (True, False))
        assert one == other


def forge(path: Path, version: int, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    """Change the actions of a commit."""
    actions = actions_of(log_path(path, version).read_text())
    change(actions)
    log_path(path, version).write_text("\n".join(json.dumps(each) for each in actions))


def info(actions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the commitInfo."""
    return next(each["commitInfo"] for each in actions if "commitInfo" in each)


def as_it_is(actions: list[dict[str, Any]]) -> None:
    """Change nothing."""


def counts(**metrics: int) -> Callable[[list[dict[str, Any]]], None]:
    return lambda actions: info(actions)["operationMetrics"].update(metrics)


def without(*kinds: str) -> Callable[[list[dict[str, Any]]], None]:
    def remove(actions: list[dict[str, Any]]) -> None:
        actions[:] = [each for each in actions if not set(kinds) & set(each)]

    return remove


def with_vector(actions: list[dict[str, Any]]) -> None:
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    next(each["remove"] for each in actions if "remove" in each)["deletionVector"] = vector


def with_another_file(actions: list[dict[str, Any]]) -> None:
    """Add a file that the UPDATE did not write."""
    written = next(each["add"] for each in actions if "add" in each)
    removed = next(each["remove"] for each in actions if "remove" in each)
    actions.append({"add": {**written, "path": removed["path"]}})


ONE, SOME, SEVEN = "id = 2", "id IN (2, 3)", {"value": "7"}
DIFFER, SIZE, TYPE = "not as many differ", "numbers of rows", "its key is of no type"

# A predicate, what it sets, how the commit is changed afterwards, the key, and the doubt (None: believed).
COMMITS: dict[
    str, tuple[str | None, dict[str, str], Callable[[list[dict[str, Any]]], Any], list[str], str | None]
] = {
    "some rows": (SOME, {"value": "value + 1"}, as_it_is, ["id"], None),
    "all rows": (None, SEVEN, as_it_is, ["id"], None),
    "a key of NULL": ("id IS NULL", SEVEN, as_it_is, ["id"], None),
    "a key that is computed": (ONE, {"id": "id + 10"}, as_it_is, ["id"], None),
    "a part of the key": (ONE, SEVEN, as_it_is, ["value", "id"], None),
    "values that are computed twice": (SOME, {"value": "random()", "text": "uuid()"}, as_it_is, ["id"], None),
    "a key that is computed twice": (SOME, {"text": "uuid()"}, as_it_is, ["text"], DIFFER),
    "a value that stays": ("id < 4", {"value": "1.5"}, as_it_is, ["id"], DIFFER),
    "the sign of a zero": ("id IN (1, 2)", {"value": "-value"}, as_it_is, ["id"], DIFFER),
    "the sign of a zero beside a NaN": ("id = 2 OR id = 4", {"value": "-value"}, as_it_is, ["id"], DIFFER),
    "no key": (ONE, SEVEN, as_it_is, [], TYPE),
    "a key of another type": (ONE, SEVEN, as_it_is, ["value"], TYPE),
    "fewer rows than counted": (ONE, SEVEN, counts(num_updated_rows=2, num_copied_rows=4), ["id"], DIFFER),
    "more rows than counted": (SOME, SEVEN, counts(num_updated_rows=1, num_copied_rows=5), ["id"], DIFFER),
    "other copied rows": (ONE, SEVEN, counts(num_copied_rows=4), ["id"], SIZE),
    "a file of somebody else": (ONE, SEVEN, with_another_file, ["id"], SIZE),
    "no count": (ONE, SEVEN, lambda a: info(a).pop("operationMetrics"), ["id"], "does not count"),
    "too many rows": (ONE, SEVEN, counts(num_updated_rows=MOST_KEYS + 1), ["id"], "the most is"),
    "no change files": (ONE, SEVEN, without("cdc"), ["id"], "no change files"),
    "a deletion vector": (ONE, SEVEN, with_vector, ["id"], "deletion vectors"),
    "an old MERGE": (ONE, SEVEN, lambda a: info(a).update(operation="MERGE"), ["id"], "it is a MERGE"),
}


@pytest.mark.parametrize(("predicate", "values", "change", "key", "doubt"), COMMITS.values(), ids=COMMITS)
def test_keys_are_believed_only_where_the_commit_proves_them(
    tmp_path: Path,
    predicate: str | None,
    values: dict[str, str],
    change: Callable[[list[dict[str, Any]]], Any],
    key: list[str],
    doubt: str | None,
) -> None:
    path = table_of(tmp_path / "t", ROWS)
    version = update(path, predicate, **values)
    forge(path, version, change)
    found = update_keys(path, version, key)
    assert (found.doubt is None) == (doubt is None), found.doubt
    assert doubt is None or doubt in str(found.doubt)


def test_a_key_that_spark_pads_is_not_believed(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t", ROWS)
    version = update(path, ONE, **SEVEN)

    def pad(actions: list[dict[str, Any]]) -> None:
        metadata = next(each["metaData"] for each in actions if "metaData" in each)
        schema = json.loads(metadata["schemaString"])
        schema["fields"][2]["metadata"] = {CHAR_VARCHAR: "char(5)"}
        metadata["schemaString"] = json.dumps(schema)

    forge(path, 0, pad)
    assert TYPE in str(update_keys(path, version, ["text"]).doubt)


def test_keys_that_too_many_rows_have_are_not_believed(tmp_path: Path) -> None:
    count = MOST_MATCHES + 1
    rows = {"tenant": ["a"] * count, "number": pa.array(range(count), pa.float64())}
    write_deltalake(str(tmp_path / "t"), pa.table(rows), configuration=FEED)
    version = update(tmp_path / "t", "number = 2", number="-1.0")
    found = update_keys(tmp_path / "t", version, ["tenant", "number"])
    assert "too many rows have the values" in str(found.doubt)


def test_a_file_that_is_gone_is_told_from_a_doubt(tmp_path: Path) -> None:
    path = table_of(tmp_path / "t", ROWS)
    first = next(path.glob("*.parquet"))
    version = update(path, "id = 2", value="7")
    first.unlink()
    assert update_keys(path, version, ["id"]).is_gone


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_the_same_changes_by_keys_as_of_whole_files(spark: SparkSession, tmp_path: Path) -> None:
    path = table_of(tmp_path / "t", ROWS, ROWS.slice(1, 3), partition_by=["part"])
    edits = [
        ("id IN (1, 3)", {"value": "random()"}),
        ("text = 'it''s' OR id = 2", {"value": "value + 1", "part": "'q'"}),
        ("id > 3", {"id": "id + 1", "day": "'1582-10-05'"}),
        ("text = 'd\\'", {"text": "'e\\'"}),
        ("id IS NULL", {"text": "uuid()"}),
        ("id = 2", {"value": "0.0"}),
        ("id = 2", {"value": "-0.0"}),
    ]
    versions = tuple(update(path, predicate, **values) for predicate, values in edits)
    first, last = versions[0], versions[-1]

    def read(key: tuple[str, ...]) -> tuple[DataFrame, int]:
        by_files, by_keys = untrue_versions(
            path, commits(path, from_version_exclusive=first - 1, through_version_inclusive=last), key
        )
        found = read_segment(spark, path, Segment(first, last, by_files=by_files, by_keys=by_keys, key=key))
        assert found is not None
        names = [*ROWS.column_names, "_change_type", "_commit_version"]
        return found.select(F.lit(",".join(key)).alias("key"), *names), len(by_keys)

    keys = ((), ("id",), ("day",), ("id", "day"), ("text", "part"))
    read_by = {key: read(key) for key in keys}
    believed = {(): 0, ("id",): 6, ("day",): 6, ("id", "day"): 6, ("text", "part"): 5}
    assert {key: count for key, (_, count) in read_by.items()} == believed
    bits = [F.hex("text"), F.hex(F.col("value").cast("string")), "id", "day", "part", "_commit_version"]
    sign = F.when(F.col("_change_type") == "insert", 1).otherwise(-1)
    rows = reduce(DataFrame.unionByName, (frame for frame, _ in read_by.values()))
    net = rows.groupBy("key", *bits).agg(F.sum(sign).alias("net")).where("net != 0").collect()
    changes = {key: {row[1:] for row in net if row.key == ",".join(key)} for key in read_by}
    assert len(changes[()]) == 23
    assert all(found == changes[()] for found in changes.values())
