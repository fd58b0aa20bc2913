"""One database from `cdc enable` to change rows: by the command line, over commits of Spark and of deltalake."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl import cdc, failpoints
from mergerepl.cdc import consumer
from mergerepl.cdc.change_rows import change_rows
from mergerepl.cdc.tables import tables_at
from mergerepl.cli.main import main
from mergerepl.delta import engine_choice
from mergerepl.delta.engine_choice import NeedsSparkError
from mergerepl.errors import StoreError
from mergerepl.failpoints import FailpointError
from mergerepl.frames import is_in_process
from mergerepl.logreader.positions import read_state
from tests.cdc.databases import (
    add,
    arrow,
    changes,
    delete,
    enabled,
    entries,
    merge,
    new_table,
    rows_seen,
    update,
)

pytestmark = pytest.mark.spark


def run(*words: object) -> dict:
    """Return what a command prints as JSON."""
    done = CliRunner().invoke(main, [*map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_from_enable_to_change_rows(spark: SparkSession, replica_dir: Path) -> None:
    root, orders = replica_dir, new_table(replica_dir, "orders", {1: ("a", 1), 2: ("b", 2), 3: ("c", 3)})
    (begun,) = run("cdc", "enable", "orders", "-f", root, "--key", "id")["capture_instances"]
    assert begun["capture_instance"] == "dbo_orders"
    assert begun["supports_net_changes"]
    add(orders, {4: ("d", 4)})
    update(orders, "id = 2", qty="20")
    delete(orders, "id = 1")
    merge(orders, {2: ("B", 20), 3: (None, 3), 5: ("e", 5)})
    spark.sql(f"update delta.`{orders}` set note = note where id = 5")
    spark.sql(f"update delta.`{orders}` set id = 50 where id = 5")
    done = run("capture", "-f", root)["captured"][0]["details"]
    assert (done["transactions"], done["rows"], done["paused"]) == (6, 10, {})
    database = tables_at(root)
    assert changes(database, "dbo_orders") == [
        (0, 2, "07", 4, "d", 4),
        (1, 3, "04", 2, "b", 2),
        (1, 4, "04", 2, "b", 20),
        (2, 1, "07", 1, "a", 1),
        (3, 1, "07", 3, "c", 3),
        (3, 3, "02", 2, "b", 20),
        (3, 4, "02", 2, "B", 20),
        (3, 2, "07", 5, "e", 5),
        (4, 1, "07", 5, "e", 5),
        (4, 2, "07", 50, "e", 5),
    ]
    rows = spark.read.format("delta").load(str(root / "_cdc" / "dbo_orders_CT"))
    assert [*rows.columns[:5], rows.columns[-1]] == [
        *("__$start_lsn", "__$end_lsn", "__$seqval", "__$operation", "__$update_mask"),
        "__$scan_cycle",
    ]
    found = rows_seen(database, "dbo_orders")
    assert {row[0][:8] for row in found} == {row[-1].to_bytes(8, "big") for row in found}
    assert found[1][2] == found[2][2]
    assert {row[1] for row in found} == {None}
    kinds = [entry.kind for entry in entries(database)]
    assert kinds == ["begin", *["transaction"] * 6]
    assert run("capture", "-f", root)["captured"][0]["changes"] == 0


def test_few_changes_are_captured_without_java_also_beside_an_unchanged_table_without_a_key(
    replica_dir: Path,
) -> None:
    orders = new_table(replica_dir, "orders", {1: ("a", 1), 2: ("b", 2)})
    # Reading does not check a table's rules.
    DeltaTable(str(orders)).alter.add_constraint({"positive": "qty > 0"})
    cdc.Database(replica_dir).enable("orders", key="id")
    database = enabled(replica_dir, {"log": {1: ("a", 1)}}, index=None)
    update(orders, "id = 2", qty="20")
    script = (
        "import sys\nfrom mergerepl import cdc\n"
        f"assert cdc.Database({str(replica_dir)!r}).capture().rows == 2\n"
        "assert sys.modules['pyspark'].SparkContext._gateway is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert changes(database, "dbo_orders") == [(0, 3, "04", 2, "b", 2), (0, 4, "04", 2, "b", 20)]


def test_many_values_of_few_rows_are_captured_by_spark(
    replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enabled(replica_dir, {"orders": {1: ("a", 1), 2: ("b", 2)}})
    update(replica_dir / "orders", "id = 2", qty="20")

    def asked(**_: object) -> None:
        raise RuntimeError("Spark was asked for")

    monkeypatch.setattr("mergerepl.delta.engine_choice.MOST_VALUES", 2)
    monkeypatch.setattr("mergerepl.spark.session.session", asked)
    with pytest.raises(RuntimeError, match="asked for"):
        cdc.Database(replica_dir).capture()


def test_rows_that_this_process_cannot_make_are_made_by_spark_also_after_a_table_pauses(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("orders", "stock", "late")
    database = enabled(replica_dir, {name: {1: ("a", 1)} for name in names})
    for name in names:
        update(replica_dir / name, "id = 1", qty="20")
    engines = []

    def made(*args: Any) -> Any:
        engines.append(is_in_process())
        if engines == [True, True]:
            raise NeedsSparkError("a value that only Spark has")
        if engines == [True, True, False]:
            raise StoreError("It was edited.")
        return change_rows(*args)

    monkeypatch.setattr(consumer, "change_rows", made)
    done = cdc.Database(replica_dir).capture()
    assert (done.rows, [*done.paused]) == (4, ["stock"])
    assert engines == [True, True, False, False]
    for name in ("orders", "late"):
        assert changes(database, f"dbo_{name}") == [(0, 3, "04", 1, "a", 1), (0, 4, "04", 1, "a", 20)]


def test_many_rows_that_no_commit_counts_are_left_to_spark(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "MOST_IN_PROCESS", 3)
    names = ("orders", "stock")
    enabled(replica_dir, {name: {1: ("a", 1), 2: ("b", 2)} for name in names})
    engines = []

    def made(*args: Any) -> Any:
        engines.append(is_in_process())
        return change_rows(*args)

    monkeypatch.setattr(consumer, "change_rows", made)
    for tables, is_here in ((names[:1], True), (names, False)):
        for name in tables:
            table = DeltaTable(str(replica_dir / name))
            rows = {key: (f"{table.version()}", key) for key in (1, 2)}
            write_deltalake(table, arrow(rows), mode="overwrite")
        engines.clear()
        assert cdc.Database(replica_dir).capture().rows == 4 * len(tables)
        assert engines == [is_here] * len(tables)


def test_a_cycle_that_died_is_finished_without_the_table_that_went(
    spark: SparkSession, replica_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("orders", "stock")
    database = enabled(replica_dir, {name: {1: ("a", 1)} for name in names})
    for name in names:
        update(replica_dir / name, "id = 1", qty="20")
    monkeypatch.setattr(failpoints, "_passed", {})
    monkeypatch.setenv("MERGEREPL_FAILPOINT", "logreader.after_plan=raise")
    with pytest.raises(FailpointError):
        cdc.Database(replica_dir).capture()
    monkeypatch.delenv("MERGEREPL_FAILPOINT")
    shutil.rmtree(replica_dir / "stock")
    cdc.Database(replica_dir).capture()
    assert changes(database, "dbo_orders") == [(0, 3, "04", 1, "a", 1), (0, 4, "04", 1, "a", 20)]
    assert {row.source_path: row.status for row in read_state(database.log).sources.values()} == {
        "orders": "active",
        "stock": "paused",
    }
