"""A subscriber's table is the publisher's: schema, constraints, partitions, rows; and it takes writes."""

import uuid
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

import mergerepl
from mergerepl.delta.layout import clustering_columns
from mergerepl.delta.table import open_table
from tests.networks import Hub
from tests.publish.publishing import orders

pytestmark = pytest.mark.spark

RICH = """
    id int NOT NULL COMMENT 'the key',
    name varchar(10),
    code char(3),
    amount decimal(38,18),
    at timestamp,
    local_at timestamp_ntz,
    day date,
    raw binary,
    tags array<string>,
    attributes map<string,double>,
    place struct<`a.b`:int,c:array<struct<d:float>>>,
    twice int GENERATED ALWAYS AS (id * 2),
    note string DEFAULT 'none',
    region string
"""
ROW = """
    SELECT cast(id as int) id, 'n' name, 'c' code, cast('1.5' as decimal(38,18)) amount,
    timestamp'2024-01-01 00:00:00' at, timestamp_ntz'2024-01-01 00:00:00' local_at, date'2024-01-01' day,
    X'0001' raw, array('x', null) tags, map('k', double('NaN')) attributes,
    named_struct('a.b', 1, 'c', array(named_struct('d', float(-0.0)))) place, 'given' note,
    if(id % 2 = 0, 'e', null) region FROM range(100)
"""


def rich_table(spark: SparkSession, path: Path) -> None:
    name = f"delta.`{path}`"
    spark.sql(
        f"CREATE TABLE {name} ({RICH}) USING delta PARTITIONED BY (region) COMMENT 'all sorts' "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported', 'my.own' = 'kept', "
        "'delta.deletedFileRetentionDuration' = 'interval 30 days')"
    )
    spark.sql(f"ALTER TABLE {name} ADD CONSTRAINT positive CHECK (id >= 0)")
    spark.sql(ROW).write.format("delta").mode("append").save(str(path))


@pytest.fixture(scope="module")
def rich(spark: SparkSession, worker_folder: Path) -> Hub:
    """The rich table, published."""
    hub = Hub(worker_folder / uuid.uuid4().hex[:12])
    rich_table(spark, hub.publisher / "orders")
    hub.articles(orders())
    hub.subscribe("north")
    hub.apply()
    return hub


def test_inv_42_schema_constraints_and_rows_are_the_publishers(spark: SparkSession, rich: Hub) -> None:
    ours, theirs = (open_table(rich.root(name) / "orders") for name in ("hq", "north"))
    assert theirs.fields == ours.fields
    assert theirs.metadata.partition_columns == ("region",)
    assert theirs.properties == ours.properties
    assert theirs.properties["delta.deletedFileRetentionDuration"] == "interval 30 days"
    assert theirs.features <= ours.features
    rows = [
        sorted(map(str, spark.read.format("delta").load(str(table.path)).collect()))
        for table in (ours, theirs)
    ]
    assert rows[0] == rows[1]
    assert len(rows[1]) == 100


@pytest.mark.slow
def test_a_subscribers_table_takes_merges_and_enforces_its_rules(
    spark: SparkSession, rich: Hub, replica_dir: Path
) -> None:
    path = rich.copied(replica_dir).root("north") / "orders"
    table = DeltaTable.forPath(spark, str(path))
    source = spark.read.format("delta").load(str(path)).limit(3).selectExpr("* except (name)", "'z' as name")
    table.alias("t").merge(
        source.alias("s"), "t.id = s.id"
    ).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    feed = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 2)
        .load(str(path))
    )
    assert feed.where("_change_type = 'update_postimage'").count() == 3
    spark.sql(f"INSERT INTO delta.`{path}` (id, region) VALUES (1000, 'e')")
    inserted = table.toDF().where("id = 1000").select("twice", "note").first()
    assert tuple(inserted) == (2000, "none")
    with pytest.raises(Exception, match="CHECK constraint positive"):
        spark.sql(f"INSERT INTO delta.`{path}` (id, region) VALUES (-1, 'e')")
    with pytest.raises(Exception, match=r"EXCEED_LIMIT_LENGTH|length limitation"):
        spark.sql(f"INSERT INTO delta.`{path}` (id, name) VALUES (1001, 'much too long')")


FEATURES = {
    "deletion vectors": "'delta.enableDeletionVectors' = 'true'",
    "row tracking": "'delta.enableRowTracking' = 'true'",
    "type widening": "'delta.enableTypeWidening' = 'true'",
    "in-commit timestamps": "'delta.enableInCommitTimestamps' = 'true'",
    "v2 checkpoints": "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '2'",
    "column mapping by name": "'delta.columnMapping.mode' = 'name'",
    "column mapping by id": "'delta.columnMapping.mode' = 'id'",
    "random prefixes": "'delta.randomizeFilePrefixes' = 'true'",
}


@pytest.mark.slow
@pytest.mark.parametrize("feature", FEATURES)
def test_a_table_with_a_feature_is_published_and_synchronized(
    spark: SparkSession, replica_dir: Path, feature: str
) -> None:
    hub = Hub(replica_dir)
    path = hub.publisher / "orders"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id int NOT NULL, v int, s struct<x:int>) USING delta "
        f"TBLPROPERTIES ({FEATURES[feature]})"
    )
    rows = spark.range(10).selectExpr("cast(id as int) id", "1 v", "named_struct('x', 1) s")
    rows.write.format("delta").mode("append").save(str(path))
    if feature == "type widening":
        spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN v TYPE bigint")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 5")
    if feature.startswith("column"):
        spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN v TO w")
    hub.articles(orders())
    hub.subscribe("north")
    hub.apply()
    for name in ("hq", "north"):
        at = hub.root(name) / "orders"
        table = DeltaTable.forPath(spark, str(at))
        source = table.toDF().limit(2)
        merge = table.alias("t").merge(source.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        table.delete("id = 7")
        captured = open_table(at).version - 1
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", captured)
        assert feed.load(str(at)).count() == 5, name
        assert table.toDF().count() == 8
        table.update("id = 9", {"s": expr("named_struct('x', 9)")})
    assert mergerepl.Project.load(hub.publisher).sync().ok
    at_hq, at_north = (
        spark.read.format("delta").load(str(hub.root(name) / "orders")) for name in ("hq", "north")
    )
    assert sorted(at_hq.collect()) == sorted(at_north.collect())
    assert "columnMapping" not in open_table(hub.root("north") / "orders").features


@pytest.mark.slow
@pytest.mark.parametrize("mapping", ["none", "name"])
def test_clustering_is_the_publishers(spark: SparkSession, replica_dir: Path, mapping: str) -> None:
    hub = Hub(replica_dir)
    path = hub.publisher / "orders"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id int, place struct<x:int,y:int>, v string) USING delta "
        f"CLUSTER BY (place.y, v) TBLPROPERTIES ('delta.columnMapping.mode' = '{mapping}')"
    )
    row = "SELECT 1 id, named_struct('x', 1, 'y', 2) place, 'v' v"
    spark.sql(row).write.format("delta").mode("append").save(str(path))
    hub.articles(orders())
    hub.subscribe("north")
    hub.apply()
    found = spark.sql(f"DESCRIBE DETAIL delta.`{hub.root('north')}/orders`").first()
    assert found["clusteringColumns"] == ["place.y", "v"]
    assert spark.read.format("delta").load(str(hub.root("north") / "orders")).count() == 1
    spark.sql(f"OPTIMIZE delta.`{hub.root('north')}/orders`")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_a_table_is_known_from_its_checkpoint(spark: SparkSession, replica_dir: Path, policy: str) -> None:
    path = replica_dir / "t"
    spark.sql(
        f"CREATE TABLE delta.`{path}` (id int COMMENT 'c', v string) USING delta CLUSTER BY (v) COMMENT 'all' "
        f"TBLPROPERTIES ('delta.checkpointPolicy' = '{policy}', 'delta.checkpointInterval' = '2', 'my.own' = 'x')"
    )
    for i in range(3):
        spark.sql(f"SELECT {i} id, 'v' v").write.format("delta").mode("append").save(str(path))
    whole = open_table(path)
    for version in (0, 1):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    assert open_table(path) == whole
    assert clustering_columns(lambda: spark, whole) == [["v"]]
    assert (whole.description, whole.properties["my.own"]) == ("all", "x")
