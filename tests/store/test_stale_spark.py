"""Spark of an agent that was displaced: nothing that it still sends reaches a table after the fence."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import mergerepl.store.register as registers
from mergerepl.delta.appended import delete_where
from mergerepl.delta.marks import CommitMark
from mergerepl.delta.table import open_table
from mergerepl.delta.tables import Transaction, append, commit_fence, marked_session
from mergerepl.errors import CommitConflictError
from mergerepl.replica.application_ids import DELETE_APP_ID, RESOLVE_APP_ID, application_ids, copy_app_id
from mergerepl.spark import session as engine
from mergerepl.store.location import Location
from mergerepl.store.register import ROOT_LOCK, Pace, Register, take
from mergerepl.store.storage import storage
from tests.store.proxy import Fault, Proxy, Request

pytestmark = pytest.mark.spark

SUBID = "north"


def append_rows(spark: SparkSession, table: Location) -> None:
    """As `apply` copies rows."""
    copied = Transaction(copy_app_id(SUBID), 1, CommitMark("s", "setup:rows"))
    append(spark.range(10, 12).coalesce(1), table, copied)


def delete_rows(spark: SparkSession, table: Location) -> None:
    """As runs are removed that a crash left."""
    delete_where(spark, table, F.col("id") > 3, DELETE_APP_ID)


def merge_rows(spark: SparkSession, table: Location) -> None:
    """As `conflicts resolve` writes rows."""
    with marked_session(
        spark, Transaction(RESOLVE_APP_ID, 1, CommitMark("r", "resolve:r")), table
    ) as session:
        session.sql(
            f"MERGE INTO delta.`{table.spark_uri}` t USING (SELECT 7L AS id) s ON t.id = s.id "
            "WHEN NOT MATCHED THEN INSERT *"
        )


WRITES = [append_rows, *(pytest.param(each, marks=pytest.mark.slow) for each in (delete_rows, merge_rows))]


@pytest.fixture
def table(bucket: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Location:
    """The numbers below 5, in a root whose register nobody holds."""
    monkeypatch.setattr(registers, "_held", {})
    at = Location.of(f"s3://{bucket}/north/orders")
    assert not storage(at).is_folder(at)
    assert engine.session() is spark
    spark.range(5).coalesce(1).write.format("delta").save(at.spark_uri)
    return at


def hold(root: Location) -> Register:
    """Take a register over."""
    at = root / ROOT_LOCK
    registers._held[at] = register = take(storage(at), at, purpose="a test", pace=Pace(1e-9))
    return register


@pytest.mark.parametrize("write", WRITES)
def test_no_write_of_a_displaced_agent_reaches_a_table_after_the_fence(
    spark: SparkSession, table: Location, proxy: Proxy, write: Callable[[SparkSession, Location], Any]
) -> None:
    root = table.parent
    first = hold(root)
    is_sent, may_go = threading.Event(), threading.Event()

    def is_commit(request: Request) -> bool:
        return request.kind == "PUT-IF" and request.key.endswith(f"{1:020}.json")

    held = Fault(before=lambda: (is_sent.set(), may_go.wait(60)))
    with ThreadPoolExecutor(1) as pool, proxy.breaking(held, is_commit):
        begun = pool.submit(write, spark, table)
        assert is_sent.wait(60)
        second = hold(root)
        commit_fence(table, second.fence, application_ids([SUBID]))
        may_go.set()
        with pytest.raises(Exception, match="ConcurrentTransaction"):
            begun.result(120)
    assert open_table(table).version == 1
    # The same writes, begun after the fence by an agent that does not know yet that it was displaced.
    registers._held[first.at] = first
    # An append is looked for in the log; Delta skips the others.
    with suppress(CommitConflictError):
        write(spark, table)
    assert open_table(table).version == 1
    registers._held[second.at] = second
    write(spark, table)
    assert open_table(table).version == 2
