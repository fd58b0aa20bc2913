"""Tables that users find by name in a Hive metastore (embedded Derby): a name is an alias of a place."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os
import sys

from pyspark.sql import SparkSession

import mergerepl
from mergerepl.errors import PublicationError
from mergerepl.spark.jars import delta_jars

folder = os.getcwd()
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", ",".join(map(str, delta_jars())))
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    .config("spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:;databaseName={folder}/metastore;create=true")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.databricks.delta.snapshotPartitions", "2")
    .config("spark.ui.enabled", "false")
    .enableHiveSupport()
    .getOrCreate()
)
spark.sql(f"create database lake location '{folder}/hq'")
spark.sql("create database north")
spark.sql(f"create table lake.orders (id bigint, qty int) using delta location '{folder}/hq/orders'")
spark.sql("insert into lake.orders values (1, 0), (2, 0)")
project = mergerepl.Project.load("mergerepl.yml")
assert project.apply().steps[-1].action == "register"
assert not project.apply().steps


def rows(name):
    return sorted(map(tuple, spark.table(name).collect()))


def synced(*names):
    (done,) = project.sync(engine="spark").sessions
    assert done.status == "succeeded", done
    found = [rows(name) for name in names]
    assert found[0] == found[1], found
    return found[0]


spark.sql("update lake.orders set qty = 7 where id = 1")
spark.sql("insert into north.orders values (3, 3)")
assert synced("lake.orders", "north.orders") == [(1, 7), (2, 0), (3, 3)]
spark.sql("alter table lake.orders rename to lake.sales")
try:
    project.sync()
    raise AssertionError("a name is missing")
except PublicationError as error:
    assert "ALTER TABLE lake.sales RENAME TO lake.orders" in str(error), error
spark.sql("alter table lake.sales rename to lake.orders")
spark.sql("delete from lake.orders where id = 2")
assert synced("lake.orders", "north.orders") == [(1, 7), (3, 3)]
by_name, by_path = (
    spark.sql(f"describe detail {of}").first() for of in ("lake.orders", f"delta.`{folder}/hq/orders`")
)
assert (by_name["id"], by_name["location"]) == (by_path["id"], by_path["location"])
sys.stdout.write("done")
"""


@pytest.mark.slow
@pytest.mark.spark
def test_tables_are_written_by_name_and_synchronized_by_place(tmp_path: Path) -> None:
    (tmp_path / "mergerepl.yml").write_text(
        "publication: sales\npublisher: ./hq\ncatalog: lake\narticles:\n  - {name: orders, key: [id]}\n"
        "subscriptions:\n  - {subscriber: ./north, name: north, catalog: north}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout == "done", done.stderr[-5000:]
