"""The flights of 2013 edited at three sites by seeded chance, and what must become of them, computed without mergerepl.

The expectation is the reference model's.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl.cli.demo.flights_data import SampleTable
from tests.properties.reference import Network
from tests.properties.state import Result, Subscriber

Key = tuple[Any, ...]
Row = dict[str, Any]
Edits = dict[Key, Row | None]
"""Key -> the row as the site wants it, None for a delete."""


@dataclass(frozen=True)
class Draw:
    """How one article is edited: keys in play, edits a site, and the columns that change."""

    pool: int
    each: int
    inserts: int
    columns: Mapping[str, tuple[Any, ...]]


DRAWS = {
    "flights": Draw(
        900,
        400,
        40,
        {
            "dep_delay": (-5, 0, 5, 120),
            "arr_delay": (0, 7),
            "tailnum": ("N1", "N2", None),
            "dep_time": (1, 2),
        },
    ),
    "planes": Draw(100, 40, 5, {"seats": (9, 10), "engine": ("Turbo-jet", "Other"), "speed": (90, None)}),
    "weather": Draw(150, 60, 8, {"temp": (0.1, -0.5, None), "visib": (0.0, 10.0)}),
}


def draw_edits(
    sample: SampleTable, table: pa.Table, sites: tuple[str, ...], seed: int
) -> tuple[dict[Key, Row], dict[str, Edits]]:
    """Return the rows of the table that are in play, and each site's edits.

    Those are updates, one in seven a delete, and inserts that sites may share a key of.
    """
    chance = random.Random(f"{seed} {sample.name}")
    how = DRAWS[sample.name]
    ordered = by_key(table, sample.key)

    def drawn(count: int) -> dict[Key, Row]:
        rows = ordered.take(chance.sample(range(ordered.num_rows), count)).to_pylist()
        return {tuple(row[name] for name in sample.key): row for row in rows}

    base, templates = drawn(how.pool), drawn(how.inserts)
    edits: dict[str, Edits] = {}
    for site in sites:
        chosen: Edits = {}
        for key in chance.sample(list(base), how.each):
            changed = chance.sample(sorted(how.columns), chance.randint(1, 2))
            new = {**base[key], **{name: chance.choice(how.columns[name]) for name in changed}}
            chosen[key] = None if chance.random() < 1 / 7 else new
        for template in chance.sample(list(templates.values()), how.inserts // 2):
            row = {**template, **_new_key(sample, template)}
            row |= {name: chance.choice(values) for name, values in how.columns.items()}
            chosen[tuple(row[name] for name in sample.key)] = row
        edits[site] = chosen
    return base, edits


def _new_key(sample: SampleTable, row: Row) -> Row:
    """Return key columns that no row has: the year after, or a name no airport or plane has."""
    if "year" in sample.key:
        return {"year": row["year"] + 1}
    name = sample.key[0]
    return {name: f"{row[name]}*"}


@dataclass
class Expected:
    """What must become of the rows that were edited, and which conflicts must be logged on the way."""

    rows: dict[Key, Row | None]
    conflicts: Counter[int] = field(default_factory=Counter)
    losers: list[tuple[int, Key, Row | None]] = field(default_factory=list)

    def table(self, base: pa.Table, key: tuple[str, ...]) -> pa.Table:
        """Return the table that all replicas must hold, by its key."""
        edited = pa.Table.from_pylist([dict(zip(key, values, strict=True)) for values in self.rows])
        edited = edited.cast(pa.schema([base.schema.field(name) for name in key]))
        written = [row for row in self.rows.values() if row is not None]
        untouched = base.join(edited, keys=list(key), join_type="left anti")
        return by_key(pa.concat_tables([untouched, pa.Table.from_pylist(written, schema=base.schema)]), key)


def expected(sample: SampleTable, base: Mapping[Key, Row], edits: Mapping[str, Edits]) -> Expected:
    """Return what the reference model comes to when the sites made their edits and synchronized until nothing moved."""
    columns = tuple(name for name in next(iter(base.values())) if name not in sample.key)
    subscribers = (Subscriber("north", "server", 75.0), Subscriber("south", "client"))
    snapshot: Any = {key: {name: row[name] for name in columns} for key, row in base.items()}
    tracking: Any = sample.tracking
    net: Any = Network(subscribers, publisher="hq", columns=columns, snapshot=snapshot, tracking=tracking)
    for site, rows in edits.items():
        for key, row in rows.items():
            operation = "delete" if row is None else "update" if key in base else "insert"
            net.write(site, key, operation, row and {name: row[name] for name in columns})
    while any(result != Result(0, 0, 0) for result in [net.sync(each.name) for each in subscribers]):
        pass

    def whole(key: Key, row: Row | None) -> Row | None:
        return None if row is None else {**dict(zip(sample.key, key, strict=True)), **row}

    rows = {key: whole(key, net.rows("hq").get(key)) for each in edits.values() for key in each}
    conflicts = Counter(each.type for each in net.conflicts)
    return Expected(
        rows, conflicts, [(each.type, each.key, whole(each.key, each.row)) for each in net.conflicts]
    )


def by_key(table: pa.Table, key: tuple[str, ...]) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in key])


# Making the edits: one way a site. ----------------------------------------------------------------------


def edit_by_sql(spark: SparkSession, table: Path, sample: SampleTable, edits: Edits) -> None:
    """Make them with one MERGE statement."""
    frame, names = _source(spark, table, sample, edits)
    frame.createOrReplaceTempView("edits_to_make")
    sets = ", ".join(f"t.{name} = s.{name}" for name in names if name not in sample.key)
    spark.sql(
        f"MERGE INTO delta.`{table}` t USING edits_to_make s ON {_same_key(sample)} "
        f"WHEN MATCHED AND s.op = 'delete' THEN DELETE WHEN MATCHED THEN UPDATE SET {sets} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
    )


def edit_by_dataframe(spark: SparkSession, table: Path, sample: SampleTable, edits: Edits) -> None:
    """Make them with the Python interface of Delta."""
    frame, names = _source(spark, table, sample, edits)
    every = {name: f"s.{name}" for name in names}
    changed = {name: value for name, value in every.items() if name not in sample.key}
    merge = SparkTable.forPath(spark, str(table)).alias("t").merge(frame.alias("s"), _same_key(sample))
    merge.whenMatchedDelete("s.op = 'delete'").whenMatchedUpdate(set=changed).whenNotMatchedInsert(
        values=every
    ).execute()


def edit_by_deltalake(table: Path, sample: SampleTable, base: Mapping[Key, Row], edits: Edits) -> None:
    """Make them without Spark: a merge for the updates and deletes, an append for the inserts."""
    schema = schema_of(table)
    old = {key: row for key, row in edits.items() if key in base}
    source = _arrow(schema, sample, old)
    merge = DeltaTable(str(table)).merge(source, _same_key(sample), source_alias="s", target_alias="t")
    changed = {name: f"s.{name}" for name in schema.names if name not in sample.key}
    merge.when_matched_delete("s.op = 'delete'").when_matched_update(
        changed, predicate="s.op = 'write'"
    ).execute()
    new = [row for key, row in edits.items() if key not in base]
    write_deltalake(str(table), pa.Table.from_pylist(new, schema=schema), mode="append")


def schema_of(table: Path) -> pa.Schema:
    """Return the table's schema in the types that pyarrow makes rows of."""
    schema = DeltaTable(str(table)).to_pyarrow_dataset().schema
    views = {pa.string_view(): pa.string(), pa.large_string(): pa.string()}
    return pa.schema([field.with_type(views.get(field.type, field.type)) for field in schema])


def _source(spark: SparkSession, table: Path, sample: SampleTable, edits: Edits) -> tuple[Any, list[str]]:
    """Return the edits as a frame of rows with `op`, and the table's columns."""
    schema = schema_of(table)
    return spark.createDataFrame(_arrow(schema, sample, edits)), schema.names


def _arrow(schema: pa.Schema, sample: SampleTable, edits: Edits) -> pa.Table:
    rows = [
        {**dict(zip(sample.key, key, strict=True)), **(row or {}), "op": "delete" if row is None else "write"}
        for key, row in edits.items()
    ]
    return pa.Table.from_pylist(rows, schema=schema.append(pa.field("op", pa.string())))


def _same_key(sample: SampleTable) -> str:
    return " AND ".join(f"t.{name} = s.{name}" for name in sample.key)
