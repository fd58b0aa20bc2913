"""Databases for the tests of Change Data Capture: tables made by Spark or deltalake, what readers see of change tables."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mergerepl import cdc
from mergerepl.cdc.tables import CdcTables, tables_at
from mergerepl.delta.small_tables import column_names, read_rows
from mergerepl.logreader.lsn import Lsn
from mergerepl.logreader.positions import read_state
from mergerepl.systables.cdc import LSN_TIME_MAPPING, LsnTime

ITEMS = pa.schema([("id", pa.int64()), ("note", pa.string()), ("qty", pa.int32())])
Values = Mapping[int, tuple[Any, ...]]


def arrow(rows: Values, schema: pa.Schema = ITEMS) -> pa.Table:
    """Return rows by their key as Arrow has them."""
    listed = [dict(zip(schema.names, (key, *rest), strict=True)) for key, rest in rows.items()]
    return pa.Table.from_pylist(listed, schema=schema)


def new_table(root: Path, name: str, rows: Values, **properties: str) -> Path:
    """Write a table with its feed on, so that enabling it need not start Spark's ALTER TABLE."""
    configuration = {"delta.enableChangeDataFeed": "true", **properties}
    write_deltalake(str(root / name), arrow(rows), configuration=configuration)
    return root / name


def add(table: Path, rows: Values) -> None:
    """Append rows by deltalake."""
    write_deltalake(str(table), arrow(rows), mode="append")


def update(table: Path, where: str, **values: str) -> None:
    """Update rows by deltalake."""
    DeltaTable(str(table)).update(updates=values, predicate=where)


def delete(table: Path, where: str | None = None) -> None:
    """Delete rows by deltalake."""
    DeltaTable(str(table)).delete(where)


def merge(table: Path, rows: Values) -> None:
    """Insert or update rows, and delete those whose note is NULL, in one commit."""
    source = arrow(rows)
    done = DeltaTable(str(table)).merge(source, "s.id = t.id", source_alias="s", target_alias="t")
    done.when_matched_delete(
        "s.note is null"
    ).when_matched_update_all().when_not_matched_insert_all().execute()


def enabled(
    root: Path, tables: Mapping[str, Values], *, index: str | None = "id", **options: Any
) -> CdcTables:
    """Return a database whose tables are captured."""
    for name, rows in tables.items():
        new_table(root, name, rows)
        cdc.Database(root).enable(name, key=index, **options)
    return tables_at(root)


def entries(database: CdcTables) -> list[LsnTime]:
    """Return the entries that readers see, by LSN."""
    return sorted(database.control.rows(LSN_TIME_MAPPING), key=lambda row: row.start_lsn)


def change_table(spark: SparkSession, database: CdcTables, instance: str) -> DataFrame:
    """Return the rows that readers see, in their order."""
    folder = database.change_table(database.instance(instance))
    rows = spark.read.format("delta").load(str(folder))
    high = bytes(database.max_lsn() or bytes(10))
    seen = rows.where(F.col("`__$start_lsn`") <= F.lit(high))
    return seen.orderBy("`__$start_lsn`", "`__$seqval`", "`__$operation`")


def rows_seen(database: CdcTables, instance: str) -> list[tuple[Any, ...]]:
    """Return the rows that readers see, in their order: the change table's columns. Read by delta-rs."""
    folder = database.change_table(database.instance(instance))
    found = [tuple(row.values()) for row in read_rows(folder, column_names(folder))]
    high = database.max_lsn() or bytes(10)
    return sorted((row for row in found if row[0] <= high), key=lambda row: (row[0], row[2], row[3]))


def changes(database: CdcTables, instance: str) -> list[tuple[Any, ...]]:
    """Return (place of the LSN among those with rows, operation, mask in hexadecimal, values) of what readers see."""
    found = rows_seen(database, instance)
    lsns = sorted({bytes(row[0]) for row in found})
    return [(lsns.index(bytes(row[0])), row[3], bytes(row[4]).hex(), *row[5:-1]) for row in found]


def replayed(rows: Iterable[Any], before: Values) -> dict[int, tuple[Any, ...]]:
    """Apply rows of a change table, in order, to the rows of an earlier version; the key is the first captured column."""
    state = dict(before)
    for row in rows:
        key, values = row[5], tuple(row[6:-1])
        if row[3] == 1:
            assert state.pop(key) == values, f"deletes another row than there was: {row}"
        elif row[3] == 2:
            assert key not in state, f"inserts a key that is there: {row}"
            state[key] = values
        elif row[3] == 3:
            assert state[key] == values, f"updates another row than there was: {row}"
        else:
            assert key in state
            state[key] = values
    return state


def rows_at(table: Path, version: int | None = None) -> dict[int, tuple[Any, ...]]:
    """Return a table's rows by key, at a version or its head."""
    found = DeltaTable(str(table), version=version).to_pyarrow_table().to_pylist()
    return {next(iter(row.values())): tuple(row.values())[1:] for row in found}


def check_replay(database: CdcTables) -> None:
    """Check of each instance that its rows lead from the version at which it began to the one that the gate names."""
    found = entries(database)
    sources = read_state(database.log).sources
    for instance in database.instances():
        number = instance.source_object_id
        table = database.root / sources[number].source_path
        read_versions = [
            c["version"] for entry in found for c in entry.commits if c["source_object_id"] == number
        ]
        begun = rows_at(table, instance.start_version)
        assert replayed(rows_seen(database, instance.capture_instance), begun) == rows_at(
            table, max(read_versions)
        )


def lsns(database: CdcTables) -> list[Lsn]:
    """Return the LSNs that readers see."""
    return [Lsn(entry.start_lsn) for entry in entries(database)]
