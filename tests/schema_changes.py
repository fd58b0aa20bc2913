"""Schema changes between edits, by Spark and by deltalake: one table for each, for the tests of every reader."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

Step = str | Callable[[Path], object]
"""SQL on the table `{t}`, or a call with its folder."""

COLUMNS = pa.schema([("id", pa.int64()), ("note", pa.string()), ("qty", pa.int32()), ("day", pa.date32())])
MAPPED = "'delta.columnMapping.mode' = 'name', 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5'"


def new_table(path: Path) -> None:
    """Write three rows of id, note, qty and day."""
    rows = pa.Table.from_pylist([{"id": i, "note": "old", "qty": i} for i in (1, 2, 3)], schema=COLUMNS)
    write_deltalake(str(path), rows, configuration={"delta.enableChangeDataFeed": "true"})


def edited(path: Path, note: str, key: int) -> object:
    """Update a row by deltalake."""
    return DeltaTable(str(path)).update({"note": f"'{note}'"}, predicate=f"id = {key}")


def added(path: Path) -> object:
    """Add a column by deltalake."""
    return DeltaTable(str(path)).alter.add_columns([Field("extra", PrimitiveType("string"), True)])


def by_deltalake(note: str, key: int) -> Step:
    """Return the step that updates a row by deltalake."""
    return partial(edited, note=note, key=key)


def with_properties(text: str) -> Step:
    """Return the step that sets properties."""
    return f"ALTER TABLE {{t}} SET TBLPROPERTIES ({text})"


WIDENED = with_properties("'delta.enableTypeWidening' = 'true', 'delta.feature.timestampNtz' = 'supported'")
MAPPING = with_properties(MAPPED)
BY_SPARK = "UPDATE {t} SET note = 'two' WHERE id = 2"

CHANGES: Mapping[str, Sequence[Step]] = {
    "added_by_deltalake": [by_deltalake("one", 1), added, BY_SPARK, by_deltalake("three", 3)],
    "added_by_spark": [
        by_deltalake("one", 1),
        WIDENED,
        "ALTER TABLE {t} ADD COLUMNS (extra TIMESTAMP_NTZ)",
        BY_SPARK,
    ],
    "renamed": [by_deltalake("one", 1), MAPPING, "ALTER TABLE {t} RENAME COLUMN qty TO amount", BY_SPARK],
    "dropped": [by_deltalake("one", 1), MAPPING, "ALTER TABLE {t} DROP COLUMN qty", BY_SPARK],
    "added_again": [
        *(by_deltalake("one", 1), MAPPING, BY_SPARK),
        *("ALTER TABLE {t} DROP COLUMN qty", "ALTER TABLE {t} ADD COLUMNS (qty INT)"),
        "UPDATE {t} SET note = 'three', qty = 33 WHERE id = 3",
    ],
    "widened": [by_deltalake("one", 1), WIDENED, "ALTER TABLE {t} ALTER COLUMN qty TYPE BIGINT", BY_SPARK],
    "widened_day": [
        *(by_deltalake("one", 1), WIDENED, "UPDATE {t} SET day = '2024-02-29' WHERE id = 3"),
        *("ALTER TABLE {t} ALTER COLUMN day TYPE TIMESTAMP_NTZ", BY_SPARK),
    ],
}


def play(spark: SparkSession, path: Path, steps: Sequence[Step]) -> None:
    """Make the steps."""
    for step in steps:
        if isinstance(step, str):
            spark.sql(step.format(t=f"delta.`{path}`"))
        else:
            step(path)


def notes(spark: SparkSession, path: Path) -> dict[int, str]:
    """Return id to note."""
    rows = spark.read.format("delta").load(str(path)).select("id", "note")
    return {row["id"]: row["note"] for row in rows.collect()}
