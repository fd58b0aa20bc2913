"""Columns that change between foreign commits: each commit is read under the columns that it wrote (compact.md 10)."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

import mergerepl
from mergerepl.tracking.errors import TrackingError
from mergerepl.tracking.windows import Window
from tests.schema_changes import BY_SPARK, MAPPED, Step, added, by_deltalake, new_table, play

pytestmark = pytest.mark.spark

WIDENING = "'delta.enableTypeWidening' = 'true'"
FIRST = by_deltalake("one", 1)


def without_note(path: Path) -> None:
    kept = DeltaTable(str(path)).to_pyarrow_table().drop_columns(["note"])
    write_deltalake(str(path), kept, mode="overwrite", schema_mode="overwrite")


def with_texts(path: Path) -> None:
    rows = DeltaTable(str(path)).to_pyarrow_table()
    texts = rows.set_column(2, "qty", rows["qty"].cast(pa.string()))
    write_deltalake(str(path), texts, mode="overwrite", schema_mode="overwrite")


RENAMED = "ALTER TABLE {t} RENAME COLUMN note TO remark"
ADDED = "ALTER TABLE {t} ADD COLUMNS (extra STRING)"
BOTH = {1: "one", 2: "two"}

# name: properties, steps, the notes of updates under the last name of their column
FOLLOWED: dict[str, tuple[str, list[Step], dict[int, str | None]]] = {
    "renamed_after_deltalake": (
        "",
        [
            FIRST,
            f"ALTER TABLE {{t}} SET TBLPROPERTIES ({MAPPED})",
            RENAMED,
            "UPDATE {t} SET remark = 'three' WHERE id = 3",
            ADDED,
        ],
        {1: "one", 3: "three"},
    ),
    "added_by_deltalake": ("", [FIRST, BY_SPARK, added], BOTH),
    "added_by_spark": ("", [FIRST, ADDED, BY_SPARK], BOTH),
    "added_first": ("", [added, FIRST], {1: "one"}),
    "renamed": (
        MAPPED,
        [BY_SPARK, RENAMED, "UPDATE {t} SET remark = 'three' WHERE id = 3"],
        {2: "two", 3: "three"},
    ),
    "renamed_there_and_back": (
        MAPPED,
        [BY_SPARK, RENAMED, "ALTER TABLE {t} RENAME COLUMN remark TO note"],
        {2: "two"},
    ),
    "dropped": (MAPPED, ["ALTER TABLE {t} DROP COLUMN qty", BY_SPARK], {2: "two"}),
    "dropped_later": (
        MAPPED,
        ["UPDATE {t} SET qty = 9 WHERE id = 3", "ALTER TABLE {t} DROP COLUMN qty"],
        {3: "old"},
    ),
    "widened": (WIDENING, [BY_SPARK, "ALTER TABLE {t} ALTER COLUMN qty TYPE BIGINT"], {2: "two"}),
}

REFUSED: dict[str, tuple[str, list[Step], str]] = {
    "added_again": (
        MAPPED,
        [
            "ALTER TABLE {t} DROP COLUMN note",
            "ALTER TABLE {t} ADD COLUMNS (note STRING)",
            "UPDATE {t} SET qty = 9 WHERE id = 2",
        ],
        "column 'note' is not the column any more that it was before version",
    ),
    "added_again_alone": (
        MAPPED,
        ["ALTER TABLE {t} DROP COLUMN note", "ALTER TABLE {t} ADD COLUMNS (note STRING)"],
        "column 'note' is not the column any more",
    ),
    "exchanged": (
        MAPPED,
        [
            BY_SPARK,
            "ALTER TABLE {t} RENAME COLUMN note TO x",
            "ALTER TABLE {t} RENAME COLUMN qty TO note",
            "ALTER TABLE {t} RENAME COLUMN x TO qty",
        ],
        "column 'note' is not the column any more",
    ),
    "overwritten_without": (
        "",
        [without_note, ADDED.replace("extra", "note")],
        "column 'note' is not the column any more",
    ),
    "overwritten_with_texts": ("", [with_texts], "changed the type of column 'qty' together with its rows"),
    "key_renamed": (
        MAPPED,
        [BY_SPARK, "ALTER TABLE {t} RENAME COLUMN id TO number"],
        "tracked by column 'id'",
    ),
    "key_widened": (
        WIDENING,
        [BY_SPARK, "ALTER TABLE {t} ALTER COLUMN id TYPE DECIMAL(22, 0)"],
        "tracked by column 'id'",
    ),
}


def folder_of_tables(spark: SparkSession, root: Path, cases: dict[str, Any]) -> mergerepl.ChangeTracking:
    """Return a database with one tracked table for each case, after the steps of its case."""
    tracking = mergerepl.ChangeTracking(root)
    for name, (properties, *_) in cases.items():
        new_table(root / name)
        if properties:
            spark.sql(f"ALTER TABLE delta.`{root / name}` SET TBLPROPERTIES ({properties})")
        tracking.enable(name, key="id")
    return tracking


def notes(window: Window, table: str) -> dict[int, str | None]:
    rows = window.updates(table)
    name = "remark" if "remark" in rows.columns else "note"
    return {row["id"]: row[name] for row in rows.select("id", name).collect()}


COMMON = ("renamed_after_deltalake", "overwritten_without")


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen", [COMMON, tuple({**FOLLOWED, **REFUSED}.keys() - {*COMMON})], ids=["common", "others"]
)
def test_each_commit_is_read_under_its_own_columns_and_a_refused_table_stops_no_other(
    spark: SparkSession, replica_dir: Path, chosen: tuple[str, ...]
) -> None:
    followed = {name: case for name, case in FOLLOWED.items() if name in chosen}
    refused = {name: case for name, case in REFUSED.items() if name in chosen}
    tracking = folder_of_tables(spark, replica_dir, {**followed, **refused})
    reader = tracking.consumer("hq")
    for name, (_, steps, _) in {**followed, **refused}.items():
        play(spark, replica_dir / name, steps)
    window = reader.enumerate(list(followed))
    assert {name: notes(window, name) for name in followed} == {
        name: case[2] for name, case in followed.items()
    }
    # Each refused table says so by its name, and only where it is asked for.
    said = {}
    for name in refused:
        with pytest.raises(TrackingError) as refusal:
            reader.enumerate([name])
        said[name] = str(refusal.value)
    assert {
        name: text for name, text in said.items() if f"'{name}'" not in text or REFUSED[name][2] not in text
    } == {}
    for everything in (reader.enumerate, tracking.adopt):
        with pytest.raises(TrackingError):
            everything()
    one = next(iter(followed))
    changed = "remark" if "remark" in tracking.read(one).columns else "note"
    assert tracking.update(one, {changed: "'ours'"}, where="id = 1").changes == {one: 1}
    assert set(tracking.status().problems) == {name for name in refused if name.startswith("key")}
    # The way out works.
    for name in refused:
        tracking.disable(name, keep_columns=True)
    again = [name for name in refused if not name.startswith("key")]
    for name in again:
        tracking.enable(name, key="id")
    assert sorted(reader.enumerate().initial) == sorted(again)
