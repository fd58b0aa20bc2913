"""The contents of staged files, read without Spark."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mergerepl.model.tracking import Foreign, TrackedTable, TrackingKeyType, TrackingOptions
from mergerepl.tracking.staged_rows import bounds_of

TABLE = TrackedTable(
    "days",
    TrackingOptions.ALL,
    TrackingKeyType.PRIMARY_KEY,
    ("day",),
    ("date",),
    "",
    0,
    Foreign.ADOPT,
    datetime.now(UTC),
    None,
)


def test_bounds_are_texts(tmp_path: Path) -> None:
    for number, days in enumerate([[date(1582, 10, 10), date(1971, 1, 1)], [date(2024, 2, 29)]]):
        pq.write_table(pa.table({"__sysKey0": days}), tmp_path / f"part-{number}.parquet")
    assert bounds_of(tmp_path, TABLE) == {"__sysKey0": ("1582-10-10", "2024-02-29")}
