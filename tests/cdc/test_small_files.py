"""A change table of many scan cycles stays in few files, and a query of one cycle opens at most two of them. No Spark."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergerepl.cdc.capture import JOIN_EVERY, JOINED_BYTES, SMALL_FILES
from mergerepl.delta.appended import join_appended_files, may_hold
from mergerepl.delta.plain_files import plain_files
from mergerepl.delta.table import open_table
from mergerepl.store.control import CHECKPOINT_INTERVAL
from mergerepl.systables.cdc import SCAN_CYCLE

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), (SCAN_CYCLE, pa.int64())])


@pytest.mark.parametrize(
    ("cycles", "join_every", "most", "target_bytes"),
    [
        (120, 8, 16, 8192),
        pytest.param(10_000, JOIN_EVERY, SMALL_FILES, JOINED_BYTES, marks=pytest.mark.slow),
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
