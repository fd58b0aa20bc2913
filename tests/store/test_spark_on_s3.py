"""Spark on a store: the log store commits once whatever the answer, and lists a log from a version on."""

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mergerepl.spark import session as engine
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.storage import storage
from tests.store.proxy import CONFLICT, CUT, LOST, SLOW_DOWN, Fault, Proxy, Request

pytestmark = pytest.mark.spark


@pytest.fixture
def table(bucket: str, spark: SparkSession) -> Location:
    """A table of a new bucket, which Spark can reach."""
    at = Location.of(f"s3://{bucket}/sales/orders")
    assert not storage(at).is_folder(at)
    assert engine.session() is spark
    return at


def _append(spark: SparkSession, table: Location, value: int) -> None:
    rows = spark.range(value, value + 1).coalesce(1)
    rows.write.format("delta").mode("append").save(table.spark_uri)


def _values(spark: SparkSession, table: Location) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(table.spark_uri).collect())


def _is_commit(request: Request) -> bool:
    return request.method == "PUT" and "/_delta_log/0" in request.key


def _opened(table: Location) -> DeltaTable:
    return DeltaTable(table.uri, storage_options=storage_options(table))


@pytest.mark.parametrize("fault", [LOST, CUT, SLOW_DOWN, CONFLICT], ids=["lost", "cut", "503", "409"])
def test_a_commit_whose_put_fails_is_there_once(
    spark: SparkSession, table: Location, proxy: Proxy, fault: Fault
) -> None:
    _append(spark, table, 0)
    with proxy.breaking(fault, _is_commit) as broken:
        _append(spark, table, 1)
    assert len(broken) == 1
    assert broken[0].kind == "PUT-IF"
    assert _values(spark, table) == [0, 1]
    assert _opened(table).version() == 1
