"""Spark on a store: the log store commits once whatever the answer, and lists a log from a version on."""

import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from mergerepl.delta.store_proof import PROOF, prove, prove_spark
from mergerepl.errors import EngineError, StoreError
from mergerepl.logreader.log_reader import LogReader
from mergerepl.spark import session as engine
from mergerepl.spark import stores
from mergerepl.store.location import Location
from mergerepl.store.objects import options_in_use, storage_options
from mergerepl.store.storage import storage
from tests.store.proxy import CONFLICT, CUT, LOST, SLOW_DOWN, STRIPPED, Fault, Proxy, Request

pytestmark = pytest.mark.spark


@pytest.fixture
def table(bucket: str, spark: SparkSession) -> Location:
    """A table of a new bucket, which Spark can reach."""
    at = Location.of(f"s3://{bucket}/sales/orders")
    assert not storage(at).is_folder(at)
    assert engine.session() is spark
    return at


def append(spark: SparkSession, table: Location, number: int) -> None:
    rows = spark.range(number, number + 1).coalesce(1)
    rows.write.format("delta").mode("append").save(table.spark_uri)


def append_by_delta_rs(table: Location, number: int) -> None:
    """Append a number as mergerepl does: with a transaction, without which delta-rs repeats a commit that was stored."""
    rows = pa.table({"id": pa.array([number], pa.int64())})
    options = storage_options(table)
    properties = CommitProperties(max_commit_retries=100)
    write_deltalake(table.uri, rows, mode="append", storage_options=options, commit_properties=properties)


def numbers(table: Location) -> list[int]:
    return sorted(opened(table).to_pyarrow_table()["id"].to_pylist())


def opened(table: Location) -> DeltaTable:
    return DeltaTable(table.uri, storage_options=storage_options(table))


def is_commit(request: Request) -> bool:
    return request.method == "PUT" and "/_delta_log/0" in request.key


def test_a_commit_whose_put_fails_is_there_once(spark: SparkSession, table: Location, proxy: Proxy) -> None:
    append(spark, table, 0)
    for number, fault in enumerate((LOST, CUT, SLOW_DOWN, CONFLICT), start=1):
        with proxy.breaking(fault, is_commit) as broken:
            append(spark, table, number)
        assert [request.kind for request in broken] == ["PUT-IF"], fault
        assert numbers(table) == [*range(number + 1)], fault
        assert opened(table).version() == number, fault


def test_a_version_that_another_library_took_is_not_overwritten(
    spark: SparkSession, table: Location, proxy: Proxy
) -> None:
    append(spark, table, 0)
    first = Fault(before=lambda: pool.submit(append_by_delta_rs, table, 1).result(60))
    with ThreadPoolExecutor(1) as pool, proxy.breaking(first, is_commit) as broken:
        append(spark, table, 2)
    assert len(broken) == 1
    assert numbers(table) == [0, 1, 2]
    assert opened(table).version() == 2


def test_a_log_is_listed_from_a_version_on(spark: SparkSession, table: Location, proxy: Proxy) -> None:
    log = table / "_delta_log"
    names = [f"{version:020}.json" for version in range(8)]
    for name in (
        *names,
        "_staged_commits/x.json",
        "00000000000000000007.checkpoint.parquet",
        "_last_checkpoint",
    ):
        storage(log).put(log / name, b"x")
    context: Any = spark.sparkContext
    java, hadoop = context._jvm, context._jsc.hadoopConfiguration()
    log_store = java.io.mergerepl.ConditionalPutLogStore(hadoop)

    def listed(name: str) -> list[str]:
        proxy.reset()
        path = getattr(java, "org.apache.hadoop.fs.Path")((log / name).spark_uri)
        found = log_store.listFrom(path, hadoop)
        return [found.next().getPath().getName() for _ in iter(found.hasNext, False)]

    later = ["00000000000000000007.checkpoint.parquet", names[7], "_last_checkpoint"]
    assert listed(names[5]) == [names[5], names[6], *later]
    assert proxy.counts() == {"LIST": 1}
    assert "start-after=" in proxy.requests[0].query
    assert listed("00000000000000000006.") == [names[6], *later]
    assert listed("00000000000000000008.") == ["_last_checkpoint"]
    assert listed("../\0") == ["_delta_log"], "VACUUM lists the folders of a table so"
    with pytest.raises(Exception, match="FileNotFoundException"):
        listed("../../absent/_delta_log/00000000000000000000.json")


@pytest.mark.slow
def test_vacuum_removes_old_files_from_all_folders_of_a_table(spark: SparkSession, table: Location) -> None:
    rows = spark.range(2).coalesce(1).selectExpr("id", "id as part")
    for _ in range(2):
        rows.write.format("delta").mode("overwrite").partitionBy("part").save(table.spark_uri)
    name = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark.conf.set(name, "false")
    try:
        spark.sql(f"VACUUM delta.`{table.uri}` RETAIN 0 HOURS")
    finally:
        spark.conf.unset(name)
    left = [str(file) for file in storage(table).files_below(table) if str(file).endswith(".parquet")]
    assert sorted(left) == sorted(opened(table).file_uris())


@pytest.mark.slow
def test_two_libraries_that_write_at_once_lose_nothing(spark: SparkSession, table: Location) -> None:
    count = 60
    append(spark, table, -1)

    def run(write: Callable[[int], None], first: int) -> None:
        for number in range(first, first + count):
            write(number)

    with ThreadPoolExecutor(3) as pool:
        for done in [
            pool.submit(run, lambda number: append(spark, table, number), 0),
            pool.submit(run, lambda number: append_by_delta_rs(table, number), 1000),
            pool.submit(run, lambda number: append_by_delta_rs(table, number), 2000),
        ]:
            done.result(600)
    wanted = [-1, *(first + number for first in (0, 1000, 2000) for number in range(count))]
    assert numbers(table) == sorted(wanted)
    assert opened(table).version() == 3 * count, "each commit is one version"


@pytest.mark.slow
def test_two_sparks_that_write_at_once_lose_nothing(spark: SparkSession, table: Location) -> None:
    count = 50
    append(spark, table, -1)
    command = [sys.executable, "-m", "tests.store.spark_writer", table.uri, "1000", str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        acknowledged = [int(other.stdout.readline())]
        for number in range(count):
            append(spark, table, number)
        acknowledged += map(int, other.stdout.read().split())
    assert other.returncode == 0
    assert acknowledged == [*range(1000, 1000 + count)]
    assert numbers(table) == [-1, *range(count), *acknowledged]
    assert opened(table).version() == 2 * count


@pytest.mark.parametrize(
    ("conf", "value"),
    [
        (stores.LOG_STORE_CONF, "io.delta.storage.S3SingleDriverLogStore"),
        (stores.PERFORMANCE_FLAGS, "Create"),
    ],
)
def test_a_users_session_that_would_overwrite_commits_is_refused(
    spark: SparkSession, table: Location, conf: str, value: str
) -> None:
    assert options_in_use() is not None
    stores.require_log_store(spark)
    context: Any = spark.sparkContext
    confs = context._jsc.hadoopConfiguration() if conf == stores.PERFORMANCE_FLAGS else context._conf
    before = confs.get(conf)
    confs.set(conf, value)
    try:
        with pytest.raises(EngineError, match=f"{conf}={value}"):
            stores.require_log_store(spark)
        # As a database, a log reader or a distributor is given it.
        with pytest.raises(EngineError, match=f"{conf}={value}"):
            engine.usable(spark)
    finally:
        confs.unset(conf) if before is None else confs.set(conf, before)


def test_a_session_must_see_the_store_that_was_proved(
    spark: SparkSession, table: Location, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = table.parent
    prove(root)
    prove_spark(spark, root)
    with (
        proxy.breaking(STRIPPED, lambda request: request.condition != "") as broken,
        pytest.raises(StoreError, match=r"ignores If-None-Match \(tried through Spark"),
    ):
        prove_spark(spark, root)
    assert len(broken) == 1
    absent = Fault(answer=404)
    with (
        proxy.breaking(
            absent, lambda request: request.key.endswith(PROOF) and request.method == "HEAD", times=9
        ),
        pytest.raises(StoreError, match="reads another store"),
    ):
        # This process looks with GET.
        prove_spark(spark, root)
    # A log reader in a caller's session would pause tables that it does not find in the other store.
    monkeypatch.setattr(engine, "_embedded", None)
    with (
        proxy.breaking(
            absent, lambda request: request.key.endswith(PROOF) and request.method == "HEAD", times=9
        ),
        pytest.raises(StoreError, match="reads another store"),
    ):
        LogReader(root, spark).spark()
    assert list(storage(root).files_below(root)) == [root / PROOF]


@pytest.mark.slow
def test_partitions_of_odd_names_are_found_by_both_libraries(spark: SparkSession, table: Location) -> None:
    names = ["a b", "a+b", "a/b", "50%", "50%25", "ü", "a=b", "a:b", "?#"]
    rows = spark.createDataFrame([(name,) for name in names], "name string").selectExpr(
        "name", "name as part"
    )
    rows.coalesce(1).write.format("delta").partitionBy("part").save(table.spark_uri)
    both = pa.table({"name": names, "part": names})
    write_deltalake(opened(table), both, mode="append")
    found = opened(table).to_pyarrow_table().to_pylist()
    assert sorted(row["name"] for row in found if row["name"] == row["part"]) == sorted(2 * names)
    seen = spark.read.format("delta").load(table.spark_uri).where("name = part").collect()
    assert sorted(row.name for row in seen) == sorted(2 * names)


@pytest.mark.slow
def test_a_storm_of_faults_loses_no_commit(spark: SparkSession, table: Location, proxy: Proxy) -> None:
    drawn, faults = random.Random(0), (LOST, CUT, SLOW_DOWN)
    append(spark, table, 0)
    proxy.rule = lambda _: drawn.choices((*faults, None), (4, 4, 6, 86))[0]
    for number in range(1, 26):
        append(spark, table, number)
    proxy.rule = None
    assert numbers(table) == [*range(26)]
    assert opened(table).version() == 25
