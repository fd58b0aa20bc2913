"""Change Data Capture in a bucket (decision 0161): a capture that dies at a request is made up for by the next one."""

import re
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from itertools import count

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from mergerepl import cdc
from mergerepl.cdc.apply import apply_capture
from mergerepl.cdc.instances import enable_empty
from mergerepl.cdc.refusals import CdcUsageError
from mergerepl.cdc.tables import tables_at
from mergerepl.errors import StoreError
from mergerepl.model.folders import Capture, TableCapture
from mergerepl.spark import session as engine
from mergerepl.store.location import Location
from mergerepl.store.objects import storage_options
from mergerepl.store.register import state_of
from mergerepl.store.storage import files_in, folders_in, storage
from tests.store.proxy import Proxy
from tests.store.served import ServedHere

DRAWN = 10


class Captured:
    """A table in a bucket whose changes are captured. `change` makes a commit and returns what it adds to `seen`."""

    def __init__(self, root: Location, proxy: Proxy) -> None:
        self.root, self.store, self.number = root, ServedHere(proxy), 0
        self.options = storage_options(root)
        rows = pa.table({"id": pa.array([0], pa.int64()), "note": ["n0"]})
        # delta-rs sets properties without letting this process' other threads, such as the proxy's, work.
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(str(root / "orders"), rows, configuration=feed, storage_options=self.options)
        self.database = cdc.Database(str(root))

    def enable(self) -> "Captured":
        if not self.database.is_enabled() or not self.database.is_captured("orders"):
            self.database.enable("orders")
        return self

    def opened(self, *names: str) -> DeltaTable:
        return DeltaTable(str(self.root.join(*names)), storage_options=self.options)

    def add_column(self) -> None:
        self.number += 1
        field = Field(f"c{self.number}", PrimitiveType("string"), nullable=True)
        self.opened("orders").alter.add_columns([field])

    def lsns(self) -> list[bytes]:
        found = self.opened("_cdc", "lsn_time_mapping").to_pyarrow_table()
        return sorted(found["start_lsn"].to_pylist())

    def statements(self) -> list[tuple[bytes, int]]:
        found = self.opened("_cdc", "ddl_history").to_pyarrow_table().to_pylist()
        return sorted(
            (row["ddl_lsn"], int(re.findall(r"`?c(\d+)`? ", row["ddl_command"])[0])) for row in found
        )

    def capture(self) -> None:
        """Capture one commit."""
        self.database.capture(maxtrans=1, maxscans=1)


class CapturedRows(Captured):
    """A table with a key: each commit updates its row, and the capture runs in process."""

    def enable(self) -> "CapturedRows":
        self.database.enable("orders", key="id")
        return self

    def update(self) -> None:
        self.number += 1
        rows = pa.table({"id": pa.array([0], pa.int64()), "note": [f"n{self.number}"]})
        write_deltalake(str(self.root / "orders"), rows, mode="overwrite", storage_options=self.options)

    def seen(self) -> list[tuple[int, int, str]]:
        """Return what readers see: the place of the LSN, the operation, and the value before or after."""
        lsns = self.lsns()
        (folder,) = [each for each in folders_in(self.root.join("_cdc")) if "_CT" in each]
        rows = self.opened("_cdc", folder).to_pyarrow_table().to_pylist()
        shown = [row for row in rows if row["__$start_lsn"] <= lsns[-1]]
        return sorted((lsns.index(row["__$start_lsn"]), row["__$operation"], row["note"]) for row in shown)


@pytest.fixture
def captured(bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Captured:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "0.3")
    return Captured(Location.of(f"s3://{bucket}/hq"), proxy).enable()


def test_few_changes_in_a_bucket_are_captured_and_shown_without_java_and_cleanup_leaves_what_is_no_earlier_plan(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr("mergerepl.spark.session.session", refused)
    root = Location.of(f"s3://{bucket}/hq")
    options = storage_options(root)
    table, feed = str(root / "orders"), {"delta.enableChangeDataFeed": "true"}
    rows = pa.table({"id": pa.array([0, 1], pa.int64()), "note": ["a", "b"]})
    write_deltalake(table, rows, configuration=feed, storage_options=options)
    database = cdc.Database(str(root))
    database.enable("orders", key=["id"])
    DeltaTable(table, storage_options=options).update(updates={"note": "'c'"}, predicate="id = 1")
    assert database.capture().rows == 2
    stored = DeltaTable(str(root.join("_cdc", "dbo_orders_2_CT")), storage_options=options)
    found = stored.to_pyarrow_table().sort_by("__$operation")
    assert found.select(["__$operation", "id", "note"]).to_pylist() == [
        {"__$operation": 3, "id": 1, "note": "b"},
        {"__$operation": 4, "id": 1, "note": "c"},
    ]
    # In a process of its own: delta-rs queries a table without letting the threads of the proxy work.
    script = (
        "import pyspark\nfrom mergerepl import cdc\nfrom mergerepl.cdc.shown_changes import shown_changes\n"
        f"source = cdc.Database({str(root)!r}).instance('orders')\n"
        "(row,) = shown_changes(source, None, None, 'all', net=True, limit=9).rows\n"
        "assert (row['__$operation'], row['id'], row['note']) == (4, '1', 'c')\n"
        "assert pyspark.SparkContext._gateway is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

    plans = root.join("_logreader", "plans")
    for name in ("0-earlier.json", "999999-later.json", "notes.txt"):
        storage(plans).put(plans / name, b"{}")
    database.cleanup()
    assert [each.name for each in files_in(plans)] == ["999999-later.json", "notes.txt"]


def test_tables_in_azures_store_are_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    capture = Capture("az://lake/hq", tables=(TableCapture("orders", key=("id",)),))
    for refused in (
        lambda: cdc.Database(capture.root).enable("orders", key=["id"]),
        lambda: enable_empty(tables_at(capture.root), timedelta(days=7)),
        lambda: apply_capture(capture, dry_run=True),
    ):
        with pytest.raises(StoreError, match=r"Azure's store.*Use S3 or a folder"):
            refused()


@pytest.mark.parametrize("drawn", [1, pytest.param(DRAWN, marks=pytest.mark.slow)])
def test_a_capture_that_dies_at_a_request_is_made_up_for(captured: Captured, drawn: int) -> None:
    # Each capture takes one commit, all of which are made before: none waits for the next second.
    for _ in range(2 * drawn + 2):
        captured.add_column()
    captured.capture()
    points = captured.store.drawn_points(captured.capture, drawn)
    deaths, before = 0, captured.statements()[:0]
    for number, is_stored in points:
        before = before or captured.statements()
        deaths += captured.store.died(captured.capture, number, is_stored=is_stored)
        captured.capture()
        after, lsns = captured.statements(), captured.lsns()
        where = f"died at request {number}, stored: {is_stored}"
        assert after[: len(before)] == before, where
        assert len(after) > len(before), where
        assert [each[-1] for each in after] == [*range(1, len(after) + 1)], where
        # The first one is that of the instance's begin.
        assert [each[0] for each in after] == lsns[1:], where
        assert state_of(captured.root).scan is None
        before = after
    assert 2 * deaths > drawn


def test_what_a_database_in_a_bucket_does_not_do(captured: Captured) -> None:
    refused = (
        captured.database.relocate,
        lambda: captured.database.resume("orders", restart=True),
        lambda: captured.database.instance("dbo_orders").load(str(captured.root / "copy"), consumer="lake"),
    )
    for call in refused:
        with pytest.raises(CdcUsageError, match="does not work in a bucket"):
            call()
    write_deltalake(
        str(captured.root / "forgetful"),
        pa.table({"id": pa.array([0], pa.int64())}),
        configuration={"delta.setTransactionRetentionDuration": "interval 30 days"},
        storage_options=captured.options,
    )
    with pytest.raises(
        CdcUsageError, match=r"'forgetful' cannot be captured: .* would forget which agent may"
    ):
        captured.database.enable("forgetful")
    # An agent that was displaced left it: nobody can carry it out.
    plans = captured.root.join("_logreader", "plans")
    left = plans / "0-of-an-agent-that-was-displaced.json"
    storage(left).put(left, b"{}")
    captured.database.cleanup()
    assert not storage(plans).is_folder(plans)
    # The tables of a database stay when its last table ends.
    first = captured.lsns()
    captured.database.disable("orders")
    assert captured.database.is_enabled()
    assert not captured.database.instances()
    captured.database.enable("orders")
    assert captured.lsns() > first


@pytest.mark.slow
def test_an_enabling_that_dies_at_a_request_is_made_up_for(captured: Captured, proxy: Proxy) -> None:
    places = (captured.root.with_name(f"hq{n}") for n in count())
    deaths = 0
    for number, is_stored in captured.store.drawn_points(
        lambda: Captured(next(places), proxy).enable(), DRAWN
    ):
        here = Captured(next(places), proxy)
        deaths += captured.store.died(here.enable, number, is_stored=is_stored)
        # It may finish the one that died, and is refused then.
        with suppress(CdcUsageError):
            here.enable()
        where = f"died at request {number}, stored: {is_stored}"
        here.add_column()
        here.database.capture()
        assert [each[-1] for each in here.statements()] == [1], where
        assert len(here.lsns()) == 2, where
        assert [each.capture_instance for each in here.database.instances()] == ["dbo_orders"], where
        assert {job.job_type for job in here.database.jobs.list()} == {"capture", "cleanup"}, where
        assert state_of(here.root).scan is None, where
    assert 2 * deaths > DRAWN


@pytest.mark.slow
def test_a_capture_of_rows_that_dies_at_a_request_is_made_up_for(
    bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MERGEREPL_LEASE_S", "0.3")
    captured = CapturedRows(Location.of(f"s3://{bucket}/hq"), proxy).enable()
    for _ in range(2 * DRAWN + 2):
        captured.update()
    captured.capture()
    deaths, seen = 0, 1
    for number, is_stored in captured.store.drawn_points(captured.capture, DRAWN):
        deaths += captured.store.died(captured.capture, number, is_stored=is_stored)
        captured.capture()
        after = captured.seen()
        where = f"died at request {number}, stored: {is_stored}"
        commits = len(after) // 2
        assert commits > seen, where
        expected = [(n, 3, f"n{n - 1}") for n in range(1, commits + 1)] + [
            (n, 4, f"n{n}") for n in range(1, commits + 1)
        ]
        assert after == sorted(expected), where
        seen = commits
    assert 2 * deaths > DRAWN
    assert engine.jvm_pid() is None
