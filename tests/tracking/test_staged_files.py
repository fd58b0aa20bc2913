"""The contents of staged files, read without Spark."""

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mergerepl.model.article import PublishedArticle
from mergerepl.model.tracking import TrackedTable
from mergerepl.model.tracking_options import Foreign, TrackingKeyType, TrackingOptions
from mergerepl.tracking.carry_out import small_rows
from mergerepl.tracking.staged_rows import bounds_of

TABLE = TrackedTable(
    *("days", TrackingOptions.ALL, TrackingKeyType.PRIMARY_KEY, ("day",), ("date",), "", 0),
    *(Foreign.ADOPT, datetime.now(UTC), None),
)


def test_bounds_are_texts(tmp_path: Path) -> None:
    for number, days in enumerate([[date(1582, 10, 10), date(1971, 1, 1)], [date(2024, 2, 29)]]):
        pq.write_table(pa.table({"__sysKey0": days}), tmp_path / f"part-{number}.parquet")
    assert bounds_of(tmp_path, TABLE) == {"__sysKey0": ("1582-10-10", "2024-02-29")}


def test_few_rows_have_their_actions_and_the_keys_of_deleted_ones(tmp_path: Path) -> None:
    rows = {
        "id": [1, 2, None, None],
        "note": ["new", "changed", None, None],
        "__sysKey0": [1, 2, 3, 4],
        "__sysExisted": [False, True, True, False],
        "__sysPresent": [True, True, False, False],
    }
    pq.write_table(pa.table(rows), tmp_path / "part-0.parquet")
    article = PublishedArticle.of_table("orders", ("id",), {"id": "bigint", "note": "string"})
    found = small_rows(tmp_path, article, ["__sysKey0"])
    assert found.rows.to_pydict() == {
        "c0": [1, 2, 3],
        "c1": ["new", "changed", None],
        "action": ["insert", "update", "delete"],
    }
    assert found.types == {"c0": "bigint", "c1": "string"}
