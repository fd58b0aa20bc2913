"""A second capture instance with another key: the same commits, whose images are paired by that key (decision 0148)."""

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import cdc
from mergerepl.cdc.tables import CdcTables, tables_at
from mergerepl.failpoints import FailpointError
from tests.cdc.databases import arrow, changes, enabled, new_table, rows_at, rows_seen, update
from tests.faults.deaths import dies
from tests.transactional.publications import THERE, publication_file, rows, run

pytestmark = pytest.mark.spark

START = {1: ("a", 10), 2: ("b", 20), 3: ("c", 30)}


def both(folder: Path) -> CdcTables:
    """Return a database with the table `orders` captured by `id`, and in the instance `noted` by `note`."""
    database = enabled(folder, {"orders": START})
    cdc.Database(folder).enable("orders", name="noted", key="note")
    return database


def operations(database: CdcTables, instance: str) -> list[tuple[int, int, int, str, int]]:
    """Return place of the LSN, operation and values of the rows of an instance."""
    return [(at, operation, *values) for at, operation, _, *values in changes(database, instance)]


def test_each_instance_pairs_the_rows_of_a_commit_by_its_own_key(
    spark: SparkSession, replica_dir: Path
) -> None:
    database, orders = both(replica_dir), replica_dir / "orders"
    update(orders, "id = 1", qty="11")
    update(orders, "id = 2", id="7")
    # Two rows exchange their notes in one commit.
    update(orders, "id in (1, 3)", note="case when note = 'a' then 'c' else 'a' end")
    with dies("cdc.after_change_table", error=FailpointError):
        cdc.Database(replica_dir).capture()
    cdc.Database(replica_dir).capture()
    by_id = operations(database, "dbo_orders")
    assert by_id[:4] == [(0, 3, 1, "a", 10), (0, 4, 1, "a", 11), (1, 1, 2, "b", 20), (1, 2, 7, "b", 20)]
    assert sorted(by_id[4:]) == [
        *((2, 3, 1, "a", 11), (2, 3, 3, "c", 30)),
        *((2, 4, 1, "c", 11), (2, 4, 3, "a", 30)),
    ]
    noted = operations(database, "noted")
    assert noted[:4] == [*((0, 3, 1, "a", 10), (0, 4, 1, "a", 11)), *((1, 3, 2, "b", 20), (1, 4, 7, "b", 20))]
    assert sorted(noted[4:]) == sorted(
        [(2, 3, 1, "a", 11), (2, 4, 3, "a", 30), (2, 3, 3, "c", 30), (2, 4, 1, "c", 11)]
    )
    by_note = cdc.Database(replica_dir).instance("noted")
    net = by_note.net_changes().select("`__$operation`", "note", "id", "qty").collect()
    assert sorted(map(tuple, net)) == [(4, "a", 3, 30), (4, "b", 7, 20), (4, "c", 1, 11)]
    # The first one ends: the other one goes on.
    cdc.Database(replica_dir).disable("orders", name="dbo_orders")
    update(orders, "id = 7", qty="21")
    cdc.Database(replica_dir).capture()
    assert [row[1:] for row in operations(database, "noted")[-2:]] == [(3, 7, "b", 20), (4, 7, "b", 21)]


def replay(database: CdcTables, instance: str, key: int, table: Path) -> None:
    """Check that the rows of an instance, one LSN after the other, make the versions of the table from the start."""
    state = {row[key]: row for row in ((each, *rest) for each, rest in START.items())}
    found = rows_seen(database, instance)
    for lsn in sorted({bytes(row[0]) for row in found}):
        for row in (each for each in found if bytes(each[0]) == lsn):
            values = tuple(row[5:-1])
            if row[3] in (1, 3):
                assert state.pop(values[key]) == values
            else:
                assert values[key] not in state
                state[values[key]] = values
    assert sorted(state.values()) == sorted((each, *rest) for each, rest in rows_at(table).items())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_drawn_commits_are_replayed_by_both_keys(spark: SparkSession, replica_dir: Path, seed: int) -> None:
    """The first instance has the rows that it has alone."""
    rng = random.Random(seed)
    database, orders = both(replica_dir), replica_dir / "orders"
    alone = enabled(replica_dir / "alone", {"orders": START})
    state = dict(START)
    for number in range(14):
        rows = {key: list(values) for key, values in state.items()}
        for key in rng.sample(sorted(rows), min(len(rows), rng.randint(0, 3))):
            draw = rng.random()
            if draw < 0.3:
                del rows[key]
            elif draw < 0.6:
                rows[key][1] += 1
            else:
                rows[key + 100 * (number + 1)] = rows.pop(key)
        notes = [values[0] for values in rows.values()]
        if rng.random() < 0.5:
            rng.shuffle(notes)
        rows = {key: [note, values[1]] for (key, values), note in zip(rows.items(), notes, strict=True)}
        if rng.random() < 0.5:
            rows[1000 + number] = [f"n{number}", number]
        state = {key: (note, qty) for key, (note, qty) in rows.items()}
        for table in (orders, replica_dir / "alone" / "orders"):
            # One commit: rows that stay as they are, are deleted and inserted.
            write_deltalake(str(table), arrow(state), mode="overwrite")
        if rng.random() < 0.4:
            cdc.Database(replica_dir).capture()
    for folder in (replica_dir, replica_dir / "alone"):
        cdc.Database(folder).capture()
    replay(database, "dbo_orders", 0, orders)
    replay(database, "noted", 1, orders)
    assert changes(database, "dbo_orders") == changes(alone, "dbo_orders")


@pytest.mark.slow
def test_a_captured_table_may_be_published_by_another_key(spark: SparkSession, replica_dir: Path) -> None:
    hq = replica_dir / "hq"
    database = enabled(hq, {"items": START}, index="note")
    new_table(replica_dir / "north", "items", START | {1: ("a", 11)})
    update(hq / "items", "id = 1", qty="11")
    cdc.Database(hq).capture()
    file = publication_file(replica_dir, subscribers=THERE)
    run("apply", "-f", file)
    update(hq / "items", "id = 2", id="7")
    update(hq / "items", "id = 3", note="'z'")
    run("sync", "-f", file)
    assert rows(replica_dir / "north" / "items") == [(1, "a", 11), (3, "z", 30), (7, "b", 20)]
    found = operations(tables_at(hq), "dbo_items")
    assert [row[1:] for row in found] == [
        *((3, 1, "a", 10), (4, 1, "a", 11)),
        *((3, 2, "b", 20), (4, 7, "b", 20)),
        *((1, 3, "c", 30), (2, 3, "z", 30)),
    ]
    assert database.instance("dbo_items") is not None
    assert DeltaTable(str(hq / "items")).version() == 3


@pytest.mark.slow
def test_a_key_column_that_is_dropped_pauses_the_table(spark: SparkSession, replica_dir: Path) -> None:
    orders = replica_dir / "orders"
    spark.sql(
        f"create table delta.`{orders}` (id bigint, note string, qty int) using delta tblproperties "
        "('delta.enableChangeDataFeed' = 'true', 'delta.columnMapping.mode' = 'name')"
    )
    spark.sql(f"insert into delta.`{orders}` values (1, 'a', 1), (2, 'b', 2)")
    database = cdc.Database(replica_dir)
    database.enable("orders", key="id")
    database.enable("orders", name="noted", key="note")
    spark.sql(f"alter table delta.`{orders}` rename column note to text")
    spark.sql(f"update delta.`{orders}` set id = 7 where id = 1")
    assert database.capture().paused == {}
    assert [row[1:] for row in operations(tables_at(replica_dir), "noted")] == [
        (3, 1, "a", 1),
        (4, 7, "a", 1),
    ]
    spark.sql(f"alter table delta.`{orders}` drop column text")
    spark.sql(f"update delta.`{orders}` set qty = 5 where id = 2")
    (reason,) = database.capture().paused.values()
    assert "column 'note' of the key of 'noted' was dropped" in reason
    database.disable("orders", name="noted")
    run("resume", "orders", "-f", replica_dir)
    database.capture()
    assert [row[1:] for row in operations(tables_at(replica_dir), "dbo_orders")][-2:] == [
        (3, 2, None, 2),
        (4, 2, None, 5),
    ]
