"""What many scan cycles leave: few files of a change table, no unused ones, a short log. No Spark."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mergerepl import cdc
from mergerepl.cdc.capture import JOIN_EVERY, JOINED_BYTES, SMALL_FILES
from mergerepl.delta.appended import join_appended_files, may_hold
from mergerepl.delta.plain_files import plain_files
from mergerepl.delta.table import open_table
from mergerepl.store.control import CHECKPOINT_INTERVAL
from mergerepl.systables.cdc import SCAN_CYCLE
from tests.cdc.databases import new_table

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), (SCAN_CYCLE, pa.int64())])


@pytest.mark.parametrize(
    ("cycles", "join_every", "most", "target_bytes"),
    [
        (120, 8, 16, 8192),
        pytest.param(3_000, JOIN_EVERY, SMALL_FILES, JOINED_BYTES, marks=pytest.mark.slow),
    ],
)
def test_one_of_many_cycles_is_in_at_most_two_files(
    tmp_path: Path, cycles: int, join_every: int, most: int, target_bytes: int
) -> None:
    table, joined = tmp_path / "ct", 0
    for cycle in range(1, cycles + 1):
        rows = [{"id": key, "note": f"{cycle}-{key}" * 50, SCAN_CYCLE: cycle} for key in range(20)]
        write_deltalake(
            str(table),
            pa.Table.from_pylist(rows, schema=SCHEMA),
            mode="append",
            configuration={
                "delta.dataSkippingStatsColumns": f"`{SCAN_CYCLE}`",
                "delta.checkpointInterval": CHECKPOINT_INTERVAL,
            },
        )
        if cycle % join_every == 0:
            joined += join_appended_files(table, most=most, target_bytes=target_bytes)
    files = plain_files(open_table(table), bounded=(SCAN_CYCLE,))
    assert files is not None
    assert joined > 3
    assert len(files) < cycles / 4
    opened = [
        sum(may_hold(file, {SCAN_CYCLE: (cycle - 1, cycle)}) for file in files)
        for cycle in range(1, cycles + 1)
    ]
    assert min(opened) == 1
    assert max(opened) <= 2
    assert sum(file["num_records"] for file in files) == 20 * cycles


def test_cleanup_removes_what_replaced_tables_left(replica_dir: Path) -> None:
    kept = {
        "delta.deletedFileRetentionDuration": "interval 7 days",
        "delta.logRetentionDuration": "interval 30 days",
    }
    orders = new_table(replica_dir, "orders", {1: ("a", 1)}, **kept)
    cdc.enable_db(replica_dir)
    cdc.enable_table(replica_dir, "orders")
    for number in range(5):
        DeltaTable(str(orders)).alter.set_table_properties({"delta.appendOnly": str(number % 2 == 0).lower()})
        assert cdc.scan(replica_dir).cycles == 0
    tables = [
        path.parent for name in ("_cdc", "_logreader") for path in (replica_dir / name).glob("*/_delta_log")
    ]
    assert len(tables) == 10
    for table in tables:
        properties = DeltaTable(str(table)).metadata().configuration
        assert {properties[name] for name in kept} == {"interval 1 days"}, table
    positions = replica_dir / "_logreader" / "log_reader"
    assert len(list(positions.glob("*.parquet"))) > 5
    # Two days go by.
    for commit in positions.glob("_delta_log/*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= 2 * 86_400_000
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    assert cdc.cleanup(replica_dir).low_water_mark is None
    assert len(list(positions.glob("*.parquet"))) == 1
    assert cdc.scan(replica_dir).cycles == 0
