"""The contents of staged files, read without Spark."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mergerepl.compact.staged_files import bounds_of
from mergerepl.model.tracking import Foreign, TrackedTable, TrackingKeyType, TrackingOptions

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


@pytest.mark.parametrize(
    ("first", "is_bounded"),
    [(date(1582, 10, 10), False), (date(1582, 10, 24), False), (date(1970, 1, 1), True)],
)
def test_days_that_delta_does_not_find_by_its_bounds_have_none(
    tmp_path: Path, first: date, is_bounded: bool
) -> None:
    pq.write_table(pa.table({"__sysKey0": [first, date(1971, 1, 1)]}), tmp_path / "part.parquet")
    assert bool(bounds_of(tmp_path, TABLE)) is is_bounded
