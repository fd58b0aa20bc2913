"""What many scan cycles leave: few files of a change table, no unused ones, a short log."""

import json
import os
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from mergerepl import cdc
from mergerepl.cdc.sources import JOIN_EVERY, JOINED_BYTES, SMALL_FILES
from mergerepl.cdc.tables import CdcTables
from mergerepl.delta.reads import may_hold, plain_files
from mergerepl.delta.table import open_table
from mergerepl.delta.writes import compact
from mergerepl.logreader.lsn import Lsn
from mergerepl.systables.cdc import APP_ID, LSN_TIME_MAPPING, SCAN_CYCLE, LsnTime
from tests.cdc.databases import enabled, new_table

ORDERS = "dbo_orders"


def filled(
    database: CdcTables, cycles: int, *, join_every: int, most: int, target_bytes: int, per_commit: int = 1
) -> list[Lsn]:
    """Append rows of so many scan cycles, a file each as captures do, and join files; returns their LSNs.

    The gate shows all of them. Captures commit each cycle (`per_commit`); ten thousand commits take minutes.
    """
    table = database.change_table(database.instance(ORDERS))
    first, joined = database.gate_cycle + 1, 0
    schema = DeltaTable(str(table)).to_pyarrow_table().schema
    found = [Lsn.of(first + number, 1) for number in range(cycles)]
    files = []
    for number, lsn in enumerate(found, 1):
        rows = [
            {
                "__$start_lsn": bytes(lsn),
                "__$seqval": bytes([2, key, *bytes(8)]),
                "__$operation": 2,
                "__$update_mask": b"\x07",
                "id": key,
                "note": f"{number}-{key}" * 50,
                SCAN_CYCLE: lsn.scan_cycle,
            }
            for key in range(20)
        ]
        files.append(_written(table, pa.Table.from_pylist(rows, schema=schema), lsn.scan_cycle))
        if number % per_commit == 0 or number == cycles:
            log = DeltaTable(str(table))
            # Newest first, as files of several commits are in a log.
            log.create_write_transaction(files[::-1], mode="append", schema=log.schema())
            files.clear()
        if number % join_every == 0:
            joined += compact(table, most_files=most, target_bytes=target_bytes)
    assert joined > 3
    now = datetime.now(UTC)
    entries = [
        LsnTime(
            start_lsn=bytes(lsn),
            tran_begin_time=now,
            tran_end_time=now,
            tran_id=bytes(10),
            tran_begin_lsn=bytes(lsn),
            scan_cycle=lsn.scan_cycle,
            kind="transaction",
            commits=(),
        )
        for lsn in found
    ]
    database.control.append(LSN_TIME_MAPPING, entries, once=(APP_ID, found[-1].scan_cycle))
    return found


def _written(table: Path, rows: pa.Table, scan_cycle: int) -> AddAction:
    """Write a file of one scan cycle, with the bounds that captures record."""
    file = table / f"{uuid.uuid4()}.parquet"
    pq.write_table(rows, file, compression="zstd")
    bound = {SCAN_CYCLE: scan_cycle}
    stats = {"numRecords": len(rows), "minValues": bound, "maxValues": bound, "nullCount": {SCAN_CYCLE: 0}}
    at = os.stat(file)
    return AddAction(file.name, at.st_size, {}, int(at.st_mtime * 1000), True, json.dumps(stats))


def test_one_of_many_cycles_is_in_at_most_two_files(replica_dir: Path) -> None:
    database = enabled(replica_dir, {"orders": {}}, index=None)
    found = filled(database, 120, join_every=8, most=16, target_bytes=8192)
    files = plain_files(open_table(database.change_table(database.instance(ORDERS))), bounded=(SCAN_CYCLE,))
    assert files is not None
    assert len(files) < len(found) / 3
    opened = [
        sum(may_hold(file, {SCAN_CYCLE: (lsn.scan_cycle - 1, lsn.scan_cycle)}) for file in files)
        for lsn in found
    ]
    assert min(opened) == 1
    assert max(opened) <= 2
    assert sum(file["num_records"] for file in files) == 20 * len(found)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_a_query_of_one_of_ten_thousand_cycles_opens_at_most_two_files(
    spark: SparkSession, replica_dir: Path
) -> None:
    # By the input files of the queries' own plans.
    database = enabled(replica_dir, {"orders": {}}, index=None)
    sizes = {"join_every": JOIN_EVERY, "most": SMALL_FILES, "target_bytes": JOINED_BYTES}
    found = filled(database, 10_000, **sizes, per_commit=JOIN_EVERY)
    asked = [*found[::500], *found[-JOIN_EVERY * 3 :: 7], found[-1]]
    queries = [cdc.Database(replica_dir).instance(ORDERS).changes(lsn, lsn, ordered=False) for lsn in asked]
    opened = [len(query.inputFiles()) for query in queries]
    assert min(opened) == 1
    assert max(opened) <= 2
    assert [query.count() for query in queries[::10]] == [20] * len(queries[::10])


def test_cleanup_removes_what_replaced_tables_left(replica_dir: Path) -> None:
    kept = {
        "delta.deletedFileRetentionDuration": "interval 7 days",
        "delta.logRetentionDuration": "interval 30 days",
    }
    orders = new_table(replica_dir, "orders", {1: ("a", 1)}, **kept)
    cdc.Database(replica_dir).enable("orders")
    for number in range(14):
        DeltaTable(str(orders)).alter.set_table_properties({"delta.appendOnly": str(number % 2 == 0).lower()})
        assert cdc.Database(replica_dir).capture().cycles == 0
    tables = [
        path.parent for name in ("_cdc", "_logreader") for path in (replica_dir / name).glob("*/_delta_log")
    ]
    assert len(tables) == 10
    for table in tables:
        properties = DeltaTable(str(table)).metadata().configuration
        assert {properties[name] for name in kept} == {"interval 1 days"}, table
    positions = replica_dir / "_logreader" / "log_reader"
    note = replica_dir / "_logreader" / "quiet" / "unused-files.json"
    before = len(list(positions.glob("*.parquet")))
    assert before > 5
    for left in (before, before, 1):
        assert cdc.Database(replica_dir).cleanup().low_water_mark is None
        assert len(list(positions.glob("*.parquet"))) == left
        # Thirteen hours go by.
        noted = json.loads(note.read_text())
        for each in noted.values():
            each["at"] = str(datetime.fromisoformat(each["at"]) - timedelta(hours=13))
        note.write_text(json.dumps(noted))
    assert cdc.Database(replica_dir).capture().cycles == 0
